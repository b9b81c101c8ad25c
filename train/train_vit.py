"""Train a vision transformer of any size: weights cut among the devices (FSDP through SPMD), on any of our datasets.

    python -m train.train_vit --data_dir gs://bucket/imagenet --ckpt_dir gs://bucket/runs/vit10b --log_dir logs \\
        --embed_dim 5120 --num_heads 32 --num_blocks 32 --batch_size 1024 --resume automatic

Shapes: N images of this host, H x W pixels.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict
from typing import Any

import click
import torch

from dataprep.errors import UsageError
from loaders.config import LoaderConfig
from loaders.loader import Loader
from train.checkpoint import CheckpointFolder
from train.classify import ClassifierTask, classes_of
from train.data import open_data
from train.entry import run, run_entry
from train.fake_data import TRAINING_IMAGES, VALIDATION_IMAGES, FakeLoader
from train.flags import flags_of
from train.fsdp import Plan, plan_of, plan_text
from train.logs import Logs
from train.loop import Training
from train.models.vit import Block, VisionTransformer
from train.optimizer import moments_of, open_adamw, start_moments
from train.parts import PartFolder
from train.run_flags import check_shares
from train.runtime import Runtime, open_runtime
from train.vit_flags import REFUSED, Flags

BETAS = (0.9, 0.999)
"""AdamW's own, which vit_10b_fsdp_example leaves as they are."""
EPILOG = """\b
Examples:
  python -m train.train_vit --data_dir /datasets/imagenet-1k --ckpt_dir runs/vit --resume automatic
  python -m train.train_vit --fake_data --embed_dim 1024 --num_heads 16 --num_blocks 24 --ckpt_dir '' --max_steps 100
  python -m train.train_vit --plan --plan_devices 256
  python -m train.train_vit --data_path shards/imagenet --device cpu --image_size 32 --patch_size 8 --embed_dim 64 \\
      --num_heads 2 --num_blocks 2 --batch_size 16 --num_epochs 2 --warmup_steps 5

\b
Exit codes: 0 trained; 1 the loss was not finite, or a disk or bucket failed; 2 usage or input; 143 stopped by a
signal after a checkpoint: the same command with --resume automatic goes on.
"""


def plan(flags: Flags) -> Plan:
    """What each of `--plan_devices` would hold; the weights are made nowhere."""
    with torch.device("meta"):
        return plan_of(VisionTransformer(flags.model_config()), flags.plan_devices)


def open_training(flags: Flags) -> Training:
    """All that a run needs: devices, loaders, model, optimiser; nothing is trained yet."""
    runtime = open_runtime(flags.device_name, pin_memory=flags.pin_mem)
    check_shares(flags.batch_size, runtime, flags.accum_iter)
    loader, validation = _open_loaders(flags, runtime)
    schedule = flags.schedule(loader.order)
    runtime.seed(flags.seed)
    model = open_model(flags, runtime)
    optimizer = open_adamw(model, lr=flags.lr, weight_decay=flags.weight_decay, betas=BETAS, decay_vectors=True)
    start_moments(optimizer)
    runtime.cut_as_weights(moments_of(optimizer))
    runtime.end_step()
    config = flags.loop_config(clip_grad_norm=flags.clip_grad_norm, eval_interval=flags.test_epoch_interval)
    return Training(
        config=dataclasses.replace(config, first_saved_epoch=flags.ckpt_interval - 1),
        runtime=runtime,
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        loader=loader,
        task=ClassifierTask(
            model=model,
            runtime=runtime,
            precision=flags.precision,
            accum_iter=flags.accum_iter,
            validation=validation,
        ),
        logs=Logs(flags.log_folder, enabled=runtime.rank == 0),
        checkpoints=_open_checkpoints(flags, runtime),
        description=asdict(flags),
    )


def open_model(flags: Flags, runtime: Runtime) -> torch.nn.Module:
    """The network on the devices, its weights drawn on the host."""
    model = VisionTransformer(flags.model_config())
    if not flags.no_grad_ckpt:
        for block in model.blocks:
            runtime.recompute(block)
    return model.to(runtime.device) if flags.run_without_fsdp else runtime.cut_weights(model, Block)


def _open_loaders(flags: Flags, runtime: Runtime) -> tuple[Loader, Loader | None]:
    settings: dict[str, Any] = {
        "batch_size": flags.batch_size,
        "seed": flags.seed,
        "rank": runtime.rank,
        "world_size": runtime.world_size,
        "image_size": flags.image_size,
        "threads": flags.num_workers,
        "region_policy": flags.region_policy,
    }
    if flags.fake_data:
        training, evaluation = LoaderConfig(**settings), LoaderConfig(**settings, shuffle=False, augment=False)
        return FakeLoader(training, TRAINING_IMAGES), FakeLoader(evaluation, VALIDATION_IMAGES)
    data = open_data(flags.data_path, index_dir=flags.index_dir, region_policy=flags.region_policy)
    classes_of(data, flags.num_classes)
    return data.training_loader(**settings, scale=(flags.min_crop, 1.0)), data.validation_loader(**settings)


def _open_checkpoints(flags: Flags, runtime: Runtime) -> CheckpointFolder | None:
    if not flags.output_dir:
        return None
    if not runtime.is_cut:
        return CheckpointFolder(flags.output_dir, keep=flags.keep_checkpoints)
    return PartFolder(flags.output_dir, rank=runtime.rank, world_size=runtime.world_size, keep=flags.keep_checkpoints)


def _resume_of(flags: Flags, training: Training) -> str:
    """What `--resume_epoch` means."""
    if not flags.resume_epoch:
        return flags.resume
    step = training.loader.order.first_batch(flags.resume_epoch)
    folder = training.checkpoints
    found = [] if folder is None else [each for each in folder.list() if each.step == step]
    if folder is None or not found:
        raise UsageError(
            f"--resume_epoch {flags.resume_epoch}: {flags.output_dir or '--output_dir'} has no checkpoint after step "
            f"{step:,}; --resume automatic takes the newest one"
        )
    return f"{folder.url}/{found[0].name}"


@click.command("train_vit", epilog=EPILOG, context_settings={"max_content_width": 110})
@flags_of(Flags, REFUSED)
def command(**values: Any) -> int:
    """Train a vision transformer (Dosovitskiy et al., 2021), its weights cut among all devices."""
    flags = Flags(**values)
    if flags.plan:
        found = plan(flags)
        click.echo(json.dumps(found.to_document()) if flags.json else plan_text(found))
        return 0
    training = open_training(flags)
    flags = dataclasses.replace(flags, resume=_resume_of(flags, training), resume_epoch=0)
    return run(training, flags, name=f"a ViT of {flags.num_blocks} blocks of {flags.embed_dim}")


def main() -> None:
    """Entry point."""
    run_entry(command)


if __name__ == "__main__":
    main()
