"""A masked autoencoder that is killed again and again while its batch and its mixture change between its lives.

python -m tests.support.training_changes NOTES --output_dir …     trains, and notes the samples of each update

The run beside it goes through the same changes, but is never killed.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.living import keys_of
from tests.support.training import SMALL, ended, flags_of, log_lines, losses, start

STEPS = 40
"""Updates of each life."""
LIVES: tuple[dict[str, Any], ...] = (
    {"effective_batch_size": 8, "weights": (3, 1)},
    {"effective_batch_size": 16, "weights": (3, 1)},
    {"effective_batch_size": 16, "weights": (1, 2)},
)
"""The batch is doubled at one resume, the mixture changes at the next."""
AROUND = 3
"""Losses that are shown on each side of a joint."""


def changed(folder: Path, urls: Mapping[str, str], rng: random.Random, kills: int) -> dict[int, float]:
    """Train through all lives, killed so many times in all; return the loss of each update.

    Raises:
        AssertionError: An image came twice in a pass or was left out, or an update that was done again had others.
    """
    notes, sizes = folder / "notes.jsonl", [life["effective_batch_size"] for life in LIVES for _ in range(STEPS)]
    folder.mkdir()
    for number, life in enumerate(LIVES):
        mix = folder / f"{number}.json"
        weighted = zip(urls.items(), life["weights"], strict=True)
        datasets = [{"url": url, "name": name, "weight": weight} for (name, url), weight in weighted]
        mix.write_text(json.dumps({"version": 1, "datasets": datasets, "epoch_samples": 160}))
        flags = {**SMALL, "epochs": 20, "ckpt_interval_steps": 4, "max_steps": (number + 1) * STEPS}
        flags |= {"data_path": mix, "effective_batch_size": life["effective_batch_size"], "device": "xla"}
        words = (str(notes), *flags_of(**flags, output_dir=folder / "run", resume="automatic"))
        for _ in range(kills * (number + 1) // len(LIVES) - kills * number // len(LIVES)):
            _killed(folder / "run", words, rng, last=(number + 1) * STEPS - 1)
        ended(start("tests.support.training_changes", *words))
    noted: dict[int, list[list[str]]] = {}
    for step, samples in map(json.loads, notes.read_text().splitlines()):
        assert noted.setdefault(step, samples) == samples, f"update {step} was done again with other images"
    assert [len(noted[step]) for step in sorted(noted)] == sizes
    _check_passes([(name, key) for step in sorted(noted) for name, key in noted[step]], urls)
    return losses(folder / "run")


def _killed(folder: Path, words: Sequence[str], rng: random.Random, *, last: int) -> None:
    """Kill a life with -9 before its last update, after a random number of updates or while it starts."""

    def done() -> int:
        return max((json.loads(line)["step"] for line in log_lines(folder)), default=0)

    with start("tests.support.training_changes", *words) as process:
        stop = rng.randint(done(), min(done() + 12, last))
        time.sleep(rng.random())
        while process.poll() is None and done() < stop:
            time.sleep(0.005)
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL


def _check_passes(samples: Sequence[tuple[str, str]], urls: Mapping[str, str]) -> None:
    """Check that each pass of a dataset has each of its images once."""
    assert {name for name, _ in samples} == urls.keys()
    for name, url in urls.items():
        own, every = [key for other, key in samples if other == name], keys_of(url)
        for first in range(0, len(own), len(every)):
            part = own[first : first + len(every)]
            assert len(set(part)) == len(part), f"{name}: an image came twice in pass {first // len(every)}"
            assert set(part) <= every


def joints(folder: Path, urls: Mapping[str, str], rng: random.Random, *, kills: int = 10) -> str:
    """Compare a run that is killed with one that is not; return the losses of both around each joint."""
    whole = changed(folder / "whole", urls, rng, 0)
    killed = changed(folder / "killed", urls, rng, kills)
    assert list(whole) == list(killed) == list(range(1, len(LIVES) * STEPS + 1))
    text = []
    for joint in range(STEPS, len(LIVES) * STEPS, STEPS):
        steps = range(joint - AROUND + 1, joint + AROUND + 1)
        rows = [" ".join(f"{run[step]:.4f}" for step in steps) for run in (whole, killed)]
        text.append(f"updates {steps[0]} to {steps[-1]}: {rows[0]} unbroken, {rows[1]} killed")
    assert whole == killed
    return f"{len(whole)} losses, killed {kills} times: the same; {'; '.join(text)}"


def main() -> None:
    """Train as `dataprep-pretrain-mae` does, and append the step and the samples of each update to a file."""
    from train import pretrain_mae
    from train.loops.loop import Training

    path, update = Path(sys.argv.pop(1)), Training._update

    def noted(training: Training[Any], batch: Any) -> None:
        update(training, batch)
        samples = list(zip(batch.fields["dataset"], batch.keys, strict=True))
        with path.open("a") as file:
            file.write(json.dumps([training.step, samples]) + "\n")

    Training._update = noted  # type: ignore[method-assign]
    pretrain_mae.main()


if __name__ == "__main__":
    main()
