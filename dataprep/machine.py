"""What a machine knows of itself: the metadata server of Google Cloud, the variables of GKE, or `gcloud` about a TPU.

Elsewhere nobody answers at the metadata server's address, or somebody who does not say that he is Google.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dataprep.errors import UndecidedError, UsageError

DEADLINE_S = 1.5
"""For all that is asked of the metadata server: it answers within milliseconds, or there is none."""
GCLOUD_TIMEOUT_S = 120.0
METADATA_IP = "169.254.169.254"
"""Not its name: where there is no such server, looking that up may take longer than asking."""
_ROOT = "/computeMetadata/v1/instance/"
_FLAVOR = {"Metadata-Flavor": "Google"}
_ATTRIBUTES = ("accelerator-type", "agent-worker-number", "worker-network-endpoints", "instance-id", "tpu-env")
_MAX_ANSWER_BYTES = 1 << 20
_TPU_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_TPU_ENV_LINE = re.compile(r"\s*(\w+)\s*:\s*(.*?)\s*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A machine in Google Cloud, or a TPU of several; empty where something is not known."""

    zone: str
    machine_type: str = ""
    accelerator_type: str = ""
    """Such as `v4-16`."""
    tpu_name: str = ""
    worker: int | None = None
    """Number of this host among those of its TPU."""
    hosts: tuple[str, ...] = ()
    """Names or addresses of all of them, in the order of their numbers."""
    topology: str = ""
    tpu_env: Mapping[str, str] = field(default_factory=dict)
    """All that the TPU's service tells, as it tells it."""


def this_zone() -> str | None:
    """The zone of this machine; None outside Google Cloud. Asked once a process, within DEADLINE_S."""
    address = _address()
    return None if address is None else _zone_at(os.getpid(), address)


def this_machine() -> Machine | None:
    """All that this machine knows of itself; None outside Google Cloud.

    On GKE a TPU's facts are in variables; where TPU_SKIP_MDS_QUERY=1 the metadata server is asked for no TPU.
    """
    address, environment = _address(), os.environ
    asked = {"zone": "zone", "machine-type": "machine-type"}
    if environment.get("TPU_SKIP_MDS_QUERY") != "1":
        asked |= {name: f"attributes/{name}" for name in _ATTRIBUTES}
    said = {} if address is None else _ask(address, asked)
    if "zone" not in said:
        return None
    return _machine_of(said, environment)


def tpu_machine(name: str, zone: str | None = None) -> Machine:
    """A TPU by its name, through `gcloud`: of the TPU service, or of Compute Engine for newer types.

    Args:
        zone: Where there are several of this name.

    Raises:
        UsageError: No `gcloud`, or no TPU or several of this name.
        UndecidedError: `gcloud` could not answer.
    """
    if not _TPU_NAME.fullmatch(name):
        raise UsageError(f"--tpu {name!r}: not a name of a TPU; expected a-z, 0-9 and -")
    listed = _gcloud("compute", "tpus", "tpu-vm", "list", f"--zone={zone or '-'}")
    found = [_tpu_of(node) for node in listed if _last(node.get("name", "")) == name]
    if not found:
        vms = _gcloud("compute", "instances", "list", f"--filter=name={name}", *([f"--zones={zone}"] if zone else []))
        found = [_vm_of(vm) for vm in vms if vm.get("name") == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"--tpu {name}: there is one in {', '.join(each.zone for each in found)}; add --zone")
    names = ", ".join(sorted(_last(node.get("name", "")) for node in listed)[:10]) or "none"
    raise UsageError(f"--tpu {name}: no such TPU, gcloud lists {names}; check the name and the project, or give --zone")


def _address() -> str | None:
    """Of the metadata server, as google-auth finds it; None where nobody may be asked."""
    if os.environ.get("NO_GCE_CHECK", "").lower() == "true":
        return None
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"):
        if os.environ.get(name):
            return os.environ[name]
    return METADATA_IP


# The process is part of the key: what was asked before a fork holds after it, but costs nothing to ask again.
@functools.lru_cache(maxsize=4)
def _zone_at(_pid: int, address: str) -> str | None:
    zone = _ask(address, {"zone": "zone"}).get("zone")
    return _last(zone) if zone else None


