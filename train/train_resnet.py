"""Train torchvision's ResNet-50, or another of its classifiers, as gcspytorchimagenet does: XLA, CUDA or a CPU.

    dataprep-train-resnet --datadir gs://bucket/imagenet --output-dir gs://bucket/runs/resnet50 --logdir logs \\
        --num-epochs 18 --batch-size 128 --resume automatic

Shapes: N images of this host, H x W pixels, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from dataprep.arguments import IMAGES, READ, request
from dataprep.errors import DataprepError, UsageError, needing
from loaders.loader import Loader
from train.batches.data import Data, classes_of
from train.flags.options import (
    COUNT,
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
from train.flags.shared import FAKE_DATA, RunOptions, RunParts
from train.flags.shared import REFUSED as LAUNCHERS
from train.loops.backend import Devices
from train.loops.loop import Training
from train.models.sizes import mae_names
from train.optim.schedule import Schedule, Steps, fitted_batch
from train.telemetry.logs import Logs

with needing("torch", "dataprep-train-resnet"):
    import torch

    from train.loops.runtime import Runtime
    from train.loops.tasks import ClassifierTask
    from train.loops.torch import TorchBackend
    from train.models.registry import create_model

RECIPE_MODEL = "resnet50"
"""Model whose learning rate falls in steps by default."""
BATCH, RECIPE_LR, OTHER_LR = 128, (0.5, 1024), (0.1, 256)
"""Images per device; highest learning rate and the batch that it is for, which gcspytorchimagenet has for ResNet-50 on
eight cores, and for other models Goyal et al., "Accurate, large minibatch SGD", 2017."""
STEPS = "WarmupAndExponentialDecayScheduler"
CONSTANT = "constant"
_CHECKPOINTS = "checkpoints go to `output_dir`, on a disk or gs://, and `resume` reads them there"
_TARS = "give the tars' folder or gs:// prefix as `data_path`; their headers are indexed, and hosts share them evenly"
_COUNTED = "samples are counted when the data is indexed"
_PORT = "there is no profiler server; `profile_steps` A:B writes a trace for TensorBoard"
_CLOSURES = "losses are read only for log lines, so steps do not wait for them"
REFUSED = {
    **LAUNCHERS,
    "num_cores": "a process drives all devices of its host; TPU_VISIBLE_CHIPS or CPU_NUM_DEVICES reduces their number",
    "dataset": "the type of dataset is detected from the files in `data_path`",
    "drop_last": "no batch is incomplete: training continues across epochs, and evaluation counts every image once",
    "tidy": "only older checkpoints are removed, see `keep_checkpoints`",
    "async_closures": _CLOSURES,
    "debug": _CLOSURES,
    "profiler_port": _PORT,
    "wds_traindir": _TARS,
    "wds_testdir": _TARS,
    "trainsize": _COUNTED,
    "testsize": _COUNTED,
    "save_model": _CHECKPOINTS,
    "load_chkpt_file": _CHECKPOINTS,
    "load_chkpt_dir": _CHECKPOINTS,
    "model_bucket": _CHECKPOINTS,
}
"""Reasons why some options of gcspytorchimagenet are refused, by their names."""
EPILOG = """\b
Examples:
  dataprep-train-resnet --datadir /data/imagenet --num-epochs 18 --batch-size 128 --test-set-batch-size 64 \\
      --log-steps 200 --device xla --metrics-debug --output-dir runs/resnet50 --resume automatic
  dataprep-train-resnet --data-path shards/imagenet --device cpu --model resnet18 --image-size 64 --epochs 2

