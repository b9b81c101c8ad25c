"""Train a ResNet in JAX: any of our datasets, TPUs, GPUs or a CPU, one process a host.

    dataprep-train-resnet-jax --workdir=runs/resnet50 --config=configs/tpu.py \\
        --config.dataset.root=gs://bucket/imagenet --config.batch-size=1024

Configuration files of resnet_jax are programs. They are not run: the name of the file chooses one of `PRESETS`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Container, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dataprep.arguments import IMAGES, READ, Request, option, request, spelled
from dataprep.errors import UsageError, needing
from dataprep.storage import open_storage
from loaders.config import LoaderConfig, OnError, RegionPolicy
from loaders.diagnosis.findings import Option, Options
from train.flags.options import (
    COUNT,
    COUNT_OR_NONE,
    COUNT_OR_UNSET,
    DEVICES,
    HEADINGS,
    MODEL,
    NOT_NEGATIVE,
    POSITIVE_OR_UNSET,
    SAVE,
    SEED,
    SHARE_BELOW_1,
    SIDE,
    TRAIN,
    entry_of,
    flag,
    redefined,
    run_entry,
    with_defaults,
)
from train.flags.shared import RunOptions
from train.loops.backend import AUTOMATIC, LoopConfig
from train.optim.schedule import HalfCosine, fitted_batch, fitted_warmup, parse_ramp, scaled_lr
from train.telemetry.logs import parse_steps

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from train.loops.jax import JaxBackend, ResNetSteps
    from train.loops.loop import Training

BATCH = 128
"""Images of an update in resnet_jax's default configuration."""
NEVER = -1
"""Value of an interval in epochs, steps or minutes that means "never"."""
_OF_PROGRAM = ("workdir", "config", "debug", "diagnose")
"""Options of the program, not of resnet_jax's configuration files."""
EPILOG = """\b
Examples:
  dataprep-train-resnet-jax --workdir runs/small --config configs/default.py --config.model _ResNet1 \\
      --config.dataset.root shards/imagenet --config.image-size 64
  dataprep-train-resnet-jax --workdir=gs://bucket/runs/r50 --config=configs/tpu.py \\
      --config.dataset.root=gs://bucket/tensorflow_datasets --config.dataset.name=imagenet2012 \\
      --config.dataset.use-tfds=True

\b
Exit codes: 0 trained; 1 the loss or a weight was not finite, or a disk or bucket failed; 2 usage or input; 3 undecided,
with --diagnose; 143 stopped by a signal after a checkpoint: the same command continues.
"""


