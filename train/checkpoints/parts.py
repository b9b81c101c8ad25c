"""Checkpoints of weights that are sharded among hosts, as stored in a folder: parts, and a list that is written last.

    parts/checkpoint-000000600-5c01f2e87ab94d36.save    the first host saves: all parts of it have these digits
    parts/checkpoint-000000600-5c01f2e87ab94d36-00003-of-00016-77e02b46ac915d81.pth
                                                        what the fourth of 16 hosts held, its digest
    checkpoint-000000600-0b7712ad5c3390fe.json          the names of the parts, the digest of that list

The first host draws new digits for every save, so no part of another run, or of a branch that was left, is ever
taken for one of this save. Any number of hosts and devices can read them, and each gets the complete state. Each host
saves its own pieces of a sharded tensor; they are joined when they are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch

from dataprep.errors import DataprepError, FormatError, UsageError
from dataprep.messages import quoted
from dataprep.storage import Storage, disk_errors
from dataprep.storage.base import read_bounded
from dataprep.storage.checksums import crc32c_of_file
from train.checkpoints.checkpoint import CheckpointFolder
from train.checkpoints.files import TORCH, Checkpoint, State, digest_of, load_file, on_disk

Path = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of a tensor that one host holds, in the host's memory."""

    shape: tuple[int, ...]
    found: list[tuple[tuple[int, ...], torch.Tensor]]
    """Index at which each piece begins, and its values. If several hosts hold a copy of a piece, only one lists it."""


def part_of(state: State, *, rank: int) -> State:
    """Return a host's part as plain values, which `weights_only` can read; rank 0's also has all unsharded values."""
    pieces = [
        {"path": list(path), "shape": list(leaf.shape), "found": [(list(start), each) for start, each in leaf.found]}
        for path, leaf in _leaves(state, ())
    ]
    return {"rest": _without_pieces(state) if rank == 0 else None, "pieces": pieces}


def whole_of(parts: Iterable[State]) -> State:
    """Join parts to the complete state, with one part at a time in memory next to the result.

    Raises:
        FormatError: Some values are in no part, or in two.
    """
    rest: State | None = None
    whole: dict[Path, torch.Tensor] = {}
    missing: dict[Path, int] = {}
    starts: set[tuple[Path, tuple[int, ...]]] = set()
    for part in parts:
        rest = part["rest"] if rest is None else rest
        for entry in part["pieces"]:
            path = tuple(entry["path"])
            for start, values in entry["found"]:
                if path not in whole:
                    whole[path] = torch.empty(entry["shape"], dtype=values.dtype)
                    missing[path] = prod(entry["shape"])
                stops = [first + length for first, length in zip(start, values.shape, strict=True)]
                if values.numel() and (path, tuple(start)) in starts:
                    ranges = ", ".join(f"{first}:{stop}" for first, stop in zip(start, stops, strict=True))
                    raise FormatError(f"{_shown(path)}: the values [{ranges}] are in two parts")
                if values.numel():
                    starts.add((path, tuple(start)))
                whole[path][tuple(map(slice, start, stops))] = values
                missing[path] -= values.numel()
    if rest is None:
        raise FormatError("no part holds the values that are not sharded; the first host's part is missing")
    for path, tensor in whole.items():
        if missing[path]:
            where = "in no part" if missing[path] > 0 else "in two parts"
            raise FormatError(f"{_shown(path)}: {abs(missing[path]):,} values are {where}")
        _put(rest, path, tensor)
    return rest


def _shown(path: Path) -> str:
    return "/".join(map(str, path))


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


FOLDER = "parts/"
MAX_LIST_BYTES = 16 << 20
"""Maximum size of a list of parts: 200,000 hosts' parts."""
_VERSION = 1
_CHOOSE_ANOTHER = "choose another checkpoint"
_NAME = re.compile(r"checkpoint-(\d{9,})-([0-9a-f]{16})-(\d{5,})-of-(\d{5,})-([0-9a-f]{16})\.pth")
_SAVE_NAME = re.compile(r"checkpoint-(\d{9,})-([0-9a-f]{16})\.save")


