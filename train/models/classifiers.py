"""Classifiers: torchvision's by their names, and one so small that even a CPU has to wait for its input."""

from __future__ import annotations

import torch
from torch import nn


class TinyCNN(nn.Module):
    """Two strided convolutions and a linear layer, for demonstrations of slow input on a CPU.

    It takes every fourth pixel of each row and column, because to normalise all of them would cost more than the rest.
    """

    pixel_stride = 4

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, kernel_size=4, stride=4),
            nn.ReLU(),
            nn.Conv2d(8, 16, kernel_size=3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, num_classes),
        )

    def forward(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        """Return logits, (N, classes)."""
        logits: torch.Tensor = self.layers(images_NCHW)
        return logits


def classifier_names() -> list[str]:
    """List the names of torchvision's classification models that have a single loss."""
    from torchvision import models

    names: list[str] = models.list_models(module=models)
    return [name for name in names if name not in ("googlenet", "inception_v3")]  # these have several losses


def torchvision_classifier(name: str, image_size: int, num_classes: int) -> nn.Module:
    """Make one of torchvision's classification models, with random weights."""
    from torchvision import models

    sized = {"image_size": image_size} if name.startswith("vit_") else {}
    model: nn.Module = models.get_model(name, weights=None, num_classes=num_classes, **sized)
    return model
