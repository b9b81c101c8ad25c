"""What the ranks of all contenders of resume.py share: a training is started, stores its state, and is killed.

    python resume_NAME.py write ORDER OUT      write the photographs of ORDER (JSON) in the library's own format
    python resume_NAME.py train < LIVES        run lives of a training, each a line of JSON

A launcher imports the library once and forks a process for every life, which forks one for every rank, with the
environment variables of torchrun. A rank logs the keys of its part of every batch. After the last step of its life it
stores its state, takes two more batches, as a training does that is stopped some time after its checkpoint, and waits
to be killed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS_AFTER_STATE = 2
"""Batches that are taken after the state, and lost with the process."""
WORKERS = 1
"""Worker processes of torch's DataLoader a rank."""
SEED = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Life:
    """One rank, between a start of the training and its end."""

    data: Path
    """Dataset in the format of the library."""
    folder: Path
    """Folder of this life: logs, states and errors of its ranks."""
    before: Path | None
    """Folder of the life before, or None at the beginning of the epoch."""
    world_before: int
    """Number of ranks of the life before; 0 at the beginning of the epoch."""
    world_size: int
    batch_size: int
    """Samples of a step, on all ranks together."""
    samples: int
    """Samples of the epoch."""
    taken: int
    """Samples of the epoch that all lives before have taken, by their states."""
    steps: int | None
    """Steps after which the state is stored; None: to the end of the epoch."""
    port: int
    variant: str
    """Set-up to use, where a contender has several."""
    rank: int = 0

    @property
    def rank_batch(self) -> int:
        """Samples of a step on one rank."""
        return self.batch_size // self.world_size

    def state(self, rank: int | None = None) -> Path:
        """Return the file of a rank's state in this life, by default of this rank."""
        return self.folder / f"state-{self.rank if rank is None else rank}.pt"

    def state_before(self, rank: int | None = None) -> Path | None:
        """Return the file of a rank's state in the life before: of this rank, or of the one that has its number mod W.

        Loaders that have a state of each rank say nothing of ranks that did not exist before, so these take the state
        of another one.
        """
        if self.before is None:
            return None
        return self.before / f"state-{(self.rank if rank is None else rank) % self.world_before}.pt"


class Contender(ABC):
    """One loader on one rank."""

    def __init__(self, life: Life) -> None:
        self.life = life

    @classmethod
    def prepare(cls, life: Life) -> None:
        """Do what comes once, before the ranks start; most have nothing to do."""
        return

    @classmethod
    def clean(cls, life: Life) -> None:
        """Do what comes once, after the ranks have ended; most leave nothing behind."""
        return

    @abstractmethod
    def steps(self) -> Iterator[list[str]]:
        """Resume from the state of the life before, then yield the keys of each step until the epoch has ended."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Store the state after the last step that was yielded."""


def photographs(order: Path) -> Iterator[tuple[str, bytes]]:
    """Yield key and bytes of every photograph of a list."""
    for shard in json.loads(order.read_bytes())["shards"]:
        for path, key, _ in shard:
            yield key, Path(path).read_bytes()


def run(contender: type[Contender], write: Callable[[Path, Path], None] | None) -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["write", "train"])
    parser.add_argument("paths", nargs="*", type=Path)
    options = parser.parse_args()
    if options.task == "train":
        for line in sys.stdin:
            _run_life(contender, line)
    elif write is None:
        raise SystemExit("this contender reads files that are written elsewhere")
    else:
        write(*options.paths)


def _run_life(contender: type[Contender], line: str) -> None:
    """Run one life in a process group of its own; print its number, and its exit code when it has ended."""
    given: dict[str, Any] = json.loads(line)
    paths = {name: Path(given[name]) if given[name] else None for name in ("data", "folder", "before")}
    life = Life(**(given | paths))
    child = os.fork()
    if child == 0:
        os.setsid()
        output = os.open(life.folder / "output.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, sys.stdout.fileno())
        os.dup2(output, sys.stderr.fileno())
        os._exit(_launch(contender, life))
    (life.folder / "group").write_text(str(child))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    (life.folder / "code.tmp").write_text(str(code))
    (life.folder / "code.tmp").rename(life.folder / "code")


def _launch(contender: type[Contender], life: Life) -> int:
    """Run all ranks between what comes before and after them; return the exit code."""
    try:
        contender.prepare(life)
        code = _run_ranks(contender, life)
        contender.clean(life)
    except subprocess.CalledProcessError as error:
        _note_error(life, error.stderr.strip().splitlines()[-1])
        return 1
    return code


def _run_ranks(contender: type[Contender], life: Life) -> int:
    """Fork the ranks and wait for them; return 1 as soon as one of them fails."""
    ranks = {}
    for rank in range(life.world_size):
        child = os.fork()
        if child == 0:
            _run_rank(contender, _replace_rank(life, rank))
        ranks[child] = rank
    while ranks:
        child, status = os.wait()
        if ranks.pop(child, None) is not None and status != 0:
            return 1
    return 0


def _replace_rank(life: Life, rank: int) -> Life:
    values = {name: getattr(life, name) for name in Life.__slots__}
    return Life(**(values | {"rank": rank}))


def _run_rank(contender: type[Contender], life: Life) -> None:
    """Run one rank, and end its process; an error is written to a file."""
    world = {"RANK": life.rank, "LOCAL_RANK": life.rank, "WORLD_SIZE": life.world_size}
    world |= {"LOCAL_WORLD_SIZE": life.world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": life.port}
    os.environ.update({name: str(value) for name, value in world.items()})
    try:
        _train(contender(life), life)
    except Exception as error:  # noqa: BLE001  whatever a library says is what the benchmark records
        _note_error(life, f"{type(error).__name__}: {error}")
        os._exit(1)
    os._exit(0)


def _note_error(life: Life, message: str) -> None:
    (life.folder / f"error-{life.rank}.json").write_text(json.dumps(message))


def _train(contender: Contender, life: Life) -> None:
    """Take the steps of a life; note when the state is stored and the batches after it, if there are any, are taken."""
    ready = life.folder / f"ready-{life.rank}"
    with open(life.folder / f"log-{life.rank}.jsonl", "w") as log:
        for step, keys in enumerate(contender.steps(), start=1):
            print(json.dumps(keys), file=log, flush=True)
            if step == life.steps:
                contender.save(life.state())
            if life.steps is not None and step == life.steps + STEPS_AFTER_STATE:
                ready.touch()
                signal.pause()
    if life.state().exists():
        ready.touch()
