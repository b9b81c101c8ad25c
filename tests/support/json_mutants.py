"""JSON documents with a few values removed, doubled, or replaced by what a reader does not expect."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Iterator
from typing import Any

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53, 10**12, 10**18, 10**30, 1.5, float("nan"), "", "a", "../../etc/passwd",
    "/etc/passwd", "x" * 10_000, [], {}, [1], {"a": 1}, [[]], "train", [{}], "\udcff", "\0", "1" * 30, [None], "a/b",
]  # fmt: skip
Path = tuple[str | int, ...]


def mutants(original: bytes, rng: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield what was done and the document."""
    document = json.loads(original)
    paths = [path for path in _paths(document) if path]
    for _ in range(count):
        mutant, done = copy.deepcopy(document), []
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            path = rng.choice(paths)
            with contextlib.suppress(KeyError, IndexError, TypeError):  # an earlier change removed it
                done.append(_change(mutant, path, rng))
        yield "; ".join(done), json.dumps(mutant).encode()


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    if isinstance(value, dict):
        for name in value:
            yield from _paths(value[name], (*path, name))
    elif isinstance(value, list):
        for position in range(min(len(value), 3)):
            yield from _paths(value[position], (*path, position))


def _change(document: Any, path: Path, rng: random.Random) -> str:
    parent, last = document, path[-1]
    for name in path[:-1]:
        parent = parent[name]
    kind = rng.random()
    where = ".".join(map(str, path))
    if kind < 0.15:
        del parent[last]
        return f"{where} removed"
    if kind < 0.25 and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[last]))
        return f"{where} doubled"
    parent[last] = rng.choice(VALUES)
    return f"{where} = {parent[last]!r}"[:120]
