"""Kill `dataprep replicate` at random moments and run it again: what stands is whole or no dataset, and in the end the
same; and what a test does to a copy."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from contextlib import suppress

from dataprep.dataset.paths import CARDS
from dataprep.dataset.replicas import REPLICAS
from dataprep.storage import open_storage
from dataprep.storage.copies import stored_crc32c
from tests.support.builds import command, dataprep

POLL_S = 0.02
LONGEST_S = 0.6
"""From the first object on."""


def checksums(url: str) -> dict[str, tuple[int, str]]:
    """Size and CRC32C of every object of a dataset except its list of copies and its cards, which do not make it
    whole."""
    storage = open_storage(url)
    found = {info.name: (info.num_bytes, stored_crc32c(storage, info)) for info in storage.list()}
    return {name: known for name, known in found.items() if name not in (REPLICAS, *CARDS)}


def cards_at(url: str) -> dict[str, bytes]:
    """The cards at a place."""
    storage = open_storage(url)
    return {name: storage.read(name) for name in CARDS if storage.stat(name) is not None}


def kill_replicate(rng: random.Random, source: str, target: str, *, kills: int) -> int:
    """Kill the copying with -9 until `kills` have hit a running process, and let it end.

    A copying that ends before it is killed is compared, removed and begun anew.

    Returns:
        Objects that stood when a kill hit, all kills together: 0 would mean that they all hit too early.
    """
    expected = checksums(source)
    arguments = ["replicate", source, "--to", target, "--workers", 4]
    left, standing = kills, 0
    while left:
        hit = _kill_once(rng, arguments, target)
        there = checksums(target)
        assert all(expected.get(name) == found for name, found in there.items()), "a partial or strange object"
        assert "dataset.json" not in there or there == expected, "a half copy that looks like a dataset"
        left -= hit
        standing += hit * len(there)
        if left and there == expected:
            remove_all(target)
    run = dataprep(*arguments)
    assert run.returncode == 0, run.stderr[-2000:]
    assert checksums(target) == expected
    assert cards_at(target) == cards_at(source)
    return standing


def _kill_once(rng: random.Random, arguments: list[object], target: str) -> bool:
    """Whether a running process was hit. One in five is hit before it copies: starting takes longer than copying."""
    storage = open_storage(target)
    before = sum(1 for _ in storage.list())
    with subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        if rng.random() < 0.8:
            while process.poll() is None and sum(1 for _ in storage.list()) == before:
                time.sleep(POLL_S)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=rng.uniform(0, LONGEST_S))
        process.kill()
        code = process.wait()
    assert code in (0, -signal.SIGKILL), "a copying failed that nobody had killed"
    return code != 0


def flip_byte(url: str, name: str, at: int) -> None:
    """Put another object of the same size in place of one."""
    storage = open_storage(url)
    data = bytearray(storage.read(name))
    data[at % len(data)] ^= 1
    storage.delete(name)
    storage.create(name, bytes(data))


def remove_all(url: str) -> None:
    """Every object of a place."""
    storage = open_storage(url)
    for info in list(storage.list()):
        storage.delete(info.name)