@request
class Config(Request):
    """Train a ResNet (He et al., 2016) on labelled images."""

    headings = HEADINGS

    @staticmethod
    def option_of(name: str) -> str:
        """Return `--config.KEY`, as resnet_jax has it, for all but the program's own options."""
        own = "" if name in _OF_PROGRAM else "config."
        return f"--{own}{name.replace('dataset_', 'dataset.').replace('_', '-')}"

    workdir: str = option("Folder for checkpoints and logs, on a disk or gs://.", group=SAVE)
    config: str = flag("configs/default.py", "Settings to start from: configs/default.py or configs/tpu.py.", MODEL)
    debug: bool = flag(False, "Do not compile, so that a debugger sees every value; slow.", valued=True)
    diagnose: bool = flag(
        False, "Instead of training, measure what the run waits for; print the result and save it in workdir."
    )

    model: str = flag(
        "ResNet50", "Network: ResNet18, 34, 50, 101, 152, 200, 500 or 800; or _ResNet1, for debugging.", MODEL
    )
    image_size: int = flag(224, "Side of the images, pixels.", IMAGES, SIDE)
    half_precision: bool = flag(False, "Compute in bfloat16; weights and sums stay float32.", MODEL, valued=True)

    batch_size: int | None = flag(
        None, "Images per update, over all devices; default: 128, fewer for small data.", TRAIN, COUNT
    )
    batch_ramp: str = redefined(RunOptions, "batch_ramp")
    num_epochs: int = flag(100, "Epochs to train.", TRAIN, COUNT)
    learning_rate: float = flag(
        0.1, "Peak learning rate for a batch of 256; it is scaled in proportion to the batch size.", TRAIN, NOT_NEGATIVE
    )
    warmup_epochs: float | None = flag(
        None,
        "Epochs during which the learning rate rises linearly; then it falls along half a cosine; default: 5 of 100, "
        "the same fraction of shorter runs.",
        TRAIN,
        NOT_NEGATIVE,
    )
    momentum: float = flag(0.9, "Momentum of SGD, with Nesterov's correction.", TRAIN, SHARE_BELOW_1)
    weight_decay: float = flag(
        1e-4, "Weight decay of convolutions and of the classifier's weights.", TRAIN, NOT_NEGATIVE
    )
    init: str = flag(
        "", "Checkpoint for the initial weights of a new run; ignored if workdir already has a checkpoint.", SAVE
    )
    allow_other_decoder: bool = redefined(RunOptions, "allow_other_decoder", valued=True)
    seed: int = flag(0, "Seed for weights, order and crops.", TRAIN, SEED)
    max_steps: int = redefined(RunOptions, "max_steps")
    prefetch: int = flag(2, "Batches sent to the devices ahead of the current one.", DEVICES, COUNT_OR_NONE, rare=True)

    log_per_step: int = flag(100, "Updates between log lines; -1: none.", SAVE, COUNT_OR_UNSET)
    log_per_epoch: int = flag(NEVER, "Epochs between log lines; -1: none.", SAVE, COUNT_OR_UNSET, rare=True)
    eval_per_epoch: int = flag(
        1, "Epochs between evaluations, plus one after the last epoch; -1: none.", SAVE, COUNT_OR_UNSET
    )
    steps_per_eval: int = flag(NEVER, "Batches per evaluation; -1: every image once.", SAVE, COUNT_OR_UNSET, rare=True)
    checkpoint_per_epoch: int = flag(20, "Epochs between checkpoints; the end of the run is always saved.", SAVE, COUNT)
    checkpoint_per_step: int = flag(
        NEVER, "Updates between additional checkpoints; -1: none.", SAVE, COUNT_OR_UNSET, rare=True
    )
    checkpoint_per_minute: float = flag(
        float(NEVER), "Maximum time between checkpoints, in minutes; -1: no limit.", SAVE, POSITIVE_OR_UNSET, rare=True
    )
    keep_checkpoints: int = redefined(RunOptions, "keep_checkpoints")
    profile_steps: str = redefined(RunOptions, "profile_steps")
    metrics_port: int | None = redefined(RunOptions, "metrics_port")
    metrics_address: str = redefined(RunOptions, "metrics_address")
    wandb: str | None = redefined(RunOptions, "wandb")

    dataset_root: str = flag(
        "", "Path or URL of a dataset, mix.json, image folder, tars or TFDS directory; required.", READ
    )
    dataset_name: str = flag("", "With use_tfds: name of the dataset below root, or below TFDS_DATA_DIR.", READ)
    dataset_use_tfds: bool = flag(
        False, "Treat root as a folder of TFDS datasets, and use the newest version.", READ, valued=True
    )
    dataset_index_dir: str | None = redefined(RunOptions, "index_dir")
    dataset_region_policy: RegionPolicy = redefined(RunOptions, "region_policy")
    dataset_billing_project: str | None = redefined(RunOptions, "billing_project")
    dataset_on_error: OnError = redefined(RunOptions, "on_error")
    dataset_min_crop: float = redefined(RunOptions, "min_crop")
    dataset_num_workers: int | None = redefined(RunOptions, "num_workers", low=0)
    dataset_prefetch_factor: int = flag(2, "Batches decoded ahead of the requested one.", READ, COUNT, rare=True)
    dataset_cache: bool = flag(
        False, "Keep data read from a bucket in the user's cache on this disk, at most 100 GiB.", READ, valued=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.debug and self.diagnose:
            raise UsageError(
                "`debug` and `diagnose`: a run without compilation has a different speed; give one of them"
            )
        if self.log_per_step == self.log_per_epoch == NEVER:
            raise UsageError("`log_per_step` or `log_per_epoch` must be 1 or more, got -1")
        if (self.warmup_epochs or 0) > self.num_epochs:
            raise UsageError(
                f"`warmup_epochs` must be 0 to `num_epochs`, which is {self.num_epochs}, got {self.warmup_epochs}"
            )
        parse_steps(self.profile_steps)
        parse_ramp(self.batch_ramp)

    @classmethod
    def of_command_line(cls, given: Container[str], **values: Any) -> Config:
        """Make the configuration of a command line: the preset that it names, with the values that it gives."""
        return config_of(**{name: value for name, value in values.items() if name in given})

    def description(self) -> dict[str, object]:
        """Return the values that a checkpoint keeps, by the names of resnet_jax's configuration files."""
        own = {name: value for name, value in asdict(self).items() if name not in _OF_PROGRAM}
        return {name.replace("dataset_", "dataset."): value for name, value in own.items()}

    def data_path(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the path or URL of the data. Raises UsageError if no option gives it, or there is no TFDS dataset."""
        root = self.dataset_root or (environment.get("TFDS_DATA_DIR", "") if self.dataset_use_tfds else "")
        if not root:
            raise UsageError("`dataset_root` is missing; give a dataset or an image folder")
        if self.dataset_use_tfds:
            return find_tfds(root, self.dataset_name)
        if self.dataset_name:
            raise UsageError(
                f"`dataset_name` {self.dataset_name}: names a dataset that tensorflow-datasets prepared; give "
                "`dataset_use_tfds` True as well, or leave it out"
            )
        return root

    def fitted_to(self, images: int, *, num_devices: int, tells: bool) -> Config:
        """Return this configuration with batch size and warm-up, which follow resnet_jax and the images of an epoch."""
        flags, ramp = self, parse_ramp(self.batch_ramp)
        if ramp is not None:
            ramp.check_alone(self)
            flags = replace(self, batch_size=ramp.last)
        values = {
            "batch_size": fitted_batch(BATCH, images, num_devices),
            "warmup_epochs": fitted_warmup(5.0, 100, self.num_epochs),
        }
        return with_defaults(flags, values, images, tells=tells)

    def loader_config(self, *, rank: int = 0, world_size: int = 1) -> LoaderConfig:
        """Return the settings of one process's loader."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dataprep", "images")
        return LoaderConfig(
            batch_size=self.batch_size or BATCH,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            image_size=self.image_size,
            scale=(self.dataset_min_crop, 1.0),
            threads=None if self.dataset_num_workers is None else max(1, self.dataset_num_workers),
            prefetch_batches=self.dataset_prefetch_factor,
            cache_dir=str(cache) if self.dataset_cache else None,
            region_policy=self.dataset_region_policy,
            on_error=self.dataset_on_error,
            metrics_port=self.metrics_port,
            metrics_address=self.metrics_address,
        )

    def loop_config(self) -> LoopConfig:
        """Return the settings of the training loop, where 0 means NEVER."""
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
            allow_other_decoder=self.allow_other_decoder,
            profile_steps=parse_steps(self.profile_steps),
            resume_hint="the same command continues it",
            anew_hint=("to begin a new run with the checkpoint's weights, give `init` {words} and another `workdir`"),
            batch_hint="a smaller `batch_size`",
        )

    def default_lr(self, batch: int) -> float:
        """Return the peak of the learning rate with a batch."""
        return scaled_lr(self.learning_rate, batch)

    def schedule(self) -> HalfCosine:
        """Return the learning rate."""
        peak, warmup_epochs = self.default_lr(self.batch_size or BATCH), self.warmup_epochs or 0.0
        return HalfCosine(lr=peak, min_lr=0.0, warmup_epochs=warmup_epochs, epochs=self.num_epochs)


DIAGNOSED_OPTIONS: Options = {
    "threads": Option("--config.dataset.num-workers"),
    "prefetch_batches": Option("--config.dataset.prefetch-factor"),
    "cache_dir": Option("--config.dataset.cache", value="True"),
    "batch_size": Option("--config.batch-size"),
    "transfer_ahead": Option("--config.prefetch"),
}
"""Options for the settings that a diagnosis may advise."""
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "tpu": {"batch_size": 1024, "half_precision": True, "dataset_cache": True},
}
"""Options and their values, by the names of resnet_jax's configuration files."""
REFUSED = {
    "shuffle_buffer_size": "no buffer is used: an epoch's order is a permutation of the complete dataset; leave it out",
    "dataset.pin_memory": "XLA takes batches from any memory; leave it out",
}
"""Reasons why some options of resnet_jax are refused, by their names."""


