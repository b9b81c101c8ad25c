"""A ResNet fits 500 drawn textures of five classes to over 95 %; and on XLA it goes on bit for bit after a kill.

python -m tests.support.fitting fit FOLDER [cpu | xla | cuda]      ResNet-18, 64 pixels: minutes on two cores
python -m tests.support.fitting exact FOLDER [cpu | xla] 10        ResNet-18, 32 pixels: two runs, ten kills
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from dataprep.demo_data import write_demo
from tests.support.finished import build_here
from tests.support.learning import write_textures
from tests.support.training import flags_of, killed_and_resumed, start, two_runs

ENTRY = "train.train_resnet"
IMAGES = 500
LEAST_ACCURACY = 0.95
FIT = {"model": "resnet18", "image_size": 64, "batch_size": 50, "lr": 0.02, "epochs": 12, "log_interval_steps": 5}
FIT |= {"min_crop": 1.0}
EXACT = {
    "model": "resnet18",
    "image_size": 32,
    "batch_size": 8,
    "lr": 0.02,
    "epochs": 30,
    "max_steps": 200,
    "ckpt_interval_steps": 10,
    "log_interval_steps": 1,
    "num_workers": 2,
}


def write_folders(folder: Path, images: int) -> str:
    """An image folder whose val is its train: evaluation then says how well the run fits."""
    textures = write_textures(folder / "textures", images=images, val_images=0)
    (textures / "val").symlink_to(textures / "train")
    return str(textures)


def fit(folder: Path, device: str = "cpu") -> float:
    """Accuracy on the very images that were trained on, without crops."""
    flags = {"data_path": write_folders(folder, IMAGES), "index_dir": folder / "index", **FIT}
    with start(ENTRY, *flags_of(output_dir=folder / "run", device=device, **flags), OMP_NUM_THREADS="2") as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    lines = [json.loads(line) for line in (folder / "run/log.txt").read_text().splitlines()]
    found = [line["val_accuracy"] for line in lines if "val_accuracy" in line]
    print(f"ResNet-18 on {lines[-1]['val_images']} images: accuracy {', '.join(f'{each:.3f}' for each in found)}")
    assert found[-1] > LEAST_ACCURACY
    return float(found[-1])


def exact(folder: Path, device: str = "cpu", times: int = 10, **changed: Any) -> None:
    """Two runs are the same; killed at random steps and resumed, they still are."""
    write_demo("imagenet", folder / "originals", images=60, odd=False)
    data = build_here("imagenet", folder / "originals", folder / "shards", "webdataset")
    flags = {"data_path": data, "device": device, **EXACT, **changed}
    expected = two_runs(ENTRY, folder, **flags)
    print(f"two runs: {len(expected)} losses are the same", flush=True)
    rng = random.Random(0)
    for number in range(times):
        steps = killed_and_resumed(ENTRY, folder / f"killed-{number}", expected, rng, **flags)
        print(f"killed after {steps} steps and resumed: the same", flush=True)


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    if what == "fit":
        fit(Path(where), *rest)
    else:
        exact(Path(where), rest[0] if rest else "cpu", int(rest[1]) if len(rest) > 1 else 10)