@dataclass(frozen=True, slots=True)
class Save:
    """One save of all hosts."""

    step: int
    digits: str
    """16 hexadecimal digits that no other save has, of this step or of another."""

    def part_name(self, rank: int, world_size: int, digest: str) -> str:
        """Return the name of one host's part in the folder of parts."""
        return f"{FOLDER}checkpoint-{self.step:09d}-{self.digits}-{rank:05d}-of-{world_size:05d}-{digest}.pth"

    def parts(self, storage: Storage) -> dict[int, str]:
        """List the existing parts of this save: their names by the hosts' ranks.

        Raises:
            DataprepError: Two processes saved as the same host.
        """
        found: dict[int, str] = {}
        for info in storage.list(FOLDER):
            match = _NAME.fullmatch(info.name.removeprefix(FOLDER))
            if match is None or (int(match[1]), match[2]) != (self.step, self.digits):
                continue
            if other := found.get(rank := int(match[3])):
                raise DataprepError(
                    f"{storage.url_of(info.name)}: host {rank} already has a part, {other}. Two processes are running "
                    f"as host {rank}; stop the stale one"
                )
            found[rank] = info.name
        return found


def begin_save(storage: Storage, step: int) -> Save:
    """Begin a save on the first host, so that the others find it; an interrupted save is given up."""
    for info in list(storage.list(FOLDER)):
        if _SAVE_NAME.fullmatch(info.name.removeprefix(FOLDER)):
            storage.delete(info.name)
    save = Save(step, secrets.token_hex(8))
    storage.create(_save_name(save), b"")
    return save


def find_save(storage: Storage, step: int) -> Save | None:
    """Return the save of a step that the first host has begun; None if it has begun none."""
    found = (_SAVE_NAME.fullmatch(info.name.removeprefix(FOLDER)) for info in storage.list(FOLDER))
    return next((Save(step, each[2]) for each in found if each and int(each[1]) == step), None)


def end_save(storage: Storage, save: Save, parts: Sequence[str]) -> Checkpoint:
    """Write the list of a save's parts, which makes them a checkpoint."""
    document = {"version": _VERSION, "step": save.step, "parts": list(parts)}
    listed = (json.dumps(document, indent=1) + "\n").encode()
    checkpoint = Checkpoint(f"checkpoint-{save.step:09d}-{_digest(listed)}.json", save.step, _digest(listed))
    storage.create(checkpoint.name, listed)
    storage.delete(_save_name(save))
    return checkpoint


def load_parts(storage: Storage, checkpoint: Checkpoint) -> State:
    """Read the complete state that a list of parts describes, with one part at a time in memory next to the result.

    Raises:
        FormatError: The list or a part is damaged, or some values are in no part.
    """
    try:
        return whole_of(_each_part(storage, checkpoint))
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        url = storage.url_of(checkpoint.name)
        raise FormatError(f"{url}: its parts do not make a state ({error}); {_CHOOSE_ANOTHER}") from None


def remove_unlisted_parts(storage: Storage, checkpoints: list[Checkpoint]) -> None:
    """Remove the parts of interrupted saves and of removed checkpoints."""
    listed: set[str] = set()
    for checkpoint in checkpoints:
        if checkpoint.is_list:
            with contextlib.suppress(FormatError):
                listed.update(_parts_of(storage, checkpoint))
    for info in list(storage.list(FOLDER)):
        if info.name not in listed:
            storage.delete(info.name)


def _save_name(save: Save) -> str:
    return f"{FOLDER}checkpoint-{save.step:09d}-{save.digits}.save"


def _each_part(storage: Storage, checkpoint: Checkpoint) -> Iterator[State]:
    """Read the parts of a list, which must be all parts of one save."""
    names = _parts_of(storage, checkpoint)
    found = [_NAME.fullmatch(name.removeprefix(FOLDER)) for name in names]
    digits = found[0][2] if found and found[0] else ""
    for rank, (name, match) in enumerate(zip(names, found, strict=True)):
        if match is None or name != Save(checkpoint.step, digits).part_name(rank, len(names), match[5]):
            raise FormatError(
                f"{storage.url_of(checkpoint.name)}: {quoted(name)} is not part {rank} of {len(names)} of one save; "
                f"{_CHOOSE_ANOTHER}"
            )
        with on_disk(storage, name) as path:
            yield load_file(path, match[5])


