"""Builds that were cut off and whose plan or list of originals is damaged then: the same dataset, or one line."""

import shutil
import signal

import pytest

from dataprep.demo.make import write_demo
from tests.support import stopping
from tests.support.builds import build_arguments, digests
from tests.support.damage import flipped
from tests.support.stopping import ENDED, Stops

EVERYWHERE = Stops(list(range(1, 2000)), "after", suspend=True)
LONGEST_S = 120
DAMAGES = ("a bit", "gone")
"""Files are compared with their CRC32C before anything is read, wherever a bit has changed."""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "coco"
    write_demo("coco", folder, images=12, odd=False)
    return folder


def cut_off(arguments, until):
    """Run a build until something holds, and kill it there."""
    run = stopping.start(arguments, EVERYWHERE)
    while not until():
        assert run.wait(LONGEST_S) != ENDED, run.ended().stderr
        run.send(signal.SIGCONT)
        run.wait(LONGEST_S)
    run.send(signal.SIGKILL)
    assert run.wait(LONGEST_S) == ENDED


def arguments_of(source, output, fmt, *more):
    checks = ("--check", "none") if fmt == "webdataset" else ()
    words = build_arguments("coco-dup5", source, output, fmt, "--num-shards", 4, *checks, *more)
    return [word for word in words if word != "--json"]  # which has these lines among its notes


@pytest.fixture(scope="module")
def half_done(source, tmp_path_factory):
    """By format, a build that was killed when two shards were done, and the digests of a whole one."""

    def made(fmt):
        folder = tmp_path_factory.mktemp(fmt)
        output = folder / "out"
        receipts = "_build/*/*/receipts/*.parquet"
        cut_off(arguments_of(source, output, fmt), lambda: len(list(output.glob(receipts))) == 2)
        assert stopping.run(arguments_of(source, folder / "alone", fmt)).code == 0
        return output, digests(folder / "alone")

    return {fmt: made(fmt) for fmt in ("webdataset", "imagefolder")}


def damage(path, how):
    data = path.read_bytes()
    path.unlink()
    if how == "a bit":
        path.write_bytes(flipped(data, 8 * 40 + 1))


def copied(half_done, fmt, folder):
    output, expected = half_done[fmt]
    shutil.copytree(output, folder / "out", symlinks=True)
    return folder / "out", expected


@pytest.mark.parametrize(
    ("fmt", "how", "more"),
    [("webdataset", "a bit", ()), ("webdataset", "gone", ("--overwrite",)), ("imagefolder", "a bit", ())],
)
def test_a_build_whose_plan_is_damaged_goes_on_and_loses_no_shard(fmt, how, more, half_done, source, tmp_path):
    output, expected = copied(half_done, fmt, tmp_path)
    [plan] = output.glob("_build/*/*/plan.parquet")
    shards = {path: path.stat().st_ino for path in output.glob("*/*.tar")}
    assert fmt == "imagefolder" or len(shards) >= 2
    damage(plan, how)
    run = stopping.run(arguments_of(source, output, fmt, *more))
    assert run.code == 0, run.stderr
    found = "gone" if how == "gone" else "damaged ("
    assert f"warning: {plan} is {found}" in run.stderr
    assert "; it is made again from the originals" in run.stderr
    assert digests(output) == expected
    assert {path: path.stat().st_ino for path in shards} == shards
    assert "continuing: 2 of 4 shards done before" in run.stderr


@pytest.mark.parametrize("how", DAMAGES)
def test_a_build_with_other_options_must_overwrite_one_whose_plan_is_damaged(how, half_done, source, tmp_path):
    output, _ = copied(half_done, "webdataset", tmp_path)
    [plan] = output.glob("_build/*/*/plan.parquet")
    damage(plan, how)
    before = digests(output)
    run = stopping.run(arguments_of(source, output, "webdataset", "--seed", 1))
    assert run.code == 2
    assert "a build with another plan is under way there: --seed" in run.stderr
    assert digests(output) == before
    run = stopping.run(arguments_of(source, output, "webdataset", "--seed", 1, "--overwrite"))
    assert run.code == 0, run.stderr
    assert stopping.run(arguments_of(source, tmp_path / "alone", "webdataset", "--seed", 1)).code == 0
    assert digests(output) == digests(tmp_path / "alone")


def test_images_that_only_a_damaged_plan_names_are_not_overwritten_before_it_is_made_again(half_done, source, tmp_path):
    output, expected = copied(half_done, "imagefolder", tmp_path)
    [plan] = output.glob("_build/*/*/plan.parquet")
    damage(plan, "a bit")
    before = digests(output)
    run = stopping.run(arguments_of(source, output, "imagefolder", "--seed", 1, "--overwrite"))
    assert run.code == 1
    assert run.stderr.strip().splitlines()[-1].startswith(f"dataprep: {plan} is damaged (CRC32C ")
    assert "run the build again with its original options" in run.stderr
    assert {name: each for name, each in digests(output).items() if name in before} == before
    again = stopping.run(arguments_of(source, output, "imagefolder"))
    assert again.code == 0, again.stderr
    assert digests(output) == expected


@pytest.fixture(scope="module")
def listed(source, tmp_path_factory):
    """A build that was killed when its plan was made."""
    output = tmp_path_factory.mktemp("listed") / "out"
    arguments = arguments_of(source, output, "webdataset")
    cut_off(arguments, lambda: list(output.glob("_build/*/*/plan.parquet")))
    return output


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_list_of_originals_is_made_again(how, half_done, listed, source, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(listed, output, symlinks=True)
    arguments = arguments_of(source, output, "webdataset")
    [kept] = output.glob("_build/source-train-*.parquet")
    damage(kept, how)
    run = stopping.run(arguments)
    assert run.code == 0, run.stderr
    assert ("source-train-" in run.stderr and "the originals are listed again" in run.stderr) == (how != "gone")
    assert digests(output) == half_done["webdataset"][1]
