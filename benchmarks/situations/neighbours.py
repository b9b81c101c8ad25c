"""Programs that run beside a training run, each `python -m benchmarks.situations.neighbours NAME …`.

Each prints a line when it is ready, and runs until it is killed by its guardian.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

BURST_S = (0.5, 3.0)
"""Shortest and longest time for which a `burst` works or rests."""
COPIED_BYTES = 64 << 20
"""Bytes that `memory` copies at a time: more than the caches hold."""
EVICT_EVERY_S = 0.02
READ_BYTES = 256 << 10
PAGE_OUT_EVERY_S = 0.25
PIECE_BYTES = 16 << 10
PROCESS_MADVISE, MADV_PAGEOUT = 440, 21


def loop(nice: str) -> None:
    """Keep a core busy at a nice value."""
    os.nice(int(nice))
    ready()
    while True:
        sum(range(100_000))


def burst(nice: str) -> None:
    """Work and rest in turn, each for a random time."""
    os.nice(int(nice))
    draw = random.Random(os.getpid())
    ready()
    while True:
        until_s = time.monotonic() + draw.uniform(*BURST_S)
        while time.monotonic() < until_s:
            sum(range(10_000))
        time.sleep(draw.uniform(*BURST_S))


def memory(nice: str) -> None:
    """Copy memory all the time."""
    os.nice(int(nice))
    source, target = bytearray(COPIED_BYTES), bytearray(COPIED_BYTES)
    ready()
    while True:
        target[:] = source


def steal(core: str, share: str, period_ms: str) -> None:
    """Take a share of one core with real-time priority, as a hypervisor would."""
    os.sched_setaffinity(0, {int(core)})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    period_s = float(period_ms) / 1e3
    busy_s = float(share) * period_s
    ready()
    while True:
        until_s = time.monotonic() + busy_s
        while time.monotonic() < until_s:
            pass
        time.sleep(period_s - busy_s)


def evict(*folders: str) -> None:
    """Drop all files of some folders from the page cache, all the time."""
    descriptors: dict[Path, int] = {}
    _evict(folders, descriptors)
    ready()
    while True:
        time.sleep(EVICT_EVERY_S)
        _evict(folders, descriptors)


def _evict(folders: Iterable[str], descriptors: dict[Path, int]) -> None:
    for path in [path for folder in folders for path in Path(folder).rglob("*")]:
        try:
            if path not in descriptors and path.is_file():
                descriptors[path] = os.open(path, os.O_RDONLY)
                os.fdatasync(descriptors[path])  # pages that are not written yet stay
        except OSError:
            continue  # removed meanwhile
    for path, descriptor in list(descriptors.items()):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if os.fstat(descriptor).st_nlink == 0:
            os.close(descriptors.pop(path))


def read(path: str, group: str) -> None:
    """Read random pieces of a file from the disk itself, within a control group."""
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    piece = mmap.mmap(-1, READ_BYTES)  # aligned, as direct reads need it
    pieces, draw = os.fstat(descriptor).st_size // READ_BYTES, random.Random(os.getpid())
    ready()
    while True:
        os.preadv(descriptor, [piece], draw.randrange(pieces) * READ_BYTES)


def page_out(pid: str, bytes_per_s: str, *spared: str) -> None:
    """Move the anonymous memory of a process and its children to the swap file, piece by piece, again and again."""
    libc = ctypes.CDLL(None, use_errno=True)
    ready()
    at, budget = 0, int(float(bytes_per_s) * PAGE_OUT_EVERY_S)
    while True:
        pieces = list(_memory(int(pid), {os.getpid(), os.getppid(), *map(int, spared)}))
        left = budget
        for _ in pieces:
            owner, start, size = pieces[at % len(pieces)]
            at += 1
            _page_out(libc, owner, start, size)
            left -= size
            if left <= 0:
                break
        time.sleep(PAGE_OUT_EVERY_S)


def _memory(pid: int, spared: set[int]) -> Iterable[tuple[int, int, int]]:
    """Yield process, address and length of pieces of writable anonymous memory."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for words in map(str.split, maps):
        if words[1] == "rw-p" and (len(words) < 6 or words[5] == "[heap]"):
            start, end = (int(each, 16) for each in words[0].split("-"))
            for address in range(start, end, 1 << 22):
                yield pid, address, min(1 << 22, end - address)
    for child in map(int, children):
        if child not in spared:
            yield from _memory(child, spared)


def _page_out(libc: ctypes.CDLL, pid: int, address: int, size: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    vector = (ctypes.c_size_t * 2)(address, size)  # one iovec
    libc.syscall(PROCESS_MADVISE, descriptor, vector, ctypes.c_size_t(1), MADV_PAGEOUT, 0)
    os.close(descriptor)


def proxy(host: str, port: str, connection_bytes_per_s: str, bytes_per_s: str) -> None:
    """Forward connections, and limit what comes back; 0: no limit. Prints its own port."""
    limits = [float(each) or float("inf") for each in (connection_bytes_per_s, bytes_per_s)]
    asyncio.run(_proxy(host, int(port), *limits))


class _Pace:
    """Time at which the next piece may pass."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s, self._free_s = bytes_per_s, 0.0

    async def passes(self, num_bytes: int) -> None:
        now_s = time.monotonic()
        self._free_s = max(self._free_s, now_s - 0.02) + num_bytes / self._bytes_per_s
        if self._free_s > now_s:
            await asyncio.sleep(self._free_s - now_s)


async def _proxy(host: str, port: int, connection_bytes_per_s: float, bytes_per_s: float) -> None:
    shared = _Pace(bytes_per_s)

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ours = b"127.0.0.1:%d" % server.sockets[0].getsockname()[1]
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece.replace(ours, f"{host}:{port}".encode()))  # the emulator answers to its own name only
            await writer.drain()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        paces = (shared, _Pace(connection_bytes_per_s))
        while piece := await reader.read(PIECE_BYTES):
            for pace in paces:
                await pace.passes(len(piece))
            writer.write(piece)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(host, port)
        directions = asyncio.create_task(ask(reader, there[1])), asyncio.create_task(answer(there[0], writer))
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        for end in (writer, there[1]):
            end.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def ready() -> None:
    """Tell the guardian that the program runs."""
    print("ready", flush=True)


PROGRAMS: dict[str, Callable[..., None]] = {
    "loop": loop,
    "burst": burst,
    "memory": memory,
    "steal": steal,
    "evict": evict,
    "read": read,
    "page_out": page_out,
    "proxy": proxy,
}


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
