"""Classifiers made of pretrained encoders: fine-tuned completely, or probed by a linear layer.

He et al., "Masked autoencoders are scalable vision learners", CVPR 2022, appendix A.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dataprep.errors import UsageError
from train.checkpoints.encoder_weights import Encoder, Weights, named_encoder, resized_positions
from train.checkpoints.files import flags_of_its_run
from train.models.sizes import LAYER_NORM_EPSILON, ViTConfig
from train.models.vit import VisionTransformer


def check_model(where: str, found: Any, own: Mapping[str, torch.Tensor], changes: list[str]) -> None:
    """Check that tensors fit a model.

    Args:
        where: Path or URL that they were read from.
        found: Tensors by their names.
        own: The model's own tensors by their names.
        changes: Flags with other values in the run that saved the checkpoint, e.g. "`model` vit_base_patch16".

    Raises:
        UsageError: The tensors are of another model.
    """
    if difference := difference_of(found, own):
        raise UsageError(
            f"{where}: from another model: {difference}{flags_of_its_run(changes)}; use the flags that it was trained "
            "with"
        )


def difference_of(found: Any, own: Mapping[str, torch.Tensor]) -> str:
    """Describe the first name or shape that differs between tensors and a model; '' if none does."""
    if not isinstance(found, dict):
        return f"{_shape(found)}, expected tensors by their names"
    for name in sorted(map(str, found.keys() ^ own.keys())):
        return f"{name} is only in {'the file' if name in found else 'this model'}"
    for name, tensor in own.items():
        theirs = found[name]
        if not isinstance(theirs, torch.Tensor) or theirs.shape != tensor.shape:
            return f"{name} is {_shape(theirs)}, in this model {_shape(tensor)}"
    return ""


def restore_optimizer(where: str, optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Restore moments from a checkpoint; learning rates, decays and other settings stay as on this command line.

    Raises:
        UsageError: The moments are of another optimiser.
    """
    own = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(state)
        for parameter, moments in optimizer.state.items():
            for each in moments.values():
                if isinstance(each, torch.Tensor) and each.dim() and each.shape != parameter.shape:
                    raise ValueError(f"moments of {_shape(each)} for weights of {_shape(parameter)}")
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: from another optimiser ({error}); use the flags that it was trained with") from None
    for group, values in zip(optimizer.param_groups, own, strict=True):
        group.update(values)


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        kind = type(value).__name__
        return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    return " x ".join(map(str, value.shape)) or "a number"


DEFAULT_ENCODER = "vit_large_patch16"
"""Encoder of a classifier for which neither a name nor weights are given."""
FINE_TUNED_HEAD_STD = 2e-5
"""Standard deviation of a head's initial weights: so small that the first logits are nearly 0 for any encoder."""
PROBED_HEAD_STD = 0.01
_HEAD = "head."
_NOT_PRETRAINED = (_HEAD, "fc_norm.", "norm.")
"""Prefixes of the names of tensors that only a classifier, or only a pretrained encoder, may have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierConfig:
    """Settings that a classifier adds to an encoder's."""

    image_size: int
    """Side of the images, pixels; positions are resized to it."""
    num_classes: int
    """Number of logits."""
    pool: str
    """Way to pool the tokens that are classified, as `ViTConfig.pool`."""
    drop_path: float = 0.0
    """Probability of dropping a branch of the last block, as `ViTConfig.drop_path`."""
    linear_probe: bool = False
    """Whether the encoder is frozen; the head then gets features that are normalised over the batch."""


def open_classifier(name: str | None, weights: Weights | None, config: ClassifierConfig) -> VisionTransformer:
    """Make a vision transformer with pretrained weights, or random ones from torch's generator.

    Args:
        name: Name of the encoder, e.g. `vit_base_patch16`; None: the weights'.
        weights: Pretrained weights; None: random ones.
        config: Settings of the head and the images.

    Raises:
        UsageError: The name is unknown, or the weights have another.
        FormatError: The weights are not of a known encoder.
    """
    encoder = _encoder(name, weights)
    model = VisionTransformer(
        ViTConfig(
            image_size=config.image_size,
            patch_size=encoder.patch_size,
            depth=encoder.depth,
            block=encoder.block,
            num_classes=config.num_classes,
            pool=config.pool,
            drop_path=config.drop_path,
        )
    )
    nn.init.trunc_normal_(model.head.weight, std=PROBED_HEAD_STD if config.linear_probe else FINE_TUNED_HEAD_STD)
    if weights is not None:
        _load(model, weights)
    if config.linear_probe:
        model.requires_grad_(False)
        head = model.head.requires_grad_()
        # As in the paper, because features of a masked autoencoder differ much in scale.
        norm = nn.BatchNorm1d(encoder.block.dim, affine=False, eps=LAYER_NORM_EPSILON)
        model.head = nn.Sequential(norm, head)  # type: ignore[assignment]
    return model


def origin(model: VisionTransformer, weights: Weights) -> str:
    """Describe how many tensors of a classifier are from pretrained weights, and name its new parts."""
    own = model.state_dict()
    new = [name for name in own if name not in weights.tensors or name.startswith(_HEAD)]
    parts = ", ".join(sorted({name.split(".")[0] for name in new}))
    return f"{len(own) - len(new)} of {len(own)} tensors are from {weights.url}, the rest ({parts}) is new"


def load_whole(model: VisionTransformer, weights: Weights) -> None:
    """Load all tensors of a classifier, including its head.

    Raises:
        UsageError: The tensors are of another model.
    """
    check_model(weights.url, weights.tensors, model.state_dict(), [])
    model.load_state_dict(weights.tensors)


def folded_head(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Fold a probe's normalisation and linear layer into one linear layer: `head.weight` and `head.bias`."""
    if "head.0.running_var" not in tensors:
        return tensors
    kept = {name: each for name, each in tensors.items() if not name.startswith("head.")}
    scale_D = (tensors["head.0.running_var"] + LAYER_NORM_EPSILON).rsqrt()
    weight_CD = tensors["head.1.weight"] * scale_D
    bias_C = tensors["head.1.bias"] - weight_CD @ tensors["head.0.running_mean"]
    return kept | {"head.weight": weight_CD, "head.bias": bias_C}


def _encoder(name: str | None, weights: Weights | None) -> Encoder:
    if weights is None:
        return named_encoder(name or DEFAULT_ENCODER)
    if name is not None and name != weights.encoder.name:
        raise UsageError(f"`model` {name}, but {weights.url} is of {weights.encoder.name}; leave `model` out")
    return weights.encoder


def _load(model: VisionTransformer, weights: Weights) -> None:
    own = model.state_dict()
    grid = model.config.image_size // model.config.patch_size
    if weights.positions.shape[-1] != model.config.block.dim:
        raise UsageError(
            f"{weights.url}: pos_embed of width {weights.positions.shape[-1]}, expected {model.config.block.dim}"
        )
    found = {name: each for name, each in weights.tensors.items() if not name.startswith(_HEAD)}
    found["pos_embed"] = resized_positions(weights.positions, grid)
    differing = found.keys() ^ own.keys()
    if wrong := sorted(name for name in differing if not name.startswith(_NOT_PRETRAINED)):
        raise UsageError(
            f"{weights.url}: not the network {weights.encoder.name}: {len(wrong)} tensors are only in one of the two, "
            f"the first is {wrong[0]}"
        )
    kept = {name: found.get(name, each) for name, each in own.items()}
    check_model(weights.url, kept, own, [])
    model.load_state_dict(kept)
