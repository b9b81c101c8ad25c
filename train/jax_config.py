"""What `train.train_resnet_jax` is told: resnet_jax's configuration keys with their meaning, and ours.

    --config=configs/tpu.py --config.batch_size=256 --config.dataset.root=/data/imagenet

A configuration file of resnet_jax is a program. None is run: its name chooses one of `PRESETS`.
"""

from __future__ import annotations

import dataclasses
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import click

from dataprep.errors import UsageError
from dataprep.placement import POLICIES
from train.flags import flag
from train.profiling import parse_steps
from train.schedule import HalfCosine, scaled_lr

Command = TypeVar("Command", bound=Callable[..., Any])
NEVER = -1
_TFDS_INFO = "dataset_info.json"
_VERSION = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """Where images come from: `--config.dataset.…`."""

    root: str = flag("", "Dataset, image folder, tars, or TFDS directory, on a disk or gs://; required.")
    name: str = flag("", "With use_tfds: the dataset below root, or below TFDS_DATA_DIR.")
    use_tfds: bool = flag(False, "root is what tensorflow-datasets prepared; the newest version is taken.")
    index_dir: str | None = flag(None, "Where the index of data without a manifest is kept; default: the user's cache.")
    region_policy: str = flag(
        "refuse", "Of a bucket whose reading from here is known to cost money: off asks nothing.", choices=POLICIES
    )
    min_crop: float = flag(0.08, "Smallest share of an image's area that is trained on.")
    num_workers: int | None = flag(None, "Threads that decode; default: one a core, at most 16.")
    prefetch_factor: int = flag(2, "Batches decoded ahead of the one that is asked for.")
    cache: bool = flag(False, "Keep what is read from a bucket in the user's cache on this disk, at most 100 GiB.")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A run: `--config.…`.

    Raises:
        UsageError: A value is out of its range.
    """

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    model: str = flag("ResNet50", "ResNet18, 34, 50, 101, 152, 200, 500 or 800; or _ResNet1, for debugging.")
    image_size: int = flag(224, "Side of the images, pixels.")
    half_precision: bool = flag(False, "Compute in bfloat16; weights and sums stay float32.")

    batch_size: int = flag(128, "Images of one update, of all devices together.")
    num_epochs: int = flag(100, "Epochs to train.")
    learning_rate: float = flag(0.1, "Of a batch of 256; of another one in proportion.")
    warmup_epochs: float = flag(5.0, "Linear rise of the learning rate, which then falls along half a cosine.")
    momentum: float = flag(0.9, "Of SGD, with Nesterov's correction.")
    weight_decay: float = flag(1e-4, "Of convolutions and of the classifier's weights.")
    seed: int = flag(0, "Of weights, order and crops.")
    max_steps: int = flag(0, "Stop after so many updates in all, schedule unchanged; 0: train all epochs.")
    prefetch: int = flag(2, "Batches on their way to the devices beside the one that is trained on.")

    log_per_step: int = flag(100, "Updates between log lines; -1: none for this reason.")
    log_per_epoch: int = flag(NEVER, "Epochs between log lines; -1: none for this reason.")
    eval_per_epoch: int = flag(1, "Epochs between evaluations, the last one is evaluated, too; -1: none.")
    steps_per_eval: int = flag(NEVER, "Batches of an evaluation; -1: every image once.")
    checkpoint_per_epoch: int = flag(20, "Epochs between checkpoints; the last one is saved in any case.")
    checkpoint_per_step: int = flag(NEVER, "Updates between checkpoints; -1: none for this reason.")
    checkpoint_per_minute: float = flag(float(NEVER), "Minutes between checkpoints; -1: none for this reason.")
    keep_checkpoints: int = flag(3, "Newest checkpoints that stay.")
    profile_steps: str = flag("", "A:B traces from update A until before B, for TensorBoard.")

    def __post_init__(self) -> None:
        for name in ("batch_size", "image_size", "num_epochs", "checkpoint_per_epoch", "keep_checkpoints"):
            _require(getattr(self, name) >= 1, f"{name} must be 1 or more", getattr(self, name))
        for name in ("log_per_step", "log_per_epoch", "eval_per_epoch", "steps_per_eval"):
            _require_count(name, getattr(self, name))
        for name in ("checkpoint_per_step", "checkpoint_per_minute"):
            _require_count(name, getattr(self, name))
        _require(self.log_per_step > 0 or self.log_per_epoch > 0, "log_per_step or log_per_epoch must be 1 or more", -1)
        _require(self.prefetch >= 0, "prefetch must be 0 or more", self.prefetch)
        _require(self.max_steps >= 0, "max_steps must be 0 or more", self.max_steps)
        _require(
            0 <= self.warmup_epochs <= self.num_epochs,
            f"warmup_epochs must be 0 to num_epochs, which is {self.num_epochs}",
            self.warmup_epochs,
        )
        _require(0 <= self.momentum < 1, "momentum must be 0 or more and below 1", self.momentum)
        parse_steps(self.profile_steps, "--config.profile_steps")

    def data_path(self, environment: Mapping[str, str] = os.environ) -> str:
        """Where the images are.

        Raises:
            UsageError: Nothing says it, or there is no TFDS dataset.
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
                "--config.dataset.use_tfds=True, too, or leave it out"
            )
        return root

    def loader_settings(self) -> dict[str, Any]:
        """Fields of `LoaderConfig`."""
        dataset = self.dataset
        return {
            "batch_size": self.batch_size,
            "seed": self.seed,
            "image_size": self.image_size,
            "scale": (dataset.min_crop, 1.0),
            "threads": None if dataset.num_workers is None else max(1, dataset.num_workers),
            "prefetch_batches": dataset.prefetch_factor,
            "cache_dir": str(_cache_folder()) if dataset.cache else None,
            "region_policy": dataset.region_policy,
        }

    def schedule(self) -> HalfCosine:
        """Of the learning rate."""
        peak = scaled_lr(self.learning_rate, self.batch_size)
        return HalfCosine(lr=peak, min_lr=0.0, warmup_epochs=self.warmup_epochs, epochs=self.num_epochs)

    def values(self) -> dict[str, Any]:
        """All keys by their dotted names."""
        own = dataclasses.asdict(self)
        dataset = own.pop("dataset")
        return own | {f"dataset.{name}": value for name, value in dataset.items()}


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "tpu": {"batch_size": 1024, "half_precision": True, "dataset.cache": True},
}
"""Keys and their values, by the names of resnet_jax's configuration files."""
REFUSED = {
    "shuffle_buffer_size": "there is no buffer: an epoch's order is a permutation of the whole dataset; leave it out",
    "dataset.pin_memory": "XLA takes batches from any memory; leave it out",
}
"""Keys of resnet_jax that have no meaning here, and why."""


