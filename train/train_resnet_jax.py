"""Train a ResNet in JAX: any of our datasets, TPUs, GPUs or a CPU, one process a host.

    dataprep-train-resnet-jax --workdir=runs/resnet50 --config=configs/tpu.py \\
        --config.dataset.root=gs://bucket/imagenet --config.batch_size=1024

Configuration files of resnet_jax are programs. They are not run: the name of the file chooses one of `PRESETS`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast, get_args

import click

from dataprep.cloud.placement import POLICIES
from dataprep.errors import UsageError, install_hint
from dataprep.storage import open_storage
from loaders.config import LoaderConfig, OnError, RegionPolicy
from loaders.diagnosis.findings import Option, Options
from train.flags.options import (
    COUNT,
    COUNT_OR_NONE,
    COUNT_OR_UNSET,
    METRICS_ADDRESS,
    NOT_NEGATIVE,
    PORT,
    POSITIVE_OR_UNSET,
    SEED,
    SHARE_ABOVE_0,
    SHARE_BELOW_1,
    SIDE,
    THREADS_OR_NONE,
    EntryCommand,
    check_ranges,
    flag,
    flag_values,
    flags_of,
    given_flags,
    run_entry,
)
from train.loops.backend import AUTOMATIC, LoopConfig
from train.optim.schedule import HalfCosine, scaled_lr
from train.telemetry.profiling import parse_steps

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from train.loops.jax import JaxBackend
    from train.loops.jax_steps import Steps
    from train.loops.loop import Training

PREFIX = "--config."
NEVER = -1
"""Value of an interval in epochs, steps or minutes that means "never"."""
EPILOG = """\b
Examples:
  dataprep-train-resnet-jax --workdir runs/small --config configs/default.py --config.model _ResNet1 \\
      --config.dataset.root shards/imagenet --config.image_size 64
  dataprep-train-resnet-jax --workdir=gs://bucket/runs/r50 --config=configs/tpu.py \\
      --config.dataset.root=gs://bucket/tensorflow_datasets --config.dataset.name=imagenet2012 \\
      --config.dataset.use_tfds=True

