"""Fine-tuning and probing in JAX beside PyTorch, in a process of JAX's own.

python -m tests.support.jax_finetuning DATASET FOLDER     what runs of a few steps did, as JSON
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import torch

from dataprep.errors import DataprepError
from tests.support.finetuning import PROBE, SMALL
from tests.support.jax_transformers import checkpoint
from tests.support.training import log_lines, losses
from train.checkpoints.checkpoint import load_any
from train.checkpoints.encoder_weights import read_weights
from train.export import export
from train.finetune_mae import evaluate, open_training, recipe_flags
from train.models.registry import create_model

STEPS = 4
FINETUNE = {**SMALL, "aa": "", "drop_path": 0.0, "clip_grad": 1.0, "layer_decay": 0.6, "max_steps": STEPS}
"""Flags of a run in which all that is drawn is drawn on the host: images, boxes, partners and their shares."""
KINDS: dict[str, dict[str, Any]] = {"finetune": FINETUNE, "probe": {**PROBE, "max_steps": STEPS, "nb_classes": 7}}
EVERY = {"ckpt_interval_steps": 1, "keep_checkpoints": 9}
JAX = {"framework": "jax"}


def pretrained(folder: Path) -> str:
    """Write the weights of a masked autoencoder, as its authors publish theirs."""
    torch.manual_seed(3)
    torch.save({"model": create_model("mae_vit_micro_patch8", image_size=64).state_dict()}, folder / "mae.pth")
    return str(folder / "mae.pth")


def train(data: str, folder: Path, **flags: Any) -> dict[str, Any]:
    """Train; return the losses and evaluations of the run, or its error."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            training = open_training(recipe_flags(data_path=data, device="cpu", output_dir=str(folder), **flags))
            training.resume(flags.get("resume", ""))
            training.run()
    except DataprepError as error:
        return {"error": str(error)}
    lines = [json.loads(line) for line in log_lines(folder)]
    return {"losses": losses(folder), "evaluations": [line for line in lines if "val_loss" in line]}


def judge(data: str, **flags: Any) -> dict[str, float]:
    """Return what `--eval` prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        evaluate(open_training(recipe_flags(data_path=data, device="cpu", eval=True, **flags)))
    found: dict[str, float] = json.loads(said.getvalue())
    return found


def runs(data: str, folder: Path) -> dict[str, Any]:
    """Train both ways in both frameworks from the same pretrained weights; the probe in JAX is resumed."""
    weights, found = pretrained(folder), {}
    for kind, flags in KINDS.items():
        given = {**flags, "finetune": weights}
        found[f"{kind} torch"] = train(data, folder / f"{kind} torch", **given, **EVERY)
        for stop in (2, STEPS) if kind == "probe" else (STEPS,):
            resumed = {**given, **JAX, "max_steps": stop, "resume": "automatic"}
            found[f"{kind} jax"] = train(data, folder / f"{kind} jax", **resumed)
        found[f"{kind} tensors"] = differences(*(checkpoint(folder / f"{kind} {each}", STEPS) for each in FRAMEWORKS))
    found |= newest(data, folder)
    return found


def newest(data: str, folder: Path) -> dict[str, Any]:
    """Evaluate the newest checkpoint of a folder of JAX, and of one that Orbax continues; export the one of Orbax."""
    place, shape = folder / "finetune jax", {name: FINETUNE[name] for name in ("input_size", "effective_batch_size")}

    def judged(resume: str) -> dict[str, float]:
        return judge(data, **shape, **JAX, output_dir=str(place), resume=resume)

    files = judged("automatic"), judged(checkpoint(place, STEPS))
    last = checkpoint(place, STEPS)
    train(data, place, **{**FINETUNE, **JAX, "orbax": True, "max_steps": STEPS + 1, "resume": last})
    parts = str(place / f"checkpoint-{STEPS + 1:09d}.orbax")
    exported = export(parts, str(folder / "parts.safetensors"))
    return {
        "newest file": files,
        "newest parts": (judged("automatic"), judged(parts)),
        "exported": {"step": exported.step, "source": exported.source, "digest": exported.source_digest},
        "exported tensors": tensor_differences(read_weights(parts).tensors, read_weights(exported.output).tensors),
    }


FRAMEWORKS = ("torch", "jax")


def differences(theirs: str, ours: str) -> dict[str, float]:
    """Largest difference of each tensor of two checkpoints, which have the same names."""
    return tensor_differences(load_any(theirs)["model"], read_weights(ours).tensors)


def tensor_differences(theirs: dict[str, torch.Tensor], ours: dict[str, torch.Tensor]) -> dict[str, float]:
    """Largest difference of each tensor, by its name."""
    assert ours.keys() == theirs.keys()
    return {name: float((each - theirs[name]).abs().max()) for name, each in ours.items()}


if __name__ == "__main__":
    print(json.dumps(runs(sys.argv[1], Path(sys.argv[2]))))
