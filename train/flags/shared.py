"""Options that several programs share: the options of every run in PyTorch, of MAE's recipes, and of packs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from dataprep.arguments import IMAGES, OTHER, READ, Request, option, request, spelled
from dataprep.errors import UsageError
from loaders.config import LoaderConfig, OnError, RegionPolicy
from loaders.diagnosis.findings import Option, Options
from loaders.loader import Loader
from loaders.packs import Packs
from train.batches.data import Data, FakeData, open_data
from train.checkpoints.checkpoint import CheckpointFolder
from train.flags.options import (
    COUNT,
    COUNT_OR_NONE,
    COUNT_OR_UNSET,
    DEVICES,
    HEADINGS,
    NOT_NEGATIVE,
    PORT,
    SAVE,
    SEED,
    SHARE_ABOVE_0,
    THREADS,
    TRAIN,
    flag,
    given_of,
    with_defaults,
)
from train.loops.backend import AUTOMATIC, PRECISIONS, Devices, LoopConfig
from train.loops.backend import DEVICES as DEVICE_NAMES
from train.models.sizes import PositionKind
from train.optim.schedule import BatchRamp, HalfCosine, Schedule, fitted_batch, fitted_warmup, parse_ramp, scaled_lr
from train.telemetry.logs import Logs, parse_steps

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from train.loops.loop import Training
    from train.loops.runtime import Runtime
    from train.loops.torch import Task as TorchTask
    from train.loops.torch import TorchBackend

_TPU_FILES = ("/dev/accel0", "/dev/vfio/0")
"""Device files of the first chip of a Cloud TPU VM, of older and of newer ones."""
_LAUNCHER = (
    "this program needs no launcher: start it once on each host; torch_xla finds the devices and the other hosts"
)
REFUSED = dict.fromkeys(("world_size", "local_rank", "dist_on_itp", "dist_url"), _LAUNCHER)
"""Reasons why options of launchers are refused, by their names."""
FAKE_DATA = "Train on black images, as many as ImageNet has; no data is read."
"""Help of `fake_data`, which some programs have."""
_OF_SQUARES = ("fake_data", "diagnose", "use_byol_crop", "compile", "mask_downsampling")
"""Options that are not for `pack_tokens`."""
UNSET = -1
"""Value of a size or batch size that means "not given"."""


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """Parts that a run in either framework has."""

    schedule: Schedule
    lr_shares: Mapping[int, float]
    """As `Training.lr_shares`."""
    loader: Loader
    validation: Loader | None = None
    """Loader of evaluations in JAX; PyTorch's tasks have their own."""
    logs: Logs | None = None
    """None: they are opened."""


class Recipe(NamedTuple):
    """Values of a published recipe, which are taken if they are not given, and fitted to smaller data."""

    batch_size: int
    """Images per device."""
    epochs: int
    warmup_epochs: float


MAE_RECIPE = Recipe(batch_size=64, epochs=400, warmup_epochs=40.0)