\b
Exit codes: 0 trained; 1 the loss or a weight was not finite, or a disk or bucket failed; 2 usage or input; 3 undecided,
with --diagnose; 143 stopped by a signal after a checkpoint: the same command continues.
"""


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """Flags about the images: `--config.dataset.…`."""

    root: str = flag(
        "", "Dataset, mix.json of several, image folder, tars or TFDS directory, on a disk or gs://; required."
    )
    name: str = flag("", "With use_tfds: name of the dataset below root, or below TFDS_DATA_DIR.")
    use_tfds: bool = flag(False, "Read root as a folder of TFDS datasets; the newest version is taken.")
    index_dir: str | None = flag(
        None, "Folder for the index of data that have no manifest; default: in the user's cache."
    )
    region_policy: str = flag(
        "refuse",
        "What to do if reading the bucket from here costs money; off: prices are not looked up.",
        choices=POLICIES,
    )
    on_error: str = flag(
        "raise",
        "What to do about an image that cannot be read: raise ends the run, skip leaves it out of losses and "
        "evaluations, and counts it.",
        choices=get_args(OnError),
    )
    min_crop: float = flag(0.08, "Smallest area of a crop, as a share of the image's area.", SHARE_ABOVE_0)
    num_workers: int | None = flag(
        None, "Threads that decode images; default: one per core, at most 16.", THREADS_OR_NONE
    )
    prefetch_factor: int = flag(2, "Batches decoded ahead of the requested one.", COUNT)
    cache: bool = flag(False, "Keep what is read from a bucket in the user's cache on this disk, at most 100 GiB.")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Flags of resnet_jax, and our own: `--config.…`.

    Raises:
        UsageError: A value is out of its range.
    """

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    model: str = flag("ResNet50", "Network: ResNet18, 34, 50, 101, 152, 200, 500 or 800; or _ResNet1, for debugging.")
    image_size: int = flag(224, "Side of the images, pixels.", SIDE)
    half_precision: bool = flag(False, "Compute in bfloat16; weights and sums stay float32.")

    batch_size: int = flag(128, "Images of one update, of all devices together.", COUNT)
    num_epochs: int = flag(100, "Epochs to train.", COUNT)
    learning_rate: float = flag(
        0.1, "Highest learning rate for a batch of 256; it is proportional to the batch size.", NOT_NEGATIVE
    )
    warmup_epochs: float = flag(
        5.0, "Epochs in which the learning rate rises linearly; then it falls along half a cosine.", NOT_NEGATIVE
    )
    momentum: float = flag(0.9, "Momentum of SGD, with Nesterov's correction.", SHARE_BELOW_1)
    weight_decay: float = flag(1e-4, "Weight decay of convolutions and of the classifier's weights.", NOT_NEGATIVE)
    init: str = flag(
        "", "Checkpoint whose weights a new run begins with; it is not read where workdir has a checkpoint."
    )
    seed: int = flag(0, "Seed of weights, order and crops.", SEED)
    max_steps: int = flag(
        0, "Updates after which the run stops, its schedule unchanged; 0: train all epochs.", COUNT_OR_NONE
    )
    prefetch: int = flag(2, "Batches sent to the devices ahead of the current one.", COUNT_OR_NONE)

    log_per_step: int = flag(100, "Updates between log lines; -1: none.", COUNT_OR_UNSET)
    log_per_epoch: int = flag(NEVER, "Epochs between log lines; -1: none.", COUNT_OR_UNSET)
    eval_per_epoch: int = flag(
        1, "Epochs between evaluations, with one after the last epoch; -1: none.", COUNT_OR_UNSET
    )
    steps_per_eval: int = flag(NEVER, "Batches of an evaluation; -1: every image once.", COUNT_OR_UNSET)
    checkpoint_per_epoch: int = flag(20, "Epochs between checkpoints; the end of the run is always saved.", COUNT)
    checkpoint_per_step: int = flag(NEVER, "Updates between additional checkpoints; -1: none.", COUNT_OR_UNSET)
    checkpoint_per_minute: float = flag(
        float(NEVER), "Longest time between checkpoints, in minutes; -1: no limit.", POSITIVE_OR_UNSET
    )
    keep_checkpoints: int = flag(3, "Number of newest checkpoints to keep.", COUNT)
    profile_steps: str = flag("", "A:B traces the updates after the first A, up to B, for TensorBoard.")
    metrics_port: int | None = flag(
        None, "Port on which Prometheus scrapes metrics of this host's loaders; default: none.", PORT
    )
    metrics_address: str = flag("127.0.0.1", METRICS_ADDRESS)
    wandb: str | None = flag(
        None, "Project of Weights & Biases for numbers of the training and its loader; default: none."
    )

    def __post_init__(self) -> None:
        check_ranges(self, PREFIX)
        if self.log_per_step == self.log_per_epoch == NEVER:
            raise UsageError("--config.log_per_step or log_per_epoch must be 1 or more, got -1")
        if self.warmup_epochs > self.num_epochs:
            raise UsageError(
                f"--config.warmup_epochs must be 0 to num_epochs, which is {self.num_epochs}, got {self.warmup_epochs}"
            )
        parse_steps(self.profile_steps, "--config.profile_steps")

    def data_path(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the path or URL of the data.

        Raises:
            UsageError: No flag gives it, or there is no TFDS dataset.
        """
        dataset = self.dataset
        root = dataset.root or (environment.get("TFDS_DATA_DIR", "") if dataset.use_tfds else "")
        if not root:
            raise UsageError("--config.dataset.root is missing; give a dataset or an image folder")
        if dataset.use_tfds:
            return find_tfds(root, dataset.name)
        if dataset.name:
            raise UsageError(
                f"--config.dataset.name {dataset.name}: names a dataset that tensorflow-datasets prepared; give "
                "--config.dataset.use_tfds=True as well, or leave it out"
            )
        return root

    def loader_config(self, *, rank: int = 0, world_size: int = 1) -> LoaderConfig:
        """Return the settings of one process's loader."""
        dataset = self.dataset
        return LoaderConfig(
            batch_size=self.batch_size,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            image_size=self.image_size,
            scale=(dataset.min_crop, 1.0),
            threads=None if dataset.num_workers is None else max(1, dataset.num_workers),
            prefetch_batches=dataset.prefetch_factor,
            cache_dir=str(_cache_folder()) if dataset.cache else None,
            region_policy=cast(RegionPolicy, dataset.region_policy),
            on_error=cast(OnError, dataset.on_error),
            metrics_port=self.metrics_port,
            metrics_address=self.metrics_address,
        )

    def loop_config(self) -> LoopConfig:
        """Return the settings of the training loop, in which 0 means NEVER."""
        return LoopConfig(
            epochs=self.num_epochs,
            max_steps=self.max_steps,
            log_interval_steps=max(0, self.log_per_step),
            log_interval_epochs=max(0, self.log_per_epoch),
            eval_interval=max(0, self.eval_per_epoch),
            ckpt_interval=self.checkpoint_per_epoch,
            first_saved_epoch=self.checkpoint_per_epoch - 1,
            ckpt_interval_steps=max(0, self.checkpoint_per_step),
            ckpt_interval_minutes=max(0.0, self.checkpoint_per_minute),
            profile_steps=parse_steps(self.profile_steps),
            flag_prefix=PREFIX,
            resume_hint="the same command continues it",
            anew_hint=(
                "to begin a new run with the checkpoint's weights, give --config.init={words} and another --workdir"
            ),
            batch_hint="a smaller --config.batch_size",
        )

    def schedule(self) -> HalfCosine:
        """Return the learning rate."""
        peak = scaled_lr(self.learning_rate, self.batch_size)
        return HalfCosine(lr=peak, min_lr=0.0, warmup_epochs=self.warmup_epochs, epochs=self.num_epochs)


DIAGNOSED_OPTIONS: Options = {
    "threads": Option("--config.dataset.num_workers"),
    "prefetch_batches": Option("--config.dataset.prefetch_factor"),
    "cache_dir": Option("--config.dataset.cache", value="True"),
    "batch_size": Option("--config.batch_size"),
    "transfer_ahead": Option("--config.prefetch"),
}
"""Options that set what a diagnosis may advise."""
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "tpu": {"batch_size": 1024, "half_precision": True, "dataset.cache": True},
}
"""Flags and their values, by the names of resnet_jax's configuration files."""
REFUSED = {
    "shuffle_buffer_size": "no buffer is used: an epoch's order is a permutation of the whole dataset; leave it out",
    "dataset.pin_memory": "XLA takes batches from any memory; leave it out",
}
"""Reasons why some flags of resnet_jax are refused, by the flags' names."""


