"""A sample that comes as from a bucket: what is read for it, how fast, and out of a cache."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep.storage.local import LocalStorage
from loaders.config import LoaderConfig
from loaders.diagnosis.devices import parse_simulated
from loaders.diagnosis.observed_run import RunSetup, observe
from loaders.diagnosis.rehearsal import DISK_SHARDS, RehearsalSetup, Source, places_in
from loaders.diagnosis.sample import SPLIT, write_sample

CONFIG = LoaderConfig(batch_size=4, image_size=32, threads=2, prefetch_batches=2)
FAST = parse_simulated("simulated:1e9")
IMAGES = 16
DEADLINE_S = 100.0


@pytest.fixture
def sample(dataset, tmp_path) -> str:
    """Some of the images, as files."""
    images = sorted(Path(dataset("imagefolder")).rglob("*.JPEG"))
    return write_sample([path.read_bytes() for path in images[:IMAGES]], tmp_path / "sample")


@pytest.fixture
def far(bucket_dataset):
    """The dataset in a bucket from which as much is read."""

    def of(fmt: str, images_per_read: int = 1) -> Source:
        with RunSetup(url=bucket_dataset(fmt), split=SPLIT, config=CONFIG).open() as loader:
            return Source(loader.dataset, places_in(loader.dataset, loader.index), DEADLINE_S, images_per_read)

    return of


def rehearsed(sample: str, source: Source | None, **settings) -> RehearsalSetup:
    return RehearsalSetup(
        url=sample, split=SPLIT, config=replace(CONFIG, **settings), transfer_ahead=0, source=source, reads_in_flight=4
    )


def operations(gcs) -> int:
    return gcs.stats()["operations"]["B"]


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord", "imagefolder"])
def test_each_image_of_the_sample_costs_one_read_of_the_bucket(sample, far, gcs, fmt):
    bucket = far(fmt)
    before = operations(gcs)
    with rehearsed(sample, bucket, shuffle=False, augment=False).open() as loader:
        taken = sum(int(batch.mask.sum()) for batch in loader)
        hedges = loader.stats()["fetch"]["hedges"]  # on a busy machine a read may be slow

    assert taken == IMAGES
    assert IMAGES <= operations(gcs) - before <= IMAGES + hedges


def test_images_of_one_block_cost_one_read(sample, far, gcs):
    bucket = far("webdataset", images_per_read=4)
    before = operations(gcs)
    with rehearsed(sample, bucket, shuffle=False, augment=False).open() as loader:
        for _ in loader:
            pass
        hedges = loader.stats()["fetch"]["hedges"]

    # A hedged read of an image that came with another one needs none of its own.
    assert IMAGES / 4 <= operations(gcs) - before <= IMAGES / 4 + hedges


def test_worker_processes_read_as_many_bytes_as_threads(sample, far, gcs):
    bucket = far("webdataset")
    before = operations(gcs)
    with rehearsed(sample, bucket, shuffle=False, augment=False, processes=2).open() as loader:
        taken = sum(int(batch.mask.sum()) for batch in loader)
        hedges = loader.stats()["fetch"]["hedges"]  # a process that has just started is slow to read

    assert taken == IMAGES
    assert IMAGES <= operations(gcs) - before <= IMAGES + hedges


LATENCY_S = 0.05


@pytest.fixture
def far_rate(sample, far, gcs):
    """Images/s of a rehearsed run that reads two images at a time, of LATENCY_S each."""
    bucket = far("webdataset")
    gcs.set_latency(LATENCY_S * 1e3)
    try:
        return observe(rehearsed(sample, bucket, reads_in_flight=2), FAST, 1.0).images_per_s
    finally:
        gcs.set_latency(0)


def test_a_rehearsed_run_is_as_slow_as_the_buckets_requests(far_rate):
    # Batches that were ready before may come with those of a short run; at once, they would be 50 times as many.
    assert 0 < far_rate < 2 * 2 / LATENCY_S


@pytest.mark.long
def test_a_rehearsed_run_is_no_slower_than_the_buckets_requests(far_rate):
    assert 0.5 * 2 / LATENCY_S < far_rate < 2 / LATENCY_S


def test_a_cache_is_filled_by_the_first_epoch_and_read_by_the_next(sample, tmp_path):
    setup = rehearsed(sample, None, cache_dir=str(tmp_path / "cache"), shuffle=False, augment=False)
    with setup.open() as loader:
        epochs = []
        for _ in range(2):
            for _batch in loader:
                pass
            epochs.append(loader.stats()["fetch"])

    assert epochs[0]["cache_hits"] == 0
    assert epochs[1]["cache_hits"] == IMAGES


@pytest.mark.parametrize("fmt", ["webdataset", "imagefolder"])
def test_a_disk_is_read_as_often_as_a_bucket_and_by_the_threads_that_decode(sample, dataset, fmt, monkeypatch):
    """A place is read again only when all others were: what is read twice comes from the page cache."""
    with RunSetup(url=str(dataset(fmt)), split=SPLIT, config=CONFIG).open() as loader:
        disk = Source(loader.dataset, places_in(loader.dataset, loader.index, shards=DISK_SHARDS), DEADLINE_S)
        images = loader.order.num_samples
    assert len(set(disk.places)) == len(disk.places) == images
    reads, read_range = [], LocalStorage.read_range

    def counted(storage, name, offset, num_bytes):
        reads.append((storage.url, name, offset, threading.current_thread().name))
        return read_range(storage, name, offset, num_bytes)

    monkeypatch.setattr(LocalStorage, "read_range", counted)
    with rehearsed(sample, disk, shuffle=False, augment=False).open() as loader:
        assert loader.dataset.is_local
        taken = sum(int(batch.mask.sum()) for batch in loader)

    real = [read for read in reads if read[0] == disk.dataset.storage.url]
    assert taken == len(real) == len({read[:3] for read in real}) == IMAGES
    assert len(reads) == 2 * IMAGES
    assert len({read[3] for read in real} - {"MainThread"}) == len({read[3] for read in real})


def test_no_read_passes_the_end_of_an_object(far):
    for fmt in ("webdataset", "imagefolder"):
        bucket = far(fmt)
        storage = bucket.dataset.storage
        assert bucket.places
        for file, offset, most_bytes in bucket.places:
            assert offset + most_bytes <= storage.stat(file).num_bytes
            assert most_bytes > 0
