"""PyTorch networks by their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from dataprep.errors import UsageError
from dataprep.messages import did_you_mean
from train.models.classifiers import TinyCNN, classifier_names, torchvision_classifier
from train.models.mae import MAEConfig, MaskedAutoencoder
from train.models.vit import BlockConfig

TINY_CNN = "tiny_cnn"

_ENCODERS = {
    "micro": (64, 2, 2),
    "tiny": (192, 12, 3),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "huge": (1280, 32, 16),
}
"""Width, depth and heads of encoders. `micro` and `tiny` are for CPUs, the others from the ViT and MAE papers."""
_DECODERS = {
    "dec32d2h1b": (32, 1, 2),
    "dec128d4h4b": (128, 4, 4),
    "dec384d12h8b": (384, 8, 12),
    "dec512d16h8b": (512, 8, 16),
    "dec512d8b": (512, 8, 16),
}
"""Width, depth and heads of decoders. The last one is the MAE paper's, by the name in its code."""
_MAE_PATCHES = {
    ("base", "dec384d12h8b"): (4, 8, 16, 24, 32, 64),
    ("large", "dec512d16h8b"): (4, 8, 16, 24, 32),
    ("base", "dec512d8b"): (16,),
    ("large", "dec512d8b"): (16,),
    ("huge", "dec512d8b"): (14,),
}
_MAES = {
    "mae_vit_micro_patch8": ("micro", 8, "dec32d2h1b"),
    "mae_vit_tiny_patch16": ("tiny", 16, "dec128d4h4b"),
    "mae_vit_base_patch16": ("base", 16, "dec512d8b"),
    "mae_vit_large_patch16": ("large", 16, "dec512d8b"),
    "mae_vit_huge_patch14": ("huge", 14, "dec512d8b"),
} | {
    f"mae_vit_{size}_patch{patch}_{decoder}": (size, patch, decoder)
    for (size, decoder), patches in _MAE_PATCHES.items()
    for patch in patches
}
"""Size of the encoder, side of a patch in pixels and decoder, by the models' names."""


def mae_names() -> list[str]:
    """List the names of masked autoencoders."""
    return list(_MAES)


def model_names() -> list[str]:
    """List the names of all models."""
    return [*_MAES, TINY_CNN, *classifier_names()]


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
    if name in _MAES:
        return MaskedAutoencoder(mae_config(name, image_size=image_size, **options))
    builders: dict[str, Callable[..., nn.Module]] = {TINY_CNN: TinyCNN}
    if name not in builders and name not in classifier_names():
        raise _unknown("model", name, model_names())
    num_classes = options.pop("num_classes", 1000)
    if options:
        raise _unknown("option", next(iter(options)), ["num_classes"])
    return builders[name](num_classes) if name in builders else torchvision_classifier(name, image_size, num_classes)


def mae_config(name: str, *, image_size: int, **options: Any) -> MAEConfig:
    """Return the configuration of a masked autoencoder by its name, with some fields replaced.

    Raises:
        UsageError: The model or option is unknown, or does not fit the images.
    """
    if name not in _MAES:
        raise _unknown("masked autoencoder", name, mae_names())
    size, patch_size, decoder_name = _MAES[name]
    k_bias = options.pop("k_bias", True)
    dim, depth, heads = _ENCODERS[size]
    decoder_dim, decoder_depth, decoder_heads = _DECODERS[decoder_name]
    decoder_dim = options.pop("decoder_dim", decoder_dim)
    known = ["norm_pix_loss", "decoder_downsampling", "pred_downsampling", "patch_size", "decoder_depth"]
    if unknown := options.keys() - set(known):
        raise _unknown("option", min(unknown), [*known, "decoder_dim", "k_bias"])
    return MAEConfig(
        image_size=image_size,
        patch_size=options.pop("patch_size", patch_size),
        encoder=BlockConfig(dim=dim, num_heads=heads, k_bias=k_bias),
        encoder_depth=depth,
        decoder=BlockConfig(dim=decoder_dim, num_heads=decoder_heads, k_bias=k_bias),
        decoder_depth=options.pop("decoder_depth", decoder_depth),
        **options,
    )


def _unknown(what: str, name: str, names: Sequence[str]) -> UsageError:
    return UsageError(f"no {what} {name!r}{did_you_mean(name, names, cutoff=0.4)}; there are {', '.join(names)}")
