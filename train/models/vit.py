"""Vision transformers, with timm's names of parameters: weights go from one to the other as they are.

Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021.

Shapes: N images, C channels, H x W pixels, L tokens of a sequence, D its width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from dataprep.errors import UsageError

LAYER_NORM_EPSILON = 1e-6
TOKEN_STD = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockConfig:
    """One transformer block.

    Raises:
        UsageError: The heads do not divide the width.
    """

    dim: int
    num_heads: int
    mlp_ratio: float = 4.0
    k_bias: bool = True
    """False: queries and values alone have a bias, as in BEiT. A key's bias shifts all scores of a query alike, which
    the softmax undoes, so that it changes nothing but what is stored."""

    def __post_init__(self) -> None:
        if self.dim % self.num_heads:
            raise UsageError(f"a width of {self.dim} cannot be cut into {self.num_heads} heads; choose a multiple")


@dataclass(frozen=True, kw_only=True, slots=True)
class ViTConfig:
    """A classifier.

    Raises:
        UsageError: The patches do not cover the image.
    """

    image_size: int
    patch_size: int
    depth: int
    block: BlockConfig
    num_classes: int = 1000
    pool: str = "token"
    """`token`: the class token, normalised before; `average`: all patches, normalised after."""
    class_token: bool = True

    def __post_init__(self) -> None:
        check_patches(self.image_size, self.patch_size)
        if self.pool not in ("token", "average") or (self.pool == "token" and not self.class_token):
            raise UsageError(f"pool must be token (with a class token) or average, got {self.pool!r}")


class VisionTransformer(nn.Module):
    """Images to logits."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.block.dim
        self.patch_embed = PatchEmbed(config.patch_size, dim)
        num_tokens = (config.image_size // config.patch_size) ** 2 + config.class_token
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if config.class_token else None
        self.pos_embed = nn.Parameter(torch.empty(1, num_tokens, dim))
        self.blocks = nn.ModuleList(Block(config.block) for _ in range(config.depth))
        norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON)
        self.norm = norm if config.pool == "token" else nn.Identity()
        self.fc_norm = nn.Identity() if config.pool == "token" else norm
        self.head = nn.Linear(dim, config.num_classes)
        nn.init.trunc_normal_(self.pos_embed, std=TOKEN_STD)
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=TOKEN_STD)
        self.apply(init_linear)

    def forward(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        """Logits, (N, classes)."""
        x_NLD = self.patch_embed(images_NCHW)
        if self.cls_token is not None:
            x_NLD = torch.cat([self.cls_token.expand(len(x_NLD), -1, -1), x_NLD], dim=1)
        x_NLD = x_NLD + self.pos_embed
        for block in self.blocks:
            x_NLD = block(x_NLD)
        x_NLD = self.norm(x_NLD)
        x_ND = x_NLD[:, 0] if self.config.pool == "token" else x_NLD[:, int(self.config.class_token) :].mean(dim=1)
        logits: torch.Tensor = self.head(self.fc_norm(x_ND))
        return logits


class PatchEmbed(nn.Module):
    """Cuts images into patches, row by row, and maps each to a token."""

    def __init__(self, patch_size: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, kernel_size=patch_size, stride=patch_size)
        nn.init.xavier_uniform_(self.proj.weight.view(dim, -1))  # as the linear map that it is

    def forward(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        """Tokens, (N, L, D)."""
        tokens_NLD: torch.Tensor = self.proj(images_NCHW).flatten(2).transpose(1, 2)
        return tokens_NLD


class Block(nn.Module):
    """Attention, then two layers on each token, both with the norm before and a residual around."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim, eps=LAYER_NORM_EPSILON)
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.dim, eps=LAYER_NORM_EPSILON)
        self.mlp = MLP(config.dim, int(config.dim * config.mlp_ratio))

    def forward(self, x_NLD: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        x_NLD = x_NLD + self.attn(self.norm1(x_NLD))
        mixed_NLD: torch.Tensor = x_NLD + self.mlp(self.norm2(x_NLD))
        return mixed_NLD


class Attention(nn.Module):
    """Of every token to all tokens, in several heads."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=config.k_bias)
        self.q_bias = None if config.k_bias else nn.Parameter(torch.zeros(config.dim))
        self.v_bias = None if config.k_bias else nn.Parameter(torch.zeros(config.dim))
        self.proj = nn.Linear(config.dim, config.dim)

    def forward(self, x_NLD: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        bias: torch.Tensor | None = self.qkv.bias
        if self.q_bias is not None and self.v_bias is not None:
            bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        qkv = F.linear(x_NLD, self.qkv.weight, bias).view(*x_NLD.shape[:2], 3, self.num_heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (N, heads, L, head's width)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out_NLD: torch.Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return out_NLD


class MLP(nn.Module):
    """Two layers with GELU between them."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x_NLD: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        out_NLD: torch.Tensor = self.fc2(F.gelu(self.fc1(x_NLD)))
        return out_NLD


def init_linear(module: nn.Module) -> None:
    """Xavier's weights and no bias, as the published JAX models; for `nn.Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def check_patches(image_size: int, patch_size: int) -> None:
    """Raise UsageError where patches do not cover the image."""
    if patch_size < 1 or image_size < patch_size or image_size % patch_size:
        raise UsageError(
            f"images of {image_size} pixels cannot be cut into patches of {patch_size}; choose a multiple of it"
        )
