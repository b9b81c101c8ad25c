"""Folder in which the hosts of a run save together: the first begins, each writes its part, the first lists them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from dataprep.errors import DataprepError
from dataprep.storage import disk_errors
from dataprep.storage.checksums import crc32c_of_file
from train.checkpoints.checkpoint import CheckpointFolder
from train.checkpoints.files import TORCH, Checkpoint, digest_of
from train.checkpoints.parts import FOLDER, Save, begin_save, end_save, find_save, remove_unlisted_parts
from train.checkpoints.pieces import part_of
from train.checkpoints.state import State

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
        self._forget_older(step)  # no host saves again before this one takes part in the next step
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
        """Wait for what other hosts write.

        Args:
            look: Function that returns it, or None, and what is missing.
        """
        deadline_s, pause_s = time.monotonic() + self._wait_s, _FIRST_POLL_S
        while True:
            found, missing = look()
            if found is not None:
                return found
            if time.monotonic() > deadline_s:
                raise DataprepError(
                    f"{self._storage.url_of(FOLDER)}: {missing} after {self._wait_s:g} s; --output_dir must be a "
                    "bucket or folder that all hosts see"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S)
