"""The flags of `train.pretrain_mae`: those of long_seq_mae with their meaning, and ours."""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.errors import UsageError
from train.flags import flag
from train.run_flags import RunFlags, check_shares
from train.runtime import Runtime

UNSET = -1
DEVICE_BATCH = 64
"""Images of one device where neither batch size is given."""


@dataclass(frozen=True, kw_only=True)
class Flags(RunFlags):
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

    batch_size: int | None = flag(None, "Images of one device and one part; -1: from effective_batch_size. Default 64.")
    effective_batch_size: int = flag(UNSET, "Images of one update: all devices, all parts.")
    start_epoch: int = flag(0, "First epoch, where nothing is resumed.")

    lr: float | None = flag(None, "Peak of the learning rate; default: blr x effective batch / 256.")
    blr: float = flag(1e-3, "Base learning rate, of a batch of 256.")
    min_lr: float = flag(0.0, "Learning rate at the end.")
    warmup_epochs: float = flag(40.0, "Linear rise of the learning rate, which then falls along half a cosine.")
    weight_decay: float = flag(0.05, "Of weights; biases, norms and tokens have none.")

    min_crop: float = flag(0.2, "Smallest share of an image's area that is used.")
    max_crop: float = flag(1.0, "Largest share.")
    use_byol_crop: bool = flag(False, "The first crop drawn is cut to the image, as BYOL does, not drawn again.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_epoch and self.resume:
            raise UsageError("--start_epoch and --resume; a checkpoint knows its epoch, give one of them")

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

    def effective_batch(self, runtime: Runtime) -> int:
        """Images of one update.

        Raises:
            UsageError: The two batch sizes disagree, or the batch cannot be shared among devices and parts.
        """
        shares = runtime.num_devices * self.accum_iter
        if self.effective_batch_size <= 0:
            given = DEVICE_BATCH if self.batch_size is None else self.batch_size
            if given <= 0:
                raise UsageError("no batch size: give --batch_size of one device or --effective_batch_size of all")
            return given * shares
        check_shares(self.effective_batch_size, runtime, self.accum_iter, name="effective_batch_size")
        if self.batch_size not in (None, UNSET, self.effective_batch_size // shares):
            raise UsageError(
                f"--batch_size {self.batch_size} on {runtime.num_devices} devices in {self.accum_iter} parts makes "
                f"{self.batch_size * shares}, --effective_batch_size is {self.effective_batch_size}; give one of them"
            )
        return self.effective_batch_size
