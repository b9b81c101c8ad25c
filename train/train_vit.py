"""Train a vision transformer of any size: weights sharded among devices (FSDP through SPMD), on any of our datasets.

    dataprep-train-vit --data-dir gs://bucket/imagenet --ckpt-dir gs://bucket/runs/vit10b --log-dir logs \\
        --embed-dim 5120 --num-heads 32 --num-blocks 32 --batch-size 1024 --resume automatic

Shapes: N images of this host, H x W pixels.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dataprep.arguments import IMAGES, READ, request
from dataprep.errors import UsageError
from dataprep.host.cpu import memory_bytes
from dataprep.messages import human_bytes
from loaders.loader import Loader
from loaders.order import Order
from train.batches.data import CLASSES, classes_of
from train.flags.jax import JaxOptions, join_jax, open_jax_devices
from train.flags.options import (
    COUNT,
    COUNT_OR_NONE,
    DEVICES,
    MODEL,
    NOT_NEGATIVE,
    POSITIVE,
    SAVE,
    SHARE_BELOW_1,
    SIDE,
    TRAIN,
    entry_of,
    flag,
    redefined,
    run,
    run_entry,
    with_defaults,
)
from train.flags.shared import FAKE_DATA, PackOptions, RunOptions, RunParts, check_packs, check_shares
from train.flags.shared import REFUSED as LAUNCHERS
from train.loops.backend import Devices, LoopConfig, Plan, plan_of, plan_text
from train.loops.loop import Training
from train.models.sizes import BlockConfig, ViTConfig
from train.optim.schedule import HalfCosine, fitted_batch

if TYPE_CHECKING:
    import torch

    from train.loops.jax import JaxBackend
    from train.loops.runtime import Runtime
    from train.loops.torch import TorchBackend

BETAS = (0.9, 0.999)
"""PyTorch's default betas of AdamW, which vit_10b_fsdp_example uses."""
BATCH, LR, WARMUP_STEPS = 1024, 1e-3, 10_000
"""Batch of vit_10b_fsdp_example, peak of its learning rate, and updates while that rises. For a smaller batch the rate
falls with the square root: Malladi et al., "On the SDEs and scaling rules for adaptive gradient algorithms", 2022."""
WARMUP_SHARE = 0.1
"""Largest share of a run while the learning rate rises, if it is not given for how long."""
EPILOG = """\b
Examples:
  dataprep-train-vit --data-dir /datasets/imagenet-1k --ckpt-dir runs/vit --resume automatic
  dataprep-train-vit --fake-data --embed-dim 1024 --num-heads 16 --num-blocks 24 --ckpt-dir '' --max-steps 100
  dataprep-train-vit --plan --plan-devices 256
  dataprep-train-vit --data-path shards/imagenet --device cpu --image-size 32 --patch-size 8 --embed-dim 64 \\
      --num-heads 2 --num-blocks 2 --batch-size 16 --num-epochs 2 --warmup-steps 5
  dataprep-train-vit --data-path gs://bucket/imagenet --ckpt-dir gs://bucket/runs/vit --patch-size 16 \\
      --pack-tokens 1024 --pack-images 8
  dataprep-train-vit --framework jax --data-path gs://bucket/imagenet --ckpt-dir gs://bucket/runs/vit \\
      --precision bfloat16 --tensor-parallel 4 --ema-decay 0.9999

\b
Exit codes: 0 trained; 1 the loss or a weight was not finite, or a disk or bucket failed; 2 usage or input; 3 undecided,
with --diagnose; 143 stopped by a signal after a checkpoint: the same command with --resume automatic continues.
"""
_COMPILER = "the compiler decides when weights are gathered and freed again"
REFUSED = {
    **LAUNCHERS,
    "no_reshard_after_forward": f"{_COMPILER}; `run_without_fsdp` keeps them complete",
    "flatten_parameters": "each weight is sharded separately, along its own dimensions; see `plan`",
    "shard_on_cpu": "weights are always sharded on the host: devices get only their own parts",
    "mark_step_after_forward": "forward and backward pass are one graph; the flag was for older TPU runtimes",
}
"""Reasons why some options of vit_10b_fsdp_example are refused, by their names."""


