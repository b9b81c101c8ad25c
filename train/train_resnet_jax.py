"""Train a ResNet in JAX: any of our datasets, TPUs, GPUs or a CPU, one process a host.

    python -m train.train_resnet_jax --workdir=runs/resnet50 --config=configs/tpu.py \\
        --config.dataset.root=gs://bucket/imagenet --config.batch_size=1024
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from dataprep.errors import UsageError
from train.entry import run_entry
from train.jax_config import NEVER, Config, config_of, config_options

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from train.jax_loop import Training
    from train.jax_steps import Steps

EPILOG = """\b
Examples:
  python -m train.train_resnet_jax --workdir runs/small --config configs/default.py --config.model _ResNet1 \\
      --config.dataset.root shards/imagenet --config.image_size 64
  python -m train.train_resnet_jax --workdir=gs://bucket/runs/r50 --config=configs/tpu.py \\
      --config.dataset.root=gs://bucket/tensorflow_datasets --config.dataset.name=imagenet2012 \\
      --config.dataset.use_tfds=True

\b
Exit codes: 0 trained; 1 the loss was not finite, or a disk or bucket failed; 2 usage or input; 143 stopped by a
signal after a checkpoint: the same command goes on.
"""


def open_training(config: Config, workdir: str) -> Training:
    """All that a run needs: devices, loaders, model; nothing is trained yet.

    Raises:
        UsageError: There are no such data, or they have no labels or nothing to evaluate.
    """
    from loaders.jax import host_rank
    from train.checkpoint import NUMPY, CheckpointFolder
    from train.data import open_data
    from train.jax_loop import EpochLogs, Training
    from train.jax_steps import all_devices

    rank, world_size = host_rank()
    path = config.data_path()
    data = open_data(path, index_dir=config.dataset.index_dir, region_policy=config.dataset.region_policy)
    if data.num_classes is None:
        raise UsageError(f"{path}: no labels; a classifier needs a dataset with classes")
    settings = config.loader_settings() | {"rank": rank, "world_size": world_size}
    validation = None if config.eval_per_epoch == NEVER else data.validation_loader(**settings)
    if validation is None and config.eval_per_epoch != NEVER:
        raise UsageError(
            f"{path}: no split to evaluate on among {', '.join(data.splits)}; expected val, or "
            "--config.eval_per_epoch=-1"
        )
    mesh = all_devices()
    steps = open_steps(config, mesh, num_classes=data.num_classes)
    return Training(
        config=config,
        mesh=mesh,
        steps=steps,
        schedule=config.schedule(),
        loader=data.training_loader(**settings),
        validation=validation,
        logs=EpochLogs(None if "://" in workdir else workdir, enabled=rank == 0),
        checkpoints=CheckpointFolder(workdir, keep=config.keep_checkpoints, codec=NUMPY),
        description=config.values(),
        state=steps.initial(seed=config.seed, image_size=config.image_size),
    )


def open_steps(config: Config, mesh: Mesh, *, num_classes: int) -> Steps:
    """What devices do in a run.

    Raises:
        UsageError: There is no such model.
    """
    from train.jax_resnet import create_resnet
    from train.jax_steps import Steps

    dtype = "bfloat16" if config.half_precision else "float32"
    model = create_resnet(config.model, num_classes=num_classes, dtype=dtype)
    return Steps(model, mesh, momentum=config.momentum, weight_decay=config.weight_decay)


@click.command("train_resnet_jax", epilog=EPILOG, context_settings={"max_content_width": 110})
@click.option("--workdir", required=True, help="Checkpoints, log.txt and events for TensorBoard; on a disk or gs://.")
@click.option(
    "--config", "path", default="configs/default.py", show_default=True, help="configs/default.py or configs/tpu.py."
)
@click.option(
    "--debug",
    is_flag=False,
    flag_value=True,
    default=False,
    type=bool,
    help="Nothing is compiled: slow, and seen by a debugger.",
)
@click.option(
    "--diagnose",
    "is_diagnosed",
    is_flag=True,
    help="Measure for half a minute what the run waits for, say it, and end; nothing is saved.",
)
@config_options
@click.pass_context
def command(context: click.Context, workdir: str, path: str, debug: bool, is_diagnosed: bool) -> int:
    """Train a ResNet (He et al., 2016) on images with labels."""
    if debug and is_diagnosed:
        raise UsageError("--debug and --diagnose: what is not compiled says nothing about the run; give one of them")
    from train.jax_steps import join_processes

    config = config_of(path, context.obj or {})
    join_processes()
    return diagnose(config, workdir) if is_diagnosed else run(config, workdir, debug=debug)


def run(config: Config, workdir: str, *, debug: bool = False) -> int:
    """Train, from where a run in the same folder left off; the exit code."""
    import jax

    with jax.disable_jit() if debug else contextlib.nullcontext():
        training = open_training(config, workdir)
        training.resume()
        return training.run()


def diagnose(config: Config, workdir: str) -> int:
    """Say what the run would wait for; the exit code."""
    import jax

    from train.jax_diagnosis import diagnose_training

    training = open_training(config, workdir)
    with training.loader:
        diagnose_training(training, name=f"{config.model} on {jax.default_backend()}")
    return 0


def main() -> None:
    """Entry point."""
    run_entry(command)


if __name__ == "__main__":
    main()