def config_of(path: str, keys: Mapping[str, Any]) -> Config:
    """The configuration that a file of this name stands for, with some keys set otherwise.

    Args:
        path: Of one of `PRESETS`; nothing of it is read.
        keys: Values by dotted names.

    Raises:
        UsageError: There is none of that name, or a value is out of its range.
    """
    name = PurePosixPath(path).stem
    if name not in PRESETS:
        known = ", ".join(f"configs/{each}.py" for each in PRESETS)
        raise UsageError(
            f"--config {path}: no such configuration, and files are not run; choose one of {known}, and set the rest "
            "by --config.KEY=VALUE"
        )
    found = {**PRESETS[name], **keys}
    of_dataset = {key.removeprefix("dataset."): value for key, value in found.items() if key.startswith("dataset.")}
    own = {key: value for key, value in found.items() if not key.startswith("dataset.")}
    return Config(**own, dataset=DatasetConfig(**of_dataset))


def config_options(command: Command) -> Command:
    """Options for all keys; those that were given are the context's object, values by dotted names."""
    for key, reason in REFUSED.items():
        command = _option(key, callback=_refuser(key, reason), hidden=True)(command)
    for key, each, kind in reversed(list(_keys(Config))):
        choices = each.metadata["choices"]
        shown = "" if each.default in (None, "") else f"  [default: {each.default}]"
        command = _option(
            key,
            callback=_collector(key),
            type=click.Choice(list(choices)) if choices else kind,
            help=each.metadata["text"] + shown,
        )(command)
    return command


def find_tfds(root: str, name: str) -> str:
    """The newest version of a dataset that tensorflow-datasets prepared.

    Args:
        root: The version's folder, the dataset's, or the one that holds the dataset.
        name: Of the dataset.

    Raises:
        UsageError: None is there.
    """
    from dataprep.storage import open_storage

    # The name first: whatever else lies in the root need not be listed.
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
        f"--config.dataset.root {root}: no {_TFDS_INFO} there, nor in a version of {name or 'the dataset'} below it; "
        "give what tensorflow-datasets prepared, or leave use_tfds out"
    )


def _cache_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "dataprep" / "images"


def _keys(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], type[Any]]]:
    """Dotted name, field and plain type of every key."""
    hints = typing.get_type_hints(kind)
    for each in dataclasses.fields(kind):
        hint = hints[each.name]
        if dataclasses.is_dataclass(hint):
            yield from _keys(hint, f"{prefix}{each.name}.")  # type: ignore[arg-type]
        else:
            plain = next((part for part in typing.get_args(hint) if part is not types.NoneType), hint)
            yield prefix + each.name, each, plain


def _option(key: str, **attributes: Any) -> Callable[[Command], Command]:
    """An option that no parameter of the command stands for."""
    return click.option(f"--config.{key}", key.replace(".", "_"), default=None, expose_value=False, **attributes)


def _collector(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def collect(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            context.ensure_object(dict)[key] = value

    return collect


def _refuser(key: str, reason: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def refuse(_context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            raise UsageError(f"--config.{key}: {reason}")

    return refuse


def _require(condition: bool, text: str, value: Any) -> None:
    if not condition:
        raise UsageError(f"--config.{text}, got {value}")


def _require_count(name: str, value: float) -> None:
    _require(value == NEVER or value > 0, f"{name} must be above 0, or -1", value)
