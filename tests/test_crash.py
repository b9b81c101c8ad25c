"""Killed anywhere, a rerun finishes with the same bytes, and nobody ever saw half a dataset."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import psutil
import pytest

from tests.support.builds import build_arguments, build_warm, command, dataprep, digests
from tests.support.crashes import Reader, kill_often, stop_everywhere

SMALL = ("--num-shards", 3, "--split", "val")
MANY = ("--num-shards", 6)
FORMATS = ("webdataset", "imagefolder", "tfrecord")


def formats(*chosen: str) -> pytest.MarkDecorator:
    """These formats, and the others in the soak. TFRecord shares its path to the disk with WebDataset."""
    marked = [pytest.param(fmt, marks=[pytest.mark.long] * (fmt not in chosen)) for fmt in FORMATS]
    return pytest.mark.parametrize("fmt", marked)


@pytest.fixture(scope="module")
def reference(originals, tmp_path_factory):
    """Digests of a plain build in a format, made when it is first asked for."""

    @cache
    def of(fmt, more):
        output = tmp_path_factory.mktemp("reference") / "out"
        build_warm("imagenet", originals["imagenet"], output, fmt, *more)
        return digests(output)

    return of


@formats("webdataset")
def test_a_build_killed_at_a_commit_boundary_is_finished_by_a_rerun(fmt, originals, reference, tmp_path):
    """Some boundaries: an image folder has at least one for each image. The soak takes all, of all formats."""
    arguments = build_arguments("imagenet", originals["imagenet"], tmp_path / "out", fmt, *SMALL)
    every = {"imagefolder": 24, "webdataset": 40, "tfrecord": 22}[fmt]
    assert stop_everywhere(arguments, tmp_path / "out", reference(fmt, SMALL), every) >= 4


@formats("webdataset")
def test_a_reader_never_sees_a_partial_dataset_of_a_build_that_is_killed_at_random(fmt, originals, reference, tmp_path):
    """One kill of each format; the soak has 120."""
    output = tmp_path / "out"
    expected = reference(fmt, MANY)
    arguments = build_arguments("imagenet", originals["imagenet"], output, fmt, *MANY)
    with Reader(output, expected) as reader:
        kill_often(random.Random(fmt), arguments, output, expected, workers=2, kills=1)
    assert reader.wrong == []


@formats("imagefolder")
def test_a_full_disk_is_a_clear_error_and_no_dataset(fmt, originals, reference, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    arguments = build_arguments("imagenet", originals["imagenet"], disk / "out", fmt, *MANY)
    sizes = (str(1 << 20), str(200 << 20))
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.filling", str(disk), *sizes, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["code"] == 1
    assert "no space left on device" in found["stderr"]
    assert "run the same command again: it continues where it stopped" in found["stderr"]
    warnings = [line for line in found["stderr"].splitlines() if line.startswith("dataprep: warning: ")]
    assert len(warnings) <= 1, "one for the build, and none for each of its shards"
    assert "Traceback" not in found["stderr"]
    assert not found["finished"]
    assert found["again_code"] == 0, found["again_stderr"]
    assert found["digests"] == reference(fmt, MANY)


@formats()
def test_a_build_succeeds_though_one_request_in_ten_fails(fmt, gcs, bucket_url, originals, reference):
    output = f"{bucket_url}/out"
    gcs.set_faults(rate=0.1, seed=1)
    try:
        run = dataprep(*build_arguments("imagenet", originals["imagenet"], output, fmt, *MANY, "--workers", 2))
    finally:
        gcs.set_faults(rate=0.0, seed=0)
    assert "Traceback" not in run.stderr
    assert run.returncode == 0, run.stderr
    assert digests(output) == reference(fmt, MANY)


def _interrupted(arguments: list[object], output: Path, number: signal.Signals) -> tuple[int, str]:
    """Run a build, and send a signal when one shard is done; the exit code, and what was said on stderr."""
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while process.poll() is None and not list(output.glob("_build/*/*/receipts/*")):
        time.sleep(0.02)
    if process.poll() is None:  # Ctrl-C reaches the workers, too
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    _, errors = process.communicate(timeout=800)
    return process.returncode, errors


def test_ctrl_c_while_a_build_imports_its_modules_is_one_line(originals, tmp_path):
    arguments = build_arguments("imagenet", originals["imagenet"], tmp_path / "out", "webdataset", *MANY)
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    watched = psutil.Process(process.pid)
    while not any("msgspec" in each.path for child in watched.children() for each in child.memory_maps()):
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=800)
    # Python ends by the signal, which shells report as 130, if it came within an exec() of the standard library.
    assert process.returncode in (130, -signal.SIGINT), errors
    assert errors.strip().startswith("dataprep: interrupted") and len(errors.split("\n")) <= 3, errors


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_ends_a_build_cleanly_and_a_rerun_continues_it(originals, reference, tmp_path, number, word):
    output = tmp_path / "out"
    arguments = build_arguments("imagenet", originals["imagenet"], output, "webdataset", *MANY, "--workers", 2)
    for _ in range(5):  # on a busy machine a build may end before this process sees its first receipt
        code, errors = _interrupted(arguments, output, number)
        if code != 0:
            break
        shutil.rmtree(output)
    assert code == 128 + number, errors
    assert f"dataprep: {word}; run the same command again to continue\n" in errors
    assert "Traceback" not in errors
    assert build_warm("imagenet", originals["imagenet"], output, "webdataset", *MANY)["shards_built"] < 12
    assert digests(output) == reference("webdataset", MANY)
