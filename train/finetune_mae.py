"""Fine-tune a pretrained encoder on labelled images, or probe it with a linear layer.

    python -m train.finetune_mae --data_path gs://bucket/imagenet --finetune gs://bucket/runs/mae/checkpoint-….pth \\
        --output_dir runs/finetuned --effective_batch_size 1024 --blr 5e-4 --layer_decay 0.65 --mixup 0.8 --cutmix 1.0

He et al., "Masked autoencoders are scalable vision learners", CVPR 2022, appendix A.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import click
import torch
from click.core import ParameterSource

from dataprep.errors import UsageError
from loaders.loader import Loader
from train.checkpoint import CheckpointFolder
from train.classify import ClassifierTask, classes_of
from train.data import Data, open_data
from train.encoder_weights import Weights, read_weights, weights_of
from train.entry import run, run_entry
from train.finetune_flags import REFUSED, Flags, recipe_flags
from train.flags import flags_of
from train.lars import LARS
from train.layer_decay import open_layered_adamw
from train.logs import LOG_FILE, Logs
from train.loop import AUTOMATIC, Training
from train.mixing import Mixer
from train.models.finetune import load_whole, open_classifier
from train.models.vit import VisionTransformer
from train.runtime import Runtime, open_runtime

UNCROPPED_SIDE = 224
"""Images larger than this are evaluated without the border that is otherwise cut away."""
EPILOG = """\b
Examples:
  python -m train.finetune_mae --data_path shards/imagenet --finetune runs/mae/checkpoint-000001000-….pth \\
      --output_dir runs/finetuned --effective_batch_size 1024 --blr 5e-4 --layer_decay 0.65 --mixup 0.8 --cutmix 1.0
  python -m train.finetune_mae --data_path shards/imagenet --finetune mae_pretrain_vit_base.pth --linear_probe \\
      --effective_batch_size 16384 --output_dir runs/probed
  python -m train.finetune_mae --data_path shards/imagenet --output_dir runs/finetuned --resume automatic --eval

\b
Exit codes: 0 trained or evaluated; 1 the loss was not finite, or a disk or bucket failed; 2 usage or input; 143
stopped by a signal after a checkpoint: the same command with --resume automatic goes on.
"""


@dataclass(kw_only=True)
class FinetuneTask(ClassifierTask):
    """A classifier that remembers its best accuracy."""

    logs: Logs
    best: float = field(default=0.0, init=False)

    def evaluate(self) -> dict[str, float]:
        """With `best_accuracy`, of this run and of what its log holds from before it was resumed."""
        found = super().evaluate()
        if found:
            self.best = max(self.best, found["accuracy"], self._logged())
            found["best_accuracy"] = self.best
        return found

    def _logged(self) -> float:
        path = None if self.logs.folder is None else self.logs.folder / LOG_FILE
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        return max((json.loads(line).get("val_accuracy", 0.0) for line in lines), default=0.0)


def open_training(flags: Flags) -> Training:
    """All that a run needs: devices, loader, model, optimiser; nothing is trained yet."""
    runtime = open_runtime(flags.device_name, pin_memory=flags.pin_mem)
    batch = flags.effective_batch(runtime)
    schedule = flags.schedule(batch)
    data = open_data(flags.data_path, index_dir=flags.index_dir, region_policy=flags.region_policy)
    num_classes = classes_of(data, flags.nb_classes)
    model = _open_model(flags, num_classes).to(runtime.device)
    logs = Logs(flags.log_folder, enabled=runtime.rank == 0)
    mix = flags.mix_config()
    mixer = Mixer(config=mix, runtime=runtime, seed=flags.seed, batch_size=batch, num_classes=num_classes)
    return Training(
        config=flags.loop_config(clip_grad_norm=flags.clip_grad),
        runtime=runtime,
        model=model,
        optimizer=_open_optimizer(model, flags, schedule.lr),
        schedule=schedule,
        loader=_training_loader(data, flags, runtime, batch),
        task=FinetuneTask(
            model=model,
            runtime=runtime,
            precision=flags.precision,
            accum_iter=flags.accum_iter,
            label_smoothing=flags.smoothing,
            validation=_validation_loader(data, flags, runtime, batch),
            mix=mixer if mix.enabled else None,
            logs=logs,
        ),
        logs=logs,
        checkpoints=CheckpointFolder(flags.output_dir, keep=flags.keep_checkpoints) if flags.output_dir else None,
        description=asdict(flags),
    )


def evaluate(training: Training) -> int:
    """Print what the weights do on the validation images; the exit code.

    Raises:
        UsageError: There are no such images.
    """
    with training.loader:
        found = training.task.evaluate()
    if not found:
        raise UsageError(f"{training.loader.dataset.url}: no split to evaluate on; expected val, validation or test")
    click.echo(json.dumps({name: value for name, value in found.items() if name != "best_accuracy"}))
    return 0


def _open_model(flags: Flags, num_classes: int) -> VisionTransformer:
    """Pretrained, or with random weights of the seed; to be evaluated, with all of a checkpoint's."""
    torch.manual_seed(flags.seed)
    weights = _weights(flags)
    model = open_classifier(
        flags.model,
        weights,
        image_size=flags.input_size,
        num_classes=num_classes,
        pool=flags.pool,
        drop_path=flags.drop_path,
        linear_probe=flags.linear_probe,
    )
    if flags.eval and weights is not None:
        load_whole(model, weights)
    return model