def config_of(path: str, keys: Mapping[str, Any]) -> Config:
    """Return the preset that is named as a configuration file, with some flags replaced.

    Args:
        path: Path of a file named as one of `PRESETS`; the file is not read.
        keys: Values by the flags' names, e.g. `dataset.root`.

    Raises:
        UsageError: The name is not that of a preset, or a value is out of its range.
    """
    name = PurePosixPath(path).stem
    if name not in PRESETS:
        known = ", ".join(f"configs/{each}.py" for each in PRESETS)
        raise UsageError(
            f"--config {path}: not a known configuration, and files are not run; choose one of {known}, and set the "
            "rest by --config.KEY=VALUE"
        )
    found = {**PRESETS[name], **keys}
    of_dataset = {key.removeprefix("dataset."): value for key, value in found.items() if key.startswith("dataset.")}
    own = {key: value for key, value in found.items() if not key.startswith("dataset.")}
    return Config(**own, dataset=DatasetConfig(**of_dataset))


def _cache_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "dataprep" / "images"


def open_training(config: Config, workdir: str) -> Training[JaxBackend]:
    """Open all that a run needs: devices, loaders, model; nothing is trained yet.

    Raises:
        UsageError: The data do not exist, have no labels, have images without one, or have no split to evaluate on.
    """
    from loaders.jax import host_rank
    from train.batches.data import classes_of, open_data
    from train.checkpoints.checkpoint import CheckpointFolder
    from train.checkpoints.files import NUMPY
    from train.loops.jax import JaxBackend
    from train.loops.jax_steps import all_devices
    from train.loops.loop import Training
    from train.telemetry.logs import EpochLogs

    rank, world_size = host_rank()
    path = config.data_path()
    data = open_data(path, index_dir=config.dataset.index_dir, region_policy=config.dataset.region_policy)
    num_classes = classes_of(data, None, evaluates=config.eval_per_epoch != NEVER)
    settings = config.loader_config(rank=rank, world_size=world_size)
    validation = None if config.eval_per_epoch == NEVER else data.validation_loader(settings)
    if validation is None and config.eval_per_epoch != NEVER:
        raise UsageError(
            f"{path}: no split to evaluate on among {', '.join(data.splits)}; expected val, or "
            "--config.eval_per_epoch=-1"
        )
    mesh = all_devices()
    steps = open_steps(config, mesh, num_classes=num_classes)
    return Training(
        config=config.loop_config(),
        backend=JaxBackend(
            mesh=mesh,
            steps=steps,
            values=steps.initial(seed=config.seed, image_size=config.image_size),
            validation=validation,
            eval_batches=None if config.steps_per_eval == NEVER else config.steps_per_eval,
            prefetch=config.prefetch,
            same_model="use the same --config.model, or another --workdir",
        ),
        schedule=config.schedule(),
        loader=data.training_loader(settings),
        logs=EpochLogs(None if "://" in workdir else workdir, enabled=rank == 0, wandb=config.wandb),
        checkpoints=CheckpointFolder(workdir, keep=config.keep_checkpoints, codec=NUMPY),
        description=flag_values(config),
    )


