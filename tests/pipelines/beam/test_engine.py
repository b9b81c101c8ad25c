import os
import signal
import subprocess
import time
from pathlib import Path

from tests.support.builds import build_arguments, build_warm, command, dataprep, digests


def test_a_killed_beam_worker_ends_the_run_and_a_rerun_finishes(originals, tmp_path):
    build_warm("coco-dup5", originals["coco"], tmp_path / "reference", "tfrecord", "--num-shards", 8)
    arguments = build_arguments("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord", "--num-shards", 8)
    beam = [*arguments, "--runner", "FnApiRunner", "--workers", 2]
    process = subprocess.Popen(command(*beam), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    worker = wait_for_worker(process)
    os.kill(worker, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
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
