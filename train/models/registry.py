"""PyTorch networks by their names."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from train.models.mae import MaskedAutoencoder
from train.models.sizes import mae_config, mae_names, unknown_name


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
    """Make one of torchvision's classification models, with random weights.

    The blocks of a ResNet begin as the identity (Goyal et al., 2017, section 5.1): otherwise its first running
    statistics are so far off that evaluations say nothing for some epochs of small data.
    """
    from torchvision import models

    options: dict[str, int] = {"image_size": image_size} if name.startswith("vit_") else {}
    if name.startswith(("resnet", "resnext", "wide_resnet")):
        options["zero_init_residual"] = True
    model: nn.Module = models.get_model(name, weights=None, num_classes=num_classes, **options)
    return model


TINY_CNN = "tiny_cnn"


def model_names() -> list[str]:
    """List the names of all models."""
    return [*mae_names(), TINY_CNN, *classifier_names()]


def create_model(name: str, *, image_size: int, **options: Any) -> nn.Module:
    """Make one of `model_names()` with random weights, drawn from torch's generator.

    Args:
        options: For a masked autoencoder `patch_size`, `decoder_dim`, `decoder_depth`, `k_bias`, and the fields of
            `MAEConfig` that have a default; for a classifier `num_classes`.

    Raises:
        UsageError: The model or option is unknown, or does not fit the images.
    """
    if name in mae_names():
        return MaskedAutoencoder(mae_config(name, image_size=image_size, **options))
    if name != TINY_CNN and name not in classifier_names():
        raise unknown_name("model", name, model_names())
    num_classes = options.pop("num_classes", 1000)
    if options:
        raise unknown_name("option", next(iter(options)), ["num_classes"])
    return TinyCNN(num_classes) if name == TINY_CNN else torchvision_classifier(name, image_size, num_classes)
