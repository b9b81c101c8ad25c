"""Vision transformers and masked autoencoders in Flax: the networks of `vit.py` and `mae.py`, with the same weights.

The blocks of a network are one block whose weights have a first dimension for the depth (`jax.lax.scan`), so that the
time of compiling does not grow with the depth. `train/checkpoints/jax_weights.py` turns weights into PyTorch's and
back.

Shapes: N images, H x W pixels, C = 3 channels, L patches in an image, row by row, K of them visible, D the width,
E the width of the decoder, P patches of the prediction's grid, each with V = its pixels x 3 values, p x q pixels of a
patch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import NamedSharding

from train.models.sizes import (
    LAYER_NORM_EPSILON,
    LEAST_HIDDEN,
    TARGET_EPSILON,
    TOKEN_STD,
    BlockConfig,
    MAEConfig,
    MAEOutput,
    ViTConfig,
    sincos_positions,
)

KEPT = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
"""Results of a block that are kept for its gradient, from dense layers. Normalisations, attention's shares and
GELU are computed again, which on a CPU takes less time than writing and reading them, and much less memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Computation:
    """Settings of a network's computation; none of these changes its weights."""

    dtype: str = "float32"
    """Number format of matrix products; weights, normalisations, sums of branches and losses are float32."""
    remat: bool = False
    """Whether everything that a block computes is computed again for its gradient; otherwise `KEPT` is kept."""
    scan: bool = True
    """Whether blocks are compiled once, as a loop; otherwise each is compiled by itself."""
    tokens: NamedSharding | None = None
    """Sharding of the tokens between blocks, which keeps the compiler from gathering them instead of weights; None: the
    compiler chooses."""


