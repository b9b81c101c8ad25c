"""Fine-tuning and probing in JAX at full length: beside PyTorch, with other flags, killed and resumed."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.finetuning import PROBE
from tests.support.jax_finetuning import FINETUNE, STEPS, pretrained
from tests.support.training import flags_of, log_lines, losses, start
from tests.support.training_jax import ended, environment

LONG = {"epochs": 14, "max_steps": 100, "ckpt_interval_steps": 5}
KILLED: dict[str, dict[str, Any]] = {
    "finetune": {**FINETUNE, "drop_path": 0.2, **LONG},
    "probe": {**{name: each for name, each in PROBE.items() if name != "linear_probe"}, **LONG},
}
"""Flags of the runs that are killed; a probe has --linear_probe, too."""


def beside_pytorch(data: str, folder: Path) -> str:
    """Runs of a few steps and of an epoch, resumed, continued from PyTorch, and on two devices."""
    variables = environment(folder / "compiled", devices=2)
    with start("tests.support.jax_finetuning", "whole", data, str(folder), **variables) as process:
        output, errors = process.communicate(timeout=1800)
    assert process.returncode == 0, errors[-3000:]
    found = json.loads(output.splitlines()[-1])
    largest = 0.0
    for kind in ("finetune", "probe"):
        expected = found[f"{kind} torch"]["losses"]
        plain = found[f"{kind} stopped 0 times"]
        assert len(plain["losses"]) == STEPS
        assert found[f"{kind} stopped 1 times"] == plain
        for name in ("jax", "stopped 0 times", "continued", "sharded"):
            ours = found[f"{kind} {name}"]["losses"]
            assert ours == pytest.approx({step: expected[step] for step in ours}, abs=1e-4), (kind, name)
            largest = max(largest, *(abs(ours[step] - expected[step]) for step in ours))
        ours, theirs = (found[f"{kind} epoch {framework}"]["evaluations"] for framework in ("jax", "torch"))
        assert [sorted(each) for each in ours] == [sorted(each) for each in theirs]
        for name in ("val_loss", "val_accuracy", "val_best_accuracy", "val_images"):
            assert ours[-1][name] == pytest.approx(theirs[-1][name], abs=1e-4), (kind, name)
        in_torch, in_jax = found[f"{kind} judged"]
        assert in_jax == pytest.approx(in_torch, abs=1e-4)
    assert found["dropped"] == found["dropped again"]
    assert found["dropped"]["losses"] != found["kept"]["losses"]
    return f"the largest difference of a loss is {largest:.1e}"


def killed_and_resumed(data: str, folder: Path, kind: str, times: int) -> str:
    """Runs that are killed at random steps and resumed, beside one that is not."""
    flags = [*flags_of(**KILLED[kind], finetune=pretrained(folder), data_path=data, framework="jax")]
    flags += ["--linear_probe"] if kind == "probe" else []
    variables = {**environment(folder / "compiled"), "PJRT_DEVICE": "", "PYTHONUNBUFFERED": "1"}

    def train(name: str) -> Any:
        place = ["--output_dir", str(folder / name), "--resume", "automatic"]
        return start("train.finetune_mae", *flags, *place, **variables)

    ended(train("whole"), timeout_s=900)
    expected, rng, killed = losses(folder / "whole"), random.Random(kind), []
    for number in range(times):
        run, steps = folder / f"killed-{number}", rng.randint(6, len(expected) - 1)
        with train(run.name) as process:
            while process.poll() is None and len(log_lines(run)) < steps:
                time.sleep(0.005)
            process.kill()
        ended(train(run.name), timeout_s=900)
        assert losses(run) == expected, f"killed after {steps} steps"
        killed.append(steps)
    return f"{len(expected)} losses, killed after {', '.join(map(str, killed))}: the same"
