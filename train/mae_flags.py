"""The flags of `train.pretrain_mae`: those of long_seq_mae with their meaning, and ours."""

from __future__ import annotations

from dataclasses import dataclass

from train.flags import flag
from train.recipe_flags import UNSET, RecipeFlags


@dataclass(frozen=True, kw_only=True)
class Flags(RecipeFlags):
    """All that the command line may say."""

    model: str = flag("mae_vit_large_patch16", "Encoder, patch and decoder by name.")
    input_size: int = flag(224, "Side of the images, pixels.")
    patch_size: int = flag(UNSET, "Side of a patch, pixels; -1: as the model's name says.")
    decoder_embed_dim: int = flag(UNSET, "Width of the decoder; -1: the model's.")
    decoder_depth: int = flag(UNSET, "Blocks of the decoder; -1: the model's.")
    no_k_bias_in_vit: bool = flag(False, "Attention without a bias of keys, as in BEiT.")
    norm_pix_loss: bool = flag(False, "Predict pixels that are standardised in each patch.")
    mask_ratio: float = flag(0.75, "Share of the patches that is hidden.")
    mask_downsampling: int = flag(1, "Side, in patches, of what is hidden as one.")
    decoder_downsampling: int = flag(1, "Side, in patches, of one token of the decoder.")
    pred_downsampling: int = flag(1, "Side, in patches, of one prediction.")

    min_crop: float = flag(0.2, "Smallest share of an image's area that a crop has.")
    max_crop: float = flag(1.0, "Largest share.")
    use_byol_crop: bool = flag(False, "The first crop drawn is cut to the image, as BYOL does, not drawn again.")

    def model_options(self) -> dict[str, object]:
        """Of `train.models.create_model`."""
        own = {
            "patch_size": self.patch_size,
            "decoder_dim": self.decoder_embed_dim,
            "decoder_depth": self.decoder_depth,
        }
        return {
            "norm_pix_loss": self.norm_pix_loss,
            "decoder_downsampling": self.decoder_downsampling,
            "pred_downsampling": self.pred_downsampling,
            "k_bias": not self.no_k_bias_in_vit,
            **{name: value for name, value in own.items() if value != UNSET},
        }