class MaskedAutoencoder(nn.Module):
    """A masked autoencoder: encoder, decoder and loss."""

    config: MAEConfig
    computation: Computation = Computation()

    @nn.compact
    def __call__(
        self, images_NHWC: jax.Array, visible_NK: jax.Array, place_NL: jax.Array, mask_N: jax.Array | None = None
    ) -> MAEOutput:
        """Return loss and reconstruction of normalised images; arguments are as for `mae.MaskedAutoencoder.forward`."""
        encoded_NKD = self._encoded(images_NHWC, visible_NK)
        prediction_NPV = self._decoded(encoded_NKD, place_NL).astype(jnp.float32)
        hidden_NP = self._pooled((place_NL >= visible_NK.shape[1]).astype(jnp.float32))
        if mask_N is not None:
            hidden_NP = hidden_NP * mask_N[:, None]
        error_NP = jnp.square(prediction_NPV - self._targets(images_NHWC)).mean(axis=-1)
        loss = (error_NP * hidden_NP).sum() / jnp.maximum(hidden_NP.sum(), LEAST_HIDDEN)
        return MAEOutput(loss, prediction_NPV, hidden_NP)

    def _encoded(self, images_NHWC: jax.Array, visible_NK: jax.Array) -> jax.Array:
        """Encode the class token and visible patches: (N, 1 + K, D). Hidden patches are not embedded."""
        config, dim = self.config, self.config.encoder.dim
        positions_1LD = jnp.asarray(sincos_positions(dim, config.grid))
        pixels_NKV = _taken(patches_of(images_NHWC, config.patch_size), visible_NK)
        tokens_NKD = _PatchEmbed(config.patch_size, dim, self.computation.dtype, name="patch_embed")(pixels_NKV)
        tokens_NKD = tokens_NKD + jnp.take(positions_1LD[0, 1:], visible_NK, axis=0)
        class_token = self.param("cls_token", nn.initializers.normal(TOKEN_STD), (1, 1, dim)) + positions_1LD[:, :1]
        x_NKD = _with_class_token(class_token, tokens_NKD)
        x_NKD = _blocks(config.encoder, config.encoder_depth, self.computation, "blocks")(x_NKD, None)[0]
        return _norm(self.computation.dtype, "norm")(x_NKD)

    def _decoded(self, encoded_NKD: jax.Array, place_NL: jax.Array) -> jax.Array:
        """Predict all patches: (N, P, V)."""
        config, dtype, dim = self.config, self.computation.dtype, self.config.decoder.dim
        down, up = config.decoder_downsampling, config.decoder_downsampling // config.pred_downsampling
        x_NKE = _dense(dim, dtype, "decoder_embed")(encoded_NKD)
        class_token, visible_NKE = x_NKE[:, :1], x_NKE[:, 1:]
        mask_token = self.param("mask_token", nn.initializers.normal(TOKEN_STD), (1, 1, dim)).astype(x_NKE.dtype)
        num_hidden = place_NL.shape[1] - visible_NKE.shape[1]
        hidden_NME = jnp.broadcast_to(mask_token, (len(x_NKE), num_hidden, dim))
        x_NLE = _taken(jnp.concatenate([visible_NKE, hidden_NME], axis=1), place_NL)
        if down > 1:
            x_NLE = _Downsample(down, dim, dtype, name="decoder_downsample")(x_NLE)
        x_NLE = jnp.concatenate([class_token, x_NLE], axis=1) + jnp.asarray(sincos_positions(dim, config.grid // down))
        x_NLE = _blocks(config.decoder, config.decoder_depth, self.computation, "decoder_blocks")(x_NLE, None)[0]
        x_NPE = x_NLE[:, 1:]
        if up > 1:
            x_NPE = _Upsample(up, dim, dtype, name="decoder_upsample")(x_NPE)
        x_NPE = _norm(dtype, "decoder_norm")(x_NPE)
        return _dense(3 * self._prediction_pixels**2, dtype, "decoder_pred")(x_NPE)

    @property
    def _prediction_pixels(self) -> int:
        return self.config.patch_size * self.config.pred_downsampling

    def _targets(self, images_NHWC: jax.Array) -> jax.Array:
        """Return the values that are to be predicted, (N, P, V)."""
        target_NPV = patches_of(images_NHWC, self._prediction_pixels)
        if self.config.norm_pix_loss:
            mean, variance = target_NPV.mean(-1, keepdims=True), target_NPV.var(-1, ddof=1, keepdims=True)
            target_NPV = (target_NPV - mean) / jnp.sqrt(variance + TARGET_EPSILON)
        return target_NPV

    def _pooled(self, hidden_NL: jax.Array) -> jax.Array:
        down, grid = self.config.pred_downsampling, self.config.grid
        squares = hidden_NL.reshape(-1, grid // down, down, grid // down, down)
        return squares.mean(axis=(2, 4)).reshape(len(hidden_NL), -1)


class VisionTransformer(nn.Module):
    """A network from images to logits."""

    config: ViTConfig
    computation: Computation = Computation()

    @nn.compact
    def __call__(self, images_NHWC: jax.Array, *, train: bool = False, head: bool = True) -> jax.Array:
        """Return the logits, float32, (N, classes), of normalised images; without `head` the features, float32, (N, D).

        With `train`, dropout and stochastic depth are on.
        """
        config, dtype, dim = self.config, self.computation.dtype, self.config.block.dim
        pixels_NLV = patches_of(images_NHWC, config.patch_size)
        x_NLD = _PatchEmbed(config.patch_size, dim, dtype, name="patch_embed")(pixels_NLV)
        if config.class_token:
            x_NLD = _with_class_token(self.param("cls_token", nn.initializers.normal(TOKEN_STD), (1, 1, dim)), x_NLD)
        positions = nn.initializers.normal(TOKEN_STD)
        x_NLD = x_NLD + self.param("pos_embed", positions, (1, x_NLD.shape[1], dim))
        x_NLD = nn.Dropout(config.pos_dropout, deterministic=not train)(x_NLD)
        drop_paths = jnp.linspace(0, config.drop_path, config.depth) if config.drop_path else None
        x_NLD = _blocks(config.block, config.depth, self.computation, "blocks", train)(x_NLD, drop_paths)[0]
        patches_from = int(config.class_token)
        if config.pool == "average":
            x_ND = _norm("float32", "fc_norm")(x_NLD[:, patches_from:].mean(axis=1))
        else:
            x_NLD = _norm("float32", "norm")(x_NLD)
            x_ND = x_NLD[:, 0] if config.pool == "token" else x_NLD[:, patches_from:].mean(axis=1)
        return _dense(config.num_classes, dtype, "head")(x_ND).astype(jnp.float32) if head else x_ND


class Block(nn.Module):
    """Attention, then an MLP on each token, each after a normalisation and with a residual connection."""

    config: BlockConfig
    computation: Computation
    train: bool

    @nn.compact
    def __call__(self, x_NLD: jax.Array, drop_path: jax.Array | None) -> tuple[jax.Array, None]:
        """Return tokens of the same shape, float32, and None, as `nn.scan` wants it.

        `drop_path` is the probability that a branch is dropped for a sample; None: never.
        """
        dtype, tokens = self.computation.dtype, self.computation.tokens
        hidden_dim = int(self.config.dim * self.config.mlp_ratio)
        x_NLD = x_NLD.astype(jnp.float32)  # branches are summed in float32, as under PyTorch's autocast
        if tokens is not None and not self.is_initializing():  # weights are drawn with a batch of one image
            x_NLD = jax.lax.with_sharding_constraint(x_NLD, tokens)
        attention = Attention(self.config, dtype, self.train, name="attn")
        x_NLD = x_NLD + self._passed(attention(_norm(dtype, "norm1")(x_NLD)), drop_path)
        branch = MLP(self.config, hidden_dim, dtype, self.train, name="mlp")
        return x_NLD + self._passed(branch(_norm(dtype, "norm2")(x_NLD)), drop_path), None

    def _passed(self, branch_NLD: jax.Array, drop_path: jax.Array | None) -> jax.Array:
        """Drop a branch for some samples and scale it up for the others: stochastic depth, Huang et al., ECCV 2016."""
        if drop_path is None or not self.train:
            return branch_NLD
        keep = 1 - drop_path
        is_kept_N11 = jax.random.bernoulli(self.make_rng("dropout"), keep, (len(branch_NLD), 1, 1))
        return jnp.where(is_kept_N11, branch_NLD / keep, 0)


class Attention(nn.Module):
    """Attention of every token to all tokens, in several heads."""

    config: BlockConfig
    dtype: str
    train: bool

    @nn.compact
    def __call__(self, x_NLD: jax.Array) -> jax.Array:
        """Return tokens of the same shape."""
        config = self.config
        heads, width = config.num_heads, config.dim // config.num_heads
        qkv = nn.DenseGeneral(
            (3, heads, width), use_bias=config.k_bias, kernel_init=_XAVIER, dtype=self.dtype, name="qkv"
        )(x_NLD)  # (N, L, 3, heads, head's width)
        if not config.k_bias:
            query_bias, value_bias = (
                self.param(name, nn.initializers.zeros, (heads, width)).astype(self.dtype)
                for name in ("q_bias", "v_bias")
            )
            qkv = qkv + jnp.stack([query_bias, jnp.zeros_like(query_bias), value_bias])
        query, key, value = (qkv[:, :, part] for part in range(3))
        scores = jnp.einsum("nqhd,nkhd->nhqk", query / jnp.sqrt(width).astype(query.dtype), key)
        shares = jax.nn.softmax(scores.astype(jnp.float32)).astype(self.dtype)
        shares = nn.Dropout(config.att_dropout, deterministic=not self.train)(shares)
        mixed = jnp.einsum("nhqk,nkhd->nqhd", shares, value)
        out_NLD = nn.DenseGeneral(config.dim, axis=(-2, -1), kernel_init=_XAVIER, dtype=self.dtype, name="proj")(mixed)
        return nn.Dropout(config.dropout, deterministic=not self.train)(out_NLD)


class MLP(nn.Module):
    """Two layers with GELU between them."""

    config: BlockConfig
    hidden_dim: int
    dtype: str
    train: bool

    @nn.compact
    def __call__(self, x_NLD: jax.Array) -> jax.Array:
        """Return tokens of the same shape."""
        drop = partial(nn.Dropout, self.config.dropout, deterministic=not self.train)
        x_NLD = drop()(nn.gelu(_dense(self.hidden_dim, self.dtype, "fc1")(x_NLD), approximate=False))
        return drop()(_dense(self.config.dim, self.dtype, "fc2")(x_NLD))


class _PatchEmbed(nn.Module):
    """Maps the pixels of each patch to a token: the convolution of `vit.PatchEmbed`, as a matrix product."""

    patch_size: int
    dim: int
    dtype: str

    @nn.compact
    def __call__(self, pixels_NLV: jax.Array) -> jax.Array:
        kernel = _Kernel((self.patch_size, self.patch_size, 3, self.dim), name="proj")
        weight, bias = kernel()
        return pixels_NLV.astype(self.dtype) @ weight.reshape(-1, self.dim).astype(self.dtype) + bias


class _Downsample(nn.Module):
    """A convolution over the tokens' grid, whose squares of `side` tokens become one."""

    side: int
    dim: int
    dtype: str

    @nn.compact
    def __call__(self, tokens_NLE: jax.Array) -> jax.Array:
        weight, bias = _Kernel((self.side, self.side, self.dim, self.dim), name="kernels")()
        grid = round(tokens_NLE.shape[1] ** 0.5) // self.side
        squares = tokens_NLE.astype(self.dtype).reshape(-1, grid, self.side, grid, self.side, self.dim)
        out = jnp.einsum("nhpwqi,pqio->nhwo", squares, weight.astype(self.dtype)) + bias
        return out.reshape(len(tokens_NLE), -1, self.dim)


class _Upsample(nn.Module):
    """A transposed convolution over the tokens' grid, whose tokens become squares of `side` tokens."""

    side: int
    dim: int
    dtype: str

    @nn.compact
    def __call__(self, tokens_NLE: jax.Array) -> jax.Array:
        weight, bias = _Kernel((self.dim, self.side, self.side, self.dim), fan_in=(0,), name="kernels")()
        grid = round(tokens_NLE.shape[1] ** 0.5)
        tokens = tokens_NLE.astype(self.dtype).reshape(-1, grid, grid, self.dim)
        out = jnp.einsum("nhwi,ipqo->nhpwqo", tokens, weight.astype(self.dtype)) + bias
        return out.reshape(len(tokens_NLE), -1, self.dim)


class _Kernel(nn.Module):
    """Weight and bias of a convolution whose windows do not overlap, drawn as for the linear map that it is."""

    shape: tuple[int, ...]
    fan_in: tuple[int, ...] = (0, 1, 2)
    """Dimensions that are summed over."""

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array]:
        rest = tuple(axis for axis in range(len(self.shape)) if axis not in self.fan_in)
        draw = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=self.fan_in, out_axis=rest)
        weight: jax.Array = self.param("kernel", draw, self.shape)
        bias: jax.Array = self.param("bias", nn.initializers.zeros, self.shape[-1:])
        return weight, bias


_XAVIER = nn.initializers.xavier_uniform()


def patches_of(images_NHWC: jax.Array, patch_pixels: int) -> jax.Array:
    """Cut images into patches row by row; a patch holds its pixels row by row: (N, patches, patch_pixels^2 * 3)."""
    grid = images_NHWC.shape[1] // patch_pixels
    pieces = images_NHWC.reshape(-1, grid, patch_pixels, grid, patch_pixels, 3)  # N h p w q C
    return pieces.transpose(0, 1, 3, 2, 4, 5).reshape(len(images_NHWC), grid**2, -1)


def _blocks(config: BlockConfig, depth: int, computation: Computation, name: str, train: bool = False) -> nn.Module:
    """Return `depth` blocks, as one module that is called with tokens and each block's `drop_path`, or None."""
    # In a loop XLA cannot merge the two computations of a block, so it needs no barrier between them.
    block: Any = nn.remat(Block, prevent_cse=not computation.scan, policy=None if computation.remat else KEPT)
    scanned: Any = nn.scan(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        length=depth,
        unroll=1 if computation.scan else depth,
    )
    module: nn.Module = scanned(config, computation, train, name=name)
    return module


def _norm(dtype: str, name: str) -> nn.LayerNorm:
    return nn.LayerNorm(LAYER_NORM_EPSILON, dtype=dtype, use_fast_variance=False, name=name)


def _dense(features: int, dtype: str, name: str) -> nn.Dense:
    return nn.Dense(features, dtype=dtype, kernel_init=_XAVIER, name=name)


def _with_class_token(class_token: jax.Array, tokens_NLD: jax.Array) -> jax.Array:
    classes = jnp.broadcast_to(class_token, (len(tokens_NLD), 1, tokens_NLD.shape[-1]))
    return jnp.concatenate([classes, tokens_NLD], axis=1, dtype=jnp.float32)


def _taken(tokens_NLD: jax.Array, indices_NK: jax.Array) -> jax.Array:
    """Return the tokens of each row at the row's indices."""
    return jnp.take_along_axis(tokens_NLD, indices_NK[:, :, None], axis=1)
