"""`dataprep tpu setup`, `copy` and `profile`: files to the workers and traces from them, over real processes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from dataprep.cloud.tpu.fleet import worker_program
from dataprep.cloud.tpu.worker import REPLY
from dataprep.errors import StorageError, UsageError
from tests.support.tpu import QUICK, tpu


@pytest.fixture
def code(tmp_path) -> Path:
    folder = tmp_path / "project"
    (folder / "train").mkdir(parents=True)
    (folder / "train/__init__.py").touch()
    (folder / "train/hello.py").write_text("import sys; print('hello', sys.prefix)\n")
    return folder


@pytest.fixture
def pins(tmp_path, pod) -> Path:
    """No packages at all, and the real uv."""
    (pod.folder / "bin/uv").symlink_to(Path(sys.executable).with_name("uv"))
    path = tmp_path / "pins.txt"
    path.write_text("# none\n")
    return path


@pytest.fixture
def quick_pins(tmp_path, pod) -> Path:
    """The same with a uv that makes an empty folder."""
    (pod.folder / "bin/uv").write_text('#!/bin/sh\nfor last; do :; done\n[ "$1" = pip ] || mkdir -p "$last"\n')
    (pod.folder / "bin/uv").chmod(0o755)
    (tmp_path / "pins.txt").touch()
    return tmp_path / "pins.txt"


def test_setup_stages_code_and_its_environment_over_dropped_connections(pod, code, pins):
    for action in ("unpack", "environment", "prepare"):
        pod.drop(f" {action}", how="during", worker=0)
        pod.drop(f" {action}", how="after", worker=1)
    options = ("--code", str(code), "--requirements", str(pins), "--python", sys.executable)
    shown = tpu("setup", *options).stdout
    assert re.fullmatch(r"2 files in ~/\.dataprep/code/project-\w{12} on 2 workers, with pins\n", shown)
    staged = (pod.home() / ".dataprep/current").resolve()
    made = (staged / ".venv/dataprep-complete").stat().st_mtime_ns
    result = tpu("run", "--run", "r", *QUICK, "--", "python", "-m", "train.hello")
    assert result.stdout == f"hello {staged}/.venv\n"
    tpu("setup", *options)
    assert (staged / ".venv/dataprep-complete").stat().st_mtime_ns == made  # nothing to do
    other = str(Path(sys.executable).resolve())  # the Python of which this environment was made
    tpu("setup", *options[:-1], other)
    assert (staged / ".venv/dataprep-complete").stat().st_mtime_ns > made
    assert all((pod.root(worker) / "tmp/tpu_logs").stat().st_mode & 0o777 == 0o777 for worker in range(2))


def test_setup_of_changed_code_leaves_what_a_run_may_still_use(pod, code, quick_pins):
    options = ("--code", str(code), "--requirements", str(quick_pins))
    tpu("setup", *options)
    first = (pod.home() / ".dataprep/current").resolve()
    (code / "train/hello.py").write_text("print('changed')\n")
    tpu("setup", *options)
    assert (pod.home() / ".dataprep/current/train/hello.py").read_text() == "print('changed')\n"
    assert (first / "train/hello.py").read_text().startswith("import sys")


def test_setup_refuses_code_that_was_damaged_on_its_way(pod, code, quick_pins):
    gcloud = pod.folder / "bin/gcloud"
    damage = f'for f in {pod.home(1)}/.dataprep-project*.gz; do [ -e "$f" ] && echo x >> "$f"; done'
    gcloud.write_text(gcloud.read_text().replace("exec ", "") + f"code=$?\n{damage}\nexit $code\n")
    with pytest.raises(StorageError, match=r"stage code: worker 1: .* has sha256 \w+, expected \w+; run setup again"):
        tpu("setup", "--code", str(code), "--requirements", str(quick_pins))


def test_setup_mounts_and_repairs_shares(pod, code, quick_pins, tmp_path):
    target = tmp_path / "mnt"
    for worker, mounts in enumerate(["", f"10.0.0.2:/vol1 {target} nfs rw 0 0\n"]):
        (pod.root(worker) / "proc/mounts").write_text(mounts)
    (pod.home(0) / "mount-fails").write_text("1\n")
    options = ("--code", str(code), "--requirements", str(quick_pins))
    target.mkdir()
    result = tpu("setup", "--nfs", f"10.0.0.2:/vol1={target}", *options)
    assert f"{target}: mounted on worker 0\n" in result.stderr
    (pod.root(1) / "proc/mounts").write_text(f"10.9.9.9:/other {target} nfs rw 0 0\n")
    with pytest.raises(
        StorageError, match=f"worker 1: {target} is 10.9.9.9:/other, expected 10.0.0.2:/vol1; unmount it"
    ):
        tpu("setup", "--nfs", f"10.0.0.2:/vol1={target}", *options)


def test_copy_takes_a_folder_to_all_workers(pod, code):
    tpu("copy", str(code), "given")
    tpu("copy", str(code / "train/hello.py"), "hello.py")
    for worker in range(2):
        assert (pod.home(worker) / "given/train/hello.py").exists()
        assert (pod.home(worker) / "hello.py").exists()
    with pytest.raises(StorageError, match="No such file or directory"):
        tpu("copy", str(code), "nowhere/given")


def test_profile_makes_one_run_of_all_workers(pod):
    for worker in range(2):
        folder = pod.home(worker) / f"logs/plugins/profile/2026_11_21_12_00_0{worker}"
        folder.mkdir(parents=True)
        (folder / f"t1v-n-w-{worker}.xplane.pb").write_bytes(bytes([worker]) * 10)
        (pod.home(worker) / "logs/checkpoint.pth").write_bytes(b"large")
    result = tpu("profile", "logs", "traces")
    assert result.stdout == "2 traces of 2 workers in traces: 2026_11_21_12_00_00\n"
    run = Path("traces/plugins/profile/2026_11_21_12_00_00")
    assert {path.name: path.read_bytes()[0] for path in run.iterdir()} == {
        f"t1v-n-w-{w}.xplane.pb": w for w in range(2)
    }
    with pytest.raises(UsageError, match="no traces on any worker; train with --profile_steps A:B"):
        tpu("profile", "empty", "traces")
    with pytest.raises(UsageError, match="traces in a bucket are in one place already"):
        tpu("profile", "gs://bucket/logs", "traces")


def test_a_worker_cannot_choose_where_its_traces_go(pod):
    path = "../../out/2026_11_21_12_00_00/x.xplane.pb"
    answer = {"folder": str(pod.home(1)), "files": {path: 1}}
    program = f"print({REPLY + json.dumps(answer)!r})"
    for worker in range(2):
        (pod.home(worker) / worker_program()[1]).write_text(program)
    with pytest.raises(UsageError, match=f"object name '{path}' must be relative"):
        tpu("profile", "logs", "traces")
    assert not Path("traces").exists()
