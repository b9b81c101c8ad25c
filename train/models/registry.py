"""PyTorch networks by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from train.models.classifiers import TinyCNN, classifier_names, torchvision_classifier
from train.models.mae import MaskedAutoencoder
from train.models.sizes import mae_config, mae_names, unknown_name

TINY_CNN = "tiny_cnn"


def model_names() -> list[str]:
    """List the names of all models."""
    return [*mae_names(), TINY_CNN, *classifier_names()]


def create_model(name: str, *, image_size: int, **options: Any) -> nn.Module:
    """Make a network with random weights, drawn from torch's generator.

    Args:
        name: One of `model_names()`.
        image_size: Side of the images, pixels.
        options: For a masked autoencoder `patch_size`, `decoder_dim`, `decoder_depth`, `k_bias`, and the fields of
            `MAEConfig` that have a default; for a classifier `num_classes`.

    Raises:
        UsageError: The model or option is unknown, or does not fit the images.
    """
    if name in mae_names():
        return MaskedAutoencoder(mae_config(name, image_size=image_size, **options))
    builders: dict[str, Callable[..., nn.Module]] = {TINY_CNN: TinyCNN}
    if name not in builders and name not in classifier_names():
        raise unknown_name("model", name, model_names())
    num_classes = options.pop("num_classes", 1000)
    if options:
        raise unknown_name("option", next(iter(options)), ["num_classes"])
    return builders[name](num_classes) if name in builders else torchvision_classifier(name, image_size, num_classes)
