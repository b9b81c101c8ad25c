"""Train torchvision's ResNet-50, or another of its classifiers, as gcspytorchimagenet does: XLA, CUDA or a CPU.

    python -m train.train_resnet --datadir gs://bucket/imagenet --output_dir gs://bucket/runs/resnet50 --logdir logs \\
        --num_epochs 18 --batch_size 128 --resume automatic

Shapes: N images of this host, H x W pixels, C classes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import click
import torch

from dataprep.errors import DataprepError, UsageError
from loaders.config import LoaderConfig
from loaders.loader import Loader
from train.checkpoint import CheckpointFolder
from train.classify import ClassifierTask, classes_of
from train.data import open_data
from train.entry import run, run_entry
from train.fake_data import TRAINING_IMAGES, VALIDATION_IMAGES, FakeLoader
from train.flags import flags_of
from train.logs import Logs
from train.loop import Training
from train.models import create_model
from train.resnet_flags import REFUSED, Flags
from train.runtime import Runtime, open_runtime

IMAGENET_CLASSES = 1000
EPILOG = """\b
Examples:
  python -m train.train_resnet --datadir /data/imagenet --num_epochs 18 --batch_size 128 --test_set_batch_size 64 \\
      --log_steps 200 --metrics_debug --output_dir runs/resnet50 --resume automatic
  python -m train.train_resnet --data_path shards/imagenet --device cpu --model resnet18 --image_size 64 --epochs 2

\b
Exit codes: 0 trained; 1 the loss was not finite, the accuracy below --target_accuracy, or a disk or bucket failed;
2 usage or input; 143 stopped by a signal after a checkpoint: the same command with --resume automatic goes on.
"""


@dataclass(kw_only=True)
class ResNetTask(ClassifierTask):
    """Cross entropy; after every epoch the accuracy, and XLA's counters where they are asked for."""

    logs: Logs
    shows_metrics: bool

    def evaluate(self) -> dict[str, float]:
        """As every classifier."""
        found = super().evaluate()
        if self.shows_metrics:
            self.logs.tell(self.runtime.metrics())
        return found

    def require(self, target_percent: float) -> None:
        """Evaluate once more.

        Raises:
            DataprepError: The accuracy is below the target.
        """
        percent = 100 * super().evaluate()["accuracy"]
        if percent < target_percent:
            raise DataprepError(
                f"accuracy {percent:.2f} %, --target_accuracy {target_percent:g} %; train longer, or see the losses"
            )


def open_training(flags: Flags) -> Training:
    """All that a run needs: devices, loaders, model, optimiser; nothing is trained yet."""
    schedule = flags.schedule()
    runtime = open_runtime(flags.device_name, pin_memory=flags.pin_mem)
    if flags.metrics_debug and runtime.name != "xla":
        raise UsageError(f"--metrics_debug: XLA counts, and this runs on {runtime.name}; leave it out, or --device xla")
    loader, validation, num_classes = _open_loaders(flags, runtime)
    if flags.target_accuracy and validation is None:
        raise UsageError(f"--target_accuracy: {flags.data_path} has no split val; leave it out, or add one")
    runtime.seed(flags.seed)
    model = create_model(flags.model, image_size=flags.image_size, num_classes=num_classes).to(runtime.device)
    logs = Logs(flags.log_folder, enabled=runtime.rank == 0)
    return Training(
        config=flags.loop_config(),
        runtime=runtime,
        model=model,
        optimizer=torch.optim.SGD(
            model.parameters(), lr=schedule.at(0), momentum=flags.momentum, weight_decay=flags.weight_decay
        ),
        schedule=schedule,
        loader=loader,
        task=ResNetTask(
            model=model,
            runtime=runtime,
            precision=flags.precision,
            accum_iter=flags.accum_iter,
            validation=validation,
            logs=logs,
            shows_metrics=flags.metrics_debug,
        ),
        logs=logs,
        checkpoints=CheckpointFolder(flags.output_dir, keep=flags.keep_checkpoints) if flags.output_dir else None,
        description=asdict(flags),
    )


def _open_loaders(flags: Flags, runtime: Runtime) -> tuple[Loader, Loader | None, int]:
    """Of training, of validation, and the number of classes."""
    common: dict[str, Any] = {
        "seed": flags.seed,
        "rank": runtime.rank,
        "world_size": runtime.world_size,
        "image_size": flags.image_size,
        "interpolation": "bilinear",
        "threads": flags.num_workers,
        "region_policy": flags.region_policy,
    }
    batch_size = flags.batch_size * runtime.num_devices * flags.accum_iter
    training = common | {"batch_size": batch_size, "scale": (flags.min_crop, 1.0)}
    evaluation = common | {"batch_size": flags.test_set_batch_size * runtime.num_devices}
    if flags.fake_data:
        return (
            FakeLoader(LoaderConfig(**training), TRAINING_IMAGES),
            FakeLoader(LoaderConfig(**evaluation, shuffle=False, augment=False), VALIDATION_IMAGES),
            flags.num_classes or IMAGENET_CLASSES,
        )
    data = open_data(flags.data_path, index_dir=flags.index_dir, region_policy=flags.region_policy)
    num_classes = classes_of(data, flags.num_classes)
    return data.training_loader(**training), data.validation_loader(**evaluation), num_classes


@click.command("train_resnet", epilog=EPILOG, context_settings={"max_content_width": 110})
@flags_of(Flags, REFUSED)
def command(**values: Any) -> int:
    """Train a classifier of torchvision (He et al., 2016), with gcspytorchimagenet's flags and schedule."""
    flags = Flags(**values)
    training = open_training(flags)
    code = run(training, flags, name=flags.model)
    if code == 0 and flags.target_accuracy and not flags.diagnose and isinstance(training.task, ResNetTask):
        training.task.require(flags.target_accuracy)
    return code


def main() -> None:
    """Entry point."""
    run_entry(command)


if __name__ == "__main__":
    main()
