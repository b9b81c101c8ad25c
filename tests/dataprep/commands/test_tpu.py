"""`dataprep tpu` over real processes: what is started once, what is ended, and what is left alone."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dataprep.cloud.tpu.fleet import worker_program
from dataprep.commands.tpu import command
from dataprep.errors import AccessError, DataprepError, StorageError, UndecidedError, UsageError
from tests.support.fake_gcloud import FakeCloud, fake_gcloud

ZONE = ("--zone", "us-central2-b")
QUICK = ("--poll-s", "0.3")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone sees all processes")
HOLDER = "import sys, time; file = open(sys.argv[1]); print('held', flush=True); time.sleep(60)"


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with fake_gcloud(tmp_path / "cloud", monkeypatch) as cloud:
        yield cloud


@pytest.fixture
def pod(cloud) -> FakeCloud:
    """Two workers that have the program: `test_a_fresh_worker_gets_the_worker_program` shows how it is copied."""
    cloud.add_tpu("my-tpu", workers=2, acceleratorType="v4-16")
    source, name = worker_program()
    for worker in range(2):
        (cloud.home(worker) / name).write_bytes(source.read_bytes())
    return cloud


def tpu(*words: str, input: str | None = None) -> Result:
    """A command that may fail in its own way; expected errors are raised."""
    action, *rest = words
    result = CliRunner().invoke(command, [action, "my-tpu", *ZONE, *rest], input=input)
    if isinstance(result.exception, DataprepError) or (
        result.exception and not isinstance(result.exception, SystemExit)
    ):
        raise result.exception
    return result


def starts(cloud: FakeCloud, worker: int) -> list[str]:
    """A line for every time that the program of `counting` began."""
    path = cloud.home(worker) / "starts"
    return path.read_text().splitlines() if path.exists() else []


def counting(then: str = "") -> list[str]:
    return ["sh", "-c", f'echo $$ >> "$HOME/starts"; {then}']


def wait_for(condition, timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def holder(pod):
    """A process that holds a chip of worker 1, and is of no run."""
    device = pod.root(1) / "dev/accel0"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(device)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_fresh_worker_gets_the_worker_program(cloud):
    cloud.add_tpu("my-tpu", workers=2)
    assert tpu("status").exit_code == 0
    assert len(cloud.calls("tpu-vm scp")) == 1
    assert tpu("status").exit_code == 0
    assert len(cloud.calls("tpu-vm scp")) == 1
    _, name = worker_program()
    (cloud.home(1) / name).unlink()
    assert json.loads(tpu("status", "--json").stdout)["by_worker"]["1"]["runs"] == {}
    assert len(cloud.calls("tpu-vm scp")) == 2


# run


def test_run_starts_on_every_worker_follows_and_collects(pod):
    result = tpu(
        "run", "--run", "first", *QUICK, "--env", "WORD=two words", "--", *counting('echo "$PJRT_DEVICE $WORD"')
    )
    assert result.exit_code == 0, result.output
    assert result.stdout == "TPU two words\n"
    assert [len(starts(pod, worker)) for worker in range(2)] == [1, 1]
    logs = sorted(Path("logs/my-tpu/first").iterdir())
    assert [path.name for path in logs] == ["worker-00.log", "worker-01.log"]
    assert {path.read_text() for path in logs} == {"TPU two words\n"}


SECRET = "s3cret-of-the-user"


@pytest.mark.parametrize("given", [f"TOKEN={SECRET}", "TOKEN"])
def test_values_of_variables_are_in_no_argument_no_output_and_no_file_that_others_read(pod, monkeypatch, given):
    monkeypatch.setenv("TOKEN", SECRET)
    shown = tpu("run", "--dry-run", "--run", "r", "--env", given, "--", "true")
    result = tpu("run", "--run", "r", *QUICK, "--env", given, "--", *counting("sleep 1"))
    status = tpu("status", "--json")
    assert result.exit_code == 0, result.output
    for said in (shown, result, status):
        assert SECRET not in said.output
        assert SECRET not in said.stderr
    assert SECRET not in json.dumps(pod.calls())
    holding = [path for path in pod.folder.rglob("*") if path.is_file() and SECRET in path.read_text(errors="replace")]
    assert [path.name for path in holding] == ["command.json"] * 2
    for path in holding:
        assert path.stat().st_mode & 0o777 == 0o600
        assert any(folder.stat().st_mode & 0o777 == 0o700 for folder in path.parents[:3])
    assert not [path for path in Path().rglob("*") if path.is_file() and SECRET in path.read_text()]


def test_the_command_gets_the_values_of_its_variables(pod, monkeypatch):
    monkeypatch.setenv("TOKEN", SECRET)
    result = tpu("run", "--run", "r", *QUICK, "--env", "TOKEN", "--env", "A=b=c", "--", "sh", "-c", 'echo "$TOKEN $A"')
    assert result.stdout == f"{SECRET} b=c\n"


@pytest.mark.parametrize("how", ["before", "during", "after"])
def test_values_of_variables_arrive_over_connections_that_drop(pod, how):
    pod.drop(" start ", how=how, worker=1)
    result = tpu("run", "--run", "r", *QUICK, "--env", f"KEY={SECRET}", "--", *counting('echo "$KEY"'))
    assert result.exit_code == 0, result.output
    assert [len(starts(pod, worker)) for worker in range(2)] == [1, 1]
    assert Path("logs/my-tpu/r/worker-01.log").read_text() == f"{SECRET}\n"


@pytest.mark.parametrize("text", [f"MY-KEY={SECRET}", SECRET, f"={SECRET}", f"{SECRET}=", "NOT_SET_ANYWHERE"])
def test_a_malformed_variable_is_refused_and_not_printed(pod, text):
    with pytest.raises(UsageError, match=r"^--env: a (value|KEY) .* give ") as refused:
        tpu("run", "--run", "r", "--env", text, "--", "true")
    assert text not in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_run_with_other_variables_is_another_run_and_none_of_them_is_shown(pod):
    tpu("run", "--run", "r", *QUICK, "--env", "KEY=other", "--", "true")
    with pytest.raises(UsageError, match="run r had other variables; choose another --run, or") as refused:
        tpu("run", "--run", "r", *QUICK, "--env", f"KEY={SECRET}", "--", "true")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("how", ["during", "after"])
def test_a_dropped_connection_starts_nothing_twice(pod, how):
    for worker in range(2):
        pod.drop(" start ", how=how, worker=worker, times=3)
    result = tpu("run", "--run", "dropped", *QUICK, "--", *counting("sleep 0.5; echo ended"))
    assert result.exit_code == 0, result.output
    assert [len(starts(pod, worker)) for worker in range(2)] == [1, 1]
    assert len(pod.calls(" start ")) == 2  # gcloud itself repeats them


def test_a_connection_dropped_while_following_ends_no_run(pod):
    for worker in range(2):
        pod.drop(" state ", how="during", worker=worker, times=4)
    pod.drop(" log ", how="after", times=2)
    result = tpu("run", "--run", "r", *QUICK, "--", *counting("sleep 1; echo ended"))
    assert (result.exit_code, result.stdout) == (0, "ended\n")
    assert [len(starts(pod, worker)) for worker in range(2)] == [1, 1]


def test_the_same_run_again_follows_it_and_another_command_is_refused(pod):
    first = tpu("run", "--run", "r", "--detach", "--", *counting("sleep 1; echo ended"))
    assert (first.exit_code, first.stdout) == (0, "r\n")
    assert tpu("run", "--run", "r", *QUICK, "--", *counting("sleep 1; echo ended")).stdout == "ended\n"
    assert tpu("run", "--run", "r", *QUICK).stdout == "ended\n"
    assert [len(starts(pod, worker)) for worker in range(2)] == [1, 1]
    with pytest.raises(UsageError, match=r"run r had another command: sh -c .*; choose another --run"):
        tpu("run", "--run", "r", "--", "true")


def test_a_worker_that_was_not_reached_is_started_alone_later(pod):
    tpu("exec", "--", "true")
    pod.drop(" start ", how="before", worker=1, times=30)
    with pytest.raises(UndecidedError, match=r"not known to have started on worker 1: .*--run r starts it only there"):
        tpu("run", "--run", "r", *QUICK, "--", *counting("sleep 1"))
    assert [len(starts(pod, worker)) for worker in range(2)] == [1, 0]
    assert tpu("run", "--run", "r", *QUICK, "--", *counting("sleep 1")).exit_code == 0
    assert [len(starts(pod, worker)) for worker in range(2)] == [1, 1]


def test_when_one_worker_fails_the_others_are_ended(pod):
    (pod.home(1) / "fails").touch()
    result = tpu(
        "run", "--run", "r", *QUICK, "--grace-s", "5", "--", *counting('[ -e "$HOME/fails" ] && exit 7; sleep 60')
    )
    assert result.exit_code == 1
    assert "worker 1: exit code 7; the others would wait for it and are ended" in result.stderr
    assert "worker 0: ended by signal 15" in result.stderr
    assert not any(alive(int(pid)) for worker in range(2) for pid in starts(pod, worker))


def test_a_run_of_a_missing_program_says_so(pod):
    result = tpu("run", "--run", "r", *QUICK, "--", "no-such-program")
    assert result.exit_code == 1
    assert "worker 1: could not start: [Errno 2] No such file or directory: 'no-such-program'" in result.stderr


def test_a_worker_that_is_silent_for_too_long_ends_the_following(pod):
    tpu("run", "--run", "r", "--detach", "--", "sleep", "60")
    pod.drop(" state ", how="before", worker=1, times=1000)
    with pytest.raises(UndecidedError, match="worker 1 has not answered for 1 s; the run goes on: follow it again"):
        tpu("run", "--run", "r", *QUICK, "--patience-s", "1")
    pod._edit("drops", lambda _: [])
    tpu("kill", "--run", "r")


# kill


@as_root
def test_kill_ends_the_processes_of_the_run_alone(pod, holder):
    tpu("run", "--run", "mine", "--detach", "--", *counting("setsid sleep 60 & sleep 60 & wait"))
    wait_for(lambda: all(starts(pod, worker) for worker in range(2)))
    bystander = subprocess.Popen(["sleep", "60"])
    (pod.root(0) / "tmp/libtpu_lockfile").touch()
    (pod.root(1) / "tmp/libtpu_lockfile").touch()
    result = tpu("kill", "--run", "mine")
    assert "run mine: 6 processes ended on 2 workers" in result.stdout  # a shell, a sleep, and one that left its group
    assert alive(bystander.pid)
    assert alive(holder.pid)
    assert re.search(rf"worker 1: held by process {holder.pid} of user \w+: ", result.stdout)
    assert "lock file removed on 1 workers" in result.stdout
    assert not (pod.root(0) / "tmp/libtpu_lockfile").exists()
    assert (pod.root(1) / "tmp/libtpu_lockfile").exists()
    assert result.exit_code == 1
    bystander.kill()
    bystander.wait()


def test_kill_gives_time_for_a_checkpoint(pod):
    program = (
        "import signal, sys, time\n"
        "def stop(*_): time.sleep(2.5); print('checkpoint', flush=True); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, stop); print('ready', flush=True); time.sleep(60)"
    )
    tpu("run", "--run", "r", "--detach", "--", sys.executable, "-c", program)
    wait_for(lambda: all((pod.home(w) / ".dataprep/runs/r/log").read_text() == "ready\n" for w in range(2)))
    assert tpu("kill").exit_code == 0  # all that still run
    result = tpu("run", "--run", "r", *QUICK)
    assert (result.exit_code, result.stdout) == (1, "ready\ncheckpoint\n")
    assert "worker 0: exit code 143" in result.stderr


def test_kill_identifies_a_process_by_more_than_its_id(pod):
    tpu("run", "--run", "r", "--detach", "--", "sleep", "60")
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
    for worker in range(2):
        record = pod.home(worker) / ".dataprep/runs/r/started.json"
        started = json.loads(record.read_text())
        os.kill(started["pid"], 9)
        record.write_text(json.dumps({**started, "pid": bystander.pid}))  # as if the number had been given away again
    assert "run r: 0 processes ended on 2 workers" in tpu("kill", "--run", "r").stdout
    assert alive(bystander.pid)
    bystander.kill()
    bystander.wait()


def test_kill_asks_before_it_ends_what_others_started(pod, holder):
    refused = tpu("kill", "--others", input="n\n")
    assert re.search(rf"worker 1: end process {holder.pid} of user \w+: .*\? \[y/N\]: n", refused.stdout)
    assert alive(holder.pid)
    ended = tpu("kill", "--others", "--yes")
    assert re.search(rf"process {holder.pid} of user \w+: .*: ended", ended.stdout)
    assert holder.wait(10) == -15


# status


def test_status_shows_states_runs_and_holders(pod, holder):
    tpu("run", "--run", "done", *QUICK, "--", "sh", "-c", "exit 3")
    tpu("run", "--run", "going", "--detach", "--", "sleep", "60")
    shown = tpu("status").stdout
    assert shown.startswith("my-tpu in us-central2-b: READY, HEALTHY, v4-16, 2 workers\n")
    assert len(re.findall(r"\d +run done +exit code 3", shown)) == 2
    assert len(re.findall(r"\d +run going +running +\d+ +sleep 60", shown)) == 2
    assert re.search(rf"1 +chips +\w+ holds .* {holder.pid} +", shown)
    document = json.loads(tpu("status", "--json").stdout)
    assert document["by_worker"]["1"]["holders"][0]["pid"] == holder.pid
    assert document["by_worker"]["0"]["runs"]["going"]["state"] == "running"
    os.kill(json.loads((pod.home() / ".dataprep/runs/going/claimed.json").read_text())["pid"], 9)
    os.kill(document["by_worker"]["0"]["runs"]["going"]["pid"], 9)
    wait_for(lambda: "lost" in tpu("status").stdout)


@pytest.mark.parametrize("state", ["CREATING", "PREEMPTED"])
def test_status_shows_a_tpu_that_is_not_ready(cloud, state):
    cloud.add_tpu("my-tpu", state=state)
    assert f"my-tpu in us-central2-b: {state}" in tpu("status").stdout
    with pytest.raises(UsageError, match=f"my-tpu is {state}, expected READY"):
        tpu("exec", "--", "true")


def test_status_shows_a_queued_request_and_refuses_a_missing_tpu(cloud):
    with pytest.raises(UsageError, match="no such TPU in us-central2-b"):
        tpu("status")
    cloud.add_request("my-tpu", "WAITING_FOR_RESOURCES")
    assert tpu("status").stdout == "my-tpu in us-central2-b: WAITING_FOR_RESOURCES, queued request, 0 workers\n"


# setup, exec, copy, profile


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


def test_setup_waits_for_the_start_up_script_and_tells_where_it_failed(pod, code):
    (pod.root(1) / "run/dataprep-startup").write_text("failed: apt-get update\n")
    with pytest.raises(StorageError, match="worker 1: the start-up script failed: apt-get update; see"):
        tpu("setup", "--code", str(code))


def test_exec_prints_the_output_of_every_worker(pod):
    result = tpu("exec", "--", 'echo "a  b" | tr a-z A-Z')
    assert (result.exit_code, result.stdout) == (0, "[0] A  B\n[1] A  B\n")
    result = tpu("exec", "--worker", "1", "--", "printf", "%s\n", "it's; $HOME", "--x")
    assert result.stdout == "[1] it's; $HOME\n[1] --x\n"
    result = tpu("exec", "--", 'case "$PWD" in */1/home) echo broken >&2; exit 4;; esac')
    assert (result.exit_code, result.stderr) == (1, "[1] exit code 4: broken\n")
    pod.drop("true", how="before", worker=0, times=10)
    result = tpu("exec", "--", "true")
    assert result.exit_code == 3
    assert "[0] not reached: gcloud compute tpus tpu-vm ssh my-tpu: the worker cannot be reached" in result.stderr
    with pytest.raises(UsageError, match="--worker 2: my-tpu has workers 0 to 1"):
        tpu("exec", "--worker", "2", "--", "true")


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


def test_commands_reach_the_machines_of_compute_engine(cloud):
    cloud.add_machines("my-tpu", ["my-tpu-0a", "my-tpu-0b"])
    assert tpu("exec", "--", "echo x").stdout == "[0] x\n[1] x\n"
    assert tpu("run", "--run", "r", *QUICK, "--", "echo", "ran").stdout == "ran\n"
    assert "RUNNING, tpu7x-standard-4t, 2 workers" in tpu("status").stdout


# create, delete, plan


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (("--type", "v4-32"), {"tpu"}),
        (("--type", "v4-32", "--queued"), {"request"}),
        (("--type", "v6e-8", "--api", "compute-engine"), {"machines"}),
        (("--type", "tpu7x-2x2x4", "--project", "p"), {"policy", "template", "group", "machines"}),
    ],
)
def test_what_is_created_is_deleted_after_a_question(cloud, options, kinds):
    assert tpu("create", *options, "--nfs", "10.0.0.2:/vol1=/mnt/data").exit_code == 0
    everything = ("tpu", "request", "machines", "policy", "template", "group")
    there = {kind: cloud.names(kind) for kind in everything}
    assert {kind for kind, names in there.items() if names} == kinds
    script = Path("my-tpu-startup.sh").read_text()
    assert "try share 10.0.0.2:/vol1 /mnt/data\n" in script
    assert subprocess.run(["bash", "-n", "my-tpu-startup.sh"], check=False).returncode == 0
    if kinds == {"policy", "template", "group", "machines"}:
        for kind, rename in (("policy", "my-tpu-policy"), ("template", "my-tpu-template")):
            assert there[kind] == {rename}
    project = ("--project", "p")
    assert tpu("delete", *project, input="n\n").exit_code == 1
    assert {kind: cloud.names(kind) for kind in everything} == there
    assert tpu("delete", *project, input="y\n").exit_code == 0
    assert not any(cloud.names(kind) for kind in everything)
    with pytest.raises(UsageError, match="no such TPU"):
        tpu("delete", "--yes")


def test_create_is_refused_before_anything_is_made(cloud):
    for options, said in [
        (("--type", "v4-9"), "v4 does not come with 9 cores"),
        (("--type", "v4-8", "--nfs", "x"), "expected SERVER:/SHARE=/FOLDER"),
        (("--type", "v4-8", "--package", "x; rm"), "not a name of a Debian package"),
        (("--type", "v4-8", "--label", "x"), "expected KEY=VALUE"),
    ]:
        with pytest.raises(UsageError, match=re.escape(said)):
            tpu("create", *options)
    assert cloud.calls() == []
    assert not Path("my-tpu-startup.sh").exists()


@pytest.mark.parametrize(
    ("said", "kind", "advice"),
    [
        ("You do not currently have an active account selected.", AccessError, 'run "gcloud auth login"'),
        ("Failed to find attribute [project].", UsageError, "add --project"),
        ("RESOURCE_EXHAUSTED: Quota limit 'TPUV4sPodPerProject' has been exceeded.", AccessError, "quota"),
        ("There is no more capacity in the zone us-central2-b", StorageError, "try --queued, --spot, or another zone"),
        ("PERMISSION_DENIED: Permission 'tpu.nodes.create' denied", AccessError, "ask for the role TPU Admin"),
        ("INVALID_ARGUMENT: Location us-moon1-a is not found or access is unauthorized.", UsageError, "locations list"),
        ("Invalid value for field 'zone': Unknown zone us-moon1-a", UsageError, "gcloud compute tpus locations list"),
        ("Cloud TPU API has not been used in project 1 before or it is disabled.", AccessError, "services enable"),
        ("INVALID_ARGUMENT: accelerator type v4-32 not found in zone", UsageError, "accelerator-types list"),
        ("something new", StorageError, "something new; fix that"),
    ],
)
def test_errors_of_gcloud_become_one_line(cloud, said, kind, advice):
    cloud.fail("tpu-vm create", said)
    with pytest.raises(kind, match=re.escape(advice)) as raised:
        tpu("create", "--type", "v4-32")
    assert "\n" not in str(raised.value)


def test_a_missing_gcloud_is_named_in_one_line(cloud, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match="gcloud is not on the PATH; install the Google Cloud CLI"):
        tpu("status")


def test_plan_shows_the_machines_and_commands_of_a_tpu_name(cloud):
    result = CliRunner().invoke(command, ["plan", "v3-256"])
    assert "128 chips" in result.stdout
    assert "32, each 4 chips" in result.stdout
    assert "--accelerator-type=v3-256" in result.stdout
    document = json.loads(CliRunner().invoke(command, ["plan", "tpu7x-2x2x4", "--json"]).stdout)
    assert document["api"] == "compute-engine"
    assert document["accelerator"]["hosts"] == 4
    assert len(document["commands"]) == 4
    assert cloud.calls() == []


# --dry-run


@pytest.mark.parametrize(
    "words",
    [
        ("create", "--type", "v4-32", "--nfs", "10.0.0.2:/vol1=/mnt/data", "--package", "htop"),
        ("create", "--type", "tpu7x-2x2x4", "--project", "p"),
        ("setup", "--nfs", "10.0.0.2:/vol1=/mnt/data"),
        ("run", "--", "python", "-m", "train.pretrain_mae", "--data_path", "gs://bucket/it's here"),
        ("exec", "--", "df -h | grep mnt"),
        ("copy", ".", "x"),
        ("kill", "--run", "r"),
        ("kill", "--others"),
        ("status",),
        ("profile", "logs", "traces"),
        ("delete",),
        ("delete", "--api", "compute-engine"),
    ],
    ids=" ".join,
)
def test_a_dry_run_prints_commands_that_a_shell_takes_and_runs_none(cloud, words, code, monkeypatch):
    monkeypatch.chdir(code)
    action, *rest = words
    result = tpu(action, "--dry-run", *rest)
    assert result.exit_code == 0, result.output
    assert cloud.calls() == []
    assert sorted(code.iterdir()) == [code / "train"]
    script = code / "commands.sh"
    script.write_text(result.stdout)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    text = re.sub(r"(?ms)^cat > .*?^EOF$", "", result.stdout)
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    assert all(line[0] == "gcloud" for line in lines if line)


def test_the_commands_of_a_dry_run_are_those_of_the_run(pod):
    shown = tpu("run", "--dry-run", "--run", "r", "--env", "A=b c", "--", "echo", "it's").stdout
    tpu("run", "--run", "r", *QUICK, "--env", "A=b c", "--", "echo", "it's")
    (start,) = (shlex.split(line) for line in shown.splitlines() if " start " in line)
    *start, sign, sent = start
    assert start in pod.calls(" start ")
    assert sign == "<<<"
    assert json.loads(sent) == {"PJRT_DEVICE": "TPU", "PYTHONUNBUFFERED": "1", "A": "…hidden"}
    for line in shown.splitlines():
        assert line.startswith("#") or "scp" in line or any(shlex.split(line)[1:5] == call[1:5] for call in pod.calls())
