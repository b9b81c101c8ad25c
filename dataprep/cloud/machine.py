"""Describes this machine, from Google Cloud's metadata server or the environment variables of GKE.

Outside Google Cloud no server answers at the metadata server's address, or one that does not identify as Google's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

DEADLINE_S = 1.5
"""Deadline for all requests to the metadata server together: if it exists, it answers within milliseconds."""
METADATA_IP = "169.254.169.254"
"""Address of the metadata server, used instead of its name, whose look-up may take longer than the requests."""
_ROOT = "/computeMetadata/v1/instance/"
_FLAVOR = {"Metadata-Flavor": "Google"}
_HOSTS = "attributes/worker-network-endpoints"
_MAX_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A machine in Google Cloud."""

    zone: str
    hosts: tuple[str, ...]
    """Names or addresses of all hosts of its TPU, in the order of their numbers; empty without a TPU."""


def this_zone() -> str | None:
    """Return the zone of this machine; None outside Google Cloud. Each process requests it once, within DEADLINE_S."""
    address = _address()
    return None if address is None else _zone_at(os.getpid(), address)


def this_machine() -> Machine | None:
    """Return the zone of this machine and the hosts of its TPU; None outside Google Cloud.

    On GKE an environment variable lists the hosts; with TPU_SKIP_MDS_QUERY=1 they are not requested from the metadata
    server.
    """
    address = _address()
    paths = {"zone": "zone"} if os.environ.get("TPU_SKIP_MDS_QUERY") == "1" else {"zone": "zone", "hosts": _HOSTS}
    said = {} if address is None else _ask(address, paths)
    if "zone" not in said:
        return None
    return Machine(
        zone=_last(said["zone"]), hosts=endpoints(said.get("hosts") or os.environ.get("TPU_WORKER_HOSTNAMES", ""))
    )


def _address() -> str | None:
    """Return the address of the metadata server, found as by google-auth; None if it must not be used."""
    if os.environ.get("NO_GCE_CHECK", "").lower() == "true":
        return None
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"):
        if os.environ.get(name):
            return os.environ[name]
    return METADATA_IP


# The process is part of the key. The answer would also hold after a fork, but another request costs nothing.
@functools.lru_cache(maxsize=4)
def _zone_at(_pid: int, address: str) -> str | None:
    zone = _ask(address, {"zone": "zone"}).get("zone")
    return _last(zone) if zone else None


def _ask(address: str, paths: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata server's answer for each path; paths without an answer in time are left out."""
    said: dict[str, str] = {}
    # A thread, because no timeout limits the look-up of a name, or a server that sends byte by byte.
    thread = threading.Thread(target=_ask_in_turn, args=(address, paths, said), name="metadata", daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    return dict(said)


def _ask_in_turn(address: str, paths: Mapping[str, str], said: dict[str, str]) -> None:
    """Request each path, until an answer is not Google's or the connection breaks."""
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


def endpoints(text: str) -> tuple[str, ...]:
    """Parse the hosts of `worker-network-endpoints`: an item is `name:uid:address`, or a name or address alone."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    return tuple(item.split(":", 2)[2] if item.count(":") == 2 else item for item in items)


def _last(path: str) -> str:
    return path.rpartition("/")[2]
