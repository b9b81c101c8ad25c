"""`dataprep tpu` over real processes: what is started once, ended, and left alone, and the effect of every option."""

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from dataprep.commands.build import command as build_command
from dataprep.commands.tpu import command as tpu_command
from dataprep.errors import StorageError, UsageError
from dataprep.storage import open_storage
from dataprep.watching import PROFILE_REQUEST
from tests.support.builds import build_arguments, build_warm, command, digests, invoked
from tests.support.kubernetes import fits_kubernetes
from tests.support.tpu import QUICK, counting, starts, tpu
from tests.support.waiting import is_running, wait_for
from tests.support.words import replaced

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone sees all processes")
HOLDER = "import sys, time; file = open(sys.argv[1]); print('held', flush=True); time.sleep(600)"


@pytest.fixture
def holder(pod):
    """A process that holds a chip of worker 1, and is of no run."""
    device = pod.root(1) / "dev/accel0"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(device)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


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


def test_the_commands_of_a_dry_run_are_those_of_the_run(pod):
    shown = tpu("run", "--dry-run", "--run", "r", "--env", "A=b c", "--", "echo", "it's").stdout
    tpu("run", "--run", "r", *QUICK, "--env", "A=b c", "--", "echo", "it's")
    (start,) = (shlex.split(line) for line in shown.splitlines() if " start " in line)
    *start, sign, sent = start
    assert start in pod.calls(" start ")
    assert sign == "<<<"
    place = {"DATAPREP_WORKER": "0", "DATAPREP_WORKERS": "…"}
    assert json.loads(sent) == {**place, "PJRT_DEVICE": "TPU", "PYTHONUNBUFFERED": "1", "A": "…hidden"}
    for line in shown.splitlines():
        assert line.startswith("#") or "scp" in line or any(shlex.split(line)[1:5] == call[1:5] for call in pod.calls())


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


@pytest.mark.parametrize("text", [f"MY-KEY={SECRET}", SECRET, f"={SECRET}", f"{SECRET}=", "NOT_SET_ANYWHERE"])
def test_a_malformed_variable_is_refused_and_not_printed(pod, text):
    with pytest.raises(UsageError, match=r"^--env: a (value|KEY) .* give ") as refused:
        tpu("run", "--run", "r", "--env", text, "--", "true")
    assert text not in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_run_with_other_variables_is_another_run_and_none_of_them_is_shown(pod):
    tpu("run", "--run", "r", *QUICK, "--env", "KEY=other", "--", "true")
    with pytest.raises(UsageError, match="run r had different variables; choose a different --run, or") as refused:
        tpu("run", "--run", "r", *QUICK, "--env", f"KEY={SECRET}", "--", "true")
    assert SECRET not in str(refused.value)


def test_the_same_run_again_follows_it_and_another_command_is_refused(pod):
    first = tpu("run", "--run", "r", "--detach", "--", *counting("sleep 1; echo ended"))
    assert (first.exit_code, first.stdout) == (0, "r\n")
    assert tpu("run", "--run", "r", *QUICK, "--", *counting("sleep 1; echo ended")).stdout == "ended\n"
    assert tpu("run", "--run", "r", *QUICK).stdout == "ended\n"
    assert [len(starts(pod, worker)) for worker in range(2)] == [1, 1]
    with pytest.raises(UsageError, match=r"run r had a different command: sh -c .*; choose a different --run"):
        tpu("run", "--run", "r", "--", "true")


def test_when_one_worker_fails_the_others_are_ended(pod):
    (pod.home(1) / "fails").touch()
    result = tpu(
        "run", "--run", "r", *QUICK, "--grace-s", "60", "--", *counting('[ -e "$HOME/fails" ] && exit 7; sleep 600')
    )
    assert result.exit_code == 1
    assert "worker 1: exit code 7; the other workers would wait for it, so they are ended" in result.stderr
    assert "worker 0: ended by signal 15" in result.stderr
    assert not any(is_running(int(pid)) for worker in range(2) for pid in starts(pod, worker))


