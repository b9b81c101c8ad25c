"""The flags of `train.pretrain_mae`: those of long_seq_mae with their meaning, and ours."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dataprep.errors import UsageError
from train.flags import flag
from train.loop import LoopConfig
from train.runtime import DEVICES, PRECISIONS, Runtime

UNSET = -1
DEVICE_BATCH = 64
"""Images of one device where neither batch size is given."""

_TPU_FILES = ("/dev/accel0", "/dev/vfio/0")
"""Where Cloud TPU VMs show their first chip, older and newer ones."""
_LAUNCHER = (
    "there is no launcher: start this program once on every host; torch_xla finds devices and other hosts itself"
)
REFUSED = dict.fromkeys(("world_size", "local_rank", "dist_on_itp", "dist_url"), _LAUNCHER)
"""Flags of the original that have no meaning, and why."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """All that the command line may say."""

    data_path: str = flag("", "Dataset, or image folder, tars or TFDS directory, on a disk or gs://; required.")
    index_dir: str | None = flag(None, "Where the index of data without a manifest is kept; default: the user's cache.")
    output_dir: str = flag("./output_dir", "Checkpoints, on a disk or gs://; '' saves nothing.")
    log_dir: str | None = flag(None, "log.txt, events for TensorBoard, profiles; default: output_dir.")

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
    accum_iter: int = flag(1, "Parts of a batch over which the gradient is accumulated.")
    epochs: int = flag(400, "Epochs to train.")
    start_epoch: int = flag(0, "First epoch, where nothing is resumed.")
    max_steps: int = flag(0, "Stop after so many updates in all, schedule unchanged; 0: train all epochs.")

    lr: float | None = flag(None, "Peak of the learning rate; default: blr x effective batch / 256.")
    blr: float = flag(1e-3, "Base learning rate, of a batch of 256.")
    min_lr: float = flag(0.0, "Learning rate at the end.")
    warmup_epochs: float = flag(40.0, "Linear rise of the learning rate, which then falls along half a cosine.")
    weight_decay: float = flag(0.05, "Of weights; biases, norms and tokens have none.")

    min_crop: float = flag(0.2, "Smallest share of an image's area that is used.")
    max_crop: float = flag(1.0, "Largest share.")
    use_byol_crop: bool = flag(False, "The first crop drawn is cut to the image, as BYOL does, not drawn again.")
    num_workers: int | None = flag(None, "Threads that decode; default: one a core, at most 16.")
    pin_mem: bool | None = flag(None, "CUDA: copy from pinned memory, beside the steps; on by default.", either=True)

    device: str | None = flag(
        None, "Default: xla where there is a TPU or PJRT_DEVICE is set, then cuda, then cpu.", choices=DEVICES
    )
    use_xla: bool = flag(False, "The same as --device xla.")
    precision: str = flag("auto", "Of matrix products; auto: bfloat16 on CUDA.", choices=PRECISIONS)
    seed: int = flag(0, "Of weights, order, crops and masks.")

    resume: str = flag("", "A checkpoint, or `automatic`: the newest valid one in output_dir.")
    ckpt_interval: int = flag(20, "Epochs between checkpoints; the last one is saved in any case.")
    ckpt_interval_steps: int = flag(0, "Updates between checkpoints; 0: none for this reason.")
    ckpt_interval_minutes: float = flag(0.0, "Minutes between checkpoints; 0: none for this reason.")
    keep_checkpoints: int = flag(3, "Newest checkpoints that stay.")
    log_interval_steps: int = flag(20, "Updates between log lines.")
    diagnose: bool = flag(False, "Measure for half a minute what the run waits for, say it, and end; nothing is saved.")
    profile_steps: str = flag("", "A:B traces from update A until before B, for TensorBoard.")

    def __post_init__(self) -> None:
        if not self.data_path:
            raise UsageError("--data_path is missing; give a dataset or an image folder")
        if self.use_xla and self.device not in (None, "xla"):
            raise UsageError(f"--use_xla and --device {self.device}; give one of them")
        if self.use_byol_crop:
            raise UsageError("--use_byol_crop: the loaders have no such crop; leave it out")
        if self.start_epoch and self.resume:
            raise UsageError("--start_epoch and --resume; a checkpoint knows its epoch, give one of them")

    @property
    def log_folder(self) -> str | None:
        """Where log lines and events go; None where checkpoints go to a bucket and nothing else was said."""
        if self.log_dir is not None:
            return self.log_dir or None
        return None if "://" in self.output_dir else self.output_dir or None

    @property
    def device_name(self) -> str:
        """`xla`, `cuda` or `cpu`."""
        import torch

        if self.use_xla or self.device:
            return self.device or "xla"
        if "PJRT_DEVICE" in os.environ or any(Path(file).exists() for file in _TPU_FILES):
            return "xla"
        return "cuda" if torch.cuda.is_available() else "cpu"

    def loop_config(self) -> LoopConfig:
        """What the loop is told of all this."""
        return LoopConfig(
            epochs=self.epochs,
            accum_iter=self.accum_iter,
            log_interval_steps=self.log_interval_steps,
            ckpt_interval=self.ckpt_interval,
            ckpt_interval_steps=self.ckpt_interval_steps,
            ckpt_interval_minutes=self.ckpt_interval_minutes,
            profile_steps=parse_steps(self.profile_steps),
            max_steps=self.max_steps,
        )

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
        if self.effective_batch_size % shares:
            raise UsageError(
                f"--effective_batch_size {self.effective_batch_size} cannot be shared by {runtime.num_devices} devices "
                f"x {self.accum_iter} parts; choose a multiple of {shares}"
            )
        derived = self.effective_batch_size // shares
        if self.batch_size not in (None, UNSET, derived):
            raise UsageError(
                f"--batch_size {self.batch_size} on {runtime.num_devices} devices in {self.accum_iter} parts makes "
                f"{self.batch_size * shares}, --effective_batch_size is {self.effective_batch_size}; give one of them"
            )
        return self.effective_batch_size


def parse_steps(text: str) -> tuple[int, int] | None:
    """`A:B` with A < B; None for nothing.

    Raises:
        UsageError: It is something else.
    """
    if not text:
        return None
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise UsageError(
            f"--profile_steps {text}: expected A:B, the first update and the one after the last, e.g. 20:25"
        )
    return int(first), int(last)
