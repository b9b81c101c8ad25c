"""Folder in which the hosts of a run save together: each writes its part, then the first host writes their list."""

from __future__ import annotations

import time

from dataprep.errors import DataprepError
from dataprep.storage import disk_errors
from dataprep.storage.checksums import crc32c_of_file
from train.checkpoints.checkpoint import CheckpointFolder
from train.checkpoints.files import TORCH, Checkpoint, digest_of
from train.checkpoints.parts import FOLDER, create_list, part_name, parts_of_step, remove_unlisted_parts
from train.checkpoints.pieces import part_of
from train.checkpoints.state import State

_POLL_S = 1.0


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
        storage = self._storage
        storage.remove_stale_spools()
        spool = storage.spool_path("part.pth")
        with disk_errors(spool):
            TORCH.write(part_of(state, rank=self._rank), spool)
            name = part_name(step, self._rank, self._world_size, digest_of(spool))
        storage.publish(spool, name, crc32c_of_file(spool))
        if self._rank:
            storage.remove_stale_spools()  # and the folder of spool files, if no other host uses it
            return None
        checkpoint = create_list(storage, step, self._wait_for_parts(step))
        storage.remove_stale_spools()  # likewise
        self._forget_older(step)  # no host saves again before this one takes part in the next step
        return checkpoint

    def _wait_for_parts(self, step: int) -> list[str]:
        """Wait until every host has written its part of a step; return their names by rank."""
        deadline_s = time.monotonic() + self._wait_s
        while True:
            names = parts_of_step(self._storage, step)
            missing = sorted(set(range(self._world_size)) - names.keys())
            if not missing:
                return [names[rank] for rank in range(self._world_size)]
            if time.monotonic() > deadline_s:
                raise DataprepError(
                    f"{self._storage.url_of(FOLDER)}: no part of step {step} of host {', '.join(map(str, missing))} "
                    f"after {self._wait_s:g} s; --output_dir must be a bucket or folder that all hosts see"
                )
            time.sleep(_POLL_S)
