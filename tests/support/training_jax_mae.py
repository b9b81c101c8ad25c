"""Masked autoencoders in JAX at full length: beside torch_xla and others, killed and resumed, on several devices."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.training import LONG, ended, facts, flags_of, killed_at, losses, start
from tests.support.training_jax import cluster, environment

STEPS = 200
MAE = {**LONG, "max_steps": STEPS + 1, "norm_pix_loss": None, "blr": 0.01}
"""Flags of a run of 200 steps after a first one, from whose checkpoint both frameworks start. At a rate five times as
high single batches magnify the last digits: after 165 steps PyTorch's CPU and torch_xla differ by 1e-4, too."""


def arguments(folder: object, data: str, **flags: Any) -> list[str]:
    """As a command line says them; None stands for a flag without a value."""
    found = flags_of(
        output_dir=folder, data_path=data, **{name: each for name, each in flags.items() if each is not None}
    )
    return found + [f"--{name}" for name, each in flags.items() if each is None]


def in_jax(folder: Path, data: str, *, devices: int = 1, variables: dict[str, str] | None = None, **flags: Any) -> Any:
    """Start a run in JAX."""
    variables = {**environment(folder.parent / "compiled", devices), **(variables or {}), "PJRT_DEVICE": ""}
    given = arguments(folder, data, framework="jax", **flags)
    return start("train.pretrain_mae", *given, PYTHONUNBUFFERED="1", **variables)


def first_step(folder: Path, data: str) -> str:
    """Train one step on torch_xla; the path of its checkpoint, from which runs of both frameworks start."""
    flags = {**MAE, "max_steps": 1, "device": "xla"}
    ended(start("train.pretrain_mae", *arguments(folder, data, **flags)))
    (found,) = folder.glob("checkpoint-000000001-*.pth")
    return str(found)


def beside_torch_xla(data: str, folder: Path) -> str:
    """200 steps of both from the same weights, batches and masks."""
    first = first_step(folder / "first", data)
    ended(start("train.pretrain_mae", *arguments(folder / "torch", data, device="xla", resume=first, **MAE)))
    ended(in_jax(folder / "jax", data, resume=first, **MAE))
    theirs, ours = losses(folder / "torch"), losses(folder / "jax")
    assert list(ours) == list(theirs) == list(range(2, STEPS + 2))
    largest = max(abs(ours[step] - theirs[step]) for step in ours)
    assert largest < 1e-4, largest
    return f"{len(ours)} losses, the largest difference is {largest:.1e}"


def killed_and_resumed(data: str, folder: Path, times: int) -> str:
    """Runs that are killed at random steps and resumed, beside two that are not."""
    first = first_step(folder / "first", data)
    for name in ("one", "two"):
        ended(in_jax(folder / name, data, resume=first, **MAE))
    expected, rng, killed = losses(folder / "one"), random.Random(0), []
    assert losses(folder / "two") == expected
    for number in range(times):
        run, steps = folder / f"killed-{number}", rng.randint(12, STEPS - 1)  # a checkpoint is saved every 10 steps
        killed_at(in_jax(run, data, resume=first, **MAE), run, steps)
        ended(in_jax(run, data, resume="automatic", **MAE))
        assert losses(run) == expected, f"killed after {steps} steps"
        killed.append(steps)
    return f"{len(expected)} losses, killed after {', '.join(map(str, killed))}: the same"


def on_devices(data: str, folder: Path) -> str:
    """Losses on 1, 4 and 8 devices, with sharded weights and heads, and in 2 processes of 2 devices."""
    first = first_step(folder / "first", data)
    ended(in_jax(folder / "one", data, resume=first, **MAE))
    expected = losses(folder / "one")
    found = {}
    shapes: dict[str, dict[str, Any]] = {
        "4 devices": {"devices": 4},
        "4 devices, FSDP": {"devices": 4, "fsdp": None},
        "8 devices, FSDP, 2 share heads": {"devices": 8, "fsdp": None, "tensor_parallel": 2, "grad_ckpt": None},
    }
    for name, flags in shapes.items():
        ended(in_jax(folder / name, data, resume=first, **MAE, **flags))
        found[name] = losses(folder / name)
    pair = [
        in_jax(folder / "pair", data, devices=2, variables=variables, resume=first, fsdp=None, **MAE)
        for variables in cluster(2)
    ]
    for process in pair:
        ended(process)
    found["2 processes of 2 devices, FSDP"] = losses(folder / "pair")
    assert list((folder / "pair").glob("checkpoint-*.orbax"))
    largest = {}
    for name, each in found.items():
        assert each == pytest.approx(expected, abs=1e-5), name
        largest[name] = max(abs(each[step] - expected[step]) for step in expected)
    return ", ".join(f"{name}: {each:.1e}" for name, each in largest.items())


def asked(*what: str, devices: int = 1, cache: Path | None = None) -> Any:
    """Return what `tests.support.jax_transformers` prints."""
    variables = environment(cache or tempfile.gettempdir(), devices)
    return facts("tests.support.jax_transformers", *what, **variables)


def variants(data: str, folder: Path) -> str:
    """Shared heads, parts of a batch, unrolled blocks and vision transformers change no loss."""
    found = asked("variants", data, str(folder), devices=4, cache=folder / "compiled")
    for name in ("plain", "heads", "both"):
        expected = {step: found["torch"]["losses"][step] for step in found[name]["losses"]}
        assert found[name]["losses"] == pytest.approx(expected, abs=1e-5), name
    expected = {step: found["vit torch"]["losses"][step] for step in found["vit"]["losses"]}
    assert found["vit"]["losses"] == pytest.approx(expected, abs=1e-4)
    assert found["dropout"]["losses"] == found["dropout again"]["losses"]
    return "the same losses"