@request
class TrainViT(JaxOptions, PackOptions, RunOptions):
    """Train a vision transformer (Dosovitskiy et al., 2021) with weights sharded among all devices."""

    data_path: str = redefined(
        RunOptions,
        "data_path",
        default="/datasets/imagenet-1k",
        also=("--data-dir",),
    )
    fake_data: bool = flag(False, FAKE_DATA, READ)
    num_workers: int | None = redefined(RunOptions, "num_workers", default=4, text="Threads that decode images.")
    output_dir: str = redefined(
        RunOptions,
        "output_dir",
        default="/tmp/vit_fsdp",
        text="Folder for checkpoints, on a disk or gs://; '' saves nothing.",
        also=("--ckpt-dir",),
    )
    resume_epoch: int = flag(0, "Resume from the checkpoint after this epoch; 0: do not.", SAVE, COUNT_OR_NONE)
    ckpt_interval: int = redefined(
        RunOptions,
        "ckpt_interval",
        default=10,
        text="Epochs between checkpoints; the end of the run is always saved.",
        also=("--ckpt-epoch-interval",),
    )
    test_epoch_interval: int = flag(
        10, "Epochs between evaluations; there is always one after the last epoch.", SAVE, COUNT
    )
    log_interval_steps: int = redefined(RunOptions, "log_interval_steps", also=("--log-step-interval",))

    image_size: int = flag(224, "Side of the images, pixels.", IMAGES, SIDE)
    patch_size: int = flag(14, "Side of a patch, pixels.", MODEL, COUNT)
    embed_dim: int = flag(5120, "Width of the network.", MODEL, COUNT)
    num_heads: int = flag(32, "Number of attention heads.", MODEL, COUNT)
    num_blocks: int = flag(32, "Number of blocks.", MODEL, COUNT)
    mlp_ratio: float = flag(
        4.0, "Width of a block's hidden layer, divided by the width of the block.", MODEL, POSITIVE, rare=True
    )
    pos_dropout: float = flag(0.0, "Dropout of the tokens that enter the first block.", MODEL, SHARE_BELOW_1, rare=True)
    att_dropout: float = flag(0.0, "Dropout of the attention weights.", MODEL, SHARE_BELOW_1, rare=True)
    mlp_dropout: float = flag(
        0.0,
        "Dropout after attention's projection and after each layer of the MLP.",
        MODEL,
        SHARE_BELOW_1,
        rare=True,
    )
    num_classes: int | None = flag(
        None,
        "Number of logits; default: the dataset's number of classes, 1000 for fake data and for `plan`.",
        MODEL,
        COUNT,
    )

    batch_size: int | None = flag(
        None, "Images per update, over all devices; default: 1024, fewer for small data.", TRAIN, COUNT
    )
    epochs: int = redefined(RunOptions, "epochs", default=300, also=("--num-epochs",))
    lr: float | None = flag(
        None, "Peak learning rate; default: 1e-3, lower for a batch below 1024.", TRAIN, NOT_NEGATIVE
    )
    weight_decay: float = flag(0.1, "Weight decay of all weights.", TRAIN, NOT_NEGATIVE)
    clip_grad_norm: float = flag(1.0, "Maximum norm of the gradient of all weights; 0: no limit.", TRAIN, NOT_NEGATIVE)
    warmup_steps: int | None = flag(
        None,
        "Updates during which the learning rate rises linearly; then it falls along half a cosine. Default: 10,000, at "
        "most a tenth of all updates.",
        TRAIN,
        COUNT_OR_NONE,
    )
    no_grad_ckpt: bool = flag(
        False, "Keep every block's results instead of recomputing them for its gradient.", DEVICES
    )
    run_without_fsdp: bool = flag(False, "Keep all weights on every device; only batches are sharded.", DEVICES)

    plan: bool = flag(
        False, "Print how this model's weights would be sharded and what a device would hold, and exit.", DEVICES
    )
    plan_devices: int = flag(128, "Number of devices for `plan`.", DEVICES, COUNT)
    json: bool = flag(False, "Print the plan as JSON.", DEVICES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume_epoch and self.resume:
            raise UsageError("`resume_epoch` and `resume`; give one of them")
        if self.resume_epoch and self.init:
            raise UsageError("`resume_epoch` and `init`; `init` begins a new run, give one of them")
        if self.json and not self.plan:
            raise UsageError("`json` is for `plan`; a run's log lines are always JSON")

    def model_config(self) -> ViTConfig:
        """Configuration of the network: no class token, mean of all patches."""
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
            num_classes=self.num_classes or CLASSES,
            pool="average_of_normed",
            class_token=False,
            pos_dropout=self.pos_dropout,
        )

    def loop_config(self) -> LoopConfig:
        """Settings of the training loop."""
        return replace(
            super().loop_config(), eval_interval=self.test_epoch_interval, first_saved_epoch=self.ckpt_interval - 1
        )

    def fitted_to(self, images: int, devices: Devices) -> TrainViT:
        """Return these flags with batch size, learning rate and warm-up, which follow the recipe and the images of an
        epoch. Raises UsageError if devices and parts cannot share the batch."""
        shares = devices.num_devices * self.accum_iter
        ramped = self.ramped_batch(devices)
        batch = ramped or self.batch_size or fitted_batch(BATCH, images, shares * self.row_images)
        check_shares(batch, devices, self.accum_iter)
        values = {
            "batch_size": batch,
            "lr": self.default_lr(batch),
            "warmup_steps": min(WARMUP_STEPS, int(WARMUP_SHARE * (self.epochs * images // batch))),
        }
        flags = replace(self, batch_size=batch) if ramped else self
        return with_defaults(flags, values, images, tells=devices.rank == 0)

    def default_lr(self, batch: int) -> float:
        return LR * math.sqrt(min(1.0, batch / BATCH))

    def schedule(self, order: Order) -> HalfCosine:
        """Return the learning rate over the epochs of a loader. Raises UsageError if the learning rate would rise for
        longer than the run takes."""
        total_steps = order.first_batch(self.epochs)
        warmup_steps = self.warmup_steps or 0
        if warmup_steps > total_steps:
            raise UsageError(
                f"`warmup_steps` {warmup_steps:,} of {total_steps:,} steps in all; choose fewer, e.g. "
                f"{total_steps // 10}"
            )
        warmup_epochs = order.epochs_done(order.batch_start(warmup_steps))
        return HalfCosine(
            lr=self.lr or 0.0, min_lr=0.0, warmup_epochs=min(warmup_epochs, self.epochs), epochs=self.epochs
        )


def plan(flags: TrainViT, num_devices: int) -> Plan:
    """Plan what each of some devices would hold, without allocating any weights."""
    import torch

    from train.models.vit import VisionTransformer

    with torch.device("meta"):
        return plan_of(VisionTransformer(flags.model_config()), num_devices)


def open_training(flags: TrainViT) -> Training[Any]:
    """Open devices, loaders, model and optimiser; nothing is trained yet."""
    return _open_jax(flags) if flags.is_jax else _open_torch(flags)


def _open_jax(flags: TrainViT) -> Training[JaxBackend]:
    devices = open_jax_devices(flags.tensor_parallel)

    from train.loops.jax_transformer_steps import ClassifierTask, Settings
    from train.models.jax_transformers import VisionTransformer

    lr_shares, (flags, loader, validation) = flags.lr_shares, _open_loaders(flags, devices)
    computation = flags.computation(devices, flags.precision, remat=not flags.no_grad_ckpt)
    return flags.jax_training(
        devices,
        ClassifierTask(model=VisionTransformer(flags.model_config(), computation)),
        Settings(
            weight_decay=flags.weight_decay,
            betas=BETAS,
            decay_vectors=True,
            clip_grad_norm=flags.clip_grad_norm,
            fsdp=not flags.run_without_fsdp,
        ),
        RunParts(schedule=flags.schedule(loader.order), lr_shares=lr_shares, loader=loader, validation=validation),
    )


def _open_torch(flags: TrainViT) -> Training[TorchBackend]:
    from train.loops.tasks import ClassifierTask, PackedClassifierTask
    from train.loops.torch import compile_network
    from train.optim.optimizer import moments_of, open_adamw, start_moments

    runtime = flags.open_runtime()
    lr_shares, (flags, loader, validation) = flags.lr_shares, _open_loaders(flags, runtime)
    schedule = flags.schedule(loader.order)
    runtime.seed(flags.seed)
    model = _open_model(flags, runtime)
    if flags.compile:
        compile_network(model, runtime.device)
    optimizer = open_adamw(model, lr=schedule.lr, weight_decay=flags.weight_decay, betas=BETAS, decay_vectors=True)
    start_moments(optimizer)
    runtime.shard_like_weights(moments_of(optimizer))
    runtime.end_step()
    task = (PackedClassifierTask if flags.pack_tokens else ClassifierTask)(
        model=model, runtime=runtime, precision=flags.precision, accum_iter=flags.accum_iter, validation=validation
    )
    parts = RunParts(schedule=schedule, lr_shares=lr_shares, loader=loader)
    return flags.torch_training(task, optimizer, parts, clip_grad_norm=flags.clip_grad_norm)


def _open_model(flags: TrainViT, runtime: Runtime) -> torch.nn.Module:
    """Put the network on the devices, its weights drawn on the host."""
    from train.models.packed import PackedViT
    from train.models.vit import Block, VisionTransformer

    _refuse_too_large(flags, runtime)
    packs = flags.packs(flags.patch_size, crop=(flags.min_crop, 1.0))
    config = flags.model_config()
    model = VisionTransformer(config) if packs is None else PackedViT(config, packs, flags.pack_positions)
    if not flags.no_grad_ckpt:
        for block in model.blocks:
            runtime.recompute(block)
    return model.to(runtime.device) if flags.run_without_fsdp else runtime.shard_weights(model, Block)


def _refuse_too_large(flags: TrainViT, runtime: Runtime) -> None:
    """Raise UsageError if the host's memory is too small: the system would kill the program without a message."""
    found = plan(flags, 1)
    if runtime.device.type == "cpu":
        needed, what = found.training_bytes_per_device, "weights, gradients and AdamW's moments"
    else:
        needed, what = found.bytes, "weights, which are drawn on the host"
    if needed > memory_bytes():
        raise UsageError(
            f"this model of {found.parameters:,} parameters needs {human_bytes(needed)} of the host's memory for "
            f"{what}; the host has {human_bytes(memory_bytes())}. Choose a smaller `embed_dim` or `num_blocks`, or a "
            "larger machine"
        )


def _open_loaders(flags: TrainViT, devices: Devices) -> tuple[TrainViT, Loader, Loader | None]:
    """Open the loaders of training and validation; return them after the flags that fit their data."""
    data = flags.open_data()
    flags = replace(flags, num_classes=classes_of(data, flags.num_classes)).fitted_to(data.epoch_images, devices)
    batch_size, packs = flags.batch_size or BATCH, flags.packs(flags.patch_size, crop=(flags.min_crop, 1.0))
    if packs is not None:
        check_packs(packs, flags.first_batch or batch_size, devices, flags.accum_iter)
    settings = flags.loader_config(devices, batch_size=batch_size, image_size=flags.image_size)
    training = replace(settings, scale=(flags.min_crop, 1.0), packs=packs)
    sizes = flags.batch_sizes(data.epoch_images, flags.epochs)
    return flags, *data.loaders(training, replace(settings, packs=packs), sizes=sizes)


def _resume_of(flags: TrainViT, training: Training[Any]) -> str:
    """Return the value of `resume` that `resume_epoch` means."""
    if not flags.resume_epoch:
        return flags.resume
    step = training.loader.order.first_batch(flags.resume_epoch)
    folder = training.checkpoints
    found = [] if folder is None else [each for each in folder.list() if each.step == step]
    if folder is None or not found:
        raise UsageError(
            f"`resume_epoch` {flags.resume_epoch}: {flags.output_dir or '`output_dir`'} has no checkpoint after step "
            f"{step:,}; `resume` automatic takes the newest one"
        )
    return f"{folder.url}/{found[0].name}"


def train(flags: TrainViT) -> int:
    """Train, measure what the training would wait for, or print the plan of the weights; return the exit code."""
    if flags.plan:
        found = plan(flags, flags.plan_devices)
        click.echo(json.dumps(found.to_document()) if flags.json else plan_text(found))
        return 0
    if flags.is_jax:
        join_jax(flags.device)
    training = open_training(flags)
    flags = replace(flags, resume=_resume_of(flags, training), resume_epoch=0)
    return run(training, flags, model=f"a ViT of {flags.num_blocks} blocks of {flags.embed_dim}")


command = entry_of(TrainViT, train, "dataprep-train-vit", epilog=EPILOG, refused=REFUSED)
main = partial(run_entry, command)


if __name__ == "__main__":
    main()