def test_a_run_of_a_missing_program_says_so(pod):
    result = tpu("run", "--run", "r", *QUICK, "--", "no-such-program")
    assert result.exit_code == 1
    assert "worker 1: could not start: [Errno 2] No such file or directory: 'no-such-program'" in result.stderr


def test_workers_build_the_parts_of_a_dataset(pod, originals, tmp_path):
    options = ("imagenet", originals["imagenet"])
    shards = ("--num-shards", 4, "--split", "val", "--workers", 1)
    build_warm(*options, tmp_path / "plain", "webdataset", *shards)
    words = command(*build_arguments(*options, tmp_path / "out", "webdataset", *shards), "--part", "auto")
    words.remove("--json")
    result = tpu("run", "--run", "parts", *QUICK, "--keep-going", "--", *words)
    assert result.exit_code == 0, result.output
    assert digests(tmp_path / "out") == digests(tmp_path / "plain")
    logs = [path.read_text() for path in sorted(Path("logs/my-tpu/parts").iterdir())]
    assert [f"part {number} of 2" in log for number, log in enumerate(logs, 1)] == [True, True]


# kill


@as_root
def test_kill_ends_the_processes_of_the_run_alone(pod, holder):
    tpu("run", "--run", "mine", "--detach", "--", *counting('setsid sleep 600 & sleep 600 & : > "$HOME/both"; wait'))
    wait_for(lambda: all((pod.home(worker) / "both").exists() for worker in range(2)))
    bystander = subprocess.Popen(["sleep", "600"])
    (pod.root(0) / "tmp/libtpu_lockfile").touch()
    (pod.root(1) / "tmp/libtpu_lockfile").touch()
    result = tpu("kill", "--run", "mine")
    assert "run mine: 6 processes ended on 2 workers" in result.stdout  # a shell, a sleep, and one that left its group
    assert is_running(bystander.pid)
    assert is_running(holder.pid)
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
        "signal.signal(signal.SIGTERM, stop); print('ready', flush=True); time.sleep(600)"
    )
    tpu("run", "--run", "r", "--detach", "--", sys.executable, "-c", program)
    wait_for(lambda: all((pod.home(w) / ".dataprep/runs/r/log").read_text() == "ready\n" for w in range(2)))
    assert tpu("kill").exit_code == 0  # all that still run
    result = tpu("run", "--run", "r", *QUICK)
    assert (result.exit_code, result.stdout) == (1, "ready\ncheckpoint\n")
    assert "worker 0: exit code 143" in result.stderr


def test_kill_identifies_a_process_by_more_than_its_id(pod):
    tpu("run", "--run", "r", "--detach", "--", "sleep", "600")
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    for worker in range(2):
        record = pod.home(worker) / ".dataprep/runs/r/started.json"
        started = json.loads(record.read_text())
        os.kill(started["pid"], 9)
        record.write_text(json.dumps({**started, "pid": bystander.pid}))  # as if the number had been given away again
    assert "run r: 0 processes ended on 2 workers" in tpu("kill", "--run", "r").stdout
    assert is_running(bystander.pid)
    bystander.kill()
    bystander.wait()


def test_kill_asks_before_it_ends_what_others_started(pod, holder):
    refused = tpu("kill", "--others", input="n\n")
    assert re.search(rf"worker 1: end process {holder.pid} of user \w+: .*\? \[y/N\]: n", refused.stdout)
    assert is_running(holder.pid)
    ended = tpu("kill", "--others", "--yes")
    assert re.search(rf"process {holder.pid} of user \w+: .*: ended", ended.stdout)
    assert holder.wait(60) == -15


# status


def test_status_shows_states_runs_and_holders(pod, holder):
    tpu("run", "--run", "done", *QUICK, "--", "sh", "-c", "exit 3")
    tpu("run", "--run", "going", "--detach", "--", "sleep", "600")
    shown = tpu("status").stdout
    assert shown.startswith("my-tpu in us-central2-b: READY, HEALTHY, v4-16, 2 workers\n")
    assert len(re.findall(r"\d +run done +exit code 3", shown)) == 2
    assert len(re.findall(r"\d +run going +running +\d+ +sleep 600", shown)) == 2
    assert re.search(rf"1 +chips +\w+ holds .* {holder.pid} +", shown)
    document = json.loads(tpu("status", "--json").stdout)
    assert document["by_worker"]["1"]["holders"][0]["pid"] == holder.pid
    assert document["by_worker"]["0"]["runs"]["going"]["state"] == "running"
    os.kill(json.loads((pod.home() / ".dataprep/runs/going/claimed.json").read_text())["pid"], 9)
    os.kill(document["by_worker"]["0"]["runs"]["going"]["pid"], 9)
    wait_for(lambda: "lost" in tpu("status").stdout)


