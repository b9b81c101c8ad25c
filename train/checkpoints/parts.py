"""Checkpoints of weights that are sharded among hosts, as stored in a folder: parts, and a list that is written last.

    parts/checkpoint-000000600-00003-of-00016-77e02b46ac915d81.pth      what the fourth of 16 hosts held, its digest
    checkpoint-000000600-0b7712ad5c3390fe.json                          the names of the parts, the digest of that list

Any number of hosts and devices can read them, and each gets the whole state.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence

from dataprep.errors import FormatError
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
_NAME = re.compile(r"checkpoint-(\d{9,})-(\d{5,})-of-(\d{5,})-([0-9a-f]{16})\.pth")


def part_name(step: int, rank: int, world_size: int, digest: str) -> str:
    """Return the name of one host's part in the folder of parts."""
    return f"{FOLDER}checkpoint-{step:09d}-{rank:05d}-of-{world_size:05d}-{digest}.pth"


def parts_of_step(storage: Storage, step: int) -> dict[int, str]:
    """List the existing parts of a step: their names by the hosts' ranks."""
    found = (_NAME.fullmatch(info.name.removeprefix(FOLDER)) for info in storage.list(FOLDER))
    return {int(each[2]): FOLDER + each[0] for each in found if each and int(each[1]) == step}


def create_list(storage: Storage, step: int, parts: Sequence[str]) -> Checkpoint:
    """Write the list of a step's parts, which makes them a checkpoint."""
    document = {"version": _VERSION, "step": step, "parts": list(parts)}
    listed = (json.dumps(document, indent=1) + "\n").encode()
    checkpoint = Checkpoint(f"checkpoint-{step:09d}-{_digest(listed)}.json", step, _digest(listed))
    storage.create(checkpoint.name, listed)
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


def _each_part(storage: Storage, checkpoint: Checkpoint) -> Iterator[State]:
    for name in _parts_of(storage, checkpoint):
        match = _NAME.fullmatch(name.removeprefix(FOLDER))
        if match is None:
            raise FormatError(f"{storage.url_of(checkpoint.name)}: {name!r} is not the name of a part")
        with on_disk(storage, name) as path:
            yield load_file(path, match[4])


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
        raise FormatError(f"{url}: version {version}, this program reads {_VERSION}")
    if not isinstance(parts, list) or not all(isinstance(name, str) for name in parts):
        raise FormatError(f"{url}: its parts are not names; {_CHOOSE_ANOTHER}")
    return parts


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
