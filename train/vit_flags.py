"""The flags of `train.train_vit`: those of vit_10b_fsdp_example with their meaning, and ours."""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.errors import UsageError
from loaders.order import Order
from train.flags import flag
from train.models.vit import BlockConfig, ViTConfig
from train.run_flags import REFUSED as REFUSED_LAUNCHERS
from train.run_flags import RunFlags
from train.schedule import HalfCosine

_COMPILER = "the compiler decides when weights are gathered and freed again"
REFUSED = {
    **REFUSED_LAUNCHERS,
    "no_reshard_after_forward": f"{_COMPILER}; --run_without_fsdp keeps them whole",
    "flatten_parameters": "every weight is cut by itself, along its own dimensions; see --plan",
    "shard_on_cpu": "weights are always cut on the host: devices get their own parts alone",
    "mark_step_after_forward": "forward and backward pass are one graph; it was for a limit of an older TPU runtime",
}
"""Flags of vit_10b_fsdp_example that have no meaning under SPMD, and why."""


@dataclass(frozen=True, kw_only=True)
class Flags(RunFlags):
    """All that the command line may say."""

    data_path: str = flag(
        "/datasets/imagenet-1k",
        "Dataset, or image folder, tars or TFDS directory, on a disk or gs://.",
        also=("data_dir",),
    )
    fake_data: bool = flag(False, "Black images from nowhere, as many as ImageNet has, instead of data.")
    num_workers: int | None = flag(4, "Threads that decode.")
    output_dir: str = flag(
        "/tmp/vit_fsdp",
        "Checkpoints, on a disk or gs://, the same for all hosts; '' saves nothing.",
        also=("ckpt_dir",),
    )
    resume_epoch: int = flag(0, "Go on after so many epochs, from their checkpoint.")
    ckpt_interval: int = flag(
        10, "Epochs between checkpoints; the last one is saved in any case.", also=("ckpt_epoch_interval",)
    )
    test_epoch_interval: int = flag(10, "Epochs between evaluations; the last one is evaluated in any case.")
    log_interval_steps: int = flag(20, "Updates between log lines.", also=("log_step_interval",))

    image_size: int = flag(224, "Side of the images, pixels.")
    patch_size: int = flag(14, "Side of a patch, pixels.")
    embed_dim: int = flag(5120, "Width.")
    num_heads: int = flag(32, "Heads of attention.")
    num_blocks: int = flag(32, "Blocks.")
    mlp_ratio: float = flag(4.0, "Width of a block's hidden layer over that of the block.")
    pos_dropout: float = flag(0.0, "Dropout of the tokens that enter the first block.")
    att_dropout: float = flag(0.0, "Dropout of attention's weights.")
    mlp_dropout: float = flag(0.0, "Dropout of what attention's projection and each layer of the MLP give.")
    num_classes: int = flag(1000, "Logits.")

    batch_size: int = flag(1024, "Images of one update, of all devices together.")
    epochs: int = flag(300, "Epochs to train.", also=("num_epochs",))
    lr: float = flag(1e-3, "Peak of the learning rate.")
    weight_decay: float = flag(0.1, "Of all weights.")
    clip_grad_norm: float = flag(1.0, "Longest gradient, of all weights together; 0: as it is.")
    warmup_steps: int = flag(10000, "Linear rise of the learning rate, which then falls along half a cosine.")
    no_grad_ckpt: bool = flag(False, "Keep what every block computes, instead of computing it again for its gradient.")
    run_without_fsdp: bool = flag(False, "Every device holds all weights; only batches are cut.")

    plan: bool = flag(False, "Print how the weights of this model would be cut and what a device would hold; no more.")
    plan_devices: int = flag(128, "For how many devices.")
    json: bool = flag(False, "The plan as JSON.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("num_blocks", 1), ("num_classes", 1), ("plan_devices", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"--{name} must be {least} or more, got {getattr(self, name)}")
        for name in ("resume_epoch", "warmup_steps"):
            if getattr(self, name) < 0:
                raise UsageError(f"--{name} must be 0 or more, got {getattr(self, name)}")
        if self.resume_epoch and self.resume:
            raise UsageError("--resume_epoch and --resume; give one of them")
        if self.json and not self.plan:
            raise UsageError("--json is for --plan; a run's log lines are JSON in any case")
        if self.fake_data and self.diagnose:
            raise UsageError("--diagnose measures how data are read; --fake_data has none, leave it out")

    def model_config(self) -> ViTConfig:
        """The network: no class token, the mean of all patches."""
        return ViTConfig(
            image_size=self.image_size,
            patch_size=self.patch_size,
            depth=self.num_blocks,
            block=BlockConfig(
                dim=self.embed_dim,
                num_heads=self.num_heads,
                mlp_ratio=self.mlp_ratio,
                dropout=self.mlp_dropout,
                att_dropout=self.att_dropout,
            ),
            num_classes=self.num_classes,
            pool="average_of_normed",
            class_token=False,
            pos_dropout=self.pos_dropout,
        )

    def schedule(self, order: Order) -> HalfCosine:
        """The learning rate over the epochs of a loader.

        Raises:
            UsageError: It would rise for longer than the run takes.
        """
        total_steps = order.first_batch(self.epochs)
        if self.warmup_steps > total_steps:
            raise UsageError(
                f"--warmup_steps {self.warmup_steps:,} of {total_steps:,} steps in all; choose a part of them, e.g. "
                f"{total_steps // 10}"
            )
        warmup_epochs = self.warmup_steps * order.global_batch / (order.passes * order.num_samples)
        return HalfCosine(lr=self.lr, min_lr=0.0, warmup_epochs=min(warmup_epochs, self.epochs), epochs=self.epochs)
