"""Program for the workers of a TPU; it needs only their own Python (3.9 or later) and its standard library.

It is one long file, because a single file is copied to the workers: one `scp` to each, and one digest that identifies
the version.

Every call prints one line of JSON after REPLY. Calls may be repeated, as gcloud does by itself when a connection drops.
A run is started at most once, because its watcher claims it by creating a file that must not exist. A process is
identified by its number, start time and boot, so that no other process is mistaken for it.

    ~/.dataprep/runs/<run>/   command.json  claimed.json  started.json  exit.json  log
    ~/.dataprep/code/<name>/  staged code with its .venv;  ~/.dataprep/current leads to the last one
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

REPLY = "@dataprep "
MARK = "DATAPREP_RUN"
"""Environment variable of every process of a run, with the run's folder."""
ROOT = Path(os.environ.get("DATAPREP_TPU_ROOT", "/"))
"""Folder that contains dev, proc/mounts, run and tmp; tests use another one."""
CHIP = re.compile(re.escape(str(ROOT / "dev")) + r"/(accel\d+|vfio/\d+)")
UV = "uv==0.13.9"
"""What makes environments on workers that have no uv."""
START_TIMEOUT_S = 20.0
MOUNT_ATTEMPTS = 10
MOUNT_TIMEOUT_S = 20.0
_LAST_CHARACTERS = 2000
_COMMAND_CHARACTERS = 160


class Failure(Exception):
    """Error for the user, in one line."""


class Identity(TypedDict):
    """A process, identified by more than its number, which another may get later."""

    pid: int
    start_ticks: int
    """Start of the process, in ticks after the boot."""
    boot: str


class RunState(TypedDict, total=False):
    """State of a run; see `_state`."""

    state: str
    code: int
    reason: str
    """Reason why the command could not be started."""
    ended_s: float
    log_bytes: int
    argv: list[str]
    pid: int
    started_s: float
    error: str
    again: bool
    """Whether the same call may succeed when it is repeated."""


class Holder(Identity):
    """A process that has chips open."""

    user: str
    command: str
    run: str | None
    """Name of the run that it belongs to."""
    devices: list[str]


class Holders(TypedDict):
    """All processes that have chips open."""

    holders: list[Holder]
    complete: bool
    """Whether every process could be examined."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", default=os.environ.get("HOME", "/root"))
    actions = parser.add_subparsers(dest="action", required=True)
    for name, (_, _, wanted) in ACTIONS.items():
        action = actions.add_parser(name)
        for argument, keywords in wanted:
            action.add_argument(argument, **keywords)
    options = parser.parse_args(arguments)
    act, as_root, _ = ACTIONS[options.action]
    if as_root and os.geteuid() != 0:
        _become_root(options.home, sys.argv[1:] if arguments is None else arguments)
    try:
        reply: Mapping[str, object] | None = act(options)
    except (Failure, OSError) as error:
        reply = {"error": str(error)}
    if reply is not None:
        print(REPLY + json.dumps(reply), flush=True)
    return 1 if reply and "error" in reply else 0


def _become_root(home: str, arguments: list[str]) -> None:
    """Run this program again as root. If sudo needs a password, return; facts that only root may see are then
    unknown."""
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        rest = arguments[2:] if arguments[:1] == ["--home"] else arguments
        os.execvp("sudo", ["sudo", "-n", sys.executable, "-I", __file__, "--home", home, *rest])


# Runs


def start(options: argparse.Namespace) -> RunState:
    """Start a run unless it has started; refuse the same name with another command."""
    _make_private(_base(options))
    run = _run_folder(options)
    run.mkdir(parents=True, exist_ok=True)
    argv = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    before = _read(run / "command.json")
    variables = _variables() if options.variables else {}
    if variables is None:
        if before is None:
            return {**_state(run), "error": "the variables did not arrive", "again": True}
        variables = before["env"]  # they arrived with an earlier call, which gcloud repeats
    _create(run / "command.json", {"argv": argv, "env": variables, "cwd": _cwd(options)})
    command = _read(run / "command.json")
    if command["argv"] != argv:
        raise Failure(
            f"run {options.run} had a different command: {' '.join(command['argv'])}; choose a different --run"
        )
    if command["env"] != variables:
        raise Failure(f"run {options.run} had different variables; choose a different --run, or give the same --env")
    if not (run / "claimed.json").exists():
        with open(run / "log", "ab") as log:
            subprocess.Popen(
                [sys.executable, "-I", __file__, "--home", options.home, "watch", options.run],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not ((run / "started.json").exists() or (run / "exit.json").exists()) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return _state(run)


def _variables() -> dict[str, str] | None:
    """Read variables as JSON from stdin, which no process listing shows; None if stdin was incomplete."""
    try:
        variables: dict[str, str] = json.loads(sys.stdin.buffer.read())
    except ValueError:
        return None
    return variables


def watch(options: argparse.Namespace) -> None:
    """Claim the run, run its command in its own session, and record how it ended."""
    run = _run_folder(options)
    if not _create(run / "claimed.json", identity(os.getpid())):
        return
    command = _read(run / "command.json")
    environment = {**os.environ, **command["env"], MARK: str(run)}
    environment["PATH"] = f"{command['cwd']}/.venv/bin:{environment['PATH']}"
    try:
        child = subprocess.Popen(
            command["argv"], cwd=command["cwd"], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        _create(run / "exit.json", {"code": 127, "reason": str(error), "ended_s": time.time()})
        return
    _create(run / "started.json", {**(identity(child.pid, ended=True) or {}), "started_s": time.time()})
    _create(run / "exit.json", {"code": child.wait(), "ended_s": time.time()})


def state(options: argparse.Namespace) -> RunState:
    """Return the state of one run."""
    return _state(_run_folder(options))


def status(options: argparse.Namespace) -> Mapping[str, object]:
    """Return the states of all runs, and the processes that hold the chips."""
    runs = sorted((_base(options) / "runs").glob("*"))
    return {"runs": {run.name: _state(run) for run in runs}, **holders(options)}


def log(options: argparse.Namespace) -> None:
    """Print a part of a run's output unchanged."""
    with contextlib.suppress(FileNotFoundError), open(_run_folder(options) / "log", "rb") as file:
        file.seek(options.offset)
        sys.stdout.buffer.write(file.read(options.limit))


