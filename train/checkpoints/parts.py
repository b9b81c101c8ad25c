"""Checkpoints of weights that are sharded among hosts, as stored in a folder: parts, and a list that is written last.

    parts/checkpoint-000000600-5c01f2e87ab94d36.save    the first host saves: all parts of it have these digits
    parts/checkpoint-000000600-5c01f2e87ab94d36-00003-of-00016-77e02b46ac915d81.pth
                                                        what the fourth of 16 hosts held, its digest
    checkpoint-000000600-0b7712ad5c3390fe.json          the names of the parts, the digest of that list

The first host draws the digits anew for every save, so no part of another run, or of a branch that was left, is ever
taken for one of this save. Any number of hosts and devices can read them, and each gets the whole state.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dataprep.errors import DataprepError, FormatError, UsageError
from dataprep.messages import quoted
from dataprep.storage import Storage
from dataprep.storage.base import read_bounded
from train.checkpoints.files import Checkpoint, load_file, on_disk
from train.checkpoints.pieces import whole_of
from train.checkpoints.state import State

FOLDER = "parts/"
MAX_LIST_BYTES = 16 << 20
"""Maximum size of a list of parts: those of 200,000 hosts."""
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
                    f"{storage.url_of(info.name)}: a second part of host {rank} beside {other}; two processes run as "
                    "this host: end the one that is left over"
                )
            found[rank] = info.name
        return found


def begin_save(storage: Storage, step: int) -> Save:
    """Begin a save, as the first host does, so that the others find it; one that was interrupted is given up."""
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
    """Read the whole state that a list of parts describes, with one part at a time in memory besides the result.

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