def test_lines_of_a_status_that_goes_to_a_file_are_not_wrapped(pod):
    words = [f"word-{number}" for number in range(40)]
    tpu("run", "--run", "long", *QUICK, "--", "echo", *words)
    lines = tpu("status").stdout.splitlines()
    assert sum(line.endswith(f"echo {' '.join(words)}") for line in lines) == 2
    assert [line for line in lines if line != line.rstrip()] == []


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


# exec


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
    with pytest.raises(UsageError, match="no traces on any worker; train with --profile-steps A:B"):
        tpu("profile", "empty", "traces")
    with pytest.raises(UsageError, match="traces in a bucket are already in one place"):
        tpu("profile", "gs://bucket/logs", "traces")


TRACED = (
    "until grep -q '\"seconds\": 5,' logs/profile-request.json; do sleep 0.05; done; "
    "cd logs/plugins/profile && mkdir 2026_11_21_12_00_00 && echo new > 2026_11_21_12_00_00/host.xplane.pb; sleep 600"
)


def test_profile_now_asks_the_run_on_every_worker_and_collects_its_trace_alone(pod):
    for worker in range(2):
        old = pod.home(worker) / "logs/plugins/profile/2026_11_20_12_00_00/host.xplane.pb"
        old.parent.mkdir(parents=True)
        old.write_bytes(b"old")
    tpu("run", "--run", "mae", "--detach", "--", "sh", "-c", TRACED, "train", "--output_dir=none", "--log-dir", "logs")
    result = tpu("profile", "--now", "5s", "logs", "traces", "--poll-s", "0.3", "--json")
    assert result.stderr.startswith("asked for 5 s; the trace appears in logs/plugins/profile\n")
    assert json.loads(result.stdout)["runs"] == ["2026_11_21_12_00_00"]
    assert {path.name: path.read_text() for path in Path("traces").rglob("*.pb")} == {
        f"worker-{worker:02d}.2026_11_21_12_00_00.host.xplane.pb": "new\n" for worker in range(2)
    }
    with pytest.raises(UsageError, match="logs is on the workers; give it and a folder here"):
        tpu("profile", "--now", "5s")
    with pytest.raises(UsageError, match=r"--run other: expected a run in progress: mae"):
        tpu("profile", "--now", "5s", "--run", "other")


def test_profile_now_waits_for_the_traces_of_all_hosts_in_the_bucket_that_the_command_names(pod, bucket_url):
    storage = open_storage(bucket_url)
    storage.create("log.txt", b"")
    words = ("sh", "-c", "sleep 600", "train", "--output-dir", "here", f"--log_dir={bucket_url}")
    tpu("run", "--run", "mae", "--detach", "--", *words)
    traces = [f"{host}plugins/profile/2026/host.xplane.pb" for host in ("", "rank-01/")]

    def train() -> None:
        wait_for(lambda: storage.stat(PROFILE_REQUEST))
        for trace in traces:
            storage.create(trace, b"trace")

    with ThreadPoolExecutor() as pool:
        pool.submit(train)
        result = tpu("profile", "--now", "5s", "--json")
    assert json.loads(result.stdout)["traces"] == [f"{bucket_url}/{trace}" for trace in traces]


@pytest.mark.parametrize("words", [(), ("logs",), ("--now", "0s"), ("--now", "1h")])
def test_profile_without_a_place_or_with_an_impossible_time_is_refused(words):
    with pytest.raises(UsageError, match=r"give LOG_FOLDER and DESTINATION, or --now|--now .*: expected 1s to 300s"):
        tpu("profile", *words)