def kill(options: argparse.Namespace) -> Mapping[str, object]:
    """End a run: its first process gets SIGTERM and time for a checkpoint; then the remaining processes are killed."""
    run = _run_folder(options)
    ended = {process["pid"] for process in _members(run)}
    started = _read(run / "started.json")
    if started and alive(started):
        _signal(started["pid"], signal.SIGTERM)
        _wait_until(lambda: not alive(started), options.grace_s)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in _members(run):
            ended.add(process["pid"])
            _signal(process["pid"], number)
        _wait_until(lambda: not _members(run), 2.0)
    _wait_until(lambda: _state(run)["state"] != "running", 2.0)
    return {"ended": sorted(ended), "left": [process["pid"] for process in _members(run)], **_state(run)}


def _signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has just ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _state(run: Path) -> RunState:
    """Return `absent`, `starting`, `running`, `done` with an exit code, or `lost` after a restart or a kill."""
    log_bytes = (run / "log").stat().st_size if (run / "log").exists() else 0
    command = _read(run / "command.json")
    known: RunState = {"log_bytes": log_bytes, "argv": command["argv"] if command else []}
    claimed: Identity | None = _read(run / "claimed.json")
    started = _read(run / "started.json")
    ended: RunState | None = _read(run / "exit.json")
    if started:
        known["pid"], known["started_s"] = started["pid"], started["started_s"]
    if ended:
        return {"state": "done", **known, **ended}
    if claimed is None:
        return {"state": "absent", **known}
    if alive(claimed) or (started and alive(started)):
        return {"state": "running" if started else "starting", **known}
    return {"state": "lost", **known}


def _members(run: Path) -> list[Identity]:
    """Find the processes that certainly belong to a run: by MARK, or by the process group of its first process, if
    alive."""
    started = _read(run / "started.json")
    group = started["pid"] if started and alive(started) else None
    watcher: Identity | None = _read(run / "claimed.json")
    found = []
    for pid in _pids():
        known = identity(pid)
        if known is None or pid in (os.getpid(), watcher and watcher["pid"]):
            continue
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == group or _mark(pid) == str(run):
                found.append(known)
    return found


# Chips


