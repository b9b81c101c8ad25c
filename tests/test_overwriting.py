"""Builds by the command line that are suspended, killed or overwritten half-way: one whole dataset, and no dead end."""

import json
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from dataprep.demo.make import write_demo
from dataprep.storage import open_storage
from tests.support import stopping
from tests.support.builds import FORMATS, build_arguments, digests
from tests.support.picture_web import laion_arguments, picture_web
from tests.support.stopping import ENDED, Stops

EVERYWHERE = Stops(list(range(1, 2000)), "after", suspend=True)
LONGEST_S = 120


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "coco"
    write_demo("coco", folder, images=12, odd=False)
    return folder


def go_on(running, until=lambda: False):
    """From boundary to boundary, until something holds; to the end by default."""
    while running.wait(LONGEST_S) != ENDED and not until():
        running.send(signal.SIGCONT)
    return running


def kill(running):
    running.send(signal.SIGKILL)
    assert running.wait(LONGEST_S) == ENDED


def receipts(output: Path):
    return list((output / "_build").rglob("receipts/*.parquet"))


def plan_of_build(output: Path):
    pointer = output / "_build/plan.json"
    return json.loads(pointer.read_text())["plan_hash"] if pointer.exists() else None


@pytest.fixture(scope="module")
def alone(source, tmp_path_factory):
    """Digests of a build of TFRecords by itself, with these options."""

    @cache
    def of(*options):
        output = tmp_path_factory.mktemp("alone") / "out"
        run = stopping.run(build_arguments("coco-dup5", source, output, "tfrecord", *options))
        assert run.code == 0, run.stderr
        return digests(output)

    return of


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table whose pictures make four shards."""
    with picture_web() as web:
        yield web.write_table(tmp_path_factory.mktemp("table") / "urls.parquet", 40)


@pytest.mark.parametrize("kind", ["imagefolder", "laion tfrecord"])
def test_a_suspended_build_that_is_overwritten_adds_nothing_to_the_next_dataset(kind, source, table, tmp_path):
    def first_plan(output):
        if kind in FORMATS:
            return build_arguments("coco-dup5", source, output, kind, "--num-shards", 4)
        return laion_arguments(table, output, kind.removeprefix("laion "), "--workers", 1)

    def second_plan(output):
        return [*first_plan(output), *(("--seed", 1) if kind in FORMATS else ("--image-size", 32))]

    output = tmp_path / "out"
    old = go_on(stopping.start(first_plan(output), EVERYWHERE), lambda: len(receipts(output)) == 2)
    overwritten = plan_of_build(output)
    new = stopping.start([*second_plan(output), "--overwrite"], EVERYWHERE)
    go_on(new, lambda: plan_of_build(output) not in (None, overwritten) and receipts(output))
    go_on(old)
    go_on(new)
    assert new.ended().code == 0, new.ended().stderr
    alone = stopping.run(second_plan(tmp_path / "alone"))
    assert alone.code == 0, alone.stderr
    assert digests(output) == digests(tmp_path / "alone")
    assert old.ended().code == 1
    assert "was overtaken" in old.ended().stderr


def start(arguments, stops=EVERYWHERE):
    """Start a build on disk, or in the emulated bucket."""
    in_bucket = any("://" in str(word) for word in arguments)
    return stopping.start(arguments, replace(stops, requests=in_bucket))


@pytest.fixture
def old_dataset(source, storage_url):
    """Arguments of a build at a place where a dataset exists; it has another seed and format."""
    arguments = build_arguments("coco-dup5", source, storage_url, "webdataset")
    assert go_on(start(arguments, Stops())).ended().code == 0
    return build_arguments("coco-dup5", source, storage_url, "tfrecord", "--num-shards", 3, "--overwrite")


def test_two_concurrent_overwrites_leave_one_whole_dataset(old_dataset, alone, storage_url):
    """The first is suspended while it removes files; the second begins, and finishes if it can."""
    storage = open_storage(storage_url)
    runs = [start([*old_dataset, "--seed", 1])]
    go_on(runs[0], lambda: storage.stat("_build/overwriting") and not storage.stat("dataset.json"))
    runs.append(start([*old_dataset, "--seed", 2], Stops()))
    runs[1].wait(3)  # on disk it waits for the first
    ends = [go_on(run).ended() for run in runs]
    expected = [alone("--num-shards", 3, "--seed", seed) for seed in (1, 2)]
    assert digests(storage_url) in expected
    winner = expected.index(digests(storage_url))
    assert ends[winner].code == 0, ends
    assert all(end.code == 0 or end.stderr.startswith("dataprep: ") for end in ends), ends


def test_a_killed_removal_is_finished_by_the_same_command(old_dataset, alone, storage_url):
    storage = open_storage(storage_url)
    kill(go_on(start(old_dataset), lambda: not storage.stat("dataset.json")))
    assert storage.stat("_build/overwriting")
    assert list(storage.list("train/"))
    refused = go_on(start([word for word in old_dataset if word != "--overwrite"], Stops())).ended()
    assert refused.code == 2
    assert "an --overwrite was interrupted there; run it again with --overwrite" in refused.stderr
    again = go_on(start(old_dataset, Stops())).ended()
    assert again.code == 0, again.stderr
    assert digests(storage_url) == alone("--num-shards", 3)
