"""Small fine-tuning runs in this process."""

from __future__ import annotations

from typing import Any

from train.finetune_mae import open_training, recipe_flags

SMALL = {
    "model": "vit_micro_patch8",
    "input_size": 32,
    "effective_batch_size": 8,
    "epochs": 3,
    "warmup_epochs": 1,
    "blr": 0.05,
    "log_interval_steps": 1,
    "num_workers": 0,
    "mixup": 0.8,
    "cutmix": 1.0,
    "drop_path": 0.2,
}
"""Flags of a run that a processor does in seconds, with everything drawn that can be."""
PROBE = {name: SMALL[name] for name in ("input_size", "effective_batch_size", "epochs", "warmup_epochs")} | {
    "linear_probe": True,
    "lr": 1.0,
    "log_interval_steps": 1,
    "num_workers": 0,
}


def finetune(data: str, **flags: Any) -> int:
    """Train; the exit code."""
    training = open_training(recipe_flags(data_path=data, device="cpu", **flags))
    training.resume(flags.get("resume", ""))
    return training.run()
