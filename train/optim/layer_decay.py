"""AdamW for fine-tuning: the nearer a layer is to the pixels, the slower it learns.

Clark et al., "ELECTRA", ICLR 2020; for vision transformers: Bao et al., "BEiT", ICLR 2022. timm's function does not
support our model: docs/decisions/0009-own-lars-and-layer-decay.md.
"""

from __future__ import annotations

import torch

from dataprep.errors import UsageError
from train.models.layers import layer_of
from train.models.vit import VisionTransformer
from train.optim.optimizer import start_moments

BETAS = (0.9, 0.999)
"""Betas of the MAE paper's fine-tuning."""


def open_layered_adamw(
    model: VisionTransformer, *, lr: float, weight_decay: float, layer_decay: float
) -> torch.optim.AdamW:
    """Make an optimiser with one group per layer, each with an `lr_scale` that multiplies the learning rate.

    Args:
        model: Model of which all parameters are trained.
        lr: Learning rate of the head.
        weight_decay: Weight decay of matrices; vectors, tokens and positions have none.
        layer_decay: Learning rate of a layer as a share of the next one's.

    Raises:
        UsageError: The layer decay is not above 0 and at most 1.
    """
    if not 0 < layer_decay <= 1:
        raise UsageError(f"--layer_decay must be above 0 and at most 1, got {layer_decay}")
    last = model.config.depth + 1
    groups: dict[tuple[int, float], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        is_vector = parameter.ndim <= 1 or name in ("cls_token", "pos_embed")
        groups.setdefault((layer_of(name, last), 0.0 if is_vector else weight_decay), []).append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": decay, "lr_scale": layer_decay ** (last - layer)}
            for (layer, decay), parameters in sorted(groups.items(), key=lambda item: item[0])
        ],
        lr=lr,
        betas=BETAS,
    )
    start_moments(optimizer)
    return optimizer