@request
class RunOptions(Request):
    """Options of every run in PyTorch."""

    headings = HEADINGS

    data_path: str = option("Path or URL of a dataset, mix.json, image folder, tars or TFDS directory.", group=READ)
    index_dir: str | None = flag(
        None, "Folder for the index of data without a manifest; default: in the user's cache.", READ, rare=True
    )
    region_policy: RegionPolicy = flag(
        "refuse", "Action if reading the bucket from here costs money; off: do not check.", READ, rare=True
    )
    billing_project: str | None = flag(
        None,
        "Project that pays for requests to requester-pays buckets on Cloud Storage; default: the environment variable "
        "GOOGLE_CLOUD_QUOTA_PROJECT.",
        READ,
        rare=True,
    )
    output_dir: str = flag("./output_dir", "Folder for checkpoints, on a disk or gs://; '' saves nothing.", SAVE)
    log_dir: str | None = flag(
        None, "Folder for log.txt, TensorBoard events and profiles, on a disk or gs://; default: output_dir.", SAVE
    )

    epochs: int = flag(400, "Epochs to train.", TRAIN, COUNT)
    max_steps: int = flag(
        0, "Stop after this many updates, with the schedule unchanged; 0: train all epochs.", TRAIN, COUNT_OR_NONE
    )
    batch_ramp: str = flag(
        "",
        "FIRST:LAST@LENGTH, e.g. 256:1024@20epochs, instead of a batch size: the images per update, over all devices, "
        "double from the first number to the last over that many epochs, images or steps.",
        TRAIN,
    )
    accum_iter: int = flag(1, "Number of parts of a batch over which gradients are accumulated.", TRAIN, COUNT)
    on_error: OnError = flag(
        "raise",
        "Action for an unreadable image: raise ends the run; skip counts the image and leaves it out of losses and "
        "evaluations.",
        READ,
    )
    min_crop: float = flag(0.08, "Smallest crop area, as a fraction of the image's area.", IMAGES, SHARE_ABOVE_0)
    num_workers: int | None = flag(
        None, "Threads that decode images; default: one per core, at most 16.", READ, THREADS
    )
    pin_mem: bool | None = flag(
        None, "Copy batches to CUDA from pinned memory while steps run; on by default.", DEVICES, either=True, rare=True
    )

    device: str | None = flag(
        None,
        "Device to train on; tpu: with torch-tpu, not tested on hardware; default: xla if there is a TPU or "
        "PJRT_DEVICE is set, else cuda, else cpu.",
        DEVICES,
        choices=DEVICE_NAMES,
    )
    use_xla: bool = flag(False, "Train on XLA, same as `device` xla.", DEVICES)
    precision: str = flag(
        "auto", "Number format for matrix products; auto: bfloat16 on CUDA.", DEVICES, choices=PRECISIONS
    )
    seed: int = flag(0, "Seed for weights, order, crops and all other random numbers.", TRAIN, SEED)

    resume: str = flag(
        "",
        "Checkpoint to resume from, or its step if it is in output_dir; `automatic`: the newest valid one there.",
        SAVE,
    )
    allow_other_decoder: bool = flag(
        False, "Resume even if this machine's decoder gives different pixels for the same images.", SAVE, rare=True
    )
    init: str = flag(
        "",
        "Checkpoint for the initial weights; the new run starts at the beginning of its own data. Ignored if `resume` "
        "is automatic and `output_dir` already has a checkpoint.",
        SAVE,
    )
    ckpt_interval: int = flag(
        20, "Epochs between checkpoints, the first after epoch 1; the end of the run is always saved.", SAVE, COUNT
    )
    ckpt_interval_steps: int = flag(
        0, "Updates between additional checkpoints; 0: none.", SAVE, COUNT_OR_NONE, rare=True
    )
    ckpt_interval_minutes: float = flag(
        0.0, "Maximum time between checkpoints, in minutes; 0: no limit.", SAVE, NOT_NEGATIVE, rare=True
    )
    keep_checkpoints: int = flag(3, "Number of newest checkpoints to keep.", SAVE, COUNT, rare=True)
    log_interval_steps: int = flag(20, "Updates between log lines.", SAVE, COUNT)
    diagnose: bool = flag(
        False, "Instead of training, measure what the run waits for; print the result and save it in log_dir."
    )
    metrics_port: int | None = flag(
        None, "Port on which Prometheus scrapes metrics of this host's loaders; default: none.", OTHER, PORT, rare=True
    )
    metrics_address: str = flag(
        "127.0.0.1", "Address of `metrics_port` on this host; 0.0.0.0: all addresses.", rare=True
    )
    wandb: str | None = flag(
        None, "Weights & Biases project for the metrics of the run and its loader; default: none.", SAVE, rare=True
    )
    profile_steps: str = flag("", "A:B traces the updates after number A, up to number B, for TensorBoard.", rare=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data_path:
            raise UsageError("`data_path` is empty; give a dataset or an image folder")
        parse_ramp(self.batch_ramp)  # refuses another form
        if self.use_xla and self.device not in (None, "xla"):
            raise UsageError(f"`use_xla` and `device` {self.device}; give one of them")
        if self.init and self.resume not in ("", AUTOMATIC):
            raise UsageError(
                "`init` and `resume` CHECKPOINT; `init` begins a new run, `resume` continues one: give one of them, or "
                "`resume` automatic"
            )
        if getattr(self, "fake_data", False):
            for name in given_of(self, ("diagnose", "on_error", "metrics_port")):
                raise UsageError(f"`{name}` is for images that are read; leave it out with `fake_data`")

    @property
    def log_folder(self) -> str | None:
        """Folder for log lines and events, a path or URL; None if nothing is kept."""
        return (self.output_dir if self.log_dir is None else self.log_dir) or None

    @property
    def device_name(self) -> str:
        """Kind of the device: `xla`, `tpu`, `cuda` or `cpu`."""
        import torch

        if self.use_xla or self.device:
            return self.device or "xla"
        if "PJRT_DEVICE" in os.environ or any(Path(file).exists() for file in _TPU_FILES):
            return "xla"
        return "cuda" if torch.cuda.is_available() else "cpu"

    def diagnosed_options(self, images: int, values: Mapping[str, Any]) -> Options:
        """Return this command's options for the settings that a diagnosis may advise.

        Args:
            images: Images of one update, of all devices together.
            values: Values of the run's flags by their names.
        """
        name = self.batch_flag
        workers = "threads" if self.decodes_in_threads else "processes"
        return {
            workers: Option("--num-workers"),
            "batch_size": Option(spelled(type(self), f"`{name}`"), unit=images // values[name]),
        }

    @property
    def decodes_in_threads(self) -> bool:
        """Whether `num_workers` is a number of threads, not of processes."""
        return True

    @property
    def batch_flag(self) -> str:
        """Name of the option that sets the size of a batch."""
        return "batch_size"

    @property
    def row_images(self) -> int:
        """Number of images that cannot be shared among devices."""
        return 1

    @property
    def ramp(self) -> BatchRamp | None:
        """Batches that grow; None if all have one size."""
        return parse_ramp(self.batch_ramp)

    @property
    def first_batch(self) -> int:
        """Images of the first update of a ramp; 0 without one. What shares it shares all batches of the ramp."""
        return self.ramp.sizes[0] if self.ramp else 0

    def ramped_batch(self, devices: Devices) -> int:
        """Return the images of an update after the ramp; 0 without one. Raises UsageError if a batch size is given as
        well, or devices and parts cannot share the first batch."""
        if self.ramp is None:
            return 0
        self.ramp.check_alone(self)
        check_shares(self.first_batch, devices, self.accum_iter, name="batch_ramp")
        return self.ramp.last

    def batch_sizes(self, epoch_images: int, epochs: int) -> tuple[tuple[int, int], ...]:
        """Return position and size of the batches of a ramp, as `BatchRamp.starts` does; () without one."""
        return self.ramp.starts(epoch_images, epochs) if self.ramp else ()

    @property
    def lr_shares(self) -> Mapping[int, float]:
        """Learning rate with each batch of a ramp as a share of the last one's; empty if the rate is given."""
        is_given = getattr(self, "lr", None) is not None
        return self.ramp.shares(self.default_lr) if self.ramp and not is_given else {}

    def default_lr(self, batch: int) -> float:
        """Return the peak of the learning rate with a batch, if it is not given."""
        raise NotImplementedError

    def open_runtime(self) -> Runtime:
        """Open the devices of the kind `device_name`."""
        from train.loops.runtime import open_runtime

        return open_runtime(self.device_name, pin_memory=self.pin_mem)

    def open_data(self) -> Data:
        """Find the data, before the first image is read."""
        if getattr(self, "fake_data", False):
            return FakeData()
        return open_data(
            self.data_path,
            index_dir=self.index_dir,
            region_policy=self.region_policy,
            billing_project=self.billing_project,
        )

    def open_logs(self, devices: Devices) -> Logs:
        """Open the logs, which only the first host writes."""
        return Logs(self.log_folder, enabled=devices.rank == 0, wandb=self.wandb, spell=partial(spelled, type(self)))

    def open_checkpoints(self, runtime: Runtime) -> CheckpointFolder | None:
        """Open the folder of checkpoints, saved in parts if every host has its own pieces of the weights; None if
        nothing is saved."""
        if not self.output_dir:
            return None
        if not runtime.is_sharded:
            return CheckpointFolder(self.output_dir, keep=self.keep_checkpoints)
        from train.checkpoints.parts import PartFolder

        return PartFolder(
            self.output_dir,
            rank=runtime.rank,
            world_size=runtime.world_size,
            keep=self.keep_checkpoints,
            gather=runtime.gather,
        )

    def torch_training(
        self, task: TorchTask, optimizer: Optimizer, parts: RunParts, *, clip_grad_norm: float = 0.0
    ) -> Training[TorchBackend]:
        """Make a run in PyTorch: a task with its model, on the task's devices.

        Args:
            clip_grad_norm: Largest norm of the gradient of all parameters; 0: no limit.
        """
        from train.loops.loop import Training
        from train.loops.torch import TorchBackend

        return Training(
            config=self.loop_config(),
            backend=TorchBackend(
                runtime=task.runtime,
                model=task.model,
                optimizer=optimizer,
                task=task,
                clip_grad_norm=clip_grad_norm,
                agreement_steps=self.log_interval_steps,
            ),
            schedule=parts.schedule,
            lr_shares=parts.lr_shares,
            loader=parts.loader,
            logs=parts.logs or self.open_logs(task.runtime),
            checkpoints=self.open_checkpoints(task.runtime),
            description=asdict(self),
        )

    def loader_config(self, devices: Devices, *, batch_size: int, image_size: int) -> LoaderConfig:
        """Settings of this host's loader that all entries share; a batch is of one update, of all devices together."""
        return LoaderConfig(
            batch_size=batch_size,
            seed=self.seed,
            rank=devices.rank,
            world_size=devices.world_size,
            image_size=image_size,
            threads=self.num_workers if self.decodes_in_threads else None,
            region_policy=self.region_policy,
            on_error=self.on_error,
            metrics_port=self.metrics_port,
            metrics_address=self.metrics_address,
        )

    def loop_config(self) -> LoopConfig:
        """Settings of the training loop."""
        return LoopConfig(
            epochs=self.epochs,
            log_interval_steps=self.log_interval_steps,
            ckpt_interval=self.ckpt_interval,
            ckpt_interval_steps=self.ckpt_interval_steps,
            ckpt_interval_minutes=self.ckpt_interval_minutes,
            allow_other_decoder=self.allow_other_decoder,
            profile_steps=parse_steps(self.profile_steps),
            max_steps=self.max_steps,
        )


@request
class RecipeOptions(RunOptions):
    """Options of MAE's recipes: the batch of all devices, and a learning rate that follows its size."""

    batch_size: int | None = flag(
        None,
        "Images per device and part of `accum_iter`; -1: from `effective_batch_size`; default: 64, fewer for small "
        "data.",
        TRAIN,
        COUNT_OR_UNSET,
    )
    effective_batch_size: int = flag(
        UNSET, "Images per update, on all devices and in all parts; -1: from `batch_size`.", TRAIN, COUNT_OR_UNSET
    )
    start_epoch: int = flag(0, "Epoch to start with, if no checkpoint is resumed.", TRAIN, COUNT_OR_NONE, rare=True)

    lr: float | None = flag(None, "Peak learning rate; default: blr x effective batch / 256.", TRAIN, NOT_NEGATIVE)
    blr: float = flag(1e-3, "Base learning rate, for a batch of 256.", TRAIN, NOT_NEGATIVE)
    min_lr: float = flag(0.0, "Final learning rate.", TRAIN, NOT_NEGATIVE, shown="0")
    warmup_epochs: float | None = flag(
        None,
        "Epochs during which the learning rate rises linearly; then it falls along half a cosine; default: a tenth of "
        "the run, at most 40.",
        TRAIN,
        NOT_NEGATIVE,
    )
    weight_decay: float = flag(
        0.05, "Weight decay of matrices; biases, norms and tokens have none.", TRAIN, NOT_NEGATIVE
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_epoch >= self.epochs:
            raise UsageError(
                f"`start_epoch` {self.start_epoch} of {self.epochs} epochs; choose {self.epochs - 1} or less"
            )
        if self.start_epoch and self.resume not in ("", AUTOMATIC):
            raise UsageError("give either `start_epoch` or `resume`, not both: a checkpoint stores its epoch")

    @property
    def recipe(self) -> Recipe:
        """Values that are taken if they are not given."""
        return MAE_RECIPE

    def fitted_to(self, images: int, devices: Devices) -> Self:
        """Return these flags with batch size, learning rate and warm-up, which follow the recipe and the images of an
        epoch."""
        recipe, shares = self.recipe, devices.num_devices * self.accum_iter
        values: dict[str, float] = {}
        is_given = self.batch_ramp or self.batch_size or self.effective_batch_size > 0
        batch = self.effective_batch(devices) if is_given else 0
        if not batch:
            batch = fitted_batch(recipe.batch_size * shares, images, shares * self.row_images)
            values["batch_size"] = batch // shares
        values["lr"] = self.default_lr(batch)
        values["warmup_epochs"] = fitted_warmup(recipe.warmup_epochs, recipe.epochs, self.epochs)
        return with_defaults(self, values, images, tells=devices.rank == 0)

    def default_lr(self, batch: int) -> float:
        return scaled_lr(self.blr, batch)

    def schedule(self) -> HalfCosine:
        """Return the learning rate of flags that are `fitted_to` their data."""
        return HalfCosine(
            lr=self.lr or 0.0, min_lr=self.min_lr, warmup_epochs=self.warmup_epochs or 0.0, epochs=self.epochs
        )

    @property
    def batch_flag(self) -> str:
        """Name of the option that sets the size of a batch."""
        return "effective_batch_size" if self.effective_batch_size > 0 else "batch_size"

    def effective_batch(self, devices: Devices) -> int:
        """Return the number of images of one update. Raises UsageError if the two batch sizes disagree, or the batch
        cannot be shared among devices and parts."""
        if batch := self.ramped_batch(devices):
            return batch
        shares = devices.num_devices * self.accum_iter
        if self.effective_batch_size <= 0:
            if self.batch_size is None or self.batch_size <= 0:
                raise UsageError("no batch size: give `batch_size` for one device or `effective_batch_size` for all")
            return self.batch_size * shares
        check_shares(self.effective_batch_size, devices, self.accum_iter, name="effective_batch_size")
        if self.batch_size not in (None, UNSET, self.effective_batch_size // shares):
            raise UsageError(
                f"`batch_size` {self.batch_size} on {devices.num_devices} devices in {self.accum_iter} parts gives "
                f"{self.batch_size * shares}, but `effective_batch_size` is {self.effective_batch_size}; give one"
            )
        return self.effective_batch_size


def check_shares(batch_size: int, devices: Devices, accum_iter: int, *, name: str = "batch_size") -> int:
    """Return a batch size that all devices and parts of a batch can share. Raises UsageError if they cannot share the
    batch equally; the message names the option of the batch size."""
    shares = devices.num_devices * accum_iter
    if batch_size < 1 or batch_size % shares:
        raise UsageError(
            f"`{name}` {batch_size} cannot be shared by {devices.num_devices} devices x {accum_iter} parts; choose a "
            f"multiple of {shares}"
        )
    return batch_size


@request
class PackOptions(Request):
    """Length and contents of the rows; without `pack_tokens` images are squares."""

    pack_tokens: int = flag(
        0,
        "Train on images in their native shapes, as patches packed into rows of this many tokens; 0: square images.",
        IMAGES,
        COUNT_OR_NONE,
    )
    pack_images: int = flag(8, "Images per row of `pack_tokens`.", IMAGES, COUNT)
    pack_min_tokens: int = flag(
        UNSET, "Minimum tokens per image; -1: half the mean.", IMAGES, COUNT_OR_UNSET, rare=True
    )
    pack_max_tokens: int = flag(
        UNSET, "Maximum tokens per image; -1: twice the mean.", IMAGES, COUNT_OR_UNSET, rare=True
    )
    pack_positions: PositionKind = flag(
        "fractional",
        "Patch positions: as fractions of the image's sides, or as row and column numbers.",
        IMAGES,
        rare=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in given_of(self, _OF_SQUARES) if self.pack_tokens else ():
            raise UsageError(f"`{name}` is for square images; leave it out with `pack_tokens`")

    @property
    def row_images(self) -> int:
        """Number of images that cannot be shared among devices: those of a row."""
        return self.pack_images if self.pack_tokens else 1

    def packs(self, patch: int, *, crop: tuple[float, float]) -> Packs | None:
        """Return the packs to ask the loader for; None for squares.

        Args:
            patch: Side of the model's patches, pixels.
            crop: Smallest and largest area of a crop, as shares of the image's; (1, 1): images are not cropped.
        """
        if not self.pack_tokens:
            return None
        return Packs(
            tokens=self.pack_tokens,
            images=self.pack_images,
            patch=patch,
            min_tokens=None if self.pack_min_tokens == UNSET else self.pack_min_tokens,
            max_tokens=None if self.pack_max_tokens == UNSET else self.pack_max_tokens,
            crop=None if crop == (1, 1) else crop,
        )


def check_packs(packs: Packs, batch_size: int, devices: Devices, accum_iter: int) -> None:
    """Raise UsageError if the devices and parts of a batch cannot share its rows equally."""
    shares = packs.images * devices.num_devices * accum_iter
    if batch_size % shares:
        raise UsageError(
            f"`pack_images` {packs.images}: a batch of {batch_size} in rows of {packs.images} cannot be shared by "
            f"{devices.num_devices} devices x {accum_iter} parts; choose a batch that is a multiple of {shares}"
        )
