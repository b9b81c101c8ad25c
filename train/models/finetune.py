"""Classifiers made of pretrained encoders: fine-tuned as a whole, or probed by a linear layer.

He et al., "Masked autoencoders are scalable vision learners", CVPR 2022, appendix A.
"""

from __future__ import annotations

import torch
from torch import nn

from dataprep.errors import UsageError
from train.encoder_weights import Encoder, Weights, named_encoder, resized_positions
from train.models.vit import LAYER_NORM_EPSILON, VisionTransformer, ViTConfig

FINE_TUNED_HEAD_STD = 2e-5
"""So small that the first logits are nearly 0 whatever the encoder says."""
PROBED_HEAD_STD = 0.01
_NOT_PRETRAINED = ("head.", "fc_norm.", "norm.")
"""Where a classifier and a pretrained encoder may differ."""


def open_classifier(
    name: str | None,
    weights: Weights | None,
    *,
    image_size: int,
    num_classes: int,
    pool: str,
    drop_path: float = 0.0,
    linear_probe: bool = False,
) -> VisionTransformer:
    """A vision transformer with pretrained weights, or random ones from torch's generator.

    Args:
        name: E.g. `vit_base_patch16`; None: of the weights.
        weights: Pretrained; positions are resized to the image.
        image_size: Side of the images, pixels.
        num_classes: Logits.
        pool: As `ViTConfig.pool`.
        drop_path: As `ViTConfig.drop_path`.
        linear_probe: The encoder stays as it is; the head sees its features normalised over the batch.

    Raises:
        UsageError: The name is unknown, or not that of the weights.
        FormatError: The weights are those of no encoder that is known.
    """
    encoder = _encoder(name, weights)
    config = ViTConfig(
        image_size=image_size,
        patch_size=encoder.patch_size,
        depth=encoder.depth,
        block=encoder.block,
        num_classes=num_classes,
        pool=pool,
        drop_path=drop_path,
    )
    model = VisionTransformer(config)
    nn.init.trunc_normal_(model.head.weight, std=PROBED_HEAD_STD if linear_probe else FINE_TUNED_HEAD_STD)
    if weights is not None:
        _load(model, weights)
    if linear_probe:
        model.requires_grad_(False)
        head = model.head.requires_grad_()
        # As the paper: features of a masked autoencoder differ much in scale.
        norm = nn.BatchNorm1d(config.block.dim, affine=False, eps=LAYER_NORM_EPSILON)
        model.head = nn.Sequential(norm, head)  # type: ignore[assignment]
    return model


def load_whole(model: VisionTransformer, weights: Weights) -> None:
    """Take all tensors of a classifier, its head too.

    Raises:
        UsageError: They are another model's.
    """
    try:
        model.load_state_dict(weights.tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"{weights.url}: of another model ({reason}); give the flags that it was trained with"
        ) from None


def folded_head(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A probe's normalisation and linear layer as one linear layer: `head.weight` and `head.bias`."""
    if "head.0.running_var" not in tensors:
        return tensors
    kept = {name: each for name, each in tensors.items() if not name.startswith("head.")}
    scale_D = (tensors["head.0.running_var"] + LAYER_NORM_EPSILON).rsqrt()
    weight_CD = tensors["head.1.weight"] * scale_D
    bias_C = tensors["head.1.bias"] - weight_CD @ tensors["head.0.running_mean"]
    return kept | {"head.weight": weight_CD, "head.bias": bias_C}


def _encoder(name: str | None, weights: Weights | None) -> Encoder:
    if weights is None:
        return named_encoder(name or "vit_large_patch16")
    if name is not None and name != weights.encoder.name:
        raise UsageError(f"--model {name}, but {weights.url} is of {weights.encoder.name}; leave --model out")
    return weights.encoder


def _load(model: VisionTransformer, weights: Weights) -> None:
    own = model.state_dict()
    grid = model.config.image_size // model.config.patch_size
    found = {name: each for name, each in weights.tensors.items() if not name.startswith("head.")}
    found["pos_embed"] = resized_positions(weights.positions, grid)
    differing = found.keys() ^ own.keys()
    if wrong := sorted(name for name in differing if not name.startswith(_NOT_PRETRAINED)):
        raise UsageError(
            f"{weights.url}: another network than {weights.encoder.name}: {len(wrong)} tensors are in one of both "
            f"alone, the first is {wrong[0]}"
        )
    model.load_state_dict({name: found.get(name, each) for name, each in own.items()})