def holders(_options: argparse.Namespace) -> Holders:
    """Find the processes that have chips open; `complete` is False if some processes could not be examined."""
    found: list[Holder] = []
    complete = True
    for pid in _pids():
        try:
            devices = _open_files(pid)
        except PermissionError:
            complete = False
            continue
        except OSError:  # it ended
            continue
        held = sorted(device for device in devices if CHIP.fullmatch(device))
        known = identity(pid)
        if held and known:
            run = _mark(pid)
            name = run and Path(run).name
            found.append({**known, "user": _user(pid), "command": _command(pid), "run": name, "devices": held})
    return {"holders": found, "complete": complete}


def end(options: argparse.Namespace) -> dict[str, list[int]]:
    """End a process that held a chip, if it is still the same process and still holds one."""
    wanted = (options.pid, options.ticks)
    holder = next((each for each in holders(options)["holders"] if (each["pid"], each["start_ticks"]) == wanted), None)
    if holder is None:
        return {"ended": []}
    _signal(options.pid, signal.SIGTERM)
    if not _wait_until(lambda: not alive(holder), options.grace_s):
        _signal(options.pid, signal.SIGKILL)
        _wait_until(lambda: not alive(holder), 5.0)
    return {"ended": [options.pid]}


def release(options: argparse.Namespace) -> Mapping[str, object]:
    """Remove libtpu's lock file if certainly no process holds a chip."""
    lock = ROOT / "tmp/libtpu_lockfile"
    if not lock.exists():
        return {"lock": "absent"}
    found = holders(options)
    if found["holders"] or not found["complete"]:
        return {"lock": "kept", **found}
    lock.unlink()
    return {"lock": "removed"}


# Setting up


def prepare(_options: argparse.Namespace) -> dict[str, str]:
    """Return the result of the start-up script, if any, and make libtpu's folder of logs, to which all users write."""
    record = ROOT / "run/dataprep-startup"
    startup = record.read_text().strip() if record.exists() else "none"
    return {"startup": startup, "logs": _open_logs(ROOT / "tmp/tpu_logs"), "python": sys.version.split()[0]}