def _parts_of(storage: Storage, checkpoint: Checkpoint) -> list[str]:
    url = storage.url_of(checkpoint.name)
    data = read_bounded(storage, checkpoint.name, MAX_LIST_BYTES, advice=_CHOOSE_ANOTHER)
    if data is None:
        raise FileNotFoundError(url)
    if (found := _digest(data)) != checkpoint.digest:
        raise FormatError(f"{url}: {len(data):,} bytes of digest {found}, expected {checkpoint.digest}: damaged")
    try:
        document = json.loads(data)
        version, parts = document.get("version"), document.get("parts")
    except (AttributeError, ValueError):
        raise FormatError(f"{url}: {len(data):,} bytes, not a list of parts; {_CHOOSE_ANOTHER}") from None
    if version != _VERSION:
        raise UsageError(f"{url}: version {version}, this program reads {_VERSION}")
    if not isinstance(parts, list) or not all(isinstance(name, str) for name in parts):
        raise FormatError(f"{url}: its parts are not names; {_CHOOSE_ANOTHER}")
    return parts


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


T = TypeVar("T")
_FIRST_POLL_S, _POLL_S = 0.05, 1.0
"""Shortest and longest pause between two looks at what other hosts have written."""


class PartFolder(CheckpointFolder):
    """Writes checkpoints in parts; all hosts of the run see the same folder.

    Args:
        url: As for `CheckpointFolder`.
        rank: Number of this host.
        world_size: Hosts of the run.
        keep: As for `CheckpointFolder`.
        wait_s: Longest wait for the slowest host's part, seconds; 10 GB at 10 MB/s take 1,000.
    """

    takes_parts = True

    def __init__(self, url: str, *, rank: int, world_size: int, keep: int = 3, wait_s: float = 1800.0) -> None:
        super().__init__(url, keep=keep)
        self._rank, self._world_size, self._wait_s = rank, world_size, wait_s

    def remove_unfinished(self) -> None:
        """Remove parts that no list names. The first host does so before its first step, which every host needs before
        it can save."""
        if self._rank == 0:
            remove_unlisted_parts(self._storage, self.list())

    def save(self, step: int, state: State) -> Checkpoint | None:
        """Write this host's part; the first host waits for the others' and writes the list.

        Args:
            step: Number of steps that were done; the same on all hosts.
            state: As for `CheckpointFolder.save`, with `Pieces` for tensors that are sharded.

        Returns:
            The checkpoint on the first host, None on the others.

        Raises:
            DataprepError: The part of another host is not written in time.
        """
        storage, rank = self._storage, self._rank
        storage.remove_stale_spools()
        save = begin_save(storage, step) if rank == 0 else self._wait(lambda: self._begun(step))
        spool = storage.spool_path("part.pth")
        with disk_errors(spool):
            TORCH.write(part_of(state, rank=rank), spool)
            name = save.part_name(rank, self._world_size, digest_of(spool))
        storage.publish(spool, name, crc32c_of_file(spool))
        if rank:
            storage.remove_stale_spools()  # and the folder of spool files, if no other host uses it
            return None
        checkpoint = end_save(storage, save, self._wait(lambda: self._written(save)))
        storage.remove_stale_spools()  # likewise
        self._forget_older(checkpoint)  # no host saves again before this one takes part in the next step
        return checkpoint

    def _begun(self, step: int) -> tuple[Save | None, str]:
        return find_save(self._storage, step), f"host 0 has not begun to save step {step}"

    def _written(self, save: Save) -> tuple[list[str] | None, str]:
        """Return the names of all parts by rank, None while some are missing; and which ones."""
        names = save.parts(self._storage)
        missing = sorted(set(range(self._world_size)) - names.keys())
        found = None if missing else [names[rank] for rank in range(self._world_size)]
        return found, f"no part of step {save.step} of host {', '.join(map(str, missing))}"

    def _wait(self, look: Callable[[], tuple[T | None, str]]) -> T:
        """Wait for the files of other hosts.

        Args:
            look: Function that returns the result, or None, and a clause about what is missing.
        """
        deadline_s, pause_s = time.monotonic() + self._wait_s, _FIRST_POLL_S
        while True:
            found, missing = look()
            if found is not None:
                return found
            if time.monotonic() > deadline_s:
                raise DataprepError(
                    f"{self._storage.url_of(FOLDER)}: {missing} after {self._wait_s:g} s; `output_dir` must be a "
                    "bucket or folder that all hosts see"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S)
