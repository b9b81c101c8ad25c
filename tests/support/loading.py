"""A rank that loads and keeps a log, as a program of its own: killed, resumed, and compared with one that never was.

    python -m tests.support.loading LOG URL '{"batch_size": 24, "rank": 0, ...}' EPOCHS

Every batch is one line of JSON: its keys, the digest of its images, and the state after it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loaders import Batch, Loader, Mixture, PackBatch, Packs, mixture, open_loader, open_packs
from tests.support import warm
from tests.support.packs_loading import packed_rows

REPOSITORY = Path(__file__).parents[2]
IMPORTED = (
    "loaders.loader",
    "loaders.decode.decoders",
    "loaders.engine.pipeline",
    "loaders.engine.producer",
    "loaders.mixtures.loader",
    "loaders.packs",
    "pyarrow.parquet",
)
"""Modules of a rank, which is killed sooner than it has imported them."""


def digest(batch: Batch) -> str:
    """Return the digest of everything in a batch but its state."""
    found = hashlib.sha256(batch.images.tobytes())
    for part in (batch.labels.tolist(), batch.keys, batch.mask.tolist(), batch.fields):
        found.update(json.dumps(part, sort_keys=True).encode())
    if batch.views is not None:
        found.update(json.dumps(batch.views).encode())
    return found.hexdigest()


def samples_of(loader: Loader) -> list[tuple[int, int]]:
    """Return the shard and the number of every sample."""
    shards = loader.dataset.split.shards
    return [(shard, sample) for shard, entry in enumerate(shards) for sample in range(entry["samples"])]


def files_of(loader: Loader) -> dict[str, str]:
    """Return the file of each image by its key, in an image folder."""
    index = loader.index
    return {index.shard(shard).key(sample): index.file(shard, sample) for shard, sample in samples_of(loader)}


def load(url: object, count: int | None = None, **settings: Any) -> list[tuple[list[str], str]]:
    """Keys and digest of the first batches; of the whole epoch without a count."""
    found = []
    with open_loader(url if isinstance(url, Mixture) else str(url), **settings) as loader:
        while True:
            for batch in loader:
                found.append((batch.keys, digest(batch)))
                if len(found) == count:
                    return found
            if count is None:
                return found


def start_rank(log: Path, url: object, epochs: int, state: dict[str, Any] | None, **settings: Any) -> warm.Process:
    """Start one rank; it appends to its log."""
    words = ("tests.support.loading", str(log), str(url), json.dumps(settings), str(epochs), json.dumps(state))
    return warm.start(*words, environment=os.environ, folder=REPOSITORY, imported=IMPORTED)


def read_log(log: Path) -> list[dict[str, Any]]:
    """The whole lines; a kill may have cut the last one."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [json.loads(line) for line in lines]


def together(ranks: list[list[dict[str, Any]]]) -> list[list[str]]:
    """Keys of every global batch that all ranks have, in the order of positions."""
    batches = []
    for parts in zip(*ranks, strict=False):
        rows = zip(*(part["keys"] for part in parts), strict=True)
        batches.append([key for row in rows for key in row])
    return batches


def killed_and_resumed(url: object, folder: Path, rng: random.Random) -> int:
    """Three epochs by 4 ranks, 2, then 1, the first two killed at a random step: the keys are the uninterrupted ones.

    Returns:
        The number of batches.
    """
    settings = {"batch_size": 12, "image_size": 32, "threads": 1}
    with open_loader(str(url), **settings) as loader:
        expected = [batch.keys for _ in range(3) for batch in loader]
    found, state = [], None
    for world_size in (4, 2, 1):
        most = max(1, (len(expected) - len(found)) // 2)
        lines = run_ranks(url, folder, world_size, state, rng.randint(1, most) if world_size > 1 else None, **settings)
        batches = together(lines)
        found += batches
        if batches:  # none where the world before was quicker than the kill
            state = lines[0][len(batches) - 1]["state"]
    assert found == expected
    return len(expected)


def mixture_killed_and_resumed(mixes: Sequence[Path], folder: Path, rng: random.Random, worlds: Sequence[int]) -> int:
    """Three epochs of a mixture by ever fewer ranks, each world with the next file's weights, all but the last killed.

    Every batch has the samples that one rank gives which is not killed, and changes its weights at the same positions.

    Returns:
        The number of batches.
    """
    settings = {"batch_size": 24, "image_size": 32, "threads": 1}
    states, lives = [None], []
    for number, world_size in enumerate(worlds):
        steps = rng.randint(1, 6) if number + 1 < len(worlds) else None
        lines = run_ranks(mixes[number % len(mixes)], folder, world_size, states[-1], steps, **settings)
        batches = [sorted(batch) for batch in together(lines)]
        lives.append(batches)
        states.append(lines[0][len(batches) - 1]["state"] if batches else states[-1])
    for number, batches in enumerate(lives):
        with open_loader(mixture(mixes[number % len(mixes)]), **settings) as loader:
            if states[number] is not None:
                loader.load_state_dict(states[number])
            uninterrupted = itertools.chain.from_iterable(itertools.repeat(loader, 4))
            assert [sorted(batch.keys) for batch in itertools.islice(uninterrupted, len(batches))] == batches
    return sum(map(len, lives))


def run_ranks(
    url: object, folder: Path, world_size: int, state: dict[str, Any] | None, steps: int | None, **settings: Any
) -> list[list[dict[str, Any]]]:
    """Run three epochs on some ranks, and kill them once all have done some steps; what each rank wrote."""
    logs = [folder / f"{world_size}-{rank}.jsonl" for rank in range(world_size)]
    ranks = [
        start_rank(log, url, 3, state, **settings, rank=rank, world_size=world_size) for rank, log in enumerate(logs)
    ]
    if steps is not None:
        while min(len(read_log(log)) for log in logs) < steps and any(rank.poll() is None for rank in ranks):
            time.sleep(0.01)
        for rank in ranks:
            rank.send_signal(signal.SIGKILL)
    errors = [rank.communicate()[1] for rank in ranks]
    assert {rank.returncode for rank in ranks} <= ({0} if steps is None else {0, -signal.SIGKILL}), errors
    return [read_log(log) for log in logs]


def main() -> None:
    log, url, settings, epochs, state = sys.argv[1:]
    with open(log, "a") as file, _opened(url, json.loads(settings)) as loader:
        if json.loads(state) is not None:
            loader.load_state_dict(json.loads(state))
        while loader.epoch < int(epochs):
            for batch in loader:
                line = {"keys": batch.keys, "digest": digest(batch), "state": batch.state}
                if isinstance(batch, PackBatch):
                    line["rows"] = packed_rows(batch)
                file.write(json.dumps(line) + "\n")
                file.flush()


def _opened(url: str, settings: dict[str, Any]) -> Loader:
    """A loader of squares of a dataset or a mixture, or of packs if the settings have them."""
    if "packs" in settings:
        return open_packs(url, **{**settings, "packs": Packs(**settings["packs"])})
    return open_loader(mixture(url) if url.endswith(".json") else url, **settings)


if __name__ == "__main__":
    main()
