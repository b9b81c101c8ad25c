"""The flags of `train.train_resnet`: those of gcspytorchimagenet with their meaning, and ours."""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.errors import UsageError
from train.flags import flag
from train.models import mae_names
from train.run_flags import REFUSED as REFUSED_LAUNCHERS
from train.run_flags import RunFlags
from train.schedule import Schedule, Steps, WarmSteps

RECIPE_MODEL = "resnet50"
"""The one whose learning rate falls where nothing is said."""
STEPS = "WarmupAndExponentialDecayScheduler"
CONSTANT = "constant"
_CHECKPOINTS = "checkpoints go to --output_dir, on a disk or gs://, and --resume takes them from there"
_TARS = (
    "give the folder or gs:// prefix above the tars as --data_path; their headers are indexed, hosts share them evenly"
)
_COUNTED = "samples are counted where the data are indexed"
_PORT = "no server waits for a profiler; --profile_steps A:B writes a trace where TensorBoard finds it"
_CLOSURES = "losses are read at every log line alone, and no step waits for that"
REFUSED = {
    **REFUSED_LAUNCHERS,
    "num_cores": "a process drives all devices of its host; TPU_VISIBLE_CHIPS, or CPU_NUM_DEVICES, makes them fewer",
    "dataset": "the files of --data_path say what they are",
    "drop_last": "no batch is cut short: training runs on across epochs, and evaluation counts every image once",
    "tidy": "nothing is removed but older checkpoints, see --keep_checkpoints",
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
"""Flags of gcspytorchimagenet that have no meaning here, and why."""


@dataclass(frozen=True, kw_only=True)
class Flags(RunFlags):
    """All that the command line may say."""

    data_path: str = flag(
        "/tmp/imagenet", "Dataset, or image folder, tars or TFDS directory, on a disk or gs://.", also=("datadir",)
    )
    fake_data: bool = flag(False, "Black images from nowhere, as many as ImageNet has, instead of data.")
    log_dir: str | None = flag(
        None, "log.txt, events for TensorBoard, profiles; default: output_dir.", also=("logdir",)
    )
    epochs: int = flag(18, "Epochs to train.", also=("num_epochs",))
    ckpt_interval: int = flag(1, "Epochs between checkpoints; the last one is saved in any case.")
    log_interval_steps: int = flag(20, "Updates between log lines.", also=("log_steps",))
    metrics_debug: bool = flag(False, "XLA: its counters, compilations among them, after every epoch, on stderr.")

    model: str = flag(RECIPE_MODEL, "Any of torchvision's classifiers.")
    num_classes: int | None = flag(None, "Logits; default: as many as the data have classes, 1000 of fake data.")
    image_size: int = flag(224, "Side of the images, pixels.", also=("input_size",))
    batch_size: int = flag(128, "Images of one device and one part.")
    test_set_batch_size: int = flag(64, "Images of one device in an evaluation.")
    target_accuracy: float = flag(0.0, "Percent of the validation images; less at the end is exit code 1.")

    lr: float | None = flag(None, f"Learning rate at its highest; default: 0.5 of {RECIPE_MODEL}, 0.1 of others.")
    lr_scheduler_type: str | None = flag(
        None, f"Default: of {RECIPE_MODEL} the first one, of others constant.", choices=(STEPS, CONSTANT)
    )
    lr_scheduler_divide_every_n_epochs: float | None = flag(None, "Default: 20.")
    lr_scheduler_divisor: float | None = flag(None, "By which the learning rate is divided then; default: 5.")
    num_warmup_epochs: float | None = flag(None, "Linear rise of the learning rate; default: 0.9.")
    momentum: float = flag(0.9, "Of stochastic gradient descent.")
    weight_decay: float = flag(1e-4, "Of all parameters.", also=("wd",))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model in mae_names():
            raise UsageError(f"--model {self.model} classifies nothing; `python -m train.pretrain_mae` trains it")
        if self.fake_data and self.diagnose:
            raise UsageError("--diagnose measures how data are read; --fake_data has none, leave it out")
        for name in ("batch_size", "test_set_batch_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be 1 or more, got {getattr(self, name)}")
        if not 0 <= self.target_accuracy <= 100:
            raise UsageError(f"--target_accuracy {self.target_accuracy:g}: expected percent, 0 to 100")

    def schedule(self) -> Schedule:
        """The learning rate.

        Raises:
            UsageError: It is constant, and flags say how it changes.
        """
        is_recipe = self.model == RECIPE_MODEL
        lr = (0.5 if is_recipe else 0.1) if self.lr is None else self.lr
        own = {
            name: getattr(self, name)
            for name in ("lr_scheduler_divide_every_n_epochs", "lr_scheduler_divisor", "num_warmup_epochs")
        }
        if (self.lr_scheduler_type or (STEPS if is_recipe else CONSTANT)) == CONSTANT:
            if given := [name for name, value in own.items() if value is not None]:
                raise UsageError(f"--{given[0]}: the learning rate is constant; add --lr_scheduler_type {STEPS}")
            return Steps(lr=lr, divisor=1, every_epochs=1)
        every, divisor, warmup = (
            default if value is None else value for value, default in zip(own.values(), (20.0, 5.0, 0.9), strict=True)
        )
        return WarmSteps(steps=Steps(lr=lr, divisor=divisor, every_epochs=every), warmup_epochs=warmup)
