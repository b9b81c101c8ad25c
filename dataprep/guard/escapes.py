"""Finds connections of a command that pass the guard by, from what Linux says of its processes in /proc.

A sample is one look: a connection that lives between two samples is not seen. What is seen is named by program and
address; how many bytes it carries is not known.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HTTPS_PORT = 443
MAX_ESCAPES = 200
_ESTABLISHED = "01"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_PROC = Path("/proc")
ENDED_STATES = frozenset("ZX")
"""States of processes that have ended and are not yet forgotten: zombie and dead."""
_STATE_FIELD, _PARENT_FIELD, _GROUP_FIELD, _SESSION_FIELD = range(4)
"""Positions in /proc/PID/stat after the program's name."""


@dataclass(frozen=True, order=True, slots=True)
class Connection:
    """A connection that passes the guard by."""

    program: str
    address: str


class Watch:
    """Looks at the connections of a process and of all that it has started, again and again.

    Args:
        root: The process. What belongs to its session counts as started by it, even after its parent has ended.
        upstream: Address and port of an emulator that only the guard may reach; None if there is none.
    """

    def __init__(self, root: int, upstream: tuple[str, int] | None = None) -> None:
        self.found: set[Connection] = set()
        self._root = root
        self._upstream = upstream
        self._known: set[str] = set()
        """Sockets that were looked at already."""

    def sample(self) -> None:
        """Look once. Processes are searched only if there is a socket that was not there before."""
        sockets = {inode: address for inode, address in _connections(self._is_direct) if inode not in self._known}
        if not sockets:
            return
        self._known = self._known | sockets.keys() if len(self._known) < 100_000 else set(sockets)
        for process in _processes(self._root):
            with contextlib.suppress(OSError):
                program = (process / "comm").read_text().strip()
                for inode in _sockets_of(process) & sockets.keys():
                    if len(self.found) < MAX_ESCAPES:
                        self.found.add(Connection(program, sockets[inode]))

    def _is_direct(self, address: str, port: int) -> bool:
        if (address, port) == self._upstream:
            return True
        found = ipaddress.ip_address(address)
        return port == HTTPS_PORT and not (found.is_loopback or found.is_link_local)


def _connections(is_watched: Callable[[str, int], bool]) -> Iterator[tuple[str, str]]:
    """Yield the socket and the address of each established connection of this network that is watched."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / "self/net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] != _ESTABLISHED:
                    continue
                address, port = parse_address(fields[2])
                if is_watched(address, port):
                    yield fields[9], f"{address}:{port}" if ":" not in address else f"[{address}]:{port}"


def parse_address(text: str) -> tuple[str, int]:
    """Return the address and port of `0100007F:0050`: words of four bytes in the machine's order."""
    address, _, port = text.partition(":")
    words = struct.pack(f"={len(address) // 8}I", *(int(address[at : at + 8], 16) for at in range(0, len(address), 8)))
    found = ipaddress.ip_address(words)
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found), int(port, 16)


def states_of_group(leader: int) -> set[str]:
    """Return the states of the processes of a group; none where the system has no /proc."""
    with contextlib.suppress(FileNotFoundError):
        return {fields[_STATE_FIELD] for _, fields in _statuses() if int(fields[_GROUP_FIELD]) == leader}
    return set()


def _statuses() -> Iterator[tuple[int, list[str]]]:
    """Yield every process, and the fields of its /proc/PID/stat after the program's name."""
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), Path(entry.path, "stat").read_text().rpartition(")")[2].split()


def _processes(root: int) -> Iterator[Path]:
    """Yield the folders of a process and of those that it has started, without this one."""
    parents: dict[int, int] = {}
    found = set()
    for process, fields in _statuses():
        parents[process] = int(fields[_PARENT_FIELD])
        if int(fields[_SESSION_FIELD]) == root:
            found.add(process)
    for process in parents:
        line = process
        while line and line != root:
            line = parents.get(line, 0)
        if line == root:
            found.add(process)
    found.discard(os.getpid())
    yield from (_PROC / str(process) for process in sorted(found))


def _sockets_of(process: Path) -> set[str]:
    found = set()
    for entry in os.scandir(process / "fd"):
        with contextlib.suppress(OSError):
            match = _SOCKET.fullmatch(str(Path(entry.path).readlink()))
            if match:
                found.add(match[1])
    return found
