"""Runs of `train.train_resnet_jax`: killed and started again, in two processes, and until they know their images."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.support.textures import FIT_IMAGES, LEAST_FIT, write_textures
from tests.support.training import ended, killed_at, log_lines, start
from train import train_resnet_jax
from train.train_resnet_jax import Config

MODULE = "train.train_resnet_jax"
SMALL = {
    "model": "_ResNet1",
    "image_size": 32,
    "batch_size": 8,
    "num_epochs": 3,
    "warmup_epochs": 1,
    "log_per_step": 1,
    "dataset_num_workers": 2,
}
"""Keys of a run that a processor does in seconds."""
LONG = {**SMALL, "num_epochs": 30, "max_steps": 200, "checkpoint_per_step": 10}
FIT = {
    "model": "ResNet18",
    "image_size": 32,
    "batch_size": 32,
    "num_epochs": 30,
    "warmup_epochs": 3,
    "learning_rate": 0.4,
    "dataset_min_crop": 1.0,
    "log_per_step": -1,
    "log_per_epoch": 1,
    "eval_per_epoch": -1,
}


def config_of(**keys: Any) -> Config:
    """Configuration of a run, whose folder no test looks at."""
    return train_resnet_jax.config_of(**{"workdir": "x", **keys})


def arguments(folder: object, **keys: Any) -> list[str]:
    """As a command line says them; `dataset_root` is `dataset.root`."""
    spelled = {name.replace("dataset_", "dataset."): value for name, value in keys.items()}
    return [f"--workdir={folder}", *(f"--config.{name}={value}" for name, value in spelled.items())]


def environment(cache: object = "", devices: int = 1) -> dict[str, str]:
    """Return a process's environment: virtual devices on one thread each, and a folder that keeps compiled programs.

    Without a folder that is the one of all tests (conftest.py).
    """
    kept = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"} if cache else {}
    return kept | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices} "
        "--xla_cpu_multi_thread_eigen=false",
    }


def cluster(processes: int) -> list[dict[str, str]]:
    """Return the variables by which each of several processes finds the others; none for a process alone."""
    if processes == 1:
        return [{}]
    shared = {"JAX_COORDINATOR_ADDRESS": f"localhost:{free_port()}", "JAX_NUM_PROCESSES": str(processes)}
    return [{**shared, "JAX_PROCESS_ID": str(rank)} for rank in range(processes)]


def free_port() -> int:
    """Return a port below those that any connection of another program may be given meanwhile."""
    for port in random.sample(range(20_000, 30_000), 50):
        with contextlib.suppress(OSError), socket.create_server(("localhost", port)):
            return port
    raise OSError("no free port")


def launch(*flags: str, **variables: str) -> subprocess.Popen:
    """Start the entry."""
    return start(MODULE, *flags, **variables)


def train(*flags: str, code: int = 0, **variables: str) -> str:
    """Run the entry; what it said on stderr."""
    return ended(launch(*flags, **variables), code)


def series(folder: object, name: str) -> dict[int, float]:
    """One number by step, of a run's log, in which each line must be there once."""
    lines = [json.loads(line) for line in log_lines(folder)]
    found = [(line["step"], line[name]) for line in lines if name in line]
    assert len(dict(found)) == len(found), "a step was logged twice"
    return dict(found)


def numbers(folder: object) -> list[dict[int, float]]:
    """All that must be the same."""
    return [series(folder, name) for name in ("loss", "accuracy", "lr", "val_loss", "val_accuracy")]


def killed_and_resumed(folder: Path, expected: object, rng: random.Random, flags: list[str], **variables: str) -> int:
    """Kill a run at a random step and start it again: its numbers are those of the uninterrupted one.

    Returns:
        The number of steps after which it was killed.
    """
    steps = rng.randint(1, len(expected[0]) - 1)
    killed_at(launch(f"--workdir={folder}", *flags, PYTHONUNBUFFERED="1", **variables), folder, steps)
    train(f"--workdir={folder}", *flags, **variables)
    assert numbers(folder) == expected, f"killed after {steps} steps"
    return steps


def many_kills(data: str, folder: Path, times: int) -> str:
    """Two runs, then `times` that are killed."""
    variables = environment(folder / "compiled")
    flags = arguments(folder, dataset_root=data, **LONG)[1:]
    for name in ("first", "second"):
        train(f"--workdir={folder / name}", *flags, **variables)
    expected = numbers(folder / "first")
    assert numbers(folder / "second") == expected
    rng, runs = random.Random(0), [folder / f"killed-{number}" for number in range(times)]
    killed = [killed_and_resumed(run, expected, rng, flags, **variables) for run in runs]
    return f"{len(expected[0])} losses, killed after {', '.join(map(str, killed))}: the same"


def fit(folder: Path) -> str:
    """Train until 500 images are known."""
    data = write_textures(folder / "textures", images=FIT_IMAGES)
    flags = arguments(folder / "run", dataset_root=data, **FIT)
    train(*flags, **environment(folder / "compiled"))
    _, accuracy = max(series(folder / "run", "accuracy").items())
    assert accuracy > LEAST_FIT, accuracy
    return f"{accuracy:.1%} of {FIT_IMAGES} images, while training"
