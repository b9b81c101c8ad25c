"""Megatron Energon, as its documents say under "Save and Restore" and "Reproducible Scaling".

Every rank stores and restores its state. For another number of ranks `energon checkpoint redist` rewrites the states:
the number of ranks times that of their workers stays the same, and the batch is a multiple of it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from megatron.energon import DefaultTaskEncoder, ImageSample, WorkerConfig, get_savable_loader, get_train_dataset
from resume_rank import Contender, Life, run

ALL_WORKERS = 24
"""Worker processes of all ranks together: 3 for each of 8 ranks."""
ENERGON = Path(sys.executable).with_name("energon")
SLICE = 10
"""Samples that are read one after the other; slices are shuffled.

There is no shuffle buffer, because one that holds more than a worker has of an epoch mixes epochs.
"""
REWRITTEN = "rewritten"


class Keys(DefaultTaskEncoder):
    """Leaves photographs encoded, and makes batches of their keys."""

    decoder = None

    def batch(self, samples: list[ImageSample]) -> list[str]:
        return [re.sub(r"\.jpg$", "", sample.__key__) for sample in samples]


class Energon(Contender):
    """The shards of `dataprep build`, which `energon prepare` has indexed."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        dataset = get_train_dataset(
            life.data,
            worker_config=WorkerConfig(
                rank=life.rank, world_size=life.world_size, num_workers=max(1, ALL_WORKERS // life.world_size)
            ),
            batch_size=life.batch_size // ALL_WORKERS,
            shuffle_buffer_size=None,
            max_samples_per_sequence=SLICE,
            task_encoder=Keys(),
            repeat=True,
        )
        self._loader = get_savable_loader(dataset)

    @classmethod
    def prepare(cls, life: Life) -> None:
        """Rewrite the states if the number of ranks has changed."""
        if life.before is not None and life.world_before != life.world_size:
            (life.folder / REWRITTEN).mkdir()
            states = [life.state_before(rank) for rank in range(life.world_before)]
            command = [ENERGON, "checkpoint", "redist", *states, life.folder / REWRITTEN]
            command += ["--new-world-size", str(life.world_size)]
            subprocess.run(command, check=True, capture_output=True, text=True)

    def steps(self) -> Iterator[list[str]]:
        life = self.life
        before = life.state_before()
        if before is not None:
            rewritten = life.folder / REWRITTEN / f"state-{life.rank}.pt"
            path = before if life.world_before == life.world_size else rewritten
            self._loader.restore_state_rank(torch.load(path, weights_only=False))
        steps = (life.samples - life.taken) // life.batch_size
        micro_batches = itertools.islice(self._loader, steps * (ALL_WORKERS // life.world_size))
        while batches := list(itertools.islice(micro_batches, ALL_WORKERS // life.world_size)):
            yield [key for batch in batches for key in batch]

    def save(self, path: Path) -> None:
        torch.save(self._loader.save_state_rank(), path)


def write(shards: Path, out: Path) -> None:
    """Link the shards of a build, and index them."""
    out.mkdir()
    for shard in sorted(shards.rglob("*.tar")):
        os.link(shard, out / shard.name)
    command = [ENERGON, "prepare", out, "--non-interactive", "--split-parts", "train:.*", "--num-workers", "2"]
    command += ["--sample-type", "ImageSample", "--field-map", json.dumps({"image": "jpg"})]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    run(Energon, write)