def _open_logs(logs: Path) -> str:
    """Open libtpu's folder of logs to all users; return the problem with it, or `fine`.

    Any user may make that name in /tmp, also as a link: only the folder of root, or of the user who called sudo, is
    opened, by its descriptor, and nothing in it is touched. Sticky: users cannot replace each other's files by links.
    """
    with contextlib.suppress(FileExistsError):
        logs.mkdir(parents=True)
    try:
        folder = os.open(logs, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return f"{logs} is not a folder; remove it"
    try:
        found = os.fstat(folder)
        if found.st_uid in (os.geteuid(), int(os.environ.get("SUDO_UID", "-1"))):
            os.fchmod(folder, 0o1777)
        elif not found.st_mode & 0o002:
            return f"{logs} belongs to user {found.st_uid}, and others cannot write to it; remove it"
        return "fine"
    finally:
        os.close(folder)


def unpack(options: argparse.Namespace) -> dict[str, str]:
    """Check an archive of code by its digest, and put its files in place, all or none."""
    import tarfile

    base, archive = _base(options), Path(options.archive)
    _make_private(base)
    target = base / "code" / options.name
    with _lock(base / "code" / f".{options.name}.lock"):
        if not target.exists():
            if not archive.exists():
                raise Failure(f"{archive} does not exist; run setup again")
            digest = _sha256(archive)
            if digest != options.sha256:
                raise Failure(f"{archive} has sha256 {digest}, expected {options.sha256}; run setup again")
            partial = base / "code" / f".part-{options.name}"
            shutil.rmtree(partial, ignore_errors=True)  # a call that was killed left it
            try:
                with tarfile.open(archive) as tar:
                    safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                    tar.extractall(partial, **safe)  # type: ignore[arg-type]
                partial.rename(target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            archive.unlink()
        fresh = base / f".current-{os.getpid()}"
        fresh.symlink_to(target)
        fresh.replace(base / "current")
    return {"staged": str(target)}


def environment(options: argparse.Namespace) -> dict[str, str | bool]:
    """Create a virtual environment in the staged code from pinned requirements and a Python, unless it exists."""
    code = (_base(options) / "current").resolve()
    requirements = Path(options.requirements)
    wanted = f"{_sha256(requirements)} {options.python}"
    done = code / ".venv" / "dataprep-complete"
    python = str(code / ".venv/bin/python")
    with _lock(code.parent / f".{code.name}.lock"):
        if done.exists() and done.read_text() == wanted:
            return {"environment": str(code / ".venv"), "made": False}
        uv = shutil.which("uv") or str(_base(options) / "uv/bin/uv")
        if not Path(uv).exists():
            _call([sys.executable, "-m", "venv", str(_base(options) / "uv")])
            _call([str(_base(options) / "uv/bin/pip"), "install", "--quiet", UV])
        shutil.rmtree(code / ".venv", ignore_errors=True)
        _call([uv, "venv", "--quiet", "--python", options.python, str(code / ".venv")])
        _call([uv, "pip", "install", "--quiet", "--python", python, "-r", str(requirements)])
        if any((code / name).exists() for name in ("pyproject.toml", "setup.py")):
            _call([uv, "pip", "install", "--quiet", "--python", python, "--no-deps", "-e", str(code)])
        done.write_text(wanted)
    return {"environment": str(code / ".venv"), "made": True}


def mount(options: argparse.Namespace) -> dict[str, str | int]:
    """Mount a share, again if it does not answer; refuse a folder on which another share is mounted."""
    found = _mounted(options.target)
    if found is not None and found != options.source:
        raise Failure(
            f"{options.target} is {found}, expected {options.source}; unmount it, or choose a different folder"
        )
    if found and _answers(options.target):
        return {"mount": "fine"}
    said = "it does not respond"
    for attempt in range(MOUNT_ATTEMPTS):
        time.sleep(min(attempt, 5) * options.delay_s)
        try:
            if _mounted(options.target):
                _call(["umount", "-l", options.target])
            _call(["mkdir", "-p", options.target])
            _call(["mount", "-t", "nfs", "-o", "vers=3,nosuid,nodev", options.source, options.target])
        except Failure as error:
            said = str(error)
        if _mounted(options.target) == options.source and _answers(options.target):
            _open_share(options.target)
            return {"mount": "repaired" if found else "mounted", "attempts": attempt + 1}
    raise Failure(
        f"{options.source} cannot be mounted on {options.target} after {MOUNT_ATTEMPTS} attempts ({said}); "
        "check its address, and that it is in the same network"
    )


def _mounted(target: str) -> str | None:
    """Return the source that is mounted on a folder; if there are several, the last one, which hides the others."""
    for line in reversed((ROOT / "proc/mounts").read_text().splitlines()):
        source, place, *_ = line.split()
        if place.replace("\\040", " ") == target.rstrip("/"):
            return source
    return None


def _open_share(target: str) -> None:
    """Open the root of a mounted share to all users, by its descriptor: another folder may be on the way by now."""
    folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        mode = stat.S_IMODE(os.fstat(folder).st_mode)
        if os.fstat(folder).st_dev != os.stat("..", dir_fd=folder).st_dev:
            os.fchmod(folder, mode | 0o077)
    except OSError:
        pass  # a read-only share
    finally:
        os.close(folder)


def _answers(target: str) -> bool:
    """Return whether a share answers. Another process tries, because a process that waits for a dead server cannot be
    killed."""
    asked = subprocess.Popen(["stat", "--file-system", target], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return asked.wait(MOUNT_TIMEOUT_S) == 0
    except subprocess.TimeoutExpired:
        return False


# Traces


def put(options: argparse.Namespace) -> dict[str, str]:
    """Write a small file; a relative path is below the folder in which the run began."""
    target = _begun_in(options) / options.path
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".part-{os.getpid()}-{target.name}")
    partial.write_text(options.text)
    partial.replace(target)
    return {"path": str(target)}


def _begun_in(options: argparse.Namespace) -> Path:
    """Return the folder in which a run began."""
    command = _read(_run_folder(options) / "command.json")
    if command is None:
        raise Failure(f"no run {options.run}; see dataprep tpu status")
    return Path(command["cwd"])


def traces(options: argparse.Namespace) -> dict[str, str | dict[str, int]]:
    """Find traces below a folder of logs, with their relative paths and sizes."""
    # Runs begin in the code's folder.
    below = [_begun_in(options)] if options.run else [Path(options.home), _base(options) / "current"]
    folder = next((path for base in below if (path := base / options.folder).exists()), below[0] / options.folder)
    found = [
        path
        for path in folder.rglob("*")
        if path.is_file() and re.search(r"\.(xplane\.pb|trace\.json\.gz)$", path.name)
    ]
    return {
        "folder": str(folder.absolute()),
        "files": {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(found)},
    }


# Small parts


def identity(pid: int, *, ended: bool = False) -> Identity | None:
    """Return number, start and boot of a process; None if it has ended, except with `ended` while it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in "ZX" and not ended:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": pid, "start_ticks": int(fields[19]), "boot": boot}  # fields count from the third one, the state


def alive(known: Identity) -> bool:
    """Return whether the same process still runs."""
    now = identity(known["pid"])
    return now is not None and all(now[key] == known[key] for key in ("pid", "start_ticks", "boot"))


def _pids() -> list[int]:
    """List all processes except init, which opens no chip, and which root in some containers may not examine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and entry.name != "1"]


def _open_files(pid: int) -> set[str]:
    """Return the files that a process has open, except files that it closes meanwhile."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(entry.readlink()))
    return found


def _mark(pid: int) -> str | None:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    prefix = f"{MARK}=".encode()
    return next((each[len(prefix) :].decode() for each in variables if each.startswith(prefix)), None)


def _user(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}").owner()
    except KeyError:  # a container's user, who is unknown here
        return str(Path(f"/proc/{pid}").stat().st_uid)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return " ".join(words).strip()[:_COMMAND_CHARACTERS]
    return ""


def _wait_until(condition: Callable[[], object], timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def _call(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        said = " ".join(done.stdout.decode(errors="replace").split())[-_LAST_CHARACTERS:]
        said = re.sub(r"(?<=://)[^/@ ]+@", "…@", said)  # the name and password of a package index
        raise Failure(f"{' '.join(command[:6])}: {said or f'exit code {done.returncode}'}")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Wait for a lock, and hold it, because a call that gcloud repeats may find the first one still running."""
    import fcntl  # not on Windows, where `dataprep tpu` imports this file, too

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _create(path: Path, content: Any) -> bool:
    """Write a file atomically; return False if it exists already."""
    partial = path.with_name(f".part-{os.getpid()}-{path.name}")
    try:
        # Created readable for its owner only, and not changed afterwards: it may hold a run's variables.
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink()
    return True


def _sha256(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read(path: Path) -> Any:
    """Return the object in a file of a run; None if there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def _base(options: argparse.Namespace) -> Path:
    return Path(options.home) / ".dataprep"


def _make_private(base: Path) -> None:
    """Keep other users out of the folder: variables of runs and staged code may hold secrets."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    base.chmod(0o700)


def _run_folder(options: argparse.Namespace) -> Path:
    return _base(options) / "runs" / str(options.run)


def _cwd(options: argparse.Namespace) -> str:
    current = _base(options) / "current"
    return str(current.resolve()) if current.exists() else str(options.home)


_RUN: tuple[str, Mapping[str, Any]] = ("run", {})
ACTIONS: dict[
    str, tuple[Callable[[argparse.Namespace], Mapping[str, object] | None], bool, list[tuple[str, Mapping[str, Any]]]]
]
ACTIONS = {
    # name: (function, whether to run it as root if possible, arguments)
    "start": (start, False, [("--variables", {"action": "store_true"}), _RUN, ("argv", {"nargs": "..."})]),
    "watch": (watch, False, [_RUN]),
    "state": (state, False, [_RUN]),
    "status": (status, True, []),
    "log": (log, False, [_RUN, ("--offset", {"type": int, "default": 0}), ("--limit", {"type": int, "default": -1})]),
    "kill": (kill, False, [_RUN, ("--grace-s", {"type": float, "default": 60.0})]),
    "holders": (holders, True, []),
    "end": (
        end,
        True,
        [("pid", {"type": int}), ("ticks", {"type": int}), ("--grace-s", {"type": float, "default": 10.0})],
    ),
    "release": (release, True, []),
    "prepare": (prepare, True, []),
    "unpack": (unpack, False, [("archive", {}), ("name", {}), ("sha256", {})]),
    "environment": (environment, False, [("requirements", {}), ("--python", {"default": "3.13"})]),
    "mount": (mount, True, [("source", {}), ("target", {}), ("--delay-s", {"type": float, "default": 1.0})]),
    "put": (put, False, [_RUN, ("path", {}), ("text", {})]),
    "traces": (traces, False, [("folder", {}), ("--run", {"default": ""})]),
}

if __name__ == "__main__":
    sys.exit(main())
