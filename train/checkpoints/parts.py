"""Checkpoints of weights that are sharded among hosts, as stored in a folder: parts, and a list that is written last.

    parts/checkpoint-000000600-5c01f2e87ab94d36.save    the first host saves: all parts of it have these digits
    parts/checkpoint-000000600-5c01f2e87ab94d36-00003-of-00016-77e02b46ac915d81.pth
                                                        what the fourth of 16 hosts held, its digest
    checkpoint-000000600-0b7712ad5c3390fe.json          the names of the parts, the digest of that list

The first host draws new digits for every save, so no part of another run, or of a branch that was left, is ever
taken for one of this save. Any number of hosts and devices can read them, and each gets the complete state. Each host
saves its own pieces of a sharded tensor; they are joined when they are read.

Where each host has a folder of its own, on its own disk, every folder has the part of its host and the same list, which
then names the hosts, too. Every part then has the values that are not sharded, and a host reads its own part alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
import socket
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NoReturn, TypeVar

import torch

from dataprep.errors import DataprepError, FormatError, UsageError
from dataprep.messages import quoted, shown
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


def part_of(state: State, *, has_rest: bool) -> State:
    """Return a host's part as plain values; with `has_rest` also all values that are not sharded."""
    pieces = [
        {"path": list(path), "shape": list(leaf.shape), "found": [(list(start), each) for start, each in leaf.found]}
        for path, leaf in _leaves(state, ())
    ]
    return {"rest": _without_pieces(state) if has_rest else None, "pieces": pieces}


def whole_of(parts: Iterable[State], *, is_own: bool = False) -> State:
    """Join parts to the complete state, with one part at a time in memory next to the result.

    Args:
        is_own: Whether they are one host's part alone; values that this host does not hold are then 0.

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
                    whole[path] = (torch.zeros if is_own else torch.empty)(entry["shape"], dtype=values.dtype)
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
        if missing[path] and not is_own:
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
        """List the existing parts of this save: their names by the hosts' ranks. Raises DataprepError if two processes
        saved as the same host."""
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


def end_save(storage: Storage, save: Save, parts: Sequence[str], hosts: Sequence[str] = ()) -> Checkpoint:
    """Write the list of a save's parts, by the hosts' ranks, which makes them a checkpoint.

    Args:
        hosts: Names of the hosts, if each has written its part on its own disk.
    """
    document: dict[str, Any] = {"version": _VERSION, "step": save.step, "parts": list(parts)}
    if hosts:
        document["hosts"] = list(hosts)
    listed = (json.dumps(document, indent=1) + "\n").encode()
    checkpoint = Checkpoint(f"checkpoint-{save.step:09d}-{_digest(listed)}.json", save.step, _digest(listed))
    storage.create(checkpoint.name, listed)
    storage.delete(_save_name(save))
    return checkpoint


def load_parts(storage: Storage, checkpoint: Checkpoint, own: tuple[int, int] | None = None) -> State:
    """Read the complete state that a list of parts describes, with one part at a time in memory next to the result.

    Args:
        own: Number of this host and of all hosts, if each has a folder of its own: where the other parts are on other
            hosts, the state then has 0 in place of the values that this host does not hold.

    Raises:
        FormatError: The list or a part is damaged, or some values are in no part.
        UsageError: Parts are missing because other hosts wrote them on their own disks.
    """
    names, hosts = _parts_of(storage, checkpoint)
    missing = [rank for rank, name in enumerate(names) if storage.stat(name) is None] if hosts else []
    is_own = bool(missing) and own is not None and own[1] == len(names) and own[0] not in missing
    if missing and not is_own:
        raise UsageError(missing_text(storage, checkpoint, missing))
    try:
        return whole_of(_each_part(storage, checkpoint, own[0] if own and is_own else None), is_own=is_own)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        url = storage.url_of(checkpoint.name)
        raise FormatError(f"{url}: its parts do not make a state ({error}); {_CHOOSE_ANOTHER}") from None


def missing_text(storage: Storage, checkpoint: Checkpoint, ranks: Sequence[int]) -> str:
    """Return a message about the parts of a checkpoint that are on the disks of other hosts."""
    names, hosts = _parts_of(storage, checkpoint)
    some = [f"part {rank} of {len(names)}, which host {shown(hosts[rank])} wrote" for rank in ranks[:_SHOWN_HOSTS]]
    more = f", and {len(ranks) - len(some)} more" if len(ranks) > len(some) else ""
    return (
        f"{storage.url_of(checkpoint.name)}: each host wrote its part on its own disk, and a disk here lacks "
        f"{'; '.join(some)}{more}. Resume on the same hosts in the same order, or copy all their folders into one that "
        "all hosts see"
    )


def remove_unlisted_parts(storage: Storage, checkpoints: list[Checkpoint]) -> None:
    """Remove the parts of interrupted saves and of removed checkpoints."""
    listed: set[str] = set()
    for checkpoint in checkpoints:
        if checkpoint.is_list:
            with contextlib.suppress(FormatError):
                listed.update(_parts_of(storage, checkpoint)[0])
    for info in list(storage.list(FOLDER)):
        if info.name not in listed:
            storage.delete(info.name)


def _save_name(save: Save) -> str:
    return f"{FOLDER}checkpoint-{save.step:09d}-{save.digits}.save"


def _each_part(storage: Storage, checkpoint: Checkpoint, only: int | None) -> Iterator[State]:
    """Read the parts of a list, which must be all parts of one save; only one of them if a host's number is given."""
    names, _ = _parts_of(storage, checkpoint)
    found = [_NAME.fullmatch(name.removeprefix(FOLDER)) for name in names]
    digits = found[0][2] if found and found[0] else ""
    for rank, (name, match) in enumerate(zip(names, found, strict=True)):
        if match is None or name != Save(checkpoint.step, digits).part_name(rank, len(names), match[5]):
            raise FormatError(
                f"{storage.url_of(checkpoint.name)}: {quoted(name)} is not part {rank} of {len(names)} of one save; "
                f"{_CHOOSE_ANOTHER}"
            )
        if only in (None, rank):
            with on_disk(storage, name) as path:
                yield load_file(path, match[5])


