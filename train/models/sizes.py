"""Sizes and fixed positions of vision transformers and masked autoencoders, for every framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dataprep.errors import UsageError
from dataprep.messages import there_are

LAYER_NORM_EPSILON = 1e-6
TARGET_EPSILON = 1e-6
"""Number that is added to the variance of a patch's pixels before they are divided by their standard deviation."""
LEAST_HIDDEN = 1e-6
"""Smallest divisor of a sum of errors, for a batch without a readable image."""
TOKEN_STD = 0.02
POOLS = ("token", "average", "average_of_normed")
PositionKind: TypeAlias = Literal["fractional", "absolute"]
"""`fractional`: how far down and to the right of the image a patch is; `absolute`: its number of row and column."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockConfig:
    """Sizes of a transformer block. Raises UsageError if the heads do not divide the width."""

    dim: int
    num_heads: int
    mlp_ratio: float = 4.0
    k_bias: bool = True
    """False: only queries and values have a bias, as in BEiT. A key's bias shifts all scores of a query alike, which
    the softmax undoes, so it changes the stored weights but no output."""
    dropout: float = 0.0
    """Dropout of the outputs of attention's projection and of each layer of the MLP."""
    att_dropout: float = 0.0
    """Dropout of attention's weights."""

    def __post_init__(self) -> None:
        if self.dim % self.num_heads:
            raise UsageError(f"a width of {self.dim} cannot be cut into {self.num_heads} heads; choose a multiple")


@dataclass(frozen=True, kw_only=True, slots=True)
class ViTConfig:
    """Sizes of a vision transformer that classifies. Raises UsageError if the patches do not cover the image."""

    image_size: int
    patch_size: int
    depth: int
    block: BlockConfig
    num_classes: int = 1000
    pool: str = "token"
    """Way to pool the tokens that are classified. `token`: normalise, then take the class token; `average`: take the
    mean of all patches, then normalise; `average_of_normed`: normalise, then take the mean of all patches, as in large
    ViTs (Zhai et al., "Scaling vision transformers", CVPR 2022)."""
    class_token: bool = True
    drop_path: float = 0.0
    """Probability that a branch of the last block is dropped for a sample; for earlier blocks proportionally less."""
    pos_dropout: float = 0.0
    """Dropout of the tokens that enter the first block."""

    def __post_init__(self) -> None:
        check_patches(self.image_size, self.patch_size)
        if self.pool not in POOLS or (self.pool == "token" and not self.class_token):
            raise UsageError(f"pool must be token (with a class token), {' or '.join(POOLS[1:])}, got {self.pool!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class MAEConfig:
    """Sizes of a masked autoencoder. Raises UsageError if the grids do not fit into each other."""

    image_size: int
    patch_size: int
    encoder: BlockConfig
    encoder_depth: int
    decoder: BlockConfig
    decoder_depth: int
    norm_pix_loss: bool = False
    """Whether the pixels of each target patch are standardised."""
    decoder_downsampling: int = 1
    """Side, in patches, of one token of the decoder."""
    pred_downsampling: int = 1
    """Side, in patches, of the area that one prediction covers."""
    grid: int = field(init=False)
    """Patches along a side of the image."""

    def __post_init__(self) -> None:
        check_patches(self.image_size, self.patch_size)
        object.__setattr__(self, "grid", self.image_size // self.patch_size)
        if self.grid % self.decoder_downsampling:
            raise UsageError(
                f"decoder_downsampling {self.decoder_downsampling} does not divide the {self.grid} patches of a side "
                f"({self.image_size} / {self.patch_size} pixels); choose a divisor of it"
            )
        if self.decoder_downsampling % self.pred_downsampling:
            raise UsageError(
                f"pred_downsampling {self.pred_downsampling} does not divide decoder_downsampling "
                f"{self.decoder_downsampling}; choose a divisor of it"
            )


class MAEOutput(NamedTuple):
    """Output of a masked autoencoder, arrays of the framework that trains."""

    loss: Any
    """Mean squared error over hidden patches, a scalar."""
    prediction: Any
    """Pixels of all patches, as `targets` has them."""
    hidden: Any
    """0 for a visible patch, 1 for a hidden one, a share for a prediction that covers both."""


def mae_names() -> list[str]:
    """List the names of masked autoencoders."""
    return list(_MAES)


def mae_config(name: str, *, image_size: int, **options: Any) -> MAEConfig:
    """Return the configuration of a masked autoencoder by its name, with some fields replaced. Raises UsageError if the
    model or option is unknown, or does not fit the images."""
    if name not in _MAES:
        raise unknown_name("masked autoencoder", name, mae_names())
    size, patch_size, decoder_name = _MAES[name]
    k_bias = options.pop("k_bias", True)
    dim, depth, heads = _ENCODERS[size]
    decoder_dim, decoder_depth, decoder_heads = _DECODERS[decoder_name]
    decoder_dim = options.pop("decoder_dim", decoder_dim)
    known = ["norm_pix_loss", "decoder_downsampling", "pred_downsampling", "patch_size", "decoder_depth"]
    if unknown := options.keys() - set(known):
        raise unknown_name("option", min(unknown), [*known, "decoder_dim", "k_bias"])
    return MAEConfig(
        image_size=image_size,
        patch_size=options.pop("patch_size", patch_size),
        encoder=BlockConfig(dim=dim, num_heads=heads, k_bias=k_bias),
        encoder_depth=depth,
        decoder=BlockConfig(dim=decoder_dim, num_heads=decoder_heads, k_bias=k_bias),
        decoder_depth=options.pop("decoder_depth", decoder_depth),
        **options,
    )


def check_patches(image_size: int, patch_size: int) -> None:
    """Refuse patches that do not cover the image with a UsageError."""
    if patch_size < 1:
        raise UsageError(f"`patch_size` must be 1 or more, got {patch_size}")
    if image_size < patch_size or image_size % patch_size:
        raise UsageError(
            f"images of {image_size} pixels cannot be cut into patches of {patch_size} pixels; choose an image size "
            f"that is a multiple of {patch_size}"
        )


def unknown_name(what: str, name: str, names: Sequence[str]) -> UsageError:
    """Return the error for an unknown name."""
    return UsageError(f"no {what} {name!r}{there_are(name, names, cutoff=0.4)}")


def layer_of(name: str, last: int) -> int:
    """Return the layer of a weight: 0 for the patch embedding, from 1 on the blocks, `last` for the head."""
    if name.startswith("blocks."):
        return int(name.split(".")[1]) + 1
    return 0 if name.startswith(("cls_token", "pos_embed", "patch_embed")) else last


def sincos_positions(dim: int, grid: int) -> NDArray[np.float32]:
    """Return fixed position embeddings of a class token (zeros) and grid x grid patches: (1, 1 + grid^2, dim).

    Columns in the first half, rows in the second; each half has sines, then cosines, of frequencies from 1 down to
    1/10,000: Vaswani et al., "Attention is all you need", 2017, in two dimensions.
    """
    if dim % 4:
        raise UsageError(f"a width of {dim} cannot hold two-dimensional positions; choose a multiple of 4")
    frequencies = 10_000.0 ** (-np.arange(dim // 4) / (dim // 4))
    angles = np.outer(np.arange(grid), frequencies)
    along = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    patches = np.concatenate([np.tile(along, (grid, 1)), np.repeat(along, grid, axis=0)], axis=1)
    return np.concatenate([np.zeros((1, dim)), patches]).astype(np.float32)[None]