def open_steps(config: Config, mesh: Mesh, *, num_classes: int) -> Steps:
    """Make the functions that devices run.

    Raises:
        UsageError: The model is unknown.
    """
    from train.loops.jax_steps import Steps
    from train.models.jax_resnet import create_resnet

    dtype = "bfloat16" if config.half_precision else "float32"
    model = create_resnet(config.model, num_classes=num_classes, dtype=dtype)
    return Steps(model, mesh, momentum=config.momentum, weight_decay=config.weight_decay)


@click.command(
    "dataprep-train-resnet-jax", cls=EntryCommand, epilog=EPILOG, context_settings={"max_content_width": 110}
)
@click.option(
    "--workdir", required=True, help="Folder for checkpoints, on a disk or gs://; if on a disk, for logs, too."
)
@click.option(
    "--config",
    "path",
    default="configs/default.py",
    show_default=True,
    help="Settings to start from: configs/default.py or configs/tpu.py.",
)
@click.option(
    "--debug",
    is_flag=False,
    flag_value=True,
    default=False,
    type=bool,
    help="Compile nothing, so that a debugger sees every value; slow.",
)
@click.option(
    "--diagnose",
    "is_diagnosed",
    is_flag=True,
    help="Instead of training, measure what the run waits for; print it, and keep it in workdir.",
)
@flags_of(Config, REFUSED, prefix=PREFIX, switches=False)
@click.pass_context
def command(context: click.Context, /, workdir: str, path: str, debug: bool, is_diagnosed: bool, **_values: Any) -> int:
    """Train a ResNet (He et al., 2016) on images with labels."""
    if debug and is_diagnosed:
        raise UsageError("--debug and --diagnose: a run that is not compiled has other speeds; give one of them")
    config = config_of(path, given_flags(context, Config))

    try:
        from train.loops.jax_steps import join_processes
    except ImportError:
        raise UsageError(f"this needs JAX: {install_hint('jax')}") from None

    join_processes()
    if is_diagnosed:
        return open_training(config, workdir).diagnose(config.model, DIAGNOSED_OPTIONS)
    return run(config, workdir, debug=debug)


def run(config: Config, workdir: str, *, debug: bool = False) -> int:
    """Train, and continue a run in the same folder if there is one; return the exit code."""
    import jax

    with jax.disable_jit() if debug else contextlib.nullcontext():
        training = open_training(config, workdir)
        training.resume(AUTOMATIC)
        if config.init and not training.step:
            training.begin_with(config.init)
        return training.run()


def main() -> None:
    """Run the program."""
    run_entry(command)


if __name__ == "__main__":
    main()

_TFDS_INFO = "dataset_info.json"
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def find_tfds(root: str, name: str) -> str:
    """Find the newest version of a dataset that tensorflow-datasets prepared.

    Args:
        root: Folder of the version, folder of the dataset, or folder that holds the dataset's.
        name: Name of the dataset; may be empty.

    Raises:
        UsageError: There is no such dataset.
    """
    # The name comes first, so that other datasets in the root need not be listed.
    for place in (f"{root.rstrip('/')}/{name}", root) if name else (root,):
        storage = open_storage(place)
        if storage.stat(_TFDS_INFO) is not None:
            return place
        parts = [info.name.split("/") for info in storage.list()]
        versions = {
            part[0] for part in parts if len(part) == 2 and part[1] == _TFDS_INFO and _VERSION.fullmatch(part[0])
        }
        if versions:
            newest = max(versions, key=lambda version: [int(number) for number in version.split(".")])
            return f"{place.rstrip('/')}/{newest}"
    raise UsageError(
        f"--config.dataset.root {root}: has no {_TFDS_INFO}, nor has a version of {name or 'the dataset'} below it; "
        "give a folder that tensorflow-datasets prepared, or leave use_tfds out"
    )