def _parts_of(storage: Storage, checkpoint: Checkpoint) -> tuple[list[str], list[str]]:
    """Return the names of a list's parts, and of the hosts if each has written its part on its own disk."""
    url = storage.url_of(checkpoint.name)
    data = read_bounded(storage, checkpoint.name, MAX_LIST_BYTES, advice=_CHOOSE_ANOTHER)
    if data is None:
        raise FileNotFoundError(url)
    if (found := _digest(data)) != checkpoint.digest:
        raise FormatError(f"{url}: {len(data):,} bytes of digest {found}, expected {checkpoint.digest}: damaged")
    try:
        document = json.loads(data)
        version, parts, hosts = (document.get(name) for name in ("version", "parts", "hosts"))
    except (AttributeError, ValueError):
        raise FormatError(f"{url}: {len(data):,} bytes, not a list of parts; {_CHOOSE_ANOTHER}") from None
    if version != _VERSION:
        raise UsageError(f"{url}: version {version}, this program reads {_VERSION}")
    if not isinstance(parts, list) or not all(isinstance(name, str) for name in parts):
        raise FormatError(f"{url}: its parts are not names; {_CHOOSE_ANOTHER}")
    hosts = [] if hosts is None else hosts
    is_named = isinstance(hosts, list) and all(isinstance(name, str) for name in hosts)
    if not is_named or (hosts and len(hosts) != len(parts)):
        raise FormatError(f"{url}: its hosts are not a name for each part; {_CHOOSE_ANOTHER}")
    return parts, hosts


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


T = TypeVar("T")
_MISSING = "missing: "
_SHOWN_HOSTS = 4
"""Number of hosts in a message."""
_COMPARED = 12
"""Number of newest checkpoints that hosts with their own disks compare."""
_LONGEST_TEXT = 700
"""Longest text that a host tells the others, characters."""
_FIRST_POLL_S, _POLL_S = 0.05, 1.0
"""Shortest and longest pause between two looks at what other hosts have written."""


