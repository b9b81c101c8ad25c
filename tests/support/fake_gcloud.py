"""A stand-in for `gcloud`: it knows its flags, keeps TPUs and accounts in a folder, runs ssh and scp as processes.

    with fake_gcloud(folder) as cloud:   # PATH has it first
        cloud.add_tpu("my-tpu", workers=4)
        cloud.drop("start", worker=1, how="during")

Flags are those of the real SDK (`gcloud_flags.json`). A worker is a folder with a home of its own; what its processes
see of /dev, /proc/mounts, /run and /tmp is below `root`. As the real one does, ssh repeats a command whose connection
dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS: dict[str, Any] = json.loads(Path(__file__).with_name("gcloud_flags.json").read_text())
_OF_A_MACHINE = {"--machine-type", "--image-family", "--image-project", "--maintenance-policy"}
REQUIRED = {
    "compute tpus tpu-vm create": {"--zone", "--version"},
    "compute tpus queued-resources create": {"--zone", "--runtime-version", "--node-id"},
    "alpha compute tpus queued-resources create": {"--zone", "--runtime-version", "--node-id"},
    "compute instances create": {"--zone", *_OF_A_MACHINE},
    "compute instance-templates create": _OF_A_MACHINE,
    "compute instance-groups managed create": {"--zone", "--size", "--template"},
    "compute instance-groups managed resize": {"--zone", "--size"},
    "compute resource-policies create workload-policy": {"--type", "--region"},
    "storage buckets add-iam-policy-binding": {"--member", "--role"},
}
RUNTIMES = {  # by the beginning of an accelerator type; Google's page on TPU software versions
    "v2-": "tpu-ubuntu2204-base",
    "v3-": "tpu-ubuntu2204-base",
    "v4-": "tpu-ubuntu2204-base",
    "v5litepod-": "v2-alpha-tpuv5-lite",
    "v5p-": "v2-alpha-tpuv5",
    "v6e-": "v2-alpha-tpuv6e",
}
IMAGES = {
    "ct5p-": "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
    "ct6e-": "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
    "tpu7x-": "ubuntu-accel-2404-amd64-tpu-tpu7x",
}
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
ATTEMPTS = 10
"""Attempts that the real ssh and scp make, five seconds apart."""
_UNREACHABLE = "[/usr/bin/ssh] exited with return code [255]."


class FakeCloud:
    """What a test arranges and asks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("nodes", "workers", "bin"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def add_tpu(self, name: str, *, workers: int = 1, state: str = "READY", **more: Any) -> None:
        """Add a node of the TPU API."""
        ends = [{"ipAddress": f"10.0.0.{number + 2}"} for number in range(workers)]
        self._put(name, "tpu", {"name": name, "state": state, "health": "HEALTHY", "networkEndpoints": ends, **more})
        for number in range(workers):
            self._make_worker(name, str(number))

    def add_machines(self, name: str, machines: list[str], *, status: str = "RUNNING") -> None:
        """Add machines of Compute Engine, with the label that `create` gives them."""
        kind = "zones/z/machineTypes/tpu7x-standard-4t"
        listed = [{"name": machine, "status": status, "machineType": kind} for machine in machines]
        self._put(name, "machines", listed)
        for machine in machines:
            self._make_worker(machine, "0")

    def add_request(self, name: str, state: str) -> None:
        """A queued one."""
        self._put(name, "request", {"name": name, "state": {"state": state}})

    def put_account(self, email: str, roles: dict[str, list[str]], unknown_for: int = 1) -> None:
        """A service account with its roles by bucket; the next so many that name it do not know it yet."""
        self._put(email, "account", {"roles": roles, "unknown_for": unknown_for})

    def names(self, kind: str) -> set[str]:
        """Return the names of all that exists of a kind: `tpu`, `machines` or `request`."""
        return {path.stem for path in (self.folder / "nodes").glob(f"*.{kind}")}

    def home(self, worker: int | str = 0, tpu: str = "my-tpu") -> Path:
        return self.folder / "workers" / tpu / str(worker) / "home"

    def root(self, worker: int | str = 0, tpu: str = "my-tpu") -> Path:
        return self.folder / "workers" / tpu / str(worker) / "root"

    def drop(self, contains: str, *, how: str, worker: int | str = 0, times: int = 1) -> None:
        """The connection of the next ssh with these characters: `before` the command, `during` it, `after` it."""
        self._edit("drops", lambda drops: drops + [{"contains": contains, "how": how, "worker": str(worker)}] * times)

    def fail(self, contains: str, said: str) -> None:
        """Every command line with these characters says this, and fails."""
        self._edit("failures", lambda failures: [*failures, {"contains": contains, "said": said}])

    def calls(self, contains: str = "") -> list[list[str]]:
        """Command lines so far."""
        path = self.folder / "calls.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if contains in " ".join(line)]

    def take_drop(self, worker: str, command: str) -> str | None:
        """How this connection drops; each drop happens once."""
        taken: list[str] = []

        def take(drops: list[dict[str, str]]) -> list[dict[str, str]]:
            for drop in drops:
                if not taken and drop["worker"] == worker and drop["contains"] in command:
                    taken.append(drop["how"])
                    drops = [other for other in drops if other is not drop]
            return drops

        self._edit("drops", take)
        return taken[0] if taken else None

    def read(self, name: str, kind: str) -> Any:
        path = self.folder / "nodes" / f"{name}.{kind}"
        return json.loads(path.read_text()) if path.exists() else None

    def remove(self, name: str, kind: str) -> None:
        (self.folder / "nodes" / f"{name}.{kind}").unlink()

    def record(self, argv: list[str]) -> str | None:
        """Keep a command line; what it is to fail with."""
        with open(self.folder / "calls.jsonl", "a") as file:
            file.write(json.dumps(argv) + "\n")
        path = self.folder / "failures.json"
        failures = json.loads(path.read_text()) if path.exists() else []
        return next((failure["said"] for failure in failures if failure["contains"] in " ".join(argv)), None)

    def _put(self, name: str, kind: str, content: Any) -> None:
        (self.folder / "nodes" / f"{name}.{kind}").write_text(json.dumps(content))

    def _edit(self, name: str, change: Any) -> None:
        with open(self.folder / f"{name}.json", "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            content = change(json.loads(file.read() or "[]"))
            file.truncate(0)
            file.write(json.dumps(content))

    def _make_worker(self, tpu: str, number: str) -> None:
        self.home(number, tpu).mkdir(parents=True)
        for name in ("dev/vfio", "proc", "run", "tmp"):
            (self.root(number, tpu) / name).mkdir(parents=True)
        for name in ("dev/accel0", "dev/accel1", "proc/mounts"):
            (self.root(number, tpu) / name).touch()


@contextmanager
def fake_gcloud(folder: Path, monkeypatch: Any) -> Iterator[FakeCloud]:
    """Put a fake gcloud first on the PATH; at the end, end what it started."""
    cloud = FakeCloud(folder)
    root = Path(__file__).resolve().parents[2]
    start = f"import sys; from tests.support.fake_gcloud import main; sys.exit(main('{folder}', *sys.argv[1:]))"
    script = f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -S -c "{start}" "$@"\n'
    _program(folder / "bin/gcloud", script)
    mount = 'for last; do :; done; shift $(($# - 2)); echo "$1 $2 nfs rw 0 0" >> "$DATAPREP_TPU_ROOT/proc/mounts"\n'
    fails = (
        'if [ -s "$HOME/mount-fails" ]; then sed -i 1d "$HOME/mount-fails"; echo "Connection timed out"; exit 32; fi\n'
    )
    _program(folder / "bin/mount", f"#!/bin/sh\n{fails}{mount}")
    # A bare Python, as on a fresh machine: what is installed beside this one takes half of its start.
    _program(folder / "bin/python3", f'#!/bin/sh\nexec {_system_python()} -S "$@"\n')
    _program(folder / "bin/sudo", "#!/bin/sh\nexit 1\n")  # the real one would forget DATAPREP_TPU_ROOT
    _program(folder / "bin/umount", '#!/bin/sh\n: > "$DATAPREP_TPU_ROOT/proc/mounts"\n')
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    try:
        yield cloud
    finally:
        for path in folder.glob("workers/*/*/home/.dataprep/runs/*/started.json"):
            _end(json.loads(path.read_text()))


def _system_python() -> str:
    return next(f"{folder}/python3" for folder in SYSTEM_PATH.split(":") if Path(folder, "python3").exists())


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _end(started: dict[str, Any]) -> None:
    try:
        fields = Path(f"/proc/{started['pid']}/stat").read_text().rpartition(")")[2].split()
        if int(fields[19]) == started["start_ticks"]:
            os.killpg(started["pid"], signal.SIGKILL)
    except (OSError, ProcessLookupError):
        pass


class _Refused(Exception):
    """What gcloud would say."""


def main(folder: str, *words: str) -> int:
    cloud = FakeCloud(Path(folder))
    said = cloud.record(["gcloud", *words])
    try:
        command, positional, flags = parse(list(words))
        if said is not None:
            raise _Refused(said)
        return ACTS[command](cloud, positional, flags)
    except _Refused as error:
        print(f"ERROR: (gcloud.{'.'.join(words[:3])}) {error}", file=sys.stderr)
        return 2 if "arguments" in str(error) else 1


def parse(words: list[str]) -> tuple[str, list[str], dict[str, str]]:
    """Command, positional words, flags; what the real gcloud would not take is refused in its words."""
    command = max((name for name in FLAGS if " ".join(words).startswith(f"{name} ")), key=len, default="")
    if not command:
        raise _Refused(f"Invalid choice: '{' '.join(words)}'.")
    known = FLAGS[command] | FLAGS["*"]
    positional, flags = [], {}
    for word in words[len(command.split()) :]:
        if not word.startswith("--"):
            positional.append(word)
            continue
        name, equals, value = word.partition("=")
        if name not in known or (known[name] is True) == bool(equals):
            raise _Refused(f"unrecognized arguments: {word}")
        if isinstance(known[name], list) and value not in known[name]:
            raise _Refused(f"argument {name}: Invalid choice: '{value}'.")
        flags[name] = value
    missing = REQUIRED.get(command, set()) - set(flags)
    if missing or not (positional or command.endswith("list")):
        raise _Refused(f"argument {' '.join(sorted(missing)) or 'NAME'}: Must be specified.")
    return command, positional, flags


def _create(cloud: FakeCloud, positional: list[str], flags: dict[str, str]) -> int:
    kind, version = flags.get("--accelerator-type", ""), flags.get("--version") or flags["--runtime-version"]
    if kind:
        chips = int(kind.rpartition("-")[2]) // (1 if kind.startswith(("v5litepod", "v6e")) else 2)
        prefix = f"{kind.rpartition('-')[0]}-"
    else:
        sides = [int(side) for side in flags["--topology"].split("x")]
        chips, prefix = sides[0] * sides[1] * (sides[2] if len(sides) > 2 else 1), f"{flags['--type']}-"
    if RUNTIMES.get(prefix) != version:
        raise _Refused(f"INVALID_ARGUMENT: runtime version {version} does not go with {kind or prefix}")
    (name,) = positional
    if name in cloud.names("tpu"):
        raise _Refused("ALREADY_EXISTS: Resource already exists")
    workers = 1 if chips <= 4 or (chips == 8 and prefix in ("v5litepod-", "v6e-")) else chips // 4
    _startup(flags)
    if "--node-id" in flags:
        cloud.add_request(name, "WAITING_FOR_RESOURCES")
    else:
        cloud.add_tpu(name, workers=workers, acceleratorType=kind, version=version)
    return 0


def _create_machine(cloud: FakeCloud, positional: list[str], flags: dict[str, str]) -> int:
    machine = flags["--machine-type"]
    if IMAGES.get(f"{machine.partition('-')[0]}-") != flags["--image-family"]:
        raise _Refused(f"Invalid value for field 'image': {flags['--image-family']} for {machine}")
    _startup(flags)
    (name,) = positional
    if "--instance-template-region" in flags:
        cloud._put(name, "template", flags)
    else:
        cloud.add_machines(name, [name])
    return 0


def _create_policy(cloud: FakeCloud, positional: list[str], flags: dict[str, str]) -> int:
    cloud._put(positional[0], "policy", flags)
    return 0


def _create_group(cloud: FakeCloud, positional: list[str], flags: dict[str, str]) -> int:
    for flag, kind in (("--template", "template"), ("--workload-policy", "policy")):
        if not flags[flag].startswith("projects/") or cloud.read(flags[flag].rpartition("/")[2], kind) is None:
            raise _Refused(f"The URL is malformed: {flags[flag]}")
    cloud._put(positional[0], "group", flags)
    return 0


def _resize(cloud: FakeCloud, positional: list[str], flags: dict[str, str]) -> int:
    (name,) = positional
    cloud.add_machines(name, [f"{name}-{number:04d}" for number in range(int(flags["--size"]))])
    return 0


def _describe(kind: str) -> Any:
    def act(cloud: FakeCloud, positional: list[str], flags: dict[str, str]) -> int:
        found = cloud.read(positional[0], kind)
        if found is None:
            where = f"projects/p/locations/{flags['--zone']}/{'nodes' if kind == 'tpu' else 'queuedResources'}"
            raise _Refused(f"NOT_FOUND: Resource '{where}/{positional[0]}' was not found")
        print(json.dumps(found))
        return 0

    return act


def _list_tpus(cloud: FakeCloud, _positional: list[str], _flags: dict[str, str]) -> int:
    nodes = [cloud.read(name, "tpu") for name in sorted(cloud.names("tpu"))]
    print(json.dumps([node | {"name": f"projects/p/locations/{node['zone']}/nodes/{node['name']}"} for node in nodes]))
    return 0


def _list_machines(cloud: FakeCloud, _positional: list[str], flags: dict[str, str]) -> int:
    match = re.fullmatch(r"labels\.dataprep-tpu=(\S+) OR name=\1", flags["--filter"])
    if match is None:
        raise _Refused(f"Invalid filter: {flags['--filter']}")
    print(json.dumps(cloud.read(match[1], "machines") or []))
    return 0


def _delete(*kinds: str) -> Any:
    def act(cloud: FakeCloud, positional: list[str], flags: dict[str, str]) -> int:
        if "--quiet" not in flags:
            raise _Refused("cannot ask, as there is no terminal")
        there = [kind for kind in kinds if cloud.read(positional[0], kind) is not None]
        if not there:
            raise _Refused(f"NOT_FOUND: Resource '{positional[0]}' was not found")
        for kind in there:
            cloud.remove(positional[0], kind)
        return 0

    return act


def _ssh(cloud: FakeCloud, positional: list[str], flags: dict[str, str]) -> int:
    worker = flags.get("--worker", "0")
    tpu, command = positional[0], flags.get("--command")
    home, root = cloud.home(worker, tpu), cloud.root(worker, tpu)
    if not home.exists():
        raise _Refused(f"NOT_FOUND: worker {worker} of {tpu} was not found")
    path = f"{cloud.folder / 'bin'}:{SYSTEM_PATH}"
    environment = {"HOME": str(home), "DATAPREP_TPU_ROOT": str(root), "PATH": path, "LANG": "C.UTF-8"}
    if command is None:
        return subprocess.run(["sh"], cwd=home, env=environment).returncode
    for _ in range(ATTEMPTS):
        how = cloud.take_drop(worker if "--worker" in flags else tpu, command)
        if how != "before":
            ran = subprocess.Popen(
                ["sh", "-c", command], cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
            if how == "during":
                time.sleep(0.15)
                os.killpg(ran.pid, signal.SIGHUP)  # what a shell's session gets when its terminal or connection is gone
            out, err = ran.communicate()
            if how is None:
                sys.stdout.buffer.write(out)
                sys.stderr.buffer.write(err)
                return ran.returncode
        print(f"Retrying: SSH command error: {_UNREACHABLE}", file=sys.stderr)
    raise _Refused(_UNREACHABLE)


def _scp(cloud: FakeCloud, positional: list[str], flags: dict[str, str]) -> int:
    *sources, target = positional
    there = re.compile(r"([a-z][-a-z0-9]*):(.+)")
    if match := there.fullmatch(target):
        tpu, path = match.groups()
        wanted = flags.get("--worker", "0")
        workers = (
            [home.parent.name for home in cloud.folder.glob(f"workers/{tpu}/*/home")] if wanted == "all" else [wanted]
        )
        for worker in workers:
            for source in sources:
                _copy(Path(source), cloud.home(worker, tpu) / path, "--recurse" in flags)
    for source in sources:
        if match := there.fullmatch(source):
            home = cloud.home(flags.get("--worker", "0"), match[1])
            _copy(home / match[2], Path(target), "--recurse" in flags)
    return 0


def _copy(source: Path, target: Path, recurse: bool) -> None:
    import shutil  # late, as half of what starting costs

    if source.is_dir() and not recurse:
        raise _Refused(f"{source}: not a regular file")
    target = target / source.name if target.is_dir() else target
    if not source.exists() or not target.parent.is_dir():
        raise _Refused(f"{source if not source.exists() else target.parent}: No such file or directory")
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)  # scp keeps the mode


def _create_account(cloud: FakeCloud, positional: list[str], flags: dict[str, str]) -> int:
    email = f"{positional[0]}@{flags.get('--project', 'p')}.iam.gserviceaccount.com"
    if cloud.read(email, "account") is not None:
        raise _Refused(
            f"Resource in projects [p] is the subject of a conflict: Service account {email} already exists."
        )
    cloud.put_account(email, roles={})
    return 0


def _bind(cloud: FakeCloud, positional: list[str], flags: dict[str, str]) -> int:
    """A new account is not known everywhere at once."""
    kind, _, email = flags["--member"].partition(":")
    account = cloud.read(email, "account")
    if kind != "serviceAccount" or account is None or account["unknown_for"] > 0:
        if account is not None:
            cloud.put_account(email, account["roles"], unknown_for=account["unknown_for"] - 1)
        raise _Refused(f"HTTPError 400: Service account {email} does not exist.")
    roles = account["roles"].get(positional[0], [])
    cloud.put_account(email, {**account["roles"], positional[0]: sorted({*roles, flags["--role"]})}, unknown_for=0)
    return 0


def _startup(flags: dict[str, str]) -> None:
    key, _, path = flags.get("--metadata-from-file", "").partition("=")
    if key and (key != "startup-script" or not Path(path).is_file()):
        raise _Refused(f"Unable to read file [{path}]")


ACTS = {
    "compute tpus tpu-vm create": _create,
    "compute tpus tpu-vm describe": _describe("tpu"),
    "compute tpus tpu-vm delete": _delete("tpu"),
    "compute tpus tpu-vm list": _list_tpus,
    "compute tpus tpu-vm ssh": _ssh,
    "compute tpus tpu-vm scp": _scp,
    "compute tpus queued-resources create": _create,
    "alpha compute tpus queued-resources create": _create,
    "compute tpus queued-resources describe": _describe("request"),
    "compute tpus queued-resources delete": _delete("request", "tpu"),
    "compute instances create": _create_machine,
    "compute instances list": _list_machines,
    "compute instances delete": _delete("machines"),
    "compute ssh": _ssh,
    "compute scp": _scp,
    "compute resource-policies create workload-policy": _create_policy,
    "compute resource-policies delete": _delete("policy"),
    "compute instance-templates create": _create_machine,
    "compute instance-templates delete": _delete("template"),
    "compute instance-groups managed create": _create_group,
    "compute instance-groups managed resize": _resize,
    "compute instance-groups managed delete": _delete("group", "machines"),
    "iam service-accounts create": _create_account,
    "storage buckets add-iam-policy-binding": _bind,
}
