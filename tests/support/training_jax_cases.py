"""What keys of the ResNet in JAX change, all in one process: starting and compiling take longer than training.

python -m tests.support.training_jax_cases DATASET IMAGEFOLDER TFDS FOLDER     prints facts as JSON
python -m tests.support.training_jax_cases DATASET FOLDER                      what --diagnose leaves behind, as JSON
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from dataprep.errors import DataprepError
from tests.support.training_jax import SMALL, arguments, config_of, series
from train.loops.jax import Batch, all_devices
from train.models.jax_resnet import ARCHITECTURES, Architecture
from train.train_resnet_jax import command, open_steps, open_training

GRAPH = {"model": "ResNet18", "image_size": 64, "half_precision": True, "momentum": 0.5, "weight_decay": 0.0}
"""Keys that change what is compiled, and other values of them."""


def graphs() -> dict[str, str]:
    """Digest of the update's program, as the keys are, and with each of GRAPH otherwise."""
    found = {}
    for name, keys in {"": {}, **{key: {key: value} for key, value in GRAPH.items()}}.items():
        config = config_of(**{**SMALL, **keys})
        rows, size = config.batch_size, config.image_size
        steps = open_steps(config, all_devices(), num_classes=3)
        state = jax.eval_shape(lambda steps=steps, size=size: steps.initial(seed=0, image_size=size))
        batch = Batch(
            jax.ShapeDtypeStruct((rows, size, size, 3), "uint8"),
            jax.ShapeDtypeStruct((rows,), "int32"),
            jax.ShapeDtypeStruct((rows,), "bool"),
        )
        found[name] = hashlib.sha256(steps.update.lower(state, batch, 0.1).as_text().encode()).hexdigest()
    return found


def watched_run(data: str, folder: Path, **keys: Any) -> dict[str, Any]:
    """Train, and say what came of it."""
    training = open_training(config_of(**{**SMALL, "dataset_root": data, "workdir": str(folder), **keys}))
    saved, ahead = [], []
    tell, update = training.logs.tell, training.backend.steps.update

    def watched(state: Any, batch: Any, lr: float) -> Any:
        ahead.append(training.loader.state_dict()["position"] // training.loader.config.batch_size - len(ahead) - 1)
        return update(state, batch, lr)

    training.logs.tell = lambda text: (
        (saved.append(training.step), tell(text)) if text.startswith("saved") else tell(text)
    )
    training.backend.steps.update = watched
    training.resume("automatic")
    return {
        "code": training.run(),
        "step": training.step,
        "saved": saved,
        "ahead": max(ahead, default=0),
        "kept": len(list(folder.glob("checkpoint-*.npz"))),
        "profiles": len(list(folder.glob("plugins/profile/*/*.xplane.pb"))),
        "loss": series(folder, "loss"),
        "val_images": series(folder, "val_images"),
    }


def called(*flags: str) -> Any:
    """What the command returns in this process, which uses its devices already."""
    with mock.patch("train.loops.jax.join_processes"):
        return command.main(list(flags), standalone_mode=False)


def error_of(*flags: str) -> str:
    """What a command line ends with."""
    try:
        called(*flags)
    except DataprepError as error:
        return str(error)
    return ""


def other_model(data: str, folder: Path) -> str:
    """The error of going on with a model of one block more; a whole ResNet18 takes seven seconds to compile."""
    with mock.patch.dict(ARCHITECTURES, {"_ResNet2": Architecture((2,), bottleneck=False)}):
        return error_of(*arguments(folder, **{**SMALL, "model": "_ResNet2"}, dataset_root=data))


def is_debugged(*flags: str) -> bool:
    """Whether nothing is compiled where a run would be: to do all of it so takes half a minute."""

    class Probe:
        def resume(self, where: str) -> None:
            pass

        def run(self) -> int:
            return int(jax.config.jax_disable_jit)

    with mock.patch("train.train_resnet_jax.open_training", return_value=Probe()):
        return bool(called("--workdir=x", *flags))


def runs(data: str, folder: Path) -> dict[str, Any]:
    """Runs with some keys otherwise; their values show in different facts."""
    return {
        "whole": watched_run(data, folder / "whole"),
        "rarely": watched_run(
            data, folder / "rarely", **{"log_per_step": 4, "log_per_epoch": 1, "eval_per_epoch": 2, "prefetch": 0}
        ),
        "often": watched_run(
            data,
            folder / "often",
            **{"eval_per_epoch": -1, "checkpoint_per_step": 4, "checkpoint_per_epoch": 1, "keep_checkpoints": 2},
        ),
        "always": watched_run(
            data,
            folder / "always",
            **{"max_steps": 8, "checkpoint_per_minute": 1e-9, "profile_steps": "2:4"},
        ),
        "growing": watched_run(
            data,
            folder / "growing",
            **{"num_epochs": 1, "batch_size": None, "batch_ramp": "4:8@4steps", "eval_per_epoch": -1},
        ),
        "small batches": watched_run(data, folder / "small", **{"num_epochs": 1, "batch_size": 2}),
        "few batches": watched_run(data, folder / "few", **{"num_epochs": 1, "batch_size": 2, "steps_per_eval": 1}),
        "part": watched_run(data, folder / "part", **{"max_steps": 10}),
        "rest": watched_run(data, folder / "part"),
        "over": watched_run(data, folder / "part"),
        "seed": watched_run(data, folder / "seed", **{"max_steps": 1, "seed": 1}),
    }


def main(data: str, images: str, tfds: str, folder: Path) -> dict[str, Any]:
    """All facts."""
    small = {**SMALL, "max_steps": 2}
    return {
        "torch": "torch" in sys.modules,  # before anything is decoded, which may need it
        "graphs": graphs(),
        "debug": [is_debugged("--debug=True"), is_debugged("--debug"), is_debugged()],
        "runs": runs(data, folder),
        "errors": {
            "images": error_of(
                *arguments(folder / "images", **small, dataset_root=images, dataset_index_dir=folder / "index")
            ),
            "tfds": error_of(
                "--config=configs/tpu.py",
                *arguments(
                    folder / "tfds",
                    **{**small, "dataset_root": tfds, "dataset_name": "imagenet_fake", "dataset_use_tfds": True},
                ),
            ),
            "other model": other_model(data, folder / "part"),
            "other seed": error_of(*arguments(folder / "part", **{**SMALL, "seed": 4}, dataset_root=data)),
            "no such model": error_of(*arguments(folder / "none", **{**SMALL, "model": "ResNet51"}, dataset_root=data)),
            "batch": error_of(*arguments(folder / "none", **{**SMALL, "batch_size": 1000}, dataset_root=data)),
        },
        "losses": {name: series(folder / name, "loss") for name in ("images", "tfds")},
    }


if __name__ == "__main__":
    *words, last = sys.argv[1:]
    print(json.dumps(main(*words, Path(last))))
