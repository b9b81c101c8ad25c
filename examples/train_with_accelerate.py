"""Train a small model with Accelerate; a run that was stopped goes on after its last batch, on any number of processes.

    python examples/train_with_accelerate.py gs://bucket/imagenet run --steps 100
    accelerate launch --num_processes 4 examples/train_with_accelerate.py gs://bucket/imagenet run --steps 200

The second command continues the first on four processes, with the batches that come next.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import Accelerator

from loaders import open_loader
from loaders.torch import TorchBatches, normalize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def small_model(classes: int) -> torch.nn.Module:
    """Return a model of one convolution and one linear layer."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, kernel_size=8, stride=8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, classes),
    )


def main(arguments: Sequence[str] | None = None) -> list[list[str]]:
    """Train until a number of steps is reached; return the keys of the images of each step of this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="dataset: a folder or gs:// URL")
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint; continued from if it exists")
    parser.add_argument("--steps", type=int, default=100, help="number of steps of both runs together")
    parser.add_argument("--batch-size", type=int, default=24, help="images in one step, over all processes")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--cpu", action="store_true", help="train on the CPU even if there is an accelerator")
    options = parser.parse_args(arguments)
    accelerator = Accelerator(cpu=options.cpu)
    model = small_model(options.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    ranks = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    trained_on: list[list[str]] = []
    with open_loader(options.url, batch_size=options.batch_size, image_size=options.image_size, **ranks) as loader:
        batches = TorchBatches(loader)  # not prepared: the loader knows which rows are this process's
        accelerator.register_for_checkpointing(batches)
        if options.checkpoint.exists():
            accelerator.load_state(options.checkpoint)
        step = batches.state_dict()["position"] // options.batch_size
        while step < options.steps:
            for batch in batches:
                here = batch.to(accelerator.device)
                scores = model(normalize(here.images, mean=MEAN, std=STD))
                accelerator.backward(torch.nn.functional.cross_entropy(scores, here.labels))
                optimizer.step()
                optimizer.zero_grad()
                trained_on.append(batch.keys)
                step += 1
                if step == options.steps:
                    break
        accelerator.save_state(options.checkpoint)
    accelerator.end_training()
    return trained_on


if __name__ == "__main__":
    main()
