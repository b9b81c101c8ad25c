"""Calls that make the networks of other libraries for exported weights, as a line of Python.

    timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=2, num_classes=0)
    transformers.ViTMAEModel(transformers.ViTMAEConfig(image_size=32, patch_size=8, hidden_size=64, …))

The number of heads is in no weight: it is that of the run's flags, which its checkpoints hold, else that of the
encoder's named size, or else the word HEADS.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from train.checkpoints.encoder_weights import Weights
from train.models.sizes import LAYER_NORM_EPSILON

Tensors = Mapping[str, torch.Tensor]
UNKNOWN_HEADS = "HEADS"
"""Placeholder for the number of heads of an encoder whose source does not say it and whose size has no name."""
_MLP_RATIO = 4


def timm_call(weights: Weights, tensors: Tensors) -> str | None:
    """Return the call of timm's network that takes the tensors with strict=True; None if none does.

    Args:
        weights: The source of the tensors.
        tensors: Exported tensors by timm's names.
    """
    if any(name.endswith("attn.q_bias") for name in tensors):
        return None  # keys without biases, as in BEiT, whose blocks have more
    dim, depth, patch_size, hidden = _sizes(tensors)
    options: dict[str, object] = {
        "img_size": weights.image_size,
        "patch_size": patch_size,
        "embed_dim": dim,
        "depth": depth,
        "num_heads": weights.num_heads or UNKNOWN_HEADS,
        "num_classes": len(tensors.get("head.bias", ())),
    }
    if hidden != _MLP_RATIO * dim:
        options["mlp_ratio"] = hidden / dim
    if "fc_norm.weight" in tensors:
        options["global_pool"] = "avg"
    elif "cls_token" not in tensors:
        options |= {"global_pool": "avg", "fc_norm": False, "class_token": False}
    return f"timm.models.VisionTransformer({_words(options)})"


def vitmae_call(weights: Weights, tensors: Tensors) -> str | None:
    """Return the call of the encoder of Hugging Face's ViTMAE, whose names have no `vit.`; None if none fits.

    Args:
        weights: The source of the tensors.
        tensors: Exported tensors by timm's names, before they get theirs.
    """
    if "cls_token" not in tensors:
        return None
    dim, depth, patch_size, hidden = _sizes(tensors)
    options = {
        "image_size": weights.image_size,
        "patch_size": patch_size,
        "hidden_size": dim,
        "num_hidden_layers": depth,
        "num_attention_heads": weights.num_heads or UNKNOWN_HEADS,
        "intermediate_size": hidden,
        "layer_norm_eps": LAYER_NORM_EPSILON,
    }
    return f"transformers.ViTMAEModel(transformers.ViTMAEConfig({_words(options)}))"


def _sizes(tensors: Tensors) -> tuple[int, int, int, int]:
    """Return width, number of blocks, side of a patch in pixels, and width inside an MLP."""
    dim, _, _, patch_size = tensors["patch_embed.proj.weight"].shape
    depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    return dim, depth, patch_size, len(tensors["blocks.0.mlp.fc1.weight"])


def _words(options: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name}={value}" if value == UNKNOWN_HEADS else f"{name}={value!r}" for name, value in options.items()
    )
