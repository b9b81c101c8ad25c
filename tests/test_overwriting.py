"""Builds by the command line that are suspended, killed or overwritten half-way: one whole dataset, and no dead end."""

import json
import os
import shutil
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from dataprep.demo.make import write_demo
from dataprep.storage import open_storage
from tests.support.builds import FORMATS, build_arguments, dataprep_anew, digests
from tests.support.other_codecs import other_pillow
from tests.support.picture_web import laion_arguments, picture_web
from tests.support.stopping import ENDED, Stops, shared_stopper

EVERYWHERE = Stops(list(range(1, 2000)), "after", suspend=True)
LONGEST_S = 120


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Originals by the name of what is built of them."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("coco", "imagenet"):
        write_demo(name, folder / name, images=12, odd=False)
    return {"coco-dup5": folder / "coco", "imagenet": folder / "imagenet"}


@pytest.fixture(scope="module")
def stopper():
    return shared_stopper()


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


def whole(stopper, *arguments):
    run = stopper.run(build_arguments(*arguments))
    assert run.code == 0, run.stderr
    return digests(arguments[2])


@pytest.fixture(scope="module")
def alone(stopper, sources, tmp_path_factory):
    """Digests of a build of TFRecords by itself, with these options."""

    @cache
    def of(*options):
        return whole(
            stopper, "coco-dup5", sources["coco-dup5"], tmp_path_factory.mktemp("alone") / "out", "tfrecord", *options
        )

    return of


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table whose pictures make four shards."""
    with picture_web() as web:
        yield web.write_table(tmp_path_factory.mktemp("table") / "urls.parquet", 40)


@pytest.mark.parametrize("kind", ["webdataset", "imagefolder", "laion tfrecord"])
def test_a_suspended_build_that_is_overwritten_adds_nothing_to_the_next_dataset(
    kind, stopper, sources, table, tmp_path
):
    def first_plan(output):
        if kind in FORMATS:
            return build_arguments("coco-dup5", sources["coco-dup5"], output, kind, "--num-shards", 4)
        return laion_arguments(table, output, kind.removeprefix("laion "), "--workers", 1)

    def second_plan(output):
        return [*first_plan(output), *(("--seed", 1) if kind in FORMATS else ("--image-size", 32))]

    output = tmp_path / "out"
    old = go_on(stopper.start(first_plan(output), EVERYWHERE), lambda: len(receipts(output)) == 2)
    overwritten = plan_of_build(output)
    new = stopper.start([*second_plan(output), "--overwrite"], EVERYWHERE)
    go_on(new, lambda: plan_of_build(output) not in (None, overwritten) and receipts(output))
    go_on(old)
    go_on(new)
    assert new.ended().code == 0, new.ended().stderr
    alone = stopper.run(second_plan(tmp_path / "alone"))
    assert alone.code == 0, alone.stderr
    assert digests(output) == digests(tmp_path / "alone")
    assert old.ended().code == 1
    assert "was overtaken" in old.ended().stderr


def start(stopper, arguments, stops=EVERYWHERE):
    """Start a build on disk, or in the emulated bucket."""
    in_bucket = any("://" in str(word) for word in arguments)
    environment = {"STORAGE_EMULATOR_HOST": os.environ["STORAGE_EMULATOR_HOST"]} if in_bucket else {}
    return stopper.start(arguments, replace(stops, requests=in_bucket), environment)


@pytest.fixture
def old_dataset(stopper, sources, storage_url):
    """Arguments of a build at a place where a dataset exists; it has another seed and format."""
    arguments = build_arguments("coco-dup5", sources["coco-dup5"], storage_url, "webdataset")
    assert go_on(start(stopper, arguments, Stops())).ended().code == 0
    return build_arguments("coco-dup5", sources["coco-dup5"], storage_url, "tfrecord", "--num-shards", 3, "--overwrite")


def test_two_concurrent_overwrites_leave_one_whole_dataset(old_dataset, alone, storage_url, stopper):
    """The first is suspended while it removes files; the second begins, and finishes if it can."""
    storage = open_storage(storage_url)
    runs = [start(stopper, [*old_dataset, "--seed", 1])]
    go_on(runs[0], lambda: storage.stat("_build/overwriting") and not storage.stat("dataset.json"))
    runs.append(start(stopper, [*old_dataset, "--seed", 2], Stops()))
    runs[1].wait(3)  # on disk it waits for the first
    ends = [go_on(run).ended() for run in runs]
    expected = [alone("--num-shards", 3, "--seed", seed) for seed in (1, 2)]
    assert digests(storage_url) in expected
    winner = expected.index(digests(storage_url))
    assert ends[winner].code == 0, ends
    assert all(end.code == 0 or end.stderr.startswith("dataprep: ") for end in ends), ends


def test_a_killed_removal_is_finished_by_the_same_command(old_dataset, alone, storage_url, stopper):
    storage = open_storage(storage_url)
    kill(go_on(start(stopper, old_dataset), lambda: not storage.stat("dataset.json")))
    assert storage.stat("_build/overwriting")
    assert list(storage.list("train/"))
    refused = go_on(start(stopper, [word for word in old_dataset if word != "--overwrite"], Stops())).ended()
    assert refused.code == 2
    assert "an --overwrite was interrupted there; run it again with --overwrite" in refused.stderr
    again = go_on(start(stopper, old_dataset, Stops())).ended()
    assert again.code == 0, again.stderr
    assert digests(storage_url) == alone("--num-shards", 3)


def test_overwriting_leaves_adopted_originals(stopper, sources, tmp_path):
    mine = tmp_path / "mine"
    whole(stopper, "imagenet", sources["imagenet"], tmp_path / "built", "imagefolder")
    for split in ("train", "val"):
        shutil.copytree(tmp_path / "built" / split, mine / split)
    assert stopper.run(["adopt", mine]).code == 0
    before = digests(mine)
    run = stopper.run(build_arguments("imagenet", sources["imagenet"], mine, "webdataset", "--overwrite"))
    assert digests(mine) == before
    assert run.code == 2
    assert "your own originals" in run.stderr


def test_overwriting_leaves_files_that_are_not_part_of_the_dataset(stopper, sources, tmp_path):
    """A file that readers would treat as part of the dataset stays as well, but ends the build, which names it."""
    output, alone = tmp_path / "out", tmp_path / "alone"
    whole(stopper, "coco-dup5", sources["coco-dup5"], output, "webdataset")
    unread = ("notes/run1/my.labels.txt", "notes/run1/x.tfrecord-00000-of-00001", "mine.txt")
    read = ("images/mine.jpg", "val/mine.txt")
    for name in (*unread, *read):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text("precious")
    arguments = ("coco-dup5", sources["coco-dup5"], output, "webdataset", "--seed", 5)
    run = stopper.run(build_arguments(*arguments, "--overwrite"))
    assert run.code == 1, run.stderr
    assert "2 files there that readers would treat as part of the dataset" in run.stderr
    assert f"{', '.join(read)}; move them away and run the same command again" in run.stderr
    assert not (output / "dataset.json").exists()
    assert {(output / name).read_text() for name in (*unread, *read)} == {"precious"}
    for name in read:
        (output / name).unlink()
    found = whole(stopper, *arguments, "--overwrite")
    assert {(output / name).read_text() for name in unread} == {"precious"}
    expected = whole(stopper, *arguments[:2], alone, *arguments[3:])
    assert {name: digest for name, digest in found.items() if name not in unread} == expected


def test_overwriting_leaves_a_source_inside_the_output(stopper, sources, tmp_path):
    output = tmp_path / "out"
    whole(stopper, "coco-dup5", sources["coco-dup5"], output, "webdataset")
    shutil.copytree(sources["coco-dup5"], output / "images")
    before = digests(output)
    arguments = build_arguments("coco-dup5", output / "images", output, "webdataset", "--seed", 5, "--overwrite")
    run = stopper.run(arguments)
    assert digests(output) == before
    assert run.code == 2
    assert "are inside one another" in run.stderr


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_a_build_killed_before_its_plan_exists_may_continue_with_other_options(more, stopper, sources, alone, tmp_path):
    output = tmp_path / "out"
    arguments = build_arguments("coco-dup5", sources["coco-dup5"], output, "tfrecord")
    run = go_on(stopper.start(arguments, EVERYWHERE), lambda: list((output / "_build").rglob("plan.parquet")))
    assert not (output / "_build/plan.json").exists()
    kill(run)
    found = whole(stopper, "coco-dup5", sources["coco-dup5"], output, "tfrecord", "--seed", 1, *more)
    assert found == alone("--seed", 1)


def test_a_worker_with_another_pillow_ends_the_build_and_names_both(sources, tmp_path):
    arguments = build_arguments("coco-dup5", sources["coco-dup5"], tmp_path / "out", "webdataset", "--workers", 1)
    run = dataprep_anew(*arguments, **other_pillow(tmp_path))
    assert run.returncode == 2, run.stderr
    assert "this worker has pillow 0.0.1, but the plan was made with pillow " in run.stderr
