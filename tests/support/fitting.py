"""A ResNet-18 fits 500 drawn textures of five classes; and the flags of its long runs.

python -m tests.support.fitting FOLDER [cpu | xla | cuda]      a minute on one core
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.learning import known
from tests.support.textures import FIT_IMAGES, write_textures
from train import train_resnet
from train.train_resnet import STEPS, TrainResNet

FIT = {
    "model": "resnet18",
    "image_size": 32,
    "batch_size": 50,
    "min_crop": 1.0,
    "lr": 0.01,
    "lr_scheduler_type": STEPS,
    "lr_scheduler_divide_every_n_epochs": 20.0,
    "epochs": 30,
    "ckpt_interval": 30,
    "log_interval_steps": 10,
    "num_workers": 1,
}
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


def fit(folder: Path, device: str = "cpu") -> str:
    """How many it knows."""
    data = write_textures(folder / "textures", images=FIT_IMAGES)
    training = train_resnet.open_training(
        TrainResNet(**FIT, data_path=data, output_dir=str(folder / "run"), device=device)
    )
    training.run()
    return known(training, data)


if __name__ == "__main__":
    print(fit(Path(sys.argv[1]), *sys.argv[2:]))
