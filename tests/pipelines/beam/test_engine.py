import os
import signal
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from dataprep.errors import BuildError, SourceError, UsageError
from pipelines.protocol import EngineChoice
from tests.support.builds import build_arguments, build_warm, command, dataprep, dataprep_anew, digests, is_finished
from tests.support.on_use import on_use
from tests.support.other_codecs import other_pillow

cause = on_use("pipelines.beam.engine:_cause")
check = on_use("pipelines.beam.engine:check")


@pytest.mark.long
def test_a_killed_beam_worker_ends_the_run_and_a_rerun_finishes(originals, tmp_path):
    build_warm("coco-dup5", originals["coco"], tmp_path / "reference", "tfrecord", "--num-shards", 8)
    arguments = build_arguments("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord", "--num-shards", 8)
    beam = [*arguments, "--runner", "FnApiRunner", "--workers", 2]
    process = subprocess.Popen(command(*beam), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    worker = wait_for_worker(process)
    os.kill(worker, signal.SIGKILL)
    _, errors = process.communicate(timeout=800)
    assert process.returncode == 1
    assert "a worker died" in errors
    assert "Run the same command again: it goes on where it stopped" in errors
    assert "Traceback" not in errors
    again = dataprep(*arguments)
    assert again.returncode == 0, again.stderr
    assert digests(tmp_path / "out") == digests(tmp_path / "reference")


def wait_for_worker(process: subprocess.Popen[str]) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
                parents = lineage(int(path.parent.name))
            except OSError:
                continue
            if b"apache_beam.runners.worker.sdk_worker_main" in words and process.pid in parents:
                return int(path.parent.name)
        time.sleep(0.05)
    raise AssertionError("no Beam worker was started")


def lineage(pid: int) -> list[int]:
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        found.append(pid)
    return found


def test_an_error_of_dataprep_passes_through_beam_unchanged(originals, tmp_path):
    run = dataprep(
        *build_arguments("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord", "--on-bad", "fail"),
        "--runner",
        "FnApiRunner",
        "--workers",
        1,
    )
    assert run.returncode == 1
    assert "expected a valid JPEG (--on-bad fail)" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.long
def test_a_worker_process_with_another_pillow_is_refused_and_names_both_versions(originals, tmp_path):
    words = build_arguments("imagenet", originals["imagenet"], tmp_path / "out", "tfrecord", "--num-shards", 2)
    run = dataprep_anew(*words, "--runner", "FnApiRunner", "--workers", 2, **other_pillow(tmp_path))
    assert run.returncode == 2, run.stderr
    refused = f"this worker has pillow 0.0.1, the plan was made with pillow {version('pillow')}"
    assert run.stderr.splitlines()[-1].startswith(f"dataprep: {refused}")
    assert not is_finished(tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Traceback\n  raise\ndataprep.errors.UsageError: a b [while running 'X/Y']\n\nmore", UsageError("a b")),
        ("failed: Traceback\ndataprep.errors.SourceError: gone", SourceError("gone")),
        ("Traceback\ndataprep.builder.output.OvertakenError: was overtaken", BuildError("was overtaken")),
    ],
)
def test_the_error_of_a_worker_is_found_in_the_text_that_a_service_returns(text, expected):
    found = cause(RuntimeError(text))
    assert (type(found), str(found)) == (type(expected), str(expected))


def test_other_errors_of_a_service_are_shown_in_one_line():
    assert cause(RuntimeError("quota\nexceeded")) == "quota exceeded"


def test_a_job_of_this_machine_cannot_be_left_behind():
    with pytest.raises(UsageError, match="--detach with --runner FnApiRunner: its job ends with this command"):
        check(EngineChoice(runner="FnApiRunner", workers=2, detach=True))