def _ask(address: str, paths: Mapping[str, str]) -> dict[str, str]:
    """What the metadata server says of each path, those left out of which it says nothing in time."""
    said: dict[str, str] = {}
    # A thread, as neither a name's look-up nor a server that sends byte by byte keeps to a timeout.
    thread = threading.Thread(target=_ask_in_turn, args=(address, paths, said), name="metadata", daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    return dict(said)


def _ask_in_turn(address: str, paths: Mapping[str, str], said: dict[str, str]) -> None:
    """Stops at the first answer that is not Google's, and where the connection breaks."""
    import http.client

    with contextlib.suppress(OSError, http.client.HTTPException, ValueError), contextlib.ExitStack() as opened:
        connection = opened.enter_context(contextlib.closing(http.client.HTTPConnection(address, timeout=DEADLINE_S)))
        for name, path in paths.items():
            connection.request("GET", _ROOT + path, headers=_FLAVOR)
            answer = connection.getresponse()
            text = answer.read(_MAX_ANSWER_BYTES).decode()
            if answer.headers.get("Metadata-Flavor") != "Google":
                return
            if answer.status == http.HTTPStatus.OK:
                said[name] = text.strip()


def _machine_of(said: Mapping[str, str], environment: Mapping[str, str]) -> Machine:
    env = tpu_env(said.get("tpu-env", ""))
    worker = said.get("agent-worker-number") or env.get("WORKER_ID") or environment.get("TPU_WORKER_ID", "")
    hosts = said.get("worker-network-endpoints") or environment.get("TPU_WORKER_HOSTNAMES", "")
    return Machine(
        zone=_last(said["zone"]),
        machine_type=_last(said.get("machine-type", "")),
        accelerator_type=said.get("accelerator-type")
        or env.get("ACCELERATOR_TYPE")
        or environment.get("TPU_ACCELERATOR_TYPE", ""),
        tpu_name=said.get("instance-id") or env.get("NODE_ID") or environment.get("TPU_NAME", ""),
        worker=int(worker) if worker.isdecimal() else None,
        hosts=endpoints(hosts),
        topology=env.get("TOPOLOGY") or environment.get("TPU_TOPOLOGY", ""),
        tpu_env=env,
    )


def endpoints(text: str) -> tuple[str, ...]:
    """The hosts of `worker-network-endpoints`: each item is `name:uid:address`, or a name or address alone."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    return tuple(item.split(":", 2)[2] if item.count(":") == 2 else item for item in items)


def tpu_env(text: str) -> dict[str, str]:
    """The lines `NAME: 'value'` of the attribute `tpu-env`."""
    found = (_TPU_ENV_LINE.fullmatch(line) for line in text.splitlines())
    return {match[1]: match[2].strip("'\"") for match in found if match}


def _gcloud(*arguments: str) -> list[dict[str, Any]]:
    command = ["gcloud", *arguments, "--format=json", "--quiet"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=GCLOUD_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise UsageError("--tpu needs gcloud, which is not on the PATH; install it, or give --zone") from None
    except subprocess.TimeoutExpired:
        raise UndecidedError(f"{' '.join(command)}: no answer in {GCLOUD_TIMEOUT_S:.0f} s; give --zone") from None
    if run.returncode:
        said = (run.stderr.strip() or f"exit code {run.returncode}").splitlines()[0]
        raise UndecidedError(f"{' '.join(command)}: {said}; mend that, or give --zone")
    try:
        listed = json.loads(run.stdout or "[]")
    except ValueError:
        listed = None
    if not isinstance(listed, list):
        raise UndecidedError(f"{' '.join(command)}: its answer is no list in JSON; give --zone")
    return [entry for entry in listed if isinstance(entry, dict)]


def _tpu_of(node: Mapping[str, Any]) -> Machine:
    """A node's name is projects/P/locations/ZONE/nodes/NAME."""
    parts = node["name"].split("/")
    return Machine(zone=parts[-3], tpu_name=parts[-1], accelerator_type=node.get("acceleratorType", ""))


def _vm_of(vm: Mapping[str, Any]) -> Machine:
    return Machine(zone=_last(vm.get("zone", "")), tpu_name=vm["name"], machine_type=_last(vm.get("machineType", "")))


def _last(path: str) -> str:
    return path.rpartition("/")[2]
