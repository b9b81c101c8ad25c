"""Vision transformers and masked autoencoders over packs: several images of any shape in a row of tokens.

Dehghani et al., "Patch n' Pack: NaViT, a vision transformer for any aspect ratio and resolution", NeurIPS 2023: tokens
attend to tokens of their own image, positions are the sum of an embedding of the row and one of the column, and each
image has its own pooled output. All shapes are static. Patches and blocks have the parameters of `vit.py` and `mae.py`,
without a class token.

Shapes: R rows, M images in a row, T tokens in a row, K places for visible tokens, V = 3 values x the pixels of a patch,
D the width of the encoder, E of the decoder.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from dataprep.errors import UsageError
from loaders.packs import Packs
from train.models.mae import standardised, taken
from train.models.sizes import LAYER_NORM_EPSILON, TOKEN_STD, MAEConfig, MAEOutput, PositionKind, ViTConfig
from train.models.vit import Block, PatchEmbed, init_linear


class Packed(NamedTuple):
    """The tokens of a batch, on the device."""

    patches_RTV: torch.Tensor
    """Normalised pixels."""
    segments_RT: torch.Tensor
    """Number of the token's image in its row, from 1 on; 0 in padding."""
    positions_RT2: torch.Tensor
    """Row and column of each patch in its image's grid."""
    grids_RM2: torch.Tensor
    """Patches of each image along height and width."""


def own_image(segments_RT: torch.Tensor) -> torch.Tensor:
    """Return the mask of attention, (R, 1, T, T): True where both tokens are of one image.

    Padding attends to padding: a query without any key would have no defined output.
    """
    # The mask is what keeps images of a row apart: a token of image 3 sees the tokens numbered 3 and no others, so the
    # output of an image does not depend on its neighbours in the row, nor on where in the row it begins. Padding is
    # number 0 and by this rule one more image. It must see something: the softmax over no key is 0 / 0, and a NaN in a
    # token that nothing reads still makes all gradients NaN, because 0 x NaN is NaN. The mask is computed from the
    # numbers on the device; sent from the host, it would be T x T bytes a row, for 1,024 tokens more than the pixels.
    return (segments_RT[:, :, None] == segments_RT[:, None, :]).unsqueeze(1)


class FactorizedPositions(nn.Module):
    """Embeddings of rows and columns; their sum embeds a patch's position.

    Fractional positions are rounded to `2 * sqrt(most)` steps a side, where `most` are the most patches of an image.
    """

    def __init__(self, dim: int, most: int, kind: PositionKind) -> None:
        super().__init__()
        self.kind = kind
        self.steps = most if kind == "absolute" else max(1, round(2 * most**0.5))
        self.rows = nn.Parameter(torch.empty(self.steps, dim))
        self.columns = nn.Parameter(torch.empty(self.steps, dim))
        for table in (self.rows, self.columns):
            nn.init.trunc_normal_(table, std=TOKEN_STD)

    def forward(self, packed: Packed) -> torch.Tensor:
        """Return embeddings, (R, T, D)."""
        place_RT2 = packed.positions_RT2.long()
        if self.kind == "fractional":
            image_RT = (packed.segments_RT.long() - 1).clamp(min=0)
            sides_RT2 = taken(packed.grids_RM2.long(), image_RT).clamp(min=1)
            place_RT2 = (2 * place_RT2 + 1) * self.steps // (2 * sides_RT2)
        place_RT2 = place_RT2.clamp(0, self.steps - 1)
        return F.embedding(place_RT2[..., 0], self.rows) + F.embedding(place_RT2[..., 1], self.columns)


class PackedViT(nn.Module):
    """A network from packs to the logits of each image."""

    def __init__(self, config: ViTConfig, packs: Packs, positions: PositionKind = "fractional") -> None:
        super().__init__()
        if config.pool != "average_of_normed" or config.class_token:
            raise UsageError("packed images are pooled by the average of normalised tokens, without a class token")
        self.config, self.packs = config, packs
        dim = config.block.dim
        self.patch_embed = PatchEmbed(packs.patch, dim)
        self.pos_embed = FactorizedPositions(dim, packs.most, positions)
        drop_step = config.drop_path / max(1, config.depth - 1)
        self.blocks = nn.ModuleList(Block(config.block, drop_path=drop_step * index) for index in range(config.depth))
        self.pos_drop = nn.Dropout(config.pos_dropout)
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON)
        self.head = nn.Linear(dim, config.num_classes)
        self.apply(init_linear)

    def forward(
        self, patches_RTV: torch.Tensor, segments_RT: torch.Tensor, positions_RT2: torch.Tensor, grids_RM2: torch.Tensor
    ) -> torch.Tensor:
        """Return logits, (R, M, classes); logits of images that do not exist mean nothing."""
        packed = Packed(patches_RTV, segments_RT, positions_RT2, grids_RM2)
        x_RTD = self.pos_drop(embed_patches(self.patch_embed, patches_RTV) + self.pos_embed(packed))
        mask = own_image(segments_RT)
        for block in self.blocks:
            x_RTD = block(x_RTD, mask)
        logits: torch.Tensor = self.head(pooled(self.norm(x_RTD), segments_RT, self.packs.images))
        return logits


