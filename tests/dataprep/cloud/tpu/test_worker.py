"""The program of the workers, called as they call it."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dataprep.cloud.tpu import worker
from dataprep.cloud.tpu.fleet import pack

SOURCE = Path(worker.__file__)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone sees all processes")


@pytest.fixture
def machine(tmp_path):
    for name in ("home", "root/dev/vfio", "root/tmp", "root/proc", "bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin/sudo").write_text("#!/bin/sh\nexit 1\n")  # the real one would forget DATAPREP_TPU_ROOT
    (tmp_path / "bin/sudo").chmod(0o755)
    yield tmp_path
    for path in tmp_path.glob("home/.dataprep/runs/*/started.json"):
        call(tmp_path, "kill", path.parent.name, "--grace-s=0")


def popen(machine: Path, *words: str) -> subprocess.Popen:
    environment = {
        "HOME": str(machine / "home"),
        "DATAPREP_TPU_ROOT": str(machine / "root"),
        "PATH": f"{machine / 'bin'}:{os.environ['PATH']}",
    }
    return subprocess.Popen(
        [sys.executable, "-S", SOURCE, *words],
        cwd=machine / "home",
        env=environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def call(machine: Path, *words: str) -> dict:
    out = popen(machine, *words).communicate()[0].decode()
    return json.loads(out.removeprefix(worker.REPLY))


def wait_for(condition):
    deadline_s = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)
    return found


def test_worker_program_runs_on_an_old_python_with_nothing_installed():
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 9))
    modules = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in modules} <= set(sys.stdlib_module_names) | {"__future__"}


def test_concurrent_starts_of_a_run_start_it_once(machine):
    words = ("start", "r", "--", "sh", "-c", 'echo x >> "$HOME/starts"; sleep 0.3')
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: call(machine, *words), range(8)))
    assert len({reply["pid"] for reply in replies}) == 1
    assert (machine / "home/starts").read_text() == "x\n"


@pytest.mark.parametrize("delay_s", [0.02, 0.06, 0.1, 0.15, 0.2, 0.3])
def test_a_start_that_is_killed_anywhere_and_repeated_runs_once(machine, delay_s):
    words = ("start", "r", "--", "sh", "-c", 'echo x >> "$HOME/starts"')
    first = popen(machine, *words)
    time.sleep(delay_s)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    call(machine, *words)
    wait_for(lambda: call(machine, "state", "r")["state"] == "done")
    assert (machine / "home/starts").read_text() == "x\n"


def test_a_run_that_has_ended_is_not_started_again(machine):
    words = ("start", "r", "--", "sh", "-c", 'echo x >> "$HOME/starts"; exit 5')
    call(machine, *words)
    ended = wait_for(lambda: next((s for s in [call(machine, "state", "r")] if s["state"] == "done"), None))
    assert ended["code"] == 5
    assert call(machine, *words)["state"] == "done"
    assert (machine / "home/starts").read_text() == "x\n"


def test_a_run_whose_watcher_was_killed_continues_and_is_lost_when_it_ends(machine):
    call(machine, "start", "r", "--", "sh", "-c", 'while [ ! -e "$HOME/stop" ]; do sleep 0.02; done')
    os.kill(json.loads((machine / "home/.dataprep/runs/r/claimed.json").read_text())["pid"], signal.SIGKILL)
    assert call(machine, "state", "r")["state"] == "running"
    (machine / "home/stop").touch()
    wait_for(lambda: call(machine, "state", "r")["state"] == "lost")


def test_after_a_restart_of_the_machine_a_run_is_lost(machine):
    call(machine, "start", "r", "--", "sleep", "600")
    started = machine / "home/.dataprep/runs/r/started.json"
    record = json.loads(started.read_text())
    for path in (started, started.with_name("claimed.json")):
        path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "another"}))
    assert call(machine, "state", "r")["state"] == "lost"
    assert call(machine, "kill", "r")["ended"] != []  # by its mark, though its number is of another boot
    wait_for(lambda: worker.identity(record["pid"]) is None)


def test_code_that_did_not_fit_on_the_disk_leaves_nothing_behind(machine):
    code = machine / "code"
    code.mkdir()
    (code / "a.py").write_text("1")
    (code / "large.bin").write_bytes(b"x" * 1_000_000)
    packed = pack(code)
    archive = machine / "code.tar.gz"
    archive.write_bytes(packed.data)
    words = [sys.executable, "-S", SOURCE, "--home", machine / "home", "unpack", archive, packed.name, packed.sha256]
    limited = ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh", *words]
    for command, key in ((limited, "error"), (limited, "error"), (words, "staged")):
        out = subprocess.run(command, capture_output=True, check=False).stdout.decode()
        assert key in json.loads(out.removeprefix(worker.REPLY)), out
        partly = [path.name for path in (machine / "home/.dataprep/code").iterdir() if path.is_dir()]
        assert partly == ([packed.name] if key == "staged" else []), out
    assert (machine / "home/.dataprep/current/large.bin").stat().st_size == 1_000_000


@as_root
@pytest.mark.parametrize(
    ("device", "chip"), [("accel3", True), ("vfio/0", True), ("vfio/vfio", False), ("null", False)]
)
def test_processes_that_hold_a_chip_are_found(machine, device, chip):
    path = machine / "root/dev" / device
    path.touch()
    lock = machine / "root/tmp/libtpu_lockfile"
    lock.touch()
    with open(path):
        found = call(machine, "holders")
        assert [holder["pid"] for holder in found["holders"]] == ([os.getpid()] if chip else [])
        assert call(machine, "release")["lock"] == ("kept" if chip else "removed")
        assert lock.exists() is chip
    assert call(machine, "release")["lock"] == ("removed" if chip else "absent")


def test_a_process_that_closes_files_meanwhile_is_found(machine, monkeypatch):
    chip = machine / "root/dev/accel0"
    chip.touch()
    seen = worker.Path.iterdir
    monkeypatch.setattr(worker, "CHIP", re.compile(re.escape(str(chip))))
    monkeypatch.setattr(worker.Path, "iterdir", lambda path: [path / "closed", *seen(path)])
    with chip.open():
        assert [each["pid"] for each in worker.holders(None)["holders"]] == [os.getpid()]


def test_the_lock_file_is_kept_unless_every_process_can_be_seen(machine, monkeypatch):
    monkeypatch.setattr(worker, "ROOT", machine / "root")
    (machine / "root/tmp/libtpu_lockfile").touch()
    seen = worker.Path.iterdir

    def hidden(path):
        if path.name == "fd" and path.parent.name == str(os.getppid()):
            raise PermissionError(path)
        return seen(path)

    monkeypatch.setattr(worker.Path, "iterdir", hidden)
    assert worker.release(None)["lock"] == "kept"
    assert worker.holders(None)["complete"] is False
    assert (machine / "root/tmp/libtpu_lockfile").exists()


def test_a_process_is_ended_only_if_it_is_the_same_and_still_holds_a_chip(machine):
    path = machine / "root/dev/accel0"
    path.touch()
    program = "import sys, time; f = open(sys.argv[1]); print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-S", "-c", program, path], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        (found,) = call(machine, "holders")["holders"]
        assert call(machine, "end", str(holder.pid), str(found["start_ticks"] + 1)) == {"ended": []}
        assert holder.poll() is None
        assert call(machine, "end", str(holder.pid), str(found["start_ticks"])) == {"ended": [holder.pid]}
        assert holder.wait(60) == -signal.SIGTERM
    with subprocess.Popen(["sleep", "600"]) as bystander:
        ticks = worker.identity(bystander.pid)["start_ticks"]
        assert call(machine, "end", str(bystander.pid), str(ticks)) == {"ended": []}
        assert bystander.poll() is None
        bystander.kill()


@pytest.fixture
def share(machine):
    """`mount` fails as often as `failures` has lines; a folder without the file `served` does not answer."""
    mounts, target = machine / "root/proc/mounts", machine / "mnt"
    mounts.touch()
    fails = f'[ ! -s {machine}/failures ] || {{ sed -i 1d {machine}/failures; echo "Connection timed out"; exit 32; }}'
    serve = f"touch {target}/served; echo server:/vol {target} nfs rw 0 0 > {mounts}"
    programs = {"mount": f"{fails}\n{serve}", "umount": f": > {mounts}", "stat": f"test -e {target}/served"}
    for name, text in programs.items():
        (machine / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (machine / "bin" / name).chmod(0o755)
    return target


def test_a_share_is_mounted_once(machine, share):
    (machine / "failures").write_text("1\n2\n")
    words = ("mount", "server:/vol", str(share), "--delay-s=0")
    assert call(machine, *words) == {"mount": "mounted", "attempts": 3}
    assert call(machine, *words) == {"mount": "fine"}
    assert share.stat().st_mode & 0o077 != 0o077  # no mount is there: a folder that took its place is not opened


def test_a_share_that_does_not_answer_is_mounted_again(machine, share):
    words = ("mount", "server:/vol", str(share), "--delay-s=0")
    call(machine, *words)
    (share / "served").unlink()
    assert call(machine, *words) == {"mount": "repaired", "attempts": 1}


def test_a_share_that_cannot_be_mounted_is_an_error_after_some_attempts(machine, share):
    (machine / "failures").write_text("x\n" * 99)
    said = call(machine, "mount", "server:/vol", str(share), "--delay-s=0")["error"]
    assert said.startswith(
        f"server:/vol cannot be mounted on {share} after 10 attempts (mount -t nfs -o vers=3,nosuid,nodev server:/vol:"
    )
    assert "Connection timed out" in said


def test_a_folder_with_another_share_is_left_alone(machine, share):
    call(machine, "mount", "server:/vol", str(share), "--delay-s=0")
    said = call(machine, "mount", "server:/other", str(share), "--delay-s=0")["error"]
    assert said == f"{share} is server:/vol, expected server:/other; unmount it, or choose a different folder"
    assert "server:/vol" in (machine / "root/proc/mounts").read_text()


def test_of_two_mounts_on_a_folder_the_last_one_counts(machine, share):
    lines = [f"server:/{name} {share} nfs rw 0 0\n" for name in ("hidden", "vol")]
    (machine / "root/proc/mounts").write_text("".join(lines))
    share.mkdir()
    (share / "served").touch()
    assert call(machine, "mount", "server:/vol", str(share), "--delay-s=0") == {"mount": "fine"}
    said = call(machine, "mount", "server:/hidden", str(share), "--delay-s=0")["error"]
    assert said.startswith(f"{share} is server:/vol, expected server:/hidden")


@pytest.fixture
def open_folder():
    """A folder that every user may enter and write to; those of pytest are their owner's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@as_root