def config_of(*, config: str = "configs/default.py", **given: Any) -> Config:
    """Return the preset that is named as a configuration file, which is not read, with some values replaced. Raises
    UsageError if the name is not a preset's, or a value is out of its range."""
    name = PurePosixPath(config).stem
    if name not in PRESETS:
        known = ", ".join(f"configs/{each}.py" for each in PRESETS)
        raise UsageError(
            f"`config` {config}: not a known configuration, and files are not run; choose one of {known}, and set the "
            "rest with --config.KEY=VALUE"
        )
    preset = {key: value for key, value in PRESETS[name].items() if key != "batch_size" or not given.get("batch_ramp")}
    return Config(config=config, **{**preset, **given})


def open_training(config: Config) -> Training[JaxBackend]:
    """Open devices, loaders and model; nothing is trained yet. Raises UsageError if the data do not exist, have no
    labels, have images without one, or have no split to evaluate on."""
    from loaders.jax import host_rank
    from train.batches.data import classes_of, open_data
    from train.checkpoints.checkpoint import CheckpointFolder
    from train.checkpoints.files import NUMPY
    from train.loops.jax import JaxBackend, all_devices
    from train.loops.loop import Training
    from train.telemetry.logs import Logs

    rank, world_size = host_rank()
    path, workdir = config.data_path(), config.workdir
    data = open_data(
        path,
        index_dir=config.dataset_index_dir,
        region_policy=config.dataset_region_policy,
        billing_project=config.dataset_billing_project,
    )
    num_classes = classes_of(data, None, evaluates=config.eval_per_epoch != NEVER)
    mesh, ramp = all_devices(), parse_ramp(config.batch_ramp)
    config = config.fitted_to(data.epoch_images, num_devices=mesh.size, tells=rank == 0)
    settings = config.loader_config(rank=rank, world_size=world_size)
    validation = None if config.eval_per_epoch == NEVER else data.validation_loader(settings)
    if validation is None and config.eval_per_epoch != NEVER:
        raise UsageError(
            f"{path}: no split to evaluate on among {', '.join(data.splits)}; expected val, or `eval_per_epoch` -1"
        )
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
            same_model="use the same `model`, or another `workdir`",
        ),
        schedule=config.schedule(),
        lr_shares={} if ramp is None else ramp.shares(config.default_lr),
        loader=data.training_loader(
            settings, () if ramp is None else ramp.starts(data.epoch_images, config.num_epochs)
        ),
        logs=Logs(workdir, enabled=rank == 0, wandb=config.wandb, spell=partial(spelled, Config), by_epochs=True),
        checkpoints=CheckpointFolder(workdir, keep=config.keep_checkpoints, codec=NUMPY),
        description=config.description(),
    )


