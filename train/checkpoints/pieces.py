"""Tensors that are sharded among devices, as hosts save them: each host its own pieces, which are joined when read."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from dataprep.errors import FormatError
from train.checkpoints.state import State

Path = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of a tensor that one host holds, in the host's memory."""

    shape: tuple[int, ...]
    found: list[tuple[tuple[int, ...], torch.Tensor]]
    """Index at which each piece begins, and its values. If several hosts hold a copy of a piece, only one lists it."""


def part_of(state: State, *, rank: int) -> State:
    """Return a host's part as plain values, which `weights_only` can read; rank 0's also has what is not sharded."""
    pieces = [
        {"path": list(path), "shape": list(leaf.shape), "found": [(list(start), each) for start, each in leaf.found]}
        for path, leaf in _leaves(state, ())
    ]
    return {"rest": _without_pieces(state) if rank == 0 else None, "pieces": pieces}


def whole_of(parts: Iterable[State]) -> State:
    """Join parts to the whole state, with one part at a time in memory besides the result.

    Raises:
        FormatError: Some values are in no part, or in two.
    """
    rest: State | None = None
    whole: dict[Path, torch.Tensor] = {}
    missing: dict[Path, int] = {}
    for part in parts:
        rest = part["rest"] if rest is None else rest
        for entry in part["pieces"]:
            path = tuple(entry["path"])
            for start, values in entry["found"]:
                if path not in whole:
                    whole[path] = torch.empty(entry["shape"], dtype=values.dtype)
                    missing[path] = prod(entry["shape"])
                stops = (first + length for first, length in zip(start, values.shape, strict=True))
                whole[path][tuple(map(slice, start, stops))] = values
                missing[path] -= values.numel()
    if rest is None:
        raise FormatError("no part holds the values that are not sharded; the first host's part is missing")
    for path, tensor in whole.items():
        if missing[path]:
            raise FormatError(f"{'/'.join(map(str, path))}: {missing[path]:,} values are in no part, or in two")
        _put(rest, path, tensor)
    return rest


def _leaves(tree: Any, path: Path) -> Iterable[tuple[Path, Pieces]]:
    if isinstance(tree, Pieces):
        yield path, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, (*path, key))


def _without_pieces(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_pieces(value) for key, value in tree.items()}
    return None if isinstance(tree, Pieces) else tree


def _put(tree: dict[Any, Any], path: Path, tensor: torch.Tensor) -> None:
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = tensor
