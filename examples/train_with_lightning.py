"""Train a small model with Lightning; a run that was stopped in the middle of an epoch goes on after its last batch.

    python examples/train_with_lightning.py gs://bucket/imagenet run.ckpt --steps 100
    python examples/train_with_lightning.py gs://bucket/imagenet run.ckpt --steps 200 --devices 4

The second command continues the first on another number of devices, with the batches that come next.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from loaders import open_loader
from loaders.torch import TorchBatch, TorchBatches, normalize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Images(LightningDataModule):
    """The dataset's batches. Lightning stores the state of TorchBatches in its checkpoints, and restores it."""

    def __init__(self, url: str, batch_size: int, image_size: int) -> None:
        super().__init__()
        self._url, self._batch_size, self._image_size = url, batch_size, image_size

    def train_dataloader(self) -> TorchBatches:
        trainer = self.trainer
        self._loader = open_loader(
            self._url,
            batch_size=self._batch_size,
            image_size=self._image_size,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
        )
        return TorchBatches(self._loader)

    def teardown(self, stage: str) -> None:
        self._loader.close()


class Classifier(LightningModule):
    """One convolution and one linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, kernel_size=8, stride=8),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(8, classes),
        )
        self.trained_on: list[list[str]] = []
        """Keys of the images of each step, so that one can see what was trained on."""

    def training_step(self, batch: TorchBatch, batch_idx: int) -> torch.Tensor:
        self.trained_on.append(batch.keys)
        scores = self.layers(normalize(batch.images, mean=MEAN, std=STD))
        return torch.nn.functional.cross_entropy(scores, batch.labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main(arguments: Sequence[str] | None = None) -> Classifier:
    """Train until a number of steps is reached, from the checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="dataset: a folder or gs:// URL")
    parser.add_argument("checkpoint", type=Path, help="file of the checkpoint; continued from if it exists")
    parser.add_argument("--steps", type=int, default=100, help="number of steps of both runs together")
    parser.add_argument("--batch-size", type=int, default=24, help="images in one step, over all devices")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--accelerator", default="auto", help="kind of the devices, as Lightning names them")
    options = parser.parse_args(arguments)
    trainer = Trainer(
        accelerator=options.accelerator,
        devices=options.devices,
        max_steps=options.steps,
        max_epochs=-1,
        use_distributed_sampler=False,  # the loader knows which rows are this rank's
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    model = Classifier(options.classes)
    data = Images(options.url, options.batch_size, options.image_size)
    resumed = str(options.checkpoint) if options.checkpoint.exists() else None
    trainer.fit(model, data, ckpt_path=resumed, weights_only=True)
    trainer.save_checkpoint(options.checkpoint)
    return model


if __name__ == "__main__":
    main()
