"""Vision transformers with timm's names of parameters, so that weights can be exchanged with timm unchanged.

Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021.

Shapes: N images, C channels, H x W pixels, L tokens of a sequence, D its width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from train.models.sizes import LAYER_NORM_EPSILON, TOKEN_STD, BlockConfig, ViTConfig


class VisionTransformer(nn.Module):
    """A network from images to logits."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.block.dim
        self.patch_embed = PatchEmbed(config.patch_size, dim)
        num_tokens = (config.image_size // config.patch_size) ** 2 + config.class_token
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if config.class_token else None
        self.pos_embed = nn.Parameter(torch.empty(1, num_tokens, dim))
        drop_step = config.drop_path / max(1, config.depth - 1)
        self.blocks = nn.ModuleList(Block(config.block, drop_path=drop_step * index) for index in range(config.depth))
        norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON)
        self.pos_drop = nn.Dropout(config.pos_dropout)
        self.norm = nn.Identity() if config.pool == "average" else norm
        self.fc_norm = norm if config.pool == "average" else nn.Identity()
        self.head = nn.Linear(dim, config.num_classes)
        nn.init.trunc_normal_(self.pos_embed, std=TOKEN_STD)
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=TOKEN_STD)
        self.apply(init_linear)

    def forward(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        """Return logits, (N, classes)."""
        x_NLD = self.patch_embed(images_NCHW)
        if self.cls_token is not None:
            x_NLD = torch.cat([self.cls_token.expand(len(x_NLD), -1, -1), x_NLD], dim=1)
        x_NLD = self.pos_drop(x_NLD + self.pos_embed)
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
        nn.init.xavier_uniform_(self.proj.weight.view(dim, -1))  # because it is a linear map

    def forward(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        """Return tokens, (N, L, D)."""
        tokens_NLD: torch.Tensor = self.proj(images_NCHW).flatten(2).transpose(1, 2)
        return tokens_NLD


class Block(nn.Module):
    """Attention, then an MLP on each token, each after a normalisation and with a residual connection."""

    def __init__(self, config: BlockConfig, *, drop_path: float = 0.0) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.norm1 = nn.LayerNorm(config.dim, eps=LAYER_NORM_EPSILON)
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.dim, eps=LAYER_NORM_EPSILON)
        self.mlp = MLP(config.dim, int(config.dim * config.mlp_ratio), config.dropout)

    def forward(self, x_NLD: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return tokens of the same shape; `mask` is as for `Attention`."""
        x_NLD = x_NLD + self._passed(self.attn(self.norm1(x_NLD), mask))
        mixed_NLD: torch.Tensor = x_NLD + self._passed(self.mlp(self.norm2(x_NLD)))
        return mixed_NLD

    def _passed(self, branch_NLD: torch.Tensor) -> torch.Tensor:
        """Drop a branch for some samples and scale it up for the others: stochastic depth, Huang et al., ECCV 2016."""
        if not (self.training and self.drop_path):
            return branch_NLD
        keep = 1 - self.drop_path
        return branch_NLD * branch_NLD.new_empty(len(branch_NLD), 1, 1).bernoulli_(keep) / keep


class Attention(nn.Module):
    """Attention of every token to all tokens, or to those that a mask allows, in several heads."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=config.k_bias)
        self.q_bias = None if config.k_bias else nn.Parameter(torch.zeros(config.dim))
        self.v_bias = None if config.k_bias else nn.Parameter(torch.zeros(config.dim))
        self.proj = nn.Linear(config.dim, config.dim)
        self.att_dropout = config.att_dropout
        self.proj_drop = nn.Dropout(config.dropout)

    def forward(self, x_NLD: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return tokens of the same shape; the mask is True where a query may attend to a key, (N, 1, L, L) or
        broadcast to it."""
        bias: torch.Tensor | None = self.qkv.bias
        if self.q_bias is not None and self.v_bias is not None:
            bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        qkv = F.linear(x_NLD, self.qkv.weight, bias).view(*x_NLD.shape[:2], 3, self.num_heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (N, heads, L, head's width)
        dropout = self.att_dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        out_NLD: torch.Tensor = self.proj_drop(self.proj(mixed.transpose(1, 2).flatten(2)))
        return out_NLD


class MLP(nn.Module):
    """Two layers with GELU between them."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x_NLD: torch.Tensor) -> torch.Tensor:
        """Return tokens of the same shape."""
        out_NLD: torch.Tensor = self.drop(self.fc2(self.drop(F.gelu(self.fc1(x_NLD)))))
        return out_NLD


def init_linear(module: nn.Module) -> None:
    """Set Xavier's weights and zero biases, as in the published JAX models; for `nn.Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
