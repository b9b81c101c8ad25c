"""Samples of a run's images."""

import io
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dataprep.errors import StorageError
from dataprep.storage.local import LocalStorage
from loaders import open_loader
from loaders.config import LoaderConfig
from loaders.dataset import open_dataset
from loaders.diagnosis.observed_run import RunSetup, observe, parse_simulated
from loaders.diagnosis.sample import (
    DISK_SHARDS,
    SPLIT,
    RehearsalSetup,
    Source,
    mean_image_bytes,
    pixels_left,
    places_in,
    sample_streams,
    write_sample,
)


def encoded(kind, width, height):
    out = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(out, kind)
    return out.getvalue()


IMAGES = [encoded("JPEG", 90, 60), encoded("PNG", 60, 90), encoded("WEBP", 70, 70)]


def test_a_sample_is_a_dataset_of_the_unchanged_images(tmp_path):
    url = write_sample(IMAGES, tmp_path / "sample")
    with open_loader(url, SPLIT, batch_size=3, image_size=32, shuffle=False) as loader:
        (batch,) = loader
    assert batch.mask.all()
    assert mean_image_bytes(url) == sum(map(len, IMAGES)) / len(IMAGES)


def test_a_shrunk_sample_leaves_out_images_that_cannot_be_decoded(tmp_path):
    url = write_sample([*IMAGES, b"no image"], tmp_path / "small", short_side=30)
    with open_loader(url, SPLIT, batch_size=1, image_size=30) as loader:
        assert loader.order.num_samples == len(IMAGES)
        assert next(iter(loader)).mask.all()
        entries, storage = loader.index.shard(0), loader.dataset.storage
        places = zip(entries.image_offset.tolist(), entries.image_bytes.tolist(), strict=True)
        images = [storage.read_range(loader.index.file(0, 0), *place) for place in places]
    assert sorted(Image.open(io.BytesIO(image)).size for image in images) == [(30, 30), (30, 45), (45, 30)]
    with pytest.raises(StorageError, match="none of the images could be kept"):
        write_sample([b"no image"], tmp_path / "none", short_side=30)


@pytest.mark.parametrize("is_built", [True, False])
def test_the_index_of_a_sample_knows_what_that_of_the_dataset_knows(tmp_path, is_built):
    """Without the sizes a loader reads every image's header, without checksums it does not check its bytes."""
    url = write_sample([*IMAGES, b"no image"], tmp_path / "sample", is_built=is_built)
    entries = open_dataset(url, SPLIT).open_index(1.0).shard(0)
    assert entries.height.tolist() == ([60, 90, 70, 0] if is_built else [0] * 4)
    assert entries.width.tolist() == ([90, 60, 70, 0] if is_built else [0] * 4)
    assert (entries.image_crc32c is not None) == is_built


def test_a_sample_has_as_many_images_in_a_stream_as_the_split():
    assert sample_streams(192, samples=1000, of_sample=256) == 49
    assert sample_streams(192, samples=1_281_167, of_sample=512) == 1
    assert sample_streams(192, samples=100, of_sample=256) == 192


@given(num_streams=st.integers(1, 1000), samples=st.integers(1, 10**9), of_sample=st.integers(1, 1000))
def test_a_sample_never_has_more_streams_than_the_split_and_no_more_images_in_each(num_streams, samples, of_sample):
    found = sample_streams(num_streams, samples=samples, of_sample=of_sample)
    assert 1 <= found <= num_streams
    exact = num_streams * of_sample / samples
    assert abs(found - exact) <= 0.5 or found == (1 if exact < 1 else num_streams)


@pytest.mark.parametrize("short_side", [30, 60, 66, 70, 200])
def test_the_share_of_pixels_that_are_left_is_that_of_the_shrunk_sample(tmp_path, short_side):
    small = write_sample(IMAGES, tmp_path / "small", short_side)
    entries = open_dataset(small, SPLIT).open_index(1.0).shard(0)
    sizes = zip(entries.width.tolist(), entries.height.tolist(), strict=True)
    expected = sum(width * height for width, height in sizes) / (90 * 60 + 60 * 90 + 70 * 70)
    assert pixels_left([*IMAGES, b"no image"], short_side) == pytest.approx(expected, rel=0.01)
    assert (pixels_left(IMAGES, short_side) == 1.0) == (short_side >= 70)


CONFIG = LoaderConfig(batch_size=4, image_size=32, threads=2, prefetch_batches=2)
FAST = parse_simulated("simulated:1e9")
REHEARSED = 16
DEADLINE_S = 100.0


@pytest.fixture
def sample(dataset, tmp_path) -> str:
    """Some of the images, as files."""
    images = sorted(Path(dataset("imagefolder")).rglob("*.JPEG"))
    return write_sample([path.read_bytes() for path in images[:REHEARSED]], tmp_path / "sample")


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

    assert taken == REHEARSED
    assert REHEARSED <= operations(gcs) - before <= REHEARSED + hedges


def test_images_of_one_block_cost_one_read(sample, far, gcs):
    bucket = far("webdataset", images_per_read=4)
    before = operations(gcs)
    with rehearsed(sample, bucket, shuffle=False, augment=False).open() as loader:
        for _ in loader:
            pass
        hedges = loader.stats()["fetch"]["hedges"]

    # A hedged read of an image that came with another one needs none of its own.
    assert REHEARSED / 4 <= operations(gcs) - before <= REHEARSED / 4 + hedges


LATENCY_S = 0.05


@pytest.fixture
def far_rate(sample, far, set_latency):
    """Images/s of a rehearsed run that reads two images at a time, of LATENCY_S each."""
    bucket = far("webdataset")
    set_latency(LATENCY_S * 1e3)
    return observe(rehearsed(sample, bucket, reads_in_flight=2), FAST, 1.0).images_per_s


def test_a_rehearsed_run_is_as_slow_as_the_buckets_requests(far_rate):
    # Batches that were ready before may come with those of a short run; at once, they would be 50 times as many.
    assert 0 < far_rate < 2 * 2 / LATENCY_S


def test_a_cache_is_filled_by_the_first_epoch_and_read_by_the_next(sample, tmp_path):
    setup = rehearsed(sample, None, cache_dir=str(tmp_path / "cache"), shuffle=False, augment=False)
    with setup.open() as loader:
        epochs = []
        for _ in range(2):
            for _batch in loader:
                pass
            epochs.append(loader.stats()["fetch"])

    assert epochs[0]["cache_hits"] == 0
    assert epochs[1]["cache_hits"] == REHEARSED


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
    assert taken == len(real) == len({read[:3] for read in real}) == REHEARSED
    assert len(reads) == 2 * REHEARSED
    assert len({read[3] for read in real} - {"MainThread"}) == len({read[3] for read in real})


def test_no_read_passes_the_end_of_an_object(far):
    for fmt in ("webdataset", "imagefolder"):
        bucket = far(fmt)
        storage = bucket.dataset.storage
        assert bucket.places
        for file, offset, most_bytes in bucket.places:
            assert offset + most_bytes <= storage.stat(file).num_bytes
            assert most_bytes > 0
