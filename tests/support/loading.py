"""A rank that loads and keeps a log, as a program of its own: killed, resumed, and compared with one that never was.

    python -m tests.support.loading LOG URL '{"batch_size": 24, "rank": 0, ...}' EPOCHS

Every batch is one line of JSON: its keys, the digest of its images, and the state after it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from loaders import Batch, open_loader

REPOSITORY = Path(__file__).parents[2]


def digest(batch: Batch) -> str:
    """Return the digest of everything in a batch but its state."""
    found = hashlib.sha256(batch.images.tobytes())
    for part in (batch.labels.tolist(), batch.keys, batch.mask.tolist(), batch.fields):
        found.update(json.dumps(part, sort_keys=True).encode())
    if batch.views is not None:
        found.update(json.dumps(batch.views).encode())
    return found.hexdigest()


def load(url: object, count: int | None = None, **settings: Any) -> list[tuple[list[str], str]]:
    """Keys and digest of the first batches; of the whole epoch without a count."""
    found = []
    with open_loader(str(url), **settings) as loader:
        while True:
            for batch in loader:
                found.append((batch.keys, digest(batch)))
                if len(found) == count:
                    return found
            if count is None:
                return found


def start_rank(log: Path, url: object, epochs: int, state: dict[str, Any] | None, **settings: Any) -> subprocess.Popen:
    """Start one rank; it appends to its log."""
    command = [sys.executable, "-m", "tests.support.loading", str(log), str(url), json.dumps(settings), str(epochs)]
    environment = dict(os.environ)
    return subprocess.Popen(
        [*command, json.dumps(state)], cwd=REPOSITORY, env=environment, stderr=subprocess.PIPE, text=True
    )


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
        logs = [folder / f"{world_size}-{rank}.jsonl" for rank in range(world_size)]
        ranks = [
            start_rank(log, url, 3, state, **settings, rank=rank, world_size=world_size)
            for rank, log in enumerate(logs)
        ]
        if world_size > 1:
            steps = rng.randint(1, max(1, (len(expected) - len(found)) // 2))
            while min(len(read_log(log)) for log in logs) < steps and any(rank.poll() is None for rank in ranks):
                time.sleep(0.01)
            for rank in ranks:
                rank.send_signal(signal.SIGKILL)
        errors = [rank.communicate()[1] for rank in ranks]
        assert world_size > 1 or ranks[0].returncode == 0, errors
        lines = [read_log(log) for log in logs]
        batches = together(lines)
        found += batches
        if batches:  # none where the world before was quicker than the kill
            state = lines[0][len(batches) - 1]["state"]
    assert found == expected
    return len(expected)


def main() -> None:
    log, url, settings, epochs, state = sys.argv[1:]
    with open(log, "a") as file, open_loader(url, **json.loads(settings)) as loader:
        if json.loads(state) is not None:
            loader.load_state_dict(json.loads(state))
        while loader.epoch < int(epochs):
            for batch in loader:
                line = {"keys": batch.keys, "digest": digest(batch), "state": batch.state}
                file.write(json.dumps(line) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
