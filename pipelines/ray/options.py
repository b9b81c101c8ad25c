"""Options of `--runner ray`, which stand after `--`; this module does without Ray."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from dataprep.errors import UsageError

AUTO = "auto"
_CONNECT_S = 10.0
_ADDRESS = re.compile(r"[A-Za-z0-9_.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RayOptions:
    """What a user says of the cluster."""

    address: str
    """`auto`, or HOST:PORT of the cluster's head."""
    cpus: float
    """CPUs of a process; each builds one shard at a time."""
    memory_bytes: int
    """Memory that a process needs, for Ray's scheduler; 0: not said."""
    resources: tuple[tuple[str, float], ...]
    """Other resources that a process needs, by the names that the nodes give them."""
    processes: int | None
    """Number of processes; None: as many as the nodes have room for, also those that join later."""
    shared: bool
    """Whether all nodes see the local paths of this machine."""

    @property
    def need(self) -> dict[str, float]:
        """Resources of a process, by Ray's names."""
        return {"CPU": self.cpus, "memory": float(self.memory_bytes), **dict(self.resources)}

    @property
    def need_text(self) -> str:
        """The same for people, such as `CPU 1, memory 2e+09`."""
        return ", ".join(f"{name} {amount:g}" for name, amount in self.need.items() if amount)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"--runner ray: {message} after --; the options are {' '.join(_usage(self))}")


def ray_options(arguments: Sequence[str]) -> RayOptions:
    """Return the options among a user's arguments after `--`. Raises UsageError for any other."""
    parser = _Parser(prog="ray", add_help=False, allow_abbrev=False)
    parser.add_argument("--address", default=AUTO, metavar="HOST:PORT")
    parser.add_argument("--cpus", type=_positive, default=1.0, metavar="N")
    parser.add_argument("--memory", type=_gib, default=0, metavar="GIB")
    parser.add_argument("--resource", type=_resource, action="append", default=[], metavar="NAME=N")
    parser.add_argument("--processes", type=_count, default=None, metavar="N")
    parser.add_argument("--shared", action="store_true")
    found, unknown = parser.parse_known_args(list(arguments))
    if unknown:
        parser.error(f"no options of this engine: {' '.join(unknown)}")
    if found.address != AUTO and not _ADDRESS.fullmatch(found.address):
        raise UsageError(
            f"--runner ray: --address={found.address}: expected auto, or HOST:PORT of the cluster's head; run this "
            "command on a node of the cluster"
        )
    return RayOptions(
        address=found.address,
        cpus=found.cpus,
        memory_bytes=found.memory,
        resources=tuple(found.resource),
        processes=found.processes,
        shared=found.shared,
    )


def _usage(parser: argparse.ArgumentParser) -> list[str]:
    return [action.option_strings[0] + (f"={action.metavar}" if action.metavar else "") for action in parser._actions]


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1024:
        raise ValueError(text)
    return value


def _gib(text: str) -> int:
    return int(_positive(text) * (1 << 30))


def _count(text: str) -> int:
    value = int(text)
    if not 0 < value <= 1_000_000:
        raise ValueError(text)
    return value


def _resource(text: str) -> tuple[str, float]:
    name, equals, amount = text.partition("=")
    if not (name and equals):
        raise ValueError(text)
    return name, _positive(amount)


def refuse_silence(address: str) -> None:
    """Raise UsageError if nothing listens at the address, at once instead of after Ray's attempts."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"--runner ray: nothing answers at --address={address} ({error}); start the cluster first, or give the "
            "address that ray start --head printed"
        ) from error


def refuse_local_paths(options: RayOptions, urls: Sequence[str], other_hosts: Sequence[str]) -> None:
    """Raise UsageError for paths of this machine that processes on other machines cannot see.

    Args:
        urls: URLs of originals and dataset.
        other_hosts: Names of the machines of the cluster except this one.
    """
    local = [url for url in urls if "://" not in url or url.startswith("file:")]
    if local and other_hosts and not options.shared:
        raise UsageError(
            f"--runner ray: {local[0]} is on this machine, and {other_hosts[0]} cannot reach it; copy it to a bucket, "
            "or give --shared after -- if all nodes see the same folder there"
        )
