"""Runs of an entry that are killed and started again, beside one that is not."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support import warm

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "NPROC": "1",
    "PJRT_DEVICE": "CPU",
    "CPU_NUM_DEVICES": "1",
    "TPU_SKIP_MDS_QUERY": "1",
}
"""One thread of torch's and one of XLA's: with more of them the losses may differ (docs/training.md)."""
TORCH_ENTRIES = (
    "tests.support.jax_finetuning",
    "tests.support.jax_transformers",
    "tests.support.training_changes",
    "tests.support.training_fsdp",
    "train.finetune_mae",
    "train.pretrain_mae",
    "train.train_resnet",
    "train.train_vit",
)
TINY_VIT: dict[str, Any] = {
    "image_size": 16,
    "patch_size": 8,
    "embed_dim": 32,
    "num_heads": 2,
    "num_blocks": 2,
    "batch_size": 8,
}
"""Flags of train_vit for a network that trains in a second."""
SMALL = {
    "model": "mae_vit_micro_patch8",
    "input_size": 32,
    "effective_batch_size": 8,
    "epochs": 3,
    "warmup_epochs": 1,
    "blr": 0.05,
    "log_interval_steps": 1,
    "num_workers": 2,
}
"""Flags of a run that a processor does in seconds."""
LONG = {**SMALL, "epochs": 30, "max_steps": 200, "ckpt_interval_steps": 10}


def start(module: str, *arguments: str, **environment: str) -> subprocess.Popen | warm.Process:
    """Start a Python module in a process of its own, forked from one that has imported torch where it needs that."""
    variables = {**os.environ, **ENVIRONMENT, **environment}
    on_cpu = variables["PJRT_DEVICE"] == "CPU"
    needs_torch = module in TORCH_ENTRIES or module.startswith("tests.train.")
    return start_program(module, *arguments, environment=variables, fork=needs_torch and on_cpu)


def start_program(
    module: str, *arguments: str, environment: dict[str, str], fork: bool
) -> subprocess.Popen | warm.Process:
    """Start a Python module in a process of its own, or with `fork` in one forked from one that has imported torch."""
    if fork:
        return warm.start(module, *arguments, environment=environment, folder=REPOSITORY)
    words, pipe = [sys.executable, "-m", module, *arguments], subprocess.PIPE
    return subprocess.Popen(words, cwd=REPOSITORY, env=environment, stdout=pipe, stderr=pipe, text=True)


def outputs(process: subprocess.Popen | warm.Process, code: int = 0) -> tuple[str, str]:
    """Wait for the end of a run, which must be this; what it printed, and what it said on stderr."""
    with process:
        output, errors = process.communicate(timeout=1800)
    assert process.returncode == code, errors[-3000:]
    return output, errors


def ended(process: subprocess.Popen | warm.Process, code: int = 0) -> str:
    """Wait for the end of a run; what it said on stderr."""
    return outputs(process, code)[1]


def report_of(process: subprocess.Popen | warm.Process) -> Any:
    """Wait until a program has ended well; the JSON on the last line that it prints."""
    return json.loads(outputs(process)[0].splitlines()[-1])


def facts(module: str, *arguments: str, **environment: str) -> Any:
    """Run a module in a process of its own, which must end well; the JSON on the last line that it prints."""
    return report_of(start(module, *arguments, **environment))


def flags_of(**values: Any) -> list[str]:
    """As a command line says them."""
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def losses(folder: object) -> dict[int, float]:
    """Return the loss of every step in a run's log, each of which must be there once."""
    lines = [json.loads(line) for line in log_lines(folder) if '"loss"' in line]  # others are of evaluations
    found = {line["step"]: line["loss"] for line in lines}
    assert len(found) == len(lines), "a step was logged twice"
    return found


def log_lines(folder: object) -> list[str]:
    """Whole ones; none before the run has begun."""
    path = Path(str(folder)) / "log.txt"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def trace_of(folder: Path) -> dict[str, Any]:
    """All that a short run left behind: two runs that differ in anything have other traces."""
    from train.checkpoints.files import load_file

    lines = [line for line in map(json.loads, log_lines(folder)) if "loss" in line]
    checkpoints = sorted(folder.glob("checkpoint-*.pth"))
    weights = load_file(checkpoints[-1], None)["model"]
    return {
        "log": [(line["step"], line["loss"], line["lr"]) for line in lines],
        "steps": [path.name[:20] for path in checkpoints],
        "weights": {name: tuple(each.shape) for name, each in weights.items()},
        "sum": float(sum(each.double().abs().sum() for each in weights.values())),
        "profiles": len(list(folder.glob("plugins/profile/*/*.pt.trace.json.gz"))),
    }


def killed_at(process: Any, folder: object, steps: int) -> None:
    """Kill a run when its log has so many lines."""
    with process:
        while process.poll() is None and len(log_lines(folder)) < steps:
            time.sleep(0.005)
        process.kill()


def killed_and_resumed(module: str, folder: Path, expected: dict[int, float], rng: random.Random, **flags: Any) -> int:
    """Kill a run at a random step and start it again: the losses are those of the uninterrupted one.

    Returns:
        The number of steps after which it was killed.
    """
    arguments = flags_of(output_dir=folder, resume="automatic", **flags)
    steps = rng.randint(1, len(expected) - 1)
    killed_at(start(module, *arguments, PYTHONUNBUFFERED="1"), folder, steps)
    ended(start(module, *arguments))
    assert losses(folder) == expected, f"killed after {steps} steps"
    return steps


def two_runs(module: str, folder: Path, **flags: Any) -> dict[int, float]:
    """Losses of two runs, which must be the same."""
    found = []
    for name in ("first", "second"):
        ended(start(module, *flags_of(output_dir=folder / name, **flags)))
        found.append(losses(folder / name))
    assert found[0] == found[1]
    return found[0]