def test_ssh_opens_a_shell_with_forwarded_ports_on_one_worker(pod):
    words = command("tpu", "ssh", "my-tpu", "--zone", "us-central2-b", "--worker", "1", "-L", "6006", "-L", "80:9012")
    ran = subprocess.run(words, input='echo "in $HOME"; exit 3', capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (3, f"in {pod.home(1)}\n"), ran.stderr
    shown = tpu("ssh", "--dry-run", *words[-6:]).stdout.splitlines()[-1]
    assert shlex.split(shown) == pod.calls(" ssh ")[0]
    assert shlex.split(shown)[-3:] == [
        *("--worker=1", "--ssh-flag=-L6006:localhost:6006", "--ssh-flag=-L80:localhost:9012")
    ]
    with pytest.raises(UsageError, match="--worker 2: my-tpu has workers 0 to 1"):
        tpu("ssh", "--worker", "2")
    with pytest.raises(UsageError, match="--forward 70000: expected a port"):
        tpu("ssh", "-L", "70000")


TRAINING = ("--", "dataprep-pretrain-mae", "--resume", "automatic")
BUILD = "coco-dup5 --source gs://b/originals --output gs://b/coco-dup5 --format tfrecord"


def run(*words: str):
    return invoked(tpu_command, "manifest", "mae", "--image", "image", *words)


def test_the_manifest_is_yaml_with_commands_that_run():
    text = run("--type", "v6e-16", "--build", BUILD, *TRAINING).stdout
    assert "*id" not in text, "people read it, too"
    document = yaml.safe_load(text)
    assert fits_kubernetes(document)
    build, train = (
        job["template"]["spec"]["template"]["spec"]["containers"][0] for job in document["spec"]["replicatedJobs"]
    )
    name, found, arguments = build_command.resolve_command(click.Context(build_command), build["command"][2:])
    assert found.make_context(name, arguments).params["part"] == "auto/8"
    assert train["command"] == ["dataprep-pretrain-mae", "--resume", "automatic"]
    assert {"name": "PJRT_DEVICE", "value": "TPU"} in train["env"]


def test_a_file_is_written_and_the_next_step_is_named(tmp_path):
    path = tmp_path / "mae.yaml"
    result = run("--type", "v6e-16", "--output", str(path), "--json", *TRAINING)
    assert json.loads(result.stdout)["documents"] == [yaml.safe_load(path.read_text())]
    assert f"kubectl apply -f {path}" in result.stderr


@pytest.mark.parametrize("output", ["", "missing/mae.yaml"])
def test_a_file_that_cannot_be_written_is_named(output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"--output .*: cannot be written \(.*\); choose another file"):
        run("--type", "v6e-16", "--output", output, *TRAINING)


def test_notes_name_a_translated_type_and_a_missing_resume():
    said = run("--type", "tpu7x-8", "--", "dataprep-pretrain-mae").stderr
    assert "tpu7x-8 is xpk's name for 8 TensorCores: tpu7x-2x2x1, 4 chips" in said
    assert "add --resume automatic" in said


@pytest.mark.parametrize("words", ["", "--x", "coco --part 1/2", "coco 'x"])
def test_a_build_of_another_form_is_refused(words):
    with pytest.raises(UsageError, match="--build"):
        run("--type", "v6e-8", "--build", words, *TRAINING)


# all commands


def test_help_lists_the_commands_in_the_order_in_which_they_are_used():
    shown = CliRunner().invoke(tpu_command, ["--help"]).stdout
    assert re.findall(r"^  (\w+)  ", shown.partition("Commands:\n")[2], re.MULTILINE) == [
        *("plan", "create", "setup", "run", "status", "kill", "exec", "copy", "profile", "ssh", "delete", "manifest")
    ]


def test_commands_reach_the_machines_of_compute_engine(cloud):
    cloud.add_machines("my-tpu", ["my-tpu-0a", "my-tpu-0b"])
    assert tpu("exec", "--", "echo x").stdout == "[0] x\n[1] x\n"
    assert tpu("run", "--run", "r", *QUICK, "--", "echo", "ran").stdout == "ran\n"
    assert "RUNNING, tpu7x-standard-4t, 2 workers" in tpu("status").stdout


_PLACE = ("my-tpu", "--zone", "us-central2-b")
WORDS: dict[str, tuple[str, ...]] = {
    "plan": ("v4-32",),
    "create": (*_PLACE, "--type", "v4-32"),
    "setup": (*_PLACE, "--code", "code"),
    "run": (*_PLACE, "--run", "r", "--", "true"),
    "status": _PLACE,
    "kill": (*_PLACE, "--run", "r"),
    "exec": (*_PLACE, "--", "true"),
    "copy": (*_PLACE, "code", "copy"),
    "profile": (*_PLACE, "logs", "traces"),
    "ssh": _PLACE,
    "delete": _PLACE,
    "manifest": ("mae", "--type", "v6e-16", "--image", "image", "--", "dataprep-pretrain-mae"),
}
"""Every command, and arguments with which its dry run ends well."""
VALUES = {
    "api": "compute-engine", "accelerator": "v4-16", "labels": "team=vision", "shares": "10.0.0.2:/vol1=/mnt/data",
    "packages": "htop", "own_script": "own.sh", "boot_disk_gb": "50", "framework": "jax", "variables": "A=b",
    "requirements": "pins.txt", "code": "more", "grace_s": "7", "valid_until": "6h", "max_run": "3d", "mode": "spot",
    "build": "imagenet-fake --output gs://b/x --format tfrecord", "parts": "3", "part_cpu": "2", "part_memory": "1Gi",
    "part_disk": "1Gi", "max_restarts": "3", "output": "out.yaml", "zone": "us-east5-b", "python_version": "3.12",
}  # fmt: skip
"""Values of options by the names of their parameters; `other` for all others."""
WITH = dict.fromkeys(("parts", "part_cpu", "part_memory", "part_disk"), ("--build", VALUES["build"]))
"""Options without which another has no meaning."""
NOT_IN_A_DRY_RUN = {
    "run": {"keep_going", "poll_s", "patience_s", "grace_s", "log_dir"},
    "kill": {"yes"},
    "delete": {"yes"},
    "exec": {"workers"},
    "profile": {"run"},
}
"""Options that matter only while something runs."""


def outcome(name: str, *options: str) -> tuple[int, str, str]:
    """What a dry run prints, and how it ends."""
    dry = () if name in ("plan", "manifest") else ("--dry-run",)
    words = WORDS[name]
    end = words.index("--") if "--" in words else len(words)
    line = [name, *dry, *replaced(words[:end], *options), *words[end:]]
    result = CliRunner().invoke(tpu_command, [str(word) for word in line])
    files = sorted(path.name for path in Path().iterdir())
    Path("out.yaml").unlink(missing_ok=True)
    return result.exit_code, result.output + repr(result.exception), " ".join(files)


def given(parameter: click.Option) -> tuple[str, ...]:
    """An option with a value that is not its default."""
    return (parameter.opts[0],) if parameter.is_flag else (parameter.opts[0], VALUES.get(parameter.name, "other"))


@pytest.mark.parametrize("name", tpu_command.commands)
def test_every_option_of_every_command_has_an_effect(cloud, name):
    Path("code").mkdir()
    Path("more").mkdir()
    for path in ("own.sh", "pins.txt", "code/a.py", "more/b.py"):
        Path(path).write_text("\n")
    assert outcome(name)[0] == 0, outcome(name)
    options = [each for each in tpu_command.commands[name].params if isinstance(each, click.Option)]
    tried = [each for each in options if each.name not in {"dry_run", *NOT_IN_A_DRY_RUN.get(name, ())}]
    without = [
        each.opts[0]
        for each in tried
        if outcome(name, *WITH.get(each.name, ())) == outcome(name, *WITH.get(each.name, ()), *given(each))
    ]
    assert without == []


def test_commands_that_reach_no_worker_have_no_flag_for_its_address():
    with_flag = {
        name for name, found in tpu_command.commands.items() if any(each.name == "internal_ip" for each in found.params)
    }
    assert with_flag == {"setup", "run", "status", "kill", "exec", "copy", "profile", "ssh"}