def test_commands_that_need_root_run_through_sudo(open_folder):
    machine = open_folder
    (machine / "bin").mkdir()
    (machine / "bin/sudo").write_text('#!/bin/sh\nshift\n[ "$1" = true ] || echo "$@" >> "$SEEN"\n')
    (machine / "bin/sudo").chmod(0o755)
    environment = {
        "PATH": f"{machine / 'bin'}:{os.environ['PATH']}",
        "HOME": "/nonexistent",
        "SEEN": str(machine / "seen"),
    }
    source = machine / "worker.py"
    source.write_bytes(SOURCE.read_bytes())
    command = ["/usr/bin/env", "python3", "-S", source, "release"]
    subprocess.run(command, env=environment, user="nobody", cwd="/", check=True)
    assert (machine / "seen").read_text().split()[1:] == ["-I", str(source), "--home", "/nonexistent", "release"]


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_the_folder_of_logs_is_made_for_all_users(machine):
    logs = machine / "root/tmp/tpu_logs"
    assert call(machine, "prepare")["logs"] == "fine"
    assert mode_of(logs) == 0o1777
    logs.chmod(0o755)
    (logs / "private").touch(0o600)
    assert call(machine, "prepare")["logs"] == "fine"
    assert (mode_of(logs), mode_of(logs / "private")) == (0o1777, 0o600)


def test_a_link_in_place_of_the_folder_of_logs_is_not_followed(machine):
    secret = machine / "root/secret"
    secret.mkdir(0o700)
    (machine / "root/tmp/tpu_logs").symlink_to(secret)
    assert call(machine, "prepare")["logs"] == f"{machine}/root/tmp/tpu_logs is not a folder; remove it"
    assert mode_of(secret) == 0o700


@as_root
def test_a_strangers_folder_of_logs_is_left_as_it_is(machine):
    logs = machine / "root/tmp/tpu_logs"
    logs.mkdir(0o755)
    os.chown(logs, 65534, 65534)
    (machine / "secret").touch(0o600)
    os.link(machine / "secret", logs / "x")
    said = f"{logs} belongs to user 65534, and others cannot write to it; remove it"
    assert call(machine, "prepare")["logs"] == said
    assert (mode_of(logs), mode_of(machine / "secret")) == (0o755, 0o600)