class PackedMAE(nn.Module):
    """A masked autoencoder over packs, without a class token and with one prediction for each patch."""

    def __init__(self, config: MAEConfig, packs: Packs, positions: PositionKind = "fractional") -> None:
        super().__init__()
        if (config.decoder_downsampling, config.pred_downsampling) != (1, 1):
            raise UsageError(
                "packed images have grids of any shape: decoder_downsampling and pred_downsampling must be 1"
            )
        self.config, self.packs = config, packs
        dim, decoder_dim = config.encoder.dim, config.decoder.dim
        self.patch_embed = PatchEmbed(packs.patch, dim)
        self.pos_embed = FactorizedPositions(dim, packs.most, positions)
        self.blocks = nn.ModuleList(Block(config.encoder) for _ in range(config.encoder_depth))
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON)
        self.decoder_embed = nn.Linear(dim, decoder_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, decoder_dim))
        self.decoder_pos_embed = FactorizedPositions(decoder_dim, packs.most, positions)
        self.decoder_blocks = nn.ModuleList(Block(config.decoder) for _ in range(config.decoder_depth))
        self.decoder_norm = nn.LayerNorm(decoder_dim, eps=LAYER_NORM_EPSILON)
        self.decoder_pred = nn.Linear(decoder_dim, packs.patch_bytes)
        nn.init.normal_(self.mask_token, std=TOKEN_STD)
        self.apply(init_linear)

    def forward(
        self, packed: Packed, visible_RK: torch.Tensor, is_visible_RK: torch.Tensor, place_RT: torch.Tensor
    ) -> MAEOutput:
        """Return loss and prediction.

        Args:
            packed: The tokens.
            visible_RK: int64, tokens that are visible.
            is_visible_RK: False at places that no token takes.
            place_RT: int64, place of each token among the visible ones, K for hidden ones.
        """
        encoded_RKD = self.encode(packed, visible_RK, is_visible_RK)
        prediction_RTV = self.decode(encoded_RKD, packed, place_RT).float()
        hidden_RT = ((place_RT >= visible_RK.shape[1]) & (packed.segments_RT > 0)).to(torch.float32)
        error_RT = (prediction_RTV - self.targets(packed.patches_RTV)).square().mean(dim=-1)
        loss = (error_RT * hidden_RT).sum() / hidden_RT.sum().clamp(min=1)
        return MAEOutput(loss, prediction_RTV, hidden_RT)

    def encode(self, packed: Packed, visible_RK: torch.Tensor, is_visible_RK: torch.Tensor) -> torch.Tensor:
        """Encode the visible tokens: (R, K, D)."""
        x_RTD = embed_patches(self.patch_embed, packed.patches_RTV) + self.pos_embed(packed)
        x_RKD = taken(x_RTD, visible_RK)
        segments_RK = packed.segments_RT.gather(1, visible_RK) * is_visible_RK
        mask = own_image(segments_RK)
        for block in self.blocks:
            x_RKD = block(x_RKD, mask)
        encoded_RKD: torch.Tensor = self.norm(x_RKD)
        return encoded_RKD

    def decode(self, encoded_RKD: torch.Tensor, packed: Packed, place_RT: torch.Tensor) -> torch.Tensor:
        """Predict all patches: (R, T, V)."""
        x_RKE = self.decoder_embed(encoded_RKD)
        hidden_R1E = self.mask_token.to(x_RKE.dtype).expand(len(x_RKE), -1, -1)
        x_RTE = taken(torch.cat([x_RKE, hidden_R1E], dim=1), place_RT) + self.decoder_pos_embed(packed)
        mask = own_image(packed.segments_RT)
        for block in self.decoder_blocks:
            x_RTE = block(x_RTE, mask)
        prediction_RTV: torch.Tensor = self.decoder_pred(self.decoder_norm(x_RTE))
        return prediction_RTV

    def targets(self, patches_RTV: torch.Tensor) -> torch.Tensor:
        """Return the values that are to be predicted, (R, T, V)."""
        return standardised(patches_RTV) if self.config.norm_pix_loss else patches_RTV


def embed_patches(embed: PatchEmbed, patches_RTV: torch.Tensor) -> torch.Tensor:
    """Map patches to tokens, (R, T, D), by the weights that `embed` maps an image's patches with."""
    weight_DV = embed.proj.weight.permute(0, 2, 3, 1).flatten(1)  # a patch holds its pixels row by row, colours last
    return F.linear(patches_RTV, weight_DV, embed.proj.bias)


def pooled(x_RTD: torch.Tensor, segments_RT: torch.Tensor, images: int) -> torch.Tensor:
    """Return the mean of the tokens of each image, (R, M, D); 0 for images that do not exist."""
    # Rows hold different numbers of images, and XLA compiles once for each shape, so all M places are computed, also
    # places without an image. A product with a matrix of 0 and 1 sums each image's tokens; a loop or a scatter would
    # have shapes, or an order of additions, that depend on the data. The count is at least 1, so that an empty place
    # is 0 and not NaN; its label is -1, which leaves it out of the loss.
    numbers_M = torch.arange(1, images + 1, device=segments_RT.device, dtype=segments_RT.dtype)
    is_of_RMT = (segments_RT[:, None, :] == numbers_M[:, None]).to(x_RTD.dtype)
    return is_of_RMT @ x_RTD / is_of_RMT.sum(dim=-1, keepdim=True).clamp(min=1)