def _weights(flags: Flags) -> Weights | None:
    """Those to begin with, or to evaluate."""
    if not flags.eval:
        return read_weights(flags.finetune) if flags.finetune else None
    if flags.resume != AUTOMATIC:
        return read_weights(flags.resume)
    found = CheckpointFolder(flags.output_dir).newest_valid(lambda line: click.echo(line, err=True))
    if found is None:
        raise UsageError(f"{flags.output_dir}: no checkpoint to evaluate; give one with --resume")
    return weights_of(f"{flags.output_dir}/{found[0].name}", found[1])


def _open_optimizer(model: VisionTransformer, flags: Flags, lr: float) -> torch.optim.Optimizer:
    if flags.linear_probe:
        return LARS(model.head.parameters(), lr=lr, weight_decay=flags.weight_decay)
    return open_layered_adamw(model, lr=lr, weight_decay=flags.weight_decay, layer_decay=flags.layer_decay)


def _training_loader(data: Data, flags: Flags, runtime: Runtime, batch: int) -> Loader:
    loader = data.training_loader(
        batch_size=batch,
        seed=flags.seed,
        rank=runtime.rank,
        world_size=runtime.world_size,
        image_size=flags.input_size,
        scale=(flags.min_crop, 1.0),
        transform=flags.transform(),
        processes=flags.processes,
        region_policy=flags.region_policy,
    )
    loader.set_epoch(flags.start_epoch)
    return loader


def _validation_loader(data: Data, flags: Flags, runtime: Runtime, batch: int) -> Loader | None:
    """Batches of one part: no gradient is kept, so that they fit."""
    return data.validation_loader(
        batch_size=batch // flags.accum_iter,
        rank=runtime.rank,
        world_size=runtime.world_size,
        image_size=flags.input_size,
        resize=flags.input_size if flags.input_size > UNCROPPED_SIDE else None,
        region_policy=flags.region_policy,
    )


@click.command("finetune_mae", epilog=EPILOG, context_settings={"max_content_width": 110})
@flags_of(Flags, REFUSED)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> int:
    """Fine-tune a pretrained vision transformer, or probe it (He et al., 2022)."""
    given = {
        name: value
        for name, value in values.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    flags = recipe_flags(**given)
    training = open_training(flags)
    return evaluate(training) if flags.eval else run(training, flags, name=flags.model or "finetune_mae")


def main() -> None:
    """Entry point."""
    run_entry(command)


if __name__ == "__main__":
    main()