class PartFolder(CheckpointFolder):
    """Writes checkpoints in parts; all hosts of the run see the same folder, or each has one on its own disk.

    Args:
        wait_s: Longest wait for the slowest host's part, seconds; 10 GB at 10 MB/s take 1,000.
        gather: Function that returns what each host gives to it, by rank; all hosts call it together. None: all see
            the same folder.
    """

    takes_parts = True

    def __init__(
        self,
        url: str,
        *,
        rank: int,
        world_size: int,
        keep: int = 3,
        wait_s: float = 1800.0,
        gather: Callable[[str], list[str]] | None = None,
    ) -> None:
        super().__init__(url, keep=keep)
        self._rank, self._world_size, self._wait_s = rank, world_size, wait_s
        self._gather: Callable[[str], list[str]] = gather or (lambda text: [text])
        if gather is None or world_size == 1 or not self._storage.is_local:
            self.is_own = False

    @cached_property
    def is_own(self) -> bool:  # type: ignore[override]
        """Whether this host has a folder of its own: some host does not see a file of the first one."""
        name = f"{FOLDER}{self._gather(secrets.token_hex(8))[0]}.seen"
        if self._rank == 0:
            self._storage.create(name, b"")
        self._gather("")  # by now it is there
        seen = self._gather("seen" if self._storage.stat(name) is not None else "")
        if self._rank == 0:
            self._storage.delete(name)
        return not all(seen)

    @cached_property
    def _hosts(self) -> list[str]:
        return self._gather(socket.gethostname())

    def is_evaluated(self, name: str) -> bool:
        """Return whether a checkpoint was evaluated after it was saved; all hosts return the same."""
        found = super().is_evaluated(name)
        return any(self._gather("evaluated" if found else "")) if self.is_own else found

    def load(self, checkpoint: Checkpoint) -> State:
        """Read a state as it was saved, tensors on the host; of a host with its own disk only what this host holds."""
        if not checkpoint.is_list or not self.is_own:
            return super().load(checkpoint)
        return load_parts(self._storage, checkpoint, (self._rank, self._world_size))

    def newest_valid(
        self, tell: Callable[[str], None], *, move_damaged: bool = False
    ) -> tuple[Checkpoint, State] | None:
        """Return the newest checkpoint as `CheckpointFolder` does; with disks of their own, the newest of all hosts.
        Raises UsageError if the part of a host is not on its disk."""
        if not self.is_own:
            return super().newest_valid(tell, move_damaged=move_damaged)
        checkpoints = self.current()[:_COMPARED]
        found = [text.split() for text in self._gather(" ".join(each.name for each in checkpoints))]
        common = set[str]().union(*found).intersection(*found)
        if any(found) and not common:
            fault = ""
            if without := [rank for rank, names in enumerate(found) if not names]:
                fault = missing_text(self._storage, checkpoints[0], without) if checkpoints else ""
            self._end_together(fault or f"{self.url}: the hosts' disks have no checkpoint in common")
        for checkpoint in checkpoints:
            if checkpoint.name not in common:
                continue
            fault, state = "", State()
            try:
                state = self.load(checkpoint)
            except FormatError as error:
                fault = str(error)
            except UsageError as error:
                fault = f"{_MISSING}{error}"
            faults = [text for text in self._gather(fault[:_LONGEST_TEXT]) if text]
            if not faults:
                return checkpoint, state
            if absent := [text.removeprefix(_MISSING) for text in faults if text.startswith(_MISSING)]:
                raise UsageError(absent[0])
            tell(f"{faults[0]}; skipped")
        return None

    def _end_together(self, fault: str) -> NoReturn:
        """Raise UsageError with the longest of the hosts' texts."""
        raise UsageError(max(self._gather(fault[:_LONGEST_TEXT]), key=len))

    def remove_unfinished(self) -> None:
        """Remove parts that no list names. The first host does so before its first step, which every host needs before
        it can save; with disks of their own every host does."""
        if self.is_own or self._rank == 0:
            remove_unlisted_parts(self._storage, self.list())

    def save(self, step: int, state: State) -> Checkpoint | None:
        """Write this host's part of a state with `Pieces`; the first host waits for the others' and writes the list.

        Returns:
            The checkpoint on the first host, None on the others.

        Raises:
            DataprepError: The part of another host is not written, or not in time.
        """
        storage, rank = self._storage, self._rank
        storage.remove_stale_spools()
        if self.is_own:
            return self._save_on_own_disk(step, state)
        save = begin_save(storage, step) if rank == 0 else self._wait(lambda: self._begun(step))
        self._write_part(save, state)
        if rank:
            storage.remove_stale_spools()  # and the folder of spool files, if no other host uses it
            return None
        checkpoint = end_save(storage, save, self._wait(lambda: self._written(save)))
        storage.remove_stale_spools()  # likewise
        self._forget_older(checkpoint)  # no host saves again before this one takes part in the next step
        return checkpoint

    def _save_on_own_disk(self, step: int, state: State) -> Checkpoint | None:
        save, hosts = Save(step, self._gather(secrets.token_hex(8))[0]), self._hosts
        digest = ""
        try:
            digest = self._write_part(save, state)
        finally:
            digests = self._gather(digest)
        if failed := [hosts[rank] for rank, digest in enumerate(digests) if not digest]:
            raise DataprepError(f"{self.url}: step {step:,}: host {failed[0]} could not write its part; see its log")
        parts = [save.part_name(rank, self._world_size, digest) for rank, digest in enumerate(digests)]
        checkpoint = end_save(self._storage, save, parts, hosts)
        self._storage.remove_stale_spools()
        self._gather("")  # every host has its list: now none has to go back to an older one
        self._forget_older(checkpoint)
        return checkpoint if self._rank == 0 else None

    def _write_part(self, save: Save, state: State) -> str:
        """Write this host's part; return its digest."""
        spool = self._storage.spool_path("part.pth")
        with disk_errors(spool):
            TORCH.write(part_of(state, has_rest=self._rank == 0 or self.is_own), spool)
            digest = digest_of(spool)
        self._storage.publish(spool, save.part_name(self._rank, self._world_size, digest), crc32c_of_file(spool))
        return digest

    def _begun(self, step: int) -> tuple[Save | None, str]:
        return find_save(self._storage, step), f"host 0 has not begun to save step {step}"

    def _written(self, save: Save) -> tuple[list[str] | None, str]:
        """Return the names of all parts by rank, None while some are missing; and which ones."""
        names = save.parts(self._storage)
        missing = sorted(set(range(self._world_size)) - names.keys())
        found = None if missing else [names[rank] for rank in range(self._world_size)]
        return found, f"no part of step {save.step} of host {', '.join(map(str, missing))}"

    def _wait(self, look: Callable[[], tuple[T | None, str]]) -> T:
        """Wait for files of other hosts, until `look` has a result beside the clause that says what is missing."""
        deadline_s, pause_s = time.monotonic() + self._wait_s, _FIRST_POLL_S
        while True:
            found, missing = look()
            if found is not None:
                return found
            if time.monotonic() > deadline_s:
                raise DataprepError(
                    f"{self._storage.url_of(FOLDER)}: {missing} after {self._wait_s:g} s; is that host still running?"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S)