\b
Exit codes: 0 trained; 1 the loss or a weight was not finite, the accuracy below --target-accuracy, or a disk or bucket
failed; 2 usage or input; 3 undecided, with --diagnose; 143 stopped by a signal after a checkpoint: the same command
with --resume automatic continues.
"""


@request
class TrainResNet(RunOptions):
    """Train a torchvision classifier (He et al., 2016), with gcspytorchimagenet's options and schedule."""

    data_path: str = redefined(
        RunOptions,
        "data_path",
        default="/tmp/imagenet",
        also=("--datadir",),
    )
    fake_data: bool = flag(False, FAKE_DATA, READ)
    log_dir: str | None = redefined(RunOptions, "log_dir", also=("--logdir",))
    epochs: int = redefined(RunOptions, "epochs", default=18, also=("--num-epochs",))
    ckpt_interval: int = redefined(RunOptions, "ckpt_interval", default=1)
    log_interval_steps: int = redefined(RunOptions, "log_interval_steps", also=("--log-steps",))
    metrics_debug: bool = flag(
        False,
        "Print XLA's counters, including compilations, to stderr after every epoch; needs `device` xla.",
        SAVE,
        rare=True,
    )

    model: str = flag(RECIPE_MODEL, "Name of a torchvision classifier.", MODEL)
    num_classes: int | None = flag(
        None, "Number of logits; default: the dataset's number of classes, 1000 for fake data.", MODEL, COUNT
    )
    image_size: int = flag(224, "Side of the images, pixels.", IMAGES, SIDE, also=("--input-size",))
    batch_size: int | None = flag(
        None, "Images per device and per part of `accum_iter`; default: 128, fewer for small data.", TRAIN, COUNT
    )
    test_set_batch_size: int = flag(64, "Images per device in an evaluation.", TRAIN, COUNT)
    target_accuracy: float = flag(
        0.0, "Accuracy in percent; if the run ends below it, the exit code is 1.", TRAIN, {"low": 0, "high": 100}
    )

    lr: float | None = flag(
        None,
        f"Peak learning rate; default: 0.5 for {RECIPE_MODEL} with a total batch of 1024 or more, 0.1 for other models "
        "with 256 or more; proportionally lower for smaller batches.",
        TRAIN,
        NOT_NEGATIVE,
    )
    lr_scheduler_type: str | None = flag(
        None,
        f"Learning rate schedule; default: in steps for {RECIPE_MODEL}, constant for other models.",
        TRAIN,
        choices=(STEPS, CONSTANT),
    )
    lr_scheduler_divide_every_n_epochs: float | None = flag(
        None, "Epochs between divisions of the learning rate; default: 20.", TRAIN, POSITIVE
    )
    lr_scheduler_divisor: float | None = flag(
        None, "Divisor of the learning rate at each division; default: 5.", TRAIN, {"low": 1}
    )
    num_warmup_epochs: float | None = flag(
        None, "Epochs during which the learning rate rises linearly; default: 0.9.", TRAIN, NOT_NEGATIVE
    )
    momentum: float = flag(0.9, "Momentum of stochastic gradient descent.", TRAIN, SHARE_BELOW_1)
    weight_decay: float = flag(1e-4, "Weight decay of all parameters.", TRAIN, NOT_NEGATIVE, also=("--wd",))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model in mae_names():
            raise UsageError(f"`model` {self.model} is not a classifier; `dataprep-pretrain-mae` trains it")

    def fitted_to(self, images: int, devices: Devices) -> TrainResNet:
        """Return these flags with batch size and learning rate, which follow the recipe and the images of an epoch."""
        shares = devices.num_devices * self.accum_iter
        batch = self.batch_size * shares if self.batch_size else fitted_batch(BATCH * shares, images, shares)
        ramped = self.ramped_batch(devices)
        batch = ramped or batch
        values = {"batch_size": batch // shares, "lr": self.default_lr(batch)}
        flags = replace(self, batch_size=batch // shares) if ramped else self
        return with_defaults(flags, values, images, tells=devices.rank == 0)

    def default_lr(self, batch: int) -> float:
        lr, lr_batch = RECIPE_LR if self.model == RECIPE_MODEL else OTHER_LR
        return lr * min(1.0, batch / lr_batch)

    def schedule(self) -> Schedule:
        """Return the schedule of the learning rate, of flags that are `fitted_to` their data. Raises UsageError if the
        learning rate is constant, but flags say how it changes."""
        lr = self.lr or 0.0
        own = {
            name: getattr(self, name)
            for name in ("lr_scheduler_divide_every_n_epochs", "lr_scheduler_divisor", "num_warmup_epochs")
        }
        if (self.lr_scheduler_type or (STEPS if self.model == RECIPE_MODEL else CONSTANT)) == CONSTANT:
            if given := [name for name, value in own.items() if value is not None]:
                raise UsageError(f"`{given[0]}`: the learning rate is constant; add `lr_scheduler_type` {STEPS}")
            return Steps(lr=lr, divisor=1, every_epochs=1)
        every, divisor, warmup = (
            default if value is None else value for value, default in zip(own.values(), (20.0, 5.0, 0.9), strict=True)
        )
        return Steps(lr=lr, divisor=divisor, every_epochs=every, warmup_epochs=warmup)


@dataclass(kw_only=True)
class ResNetTask(ClassifierTask):
    """Training of a classifier that can print XLA's counters after every evaluation."""

    logs: Logs
    shows_metrics: bool

    def evaluate(self, is_stopped: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Evaluate as every classifier does, and print XLA's counters if they are wanted."""
        found = super().evaluate(is_stopped)
        if self.shows_metrics:
            self.logs.tell(self.runtime.metrics())
        return found

    def require(self, target_percent: float) -> None:
        """Evaluate once more, and require an accuracy. Raises DataprepError if the accuracy is below the target."""
        percent = 100 * (super().evaluate() or {})["accuracy"]
        if percent < target_percent:
            raise DataprepError(
                f"accuracy {percent:.2f} %, `target_accuracy` {target_percent:g} %; train longer, or check the losses"
            )


def open_training(flags: TrainResNet) -> Training[TorchBackend]:
    """Open devices, loaders, model and optimiser; nothing is trained yet."""
    runtime = flags.open_runtime()
    data = flags.open_data()
    num_classes = classes_of(data, flags.num_classes)
    lr_shares, flags = flags.lr_shares, flags.fitted_to(data.epoch_images, runtime)
    schedule = flags.schedule()
    if flags.metrics_debug and runtime.name != "xla":
        raise UsageError(
            f"`metrics_debug` needs XLA, but the device is {runtime.name}; leave it out, or use `device` xla"
        )
    loader, validation = _open_loaders(flags, data, runtime)
    if flags.target_accuracy and validation is None:
        raise UsageError(f"`target_accuracy`: {flags.data_path} has no val split; leave it out, or add a val split")
    runtime.seed(flags.seed)
    model = create_model(flags.model, image_size=flags.image_size, num_classes=num_classes).to(runtime.device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=schedule.at(0), momentum=flags.momentum, weight_decay=flags.weight_decay
    )
    logs = flags.open_logs(runtime)
    task = ResNetTask(
        model=model,
        runtime=runtime,
        precision=flags.precision,
        accum_iter=flags.accum_iter,
        validation=validation,
        logs=logs,
        shows_metrics=flags.metrics_debug,
    )
    parts = RunParts(schedule=schedule, lr_shares=lr_shares, loader=loader, logs=logs)
    return flags.torch_training(task, optimizer, parts)


def _open_loaders(flags: TrainResNet, data: Data, runtime: Runtime) -> tuple[Loader, Loader | None]:
    batch_size = (flags.batch_size or BATCH) * runtime.num_devices * flags.accum_iter
    settings = flags.loader_config(runtime, batch_size=batch_size, image_size=flags.image_size)
    training = replace(settings, interpolation="bilinear", scale=(flags.min_crop, 1.0))
    evaluation = replace(training, batch_size=flags.test_set_batch_size * runtime.num_devices)
    return data.loaders(training, evaluation, sizes=flags.batch_sizes(data.epoch_images, flags.epochs))


def train(flags: TrainResNet) -> int:
    """Train, or measure what the training would wait for; return the exit code."""
    training = open_training(flags)
    code = run(training, flags, model=flags.model)
    task = training.backend.task
    if code == 0 and flags.target_accuracy and not flags.diagnose and isinstance(task, ResNetTask):
        task.require(flags.target_accuracy)
    return code


command = entry_of(TrainResNet, train, "dataprep-train-resnet", epilog=EPILOG, refused=REFUSED)
main = partial(run_entry, command)


if __name__ == "__main__":
    main()
