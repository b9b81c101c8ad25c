"""Masked autoencoders: an encoder over the visible patches, and a small decoder that predicts the others.

He et al., "Masked autoencoders are scalable vision learners", CVPR 2022; masks of several patches, and a decoder and
a prediction on a coarser grid: Hu et al., "Exploring long-sequence masked autoencoders", 2022. Parameters have the
names that these papers' checkpoints have.

Shapes: N images, L patches in an image, row by row, K of them visible, D the width of the encoder, E of the decoder,
P patches of the prediction's grid, each with V = its pixels x 3 values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from train.models.sizes import (
    LAYER_NORM_EPSILON,
    LEAST_HIDDEN,
    TARGET_EPSILON,
    TOKEN_STD,
    MAEConfig,
    MAEOutput,
    sincos_positions,
)
from train.models.vit import Block, PatchEmbed, init_linear


class MaskedAutoencoder(nn.Module):
    """A masked autoencoder: encoder, decoder and loss."""

    pos_embed: torch.Tensor
    decoder_pos_embed: torch.Tensor

    def __init__(self, config: MAEConfig) -> None:
        super().__init__()
        self.config = config
        dim, decoder_dim = config.encoder.dim, config.decoder.dim
        self.patch_embed = PatchEmbed(config.patch_size, dim)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.register_buffer("pos_embed", torch.from_numpy(sincos_positions(dim, config.grid)))
        self.blocks = nn.ModuleList(Block(config.encoder) for _ in range(config.encoder_depth))
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON)

        self.decoder_embed = nn.Linear(dim, decoder_dim)
        self.mask_token = nn.Parameter(torch.empty(1, 1, decoder_dim))
        down, up = config.decoder_downsampling, config.decoder_downsampling // config.pred_downsampling
        self.decoder_downsample = nn.Conv2d(decoder_dim, decoder_dim, down, down) if down > 1 else None
        self.decoder_upsample = nn.ConvTranspose2d(decoder_dim, decoder_dim, up, up) if up > 1 else None
        self.register_buffer("decoder_pos_embed", torch.from_numpy(sincos_positions(decoder_dim, config.grid // down)))
        self.decoder_blocks = nn.ModuleList(Block(config.decoder) for _ in range(config.decoder_depth))
        self.decoder_norm = nn.LayerNorm(decoder_dim, eps=LAYER_NORM_EPSILON)
        self.decoder_pred = nn.Linear(decoder_dim, 3 * self.prediction_pixels**2)

        nn.init.normal_(self.cls_token, std=TOKEN_STD)
        nn.init.normal_(self.mask_token, std=TOKEN_STD)
        self.apply(init_linear)

    @property
    def prediction_pixels(self) -> int:
        """Side of the area that one prediction covers, pixels."""
        return self.config.patch_size * self.config.pred_downsampling

    def forward(
        self,
        images_NCHW: torch.Tensor,
        visible_NK: torch.Tensor,
        place_NL: torch.Tensor,
        mask_N: torch.Tensor | None = None,
    ) -> MAEOutput:
        """Return loss and reconstruction of normalised images.

        Args:
            images_NCHW: Images with mean 0 and standard deviation 1.
            visible_NK: int64, indices of the visible patches.
            place_NL: int64, index of each patch in the sample's permutation, whose first K patches are visible.
            mask_N: Whether a row holds a sample, bool; the loss leaves the others out. None: all do.
        """
        encoded_NKD = self.encode(images_NCHW, visible_NK)
        prediction_NPV = self.decode(encoded_NKD, place_NL).float()
        hidden_NP = self._pooled((place_NL >= visible_NK.shape[1]).to(torch.float32))
        if mask_N is not None:
            hidden_NP = hidden_NP * mask_N[:, None]
        error_NP = (prediction_NPV - self.targets(images_NCHW)).square().mean(dim=-1)
        loss = (error_NP * hidden_NP).sum() / hidden_NP.sum().clamp(min=LEAST_HIDDEN)
        return MAEOutput(loss, prediction_NPV, hidden_NP)

    def encode(self, images_NCHW: torch.Tensor, visible_NK: torch.Tensor) -> torch.Tensor:
        """Encode the class token and visible patches: (N, 1 + K, D)."""
        tokens_NLD = self.patch_embed(images_NCHW) + self.pos_embed[:, 1:]
        tokens_NKD = taken(tokens_NLD, visible_NK)
        class_token = (self.cls_token + self.pos_embed[:, :1]).expand(len(tokens_NKD), -1, -1)
        x_NKD = torch.cat([class_token, tokens_NKD], dim=1)
        for block in self.blocks:
            x_NKD = block(x_NKD)
        encoded_NKD: torch.Tensor = self.norm(x_NKD)
        return encoded_NKD

    def decode(self, encoded_NKD: torch.Tensor, place_NL: torch.Tensor) -> torch.Tensor:
        """Predict all patches: (N, P, V)."""
        x_NKE = self.decoder_embed(encoded_NKD)
        class_token, visible_NKE = x_NKE[:, :1], x_NKE[:, 1:]
        num_hidden = place_NL.shape[1] - visible_NKE.shape[1]
        hidden_NME = self.mask_token.to(x_NKE.dtype).expand(len(x_NKE), num_hidden, -1)
        x_NLE = taken(torch.cat([visible_NKE, hidden_NME], dim=1), place_NL)
        x_NLE = _on_grid(self.decoder_downsample, x_NLE)
        x_NLE = torch.cat([class_token, x_NLE], dim=1) + self.decoder_pos_embed
        for block in self.decoder_blocks:
            x_NLE = block(x_NLE)
        x_NPE = _on_grid(self.decoder_upsample, x_NLE[:, 1:])
        prediction_NPV: torch.Tensor = self.decoder_pred(self.decoder_norm(x_NPE))
        return prediction_NPV

    def targets(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        """Return the values that are to be predicted, (N, P, V)."""
        target_NPV = patches_of(images_NCHW, self.prediction_pixels)
        return standardised(target_NPV) if self.config.norm_pix_loss else target_NPV

    def _pooled(self, hidden_NL: torch.Tensor) -> torch.Tensor:
        down, grid = self.config.pred_downsampling, self.config.grid
        return F.avg_pool2d(hidden_NL.view(-1, 1, grid, grid), down).flatten(1) if down > 1 else hidden_NL


def patches_of(images_NCHW: torch.Tensor, patch_pixels: int) -> torch.Tensor:
    """Cut images into patches row by row; a patch holds its pixels row by row: (N, patches, patch_pixels^2 * 3)."""
    grid = images_NCHW.shape[2] // patch_pixels
    pieces = images_NCHW.reshape(-1, 3, grid, patch_pixels, grid, patch_pixels)  # N C h p w q
    return pieces.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def image_of(patches_NPV: torch.Tensor) -> torch.Tensor:
    """Return the square images_NCHW of patches that `patches_of` made."""
    grid, pixels = round(patches_NPV.shape[1] ** 0.5), round((patches_NPV.shape[2] / 3) ** 0.5)
    pieces = patches_NPV.reshape(-1, grid, grid, pixels, pixels, 3)  # N h w p q C
    return pieces.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


def standardised(patches_NPV: torch.Tensor) -> torch.Tensor:
    """Return patches whose pixels have mean 0 and standard deviation 1."""
    variance, mean = torch.var_mean(patches_NPV, dim=-1, keepdim=True)
    return (patches_NPV - mean) / (variance + TARGET_EPSILON).sqrt()


def taken(tokens_NLD: torch.Tensor, indices_NK: torch.Tensor) -> torch.Tensor:
    """Return the tokens of each row at the row's indices."""
    return tokens_NLD.gather(1, indices_NK.unsqueeze(-1).expand(-1, -1, tokens_NLD.shape[-1]))


def _on_grid(convolution: nn.Module | None, tokens_NLE: torch.Tensor) -> torch.Tensor:
    """Pass tokens through a convolution over their grid."""
    if convolution is None:
        return tokens_NLE
    grid = round(tokens_NLE.shape[1] ** 0.5)
    out: torch.Tensor = convolution(tokens_NLE.transpose(1, 2).reshape(len(tokens_NLE), -1, grid, grid))
    return out.flatten(2).transpose(1, 2)