def open_steps(config: Config, mesh: Mesh, *, num_classes: int) -> ResNetSteps:
    """Make the functions that devices run. Raises UsageError if the model is unknown."""
    from train.loops.jax import ResNetSteps
    from train.models.jax_resnet import create_resnet

    dtype = "bfloat16" if config.half_precision else "float32"
    model = create_resnet(config.model, num_classes=num_classes, dtype=dtype)
    return ResNetSteps(model, mesh, momentum=config.momentum, weight_decay=config.weight_decay)


def train(config: Config) -> int:
    """Train, or continue the run in the same folder, or only measure it; return the exit code."""
    with needing("jax", "training in JAX"):
        import jax

        from train.loops.jax import join_processes

    join_processes()
    if config.diagnose:
        return open_training(config).diagnose(config.model, DIAGNOSED_OPTIONS)
    with jax.disable_jit() if config.debug else contextlib.nullcontext():
        training = open_training(config)
        training.resume(AUTOMATIC)
        if config.init and not training.step:
            training.begin_with(config.init)
        return training.run()


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
        f"`dataset_root` {root}: has neither {_TFDS_INFO} nor a version of {name or 'the dataset'} below it; "
        "give a folder that tensorflow-datasets prepared, or leave `dataset_use_tfds` out"
    )


command = entry_of(Config, train, "dataprep-train-resnet-jax", epilog=EPILOG, refused=REFUSED)
main = partial(run_entry, command)


if __name__ == "__main__":
    main()
