"""The same originals, options and seed give the same bytes, however and wherever a dataset is built."""

import os
import random
import shutil
from functools import cache
from pathlib import Path

import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.formats import FORMATS
from dataprep.storage import open_storage
from tests.support.adoption import upload
from tests.support.builds import FORMATS as FORMAT_NAMES
from tests.support.builds import build, build_arguments, build_warm, digests, is_finished
from tests.support.crashes import kill_often

DATASETS = {
    "coco-dup5": "coco",
    "imagenet": "imagenet",
    "folder": "pets",
    "table": "dogs",
    "coco": "coco-annotated",
}
SHARDS = ("--num-shards", 5)
FORMAT_OF = {dataset: FORMAT_NAMES[position % len(FORMAT_NAMES)] for position, dataset in enumerate(DATASETS)}
"""Every dataset in one format; `make soak SHOW=same-bytes` takes all pairs, in all the ways below."""


def each_of(*datasets: str, long: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Datasets that `make test` has, and those that it leaves to the soak."""
    pairs = [(dataset, FORMAT_OF[dataset]) for dataset in datasets + long]
    marked = [pytest.param(pair, marks=[pytest.mark.long] * (pair[0] in long), id="-".join(pair)) for pair in pairs]
    return pytest.mark.parametrize("reference", marked, indirect=True)


@pytest.fixture(scope="module")
def plainly_built(originals, tmp_path_factory):
    """One plain build of a dataset in a format, made when it is first asked for: what it printed, and where it is."""

    @cache
    def of(dataset, fmt):
        output = tmp_path_factory.mktemp("reference") / "out"
        return build_warm(dataset, originals[DATASETS[dataset]], output, fmt, *SHARDS, "--workers", 1), output

    return of


@pytest.fixture(scope="module")
def reference(request, originals, plainly_built):
    """A plain build and its digests."""
    dataset, fmt = request.param
    _, output = plainly_built(dataset, fmt)
    return dataset, fmt, originals[DATASETS[dataset]], output, digests(output)


@each_of(long=("table",))
def test_beam_gives_the_same_bytes(reference, tmp_path):
    """The workers take ten seconds to start; tests/pipelines has another pair."""
    dataset, fmt, source, _, expected = reference
    build(dataset, source, tmp_path / "out", fmt, *SHARDS, "--workers", 2, "--runner", "FnApiRunner")
    assert digests(tmp_path / "out") == expected


@each_of("coco", long=("coco-dup5", "table"))
def test_a_build_between_buckets_gives_the_same_bytes(reference, bucket_url):
    dataset, fmt, source, _, expected = reference
    build(dataset, upload(source, f"{bucket_url}/originals"), f"{bucket_url}/out", fmt, *SHARDS, "--workers", 2)
    assert digests(f"{bucket_url}/out") == expected


@each_of("coco-dup5", "table", long=("imagenet", "folder", "coco"))
def test_other_workers_and_originals_elsewhere_with_other_times_give_the_same_bytes(reference, tmp_path):
    """Four workers, where the reference has one; the tests around and test_crash.py have two."""
    dataset, fmt, source, _, expected = reference
    moved = tmp_path / "somewhere else" / "originals"
    shutil.copytree(source, moved)
    for path in moved.rglob("*"):
        os.utime(path, (10**9, 10**9))
    build(dataset, moved, tmp_path / "out", fmt, *SHARDS, "--workers", 4)
    assert digests(tmp_path / "out") == expected


@each_of("folder", long=("table", "coco"))
def test_a_build_killed_and_resumed_gives_the_same_bytes(reference, tmp_path):
    """The others: test_crash.py."""
    dataset, fmt, source, _, expected = reference
    arguments = build_arguments(dataset, source, tmp_path / "out", fmt, *SHARDS)
    rng = random.Random(f"{dataset}/{fmt}")
    kill_often(rng, arguments, tmp_path / "out", expected, workers=2, kills=1)
    assert is_finished(tmp_path / "out")


@each_of("folder", "table", long=("coco-dup5", "imagenet", "coco"))
def test_a_second_run_changes_no_file(reference):
    dataset, fmt, source, output, expected = reference
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    assert build_warm(dataset, source, output, fmt, *SHARDS)["shards_built"] == 0
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*") if path != output} == before
    assert digests(output) == expected


def test_tar_and_tfrecord_hold_the_same_samples_at_the_same_places(plainly_built):
    rows = {}
    for fmt in ("webdataset", "tfrecord"):
        _, output = plainly_built("coco", fmt)
        rows[fmt] = samples(output, fmt)
    assert rows["webdataset"] == rows["tfrecord"]
    assert sum(len(shard) for shard in rows["webdataset"]) > 50


def samples(output: Path, fmt: str):
    manifest = read_manifest(open_storage(str(output)))
    pattern = "train/*.tar" if fmt == "webdataset" else "*-train.tfrecord-*"
    shards = []
    for path in sorted(output.glob(pattern)):
        with path.open("rb") as stream:
            read = FORMATS[fmt].read_shard(stream, classes=manifest.classes, features=manifest.features)
            shards.append([found.sample for found in read])
    return shards


@pytest.mark.parametrize("fmt", [pytest.param("webdataset", marks=pytest.mark.long), "imagefolder"])
def test_physical_repeats_have_the_same_bytes_for_any_number_of_workers(fmt, originals, tmp_path):
    """The soak has TFRecord, too, which shares its path with WebDataset."""
    for workers in (1, 3):
        output = tmp_path / str(workers)
        build("coco-dup5", originals["coco"], output, fmt, "--repeat", "physical", "--workers", workers)
    assert digests(tmp_path / "1") == digests(tmp_path / "3")
