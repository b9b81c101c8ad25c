"""Checkpoints of weights that are cut among hosts: every host writes its part, the first one the list of all, last.

    parts/checkpoint-000000600-00003-of-00016-77e02b46ac915d81.pth      what the fourth of 16 hosts held, its digest
    checkpoint-000000600-0b7712ad5c3390fe.json                          the names of the parts, the digest of that list

Any number of hosts and devices reads them, and gets the whole state.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterator
from typing import Any

from dataprep.errors import DataprepError, FormatError
from dataprep.storage import Storage, disk_errors
from dataprep.storage.checksums import crc32c_of_file
from train.checkpoint import TORCH, Checkpoint, CheckpointFolder, digest_of, load_file, on_disk
from train.pieces import part_of, whole_of

FOLDER = "parts/"
_VERSION = 1
_NAME = re.compile(r"checkpoint-(\d{9,})-(\d{5,})-of-(\d{5,})-([0-9a-f]{16})\.pth")
_POLL_S = 1.0


class PartFolder(CheckpointFolder):
    """Where the hosts of a run save together; all of them see it.

    Args:
        url: As for `CheckpointFolder`.
        rank: Of this host.
        world_size: Hosts.
        keep: As for `CheckpointFolder`.
        wait_s: For the slowest host's part: 10 GB at 10 MB/s, and half as much again.
    """

    def __init__(self, url: str, *, rank: int, world_size: int, keep: int = 3, wait_s: float = 1800.0) -> None:
        super().__init__(url, keep=keep)
        self._rank, self._world_size, self._wait_s = rank, world_size, wait_s

    def remove_unfinished(self) -> None:
        """On the first host, before its first step, without which no other host gets to saving."""
        if self._rank == 0:
            remove_unlisted_parts(self._storage, self.list())

    def save_part(self, step: int, state: dict[str, Any]) -> Checkpoint | None:
        """Write this host's part; the first host waits for the others' and writes the list.

        Args:
            step: Steps that were done; the same on all hosts.
            state: As for `CheckpointFolder.save`, with `Pieces` for tensors that are cut.

        Returns:
            The checkpoint on the first host, None on the others.

        Raises:
            DataprepError: The part of another host does not come.
        """
        storage = self._storage
        storage.remove_stale_spools()
        spool = storage.spool_path("part.pth")
        with disk_errors(spool):
            TORCH.write(part_of(state, rank=self._rank), spool)
            name = f"checkpoint-{step:09d}-{self._rank:05d}-of-{self._world_size:05d}-{digest_of(spool)}.pth"
        storage.publish(spool, FOLDER + name, crc32c_of_file(spool))
        if self._rank:
            return None
        document = {"version": _VERSION, "step": step, "parts": self._wait_for_parts(step)}
        listed = (json.dumps(document, indent=1) + "\n").encode()
        checkpoint = Checkpoint(f"checkpoint-{step:09d}-{_digest(listed)}.json", step, _digest(listed))
        storage.create(checkpoint.name, listed)
        self._forget_older(step)  # the others save again only after a step, for which this host is needed
        return checkpoint

    def _wait_for_parts(self, step: int) -> list[str]:
        """Names of the parts of a step, by rank."""
        deadline_s = time.monotonic() + self._wait_s
        while True:
            found = (_NAME.fullmatch(info.name.removeprefix(FOLDER)) for info in self._storage.list(FOLDER))
            names = {int(each[2]): FOLDER + each[0] for each in found if each and int(each[1]) == step}
            missing = sorted(set(range(self._world_size)) - names.keys())
            if not missing:
                return [names[rank] for rank in range(self._world_size)]
            if time.monotonic() > deadline_s:
                raise DataprepError(
                    f"{self._storage.url_of(FOLDER)}: no part of step {step} of host {', '.join(map(str, missing))} "
                    f"after {self._wait_s:g} s; --output_dir must be a bucket or folder that all hosts see"
                )
            time.sleep(_POLL_S)


def load_parts(storage: Storage, checkpoint: Checkpoint) -> dict[str, Any]:
    """The whole state that a list of parts describes; beside it, one part at a time is in memory.

    Raises:
        FormatError: The list or a part is damaged, or some values are in none.
    """
    return whole_of(_each_part(storage, checkpoint))


def remove_unlisted_parts(storage: Storage, checkpoints: list[Checkpoint]) -> None:
    """Of saves that were not finished, and of checkpoints that are gone."""
    listed: set[str] = set()
    for checkpoint in checkpoints:
        if checkpoint.is_list:
            with contextlib.suppress(FormatError):
                listed.update(_parts_of(storage, checkpoint))
    for info in list(storage.list(FOLDER)):
        if info.name not in listed:
            storage.delete(info.name)


def _each_part(storage: Storage, checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
    for name in _parts_of(storage, checkpoint):
        match = _NAME.fullmatch(name.removeprefix(FOLDER))
        if match is None:
            raise FormatError(f"{storage.url_of(checkpoint.name)}: {name!r} is no name of a part")
        with on_disk(storage, name) as path:
            yield load_file(path, match[4])


def _parts_of(storage: Storage, checkpoint: Checkpoint) -> list[str]:
    data, url = storage.read(checkpoint.name), storage.url_of(checkpoint.name)
    if (found := _digest(data)) != checkpoint.digest:
        raise FormatError(f"{url}: {len(data):,} bytes of digest {found}, expected {checkpoint.digest}: damaged")
    document = json.loads(data)
    if document.get("version") != _VERSION:
        raise FormatError(f"{url}: version {document.get('version')}, this program reads {_VERSION}")
    return list(document["parts"])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
