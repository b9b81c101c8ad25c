"""Fine-tune a pretrained encoder on labelled images, or probe it with a linear layer, in PyTorch or JAX.

    dataprep-finetune-mae --data-path gs://bucket/imagenet --finetune gs://bucket/runs/mae/checkpoint-….pth \\
        --output-dir runs/finetuned --effective-batch-size 1024 --blr 5e-4 --layer-decay 0.65 --mixup 0.8 --cutmix 1.0

He et al., "Masked autoencoders are scalable vision learners", CVPR 2022, appendix A.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dataprep.arguments import IMAGES, request
from dataprep.arrays import NDArray, np
from dataprep.errors import UsageError, needing
from dataprep.host.cpu import available_cores
from dataprep.messages import counted
from dataprep.watching import LOG_FILE, log_lines
from loaders.config import MAX_THREADS
from loaders.decode.transforms import PilTransform
from loaders.loader import Loader
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD, UNCROPPED_SIDE, Data, classes_of
from train.checkpoints.checkpoint import CheckpointFolder
from train.checkpoints.files import NUMPY
from train.flags.jax import ShardingOptions, join_jax, open_jax_devices
from train.flags.options import (
    COUNT,
    MODEL,
    NOT_NEGATIVE,
    SHARE,
    SHARE_ABOVE_0,
    SHARE_BELOW_1,
    SIDE,
    THREADS_OR_NONE,
    TRAIN,
    entry_of,
    flag,
    redefined,
    run,
    run_entry,
)
from train.flags.shared import REFUSED as LAUNCHERS
from train.flags.shared import Recipe, RecipeOptions, RunParts
from train.loops.backend import AUTOMATIC, Devices
from train.loops.loop import Training, refuse_not_finite
from train.telemetry.logs import Logs

with needing("torch", "dataprep-finetune-mae"):
    import torch

    from train.batches.mixing import MODES, MixConfig, Mixer
    from train.checkpoints.encoder_weights import (
        DEFAULT_ENCODER,
        ClassifierConfig,
        Weights,
        load_whole,
        open_classifier,
        origin,
        read_weights,
        weights_of,
    )
    from train.loops.tasks import ClassifierTask
    from train.loops.torch import TorchBackend, compile_network
    from train.models.vit import VisionTransformer
    from train.optim.optimizer import FINETUNE_BETAS, LARS, open_layered_adamw

if TYPE_CHECKING:
    from PIL.Image import Image

    from train.loops.jax import JaxBackend


class BestAccuracy:
    """Remembers the best accuracy, which includes evaluations that the log has from before a resume."""

    def __init__(self, logs: Logs) -> None:
        self._folder, self._best = logs.folder, 0.0

    def judge(self, found: Mapping[str, float]) -> dict[str, float]:
        """Return the numbers of an evaluation with `best_accuracy` added."""
        self._best = max(self._best, found["accuracy"], self._logged())
        return {**found, "best_accuracy": self._best}

    def _logged(self) -> float:
        path = None if self._folder is None else self._folder / LOG_FILE
        data = path.read_bytes() if path is not None and path.exists() else b""
        return max((line.get("val_accuracy", 0.0) for _, line in log_lines(data) if line is not None), default=0.0)


ERASE_MODES = ("const", "rand", "pixel")
"""Ways to fill a box: with the mean colour, with one random colour, or with a random colour for each pixel."""
ERASED_AREA = (0.02, 1 / 3)
"""Smallest and largest share of the image that all boxes cover together."""
ERASED_RATIO = (0.3, 1 / 0.3)
"""Smallest and largest ratio of a box's height to its width."""
_TRIES = 10
"""Number of draws after which a box that fits nowhere is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Erasing:
    """Settings of random erasing: boxes of an image are painted over."""

    prob: float = 0.0
    """Probability that an image gets boxes."""
    mode: str = "pixel"
    count: int = 1
    """Largest number of boxes in an image; the number is drawn from 1 to this one."""


class FinetuneAugment:
    """Augmentation of one image: a loader's `transform`.

    Args:
        policy: timm's name of an augmentation, e.g. `rand-m9-mstd0.5-inc1`; empty: none.
        color_jitter: Largest change of brightness, contrast and saturation, as a factor; only without a policy.
        erasing: Boxes that are painted over, last of all.
        image_size: Side of the images, pixels.

    Raises:
        UsageError: The policy is unknown, timm is not installed, or both a policy and a jitter are given.
    """

    state_name = "train.finetune_augment.FinetuneAugment"
    """Name of the class in version 0.1.0, which old checkpoints contain."""

    def __init__(self, *, policy: str, color_jitter: float, erasing: Erasing, image_size: int) -> None:
        if policy and color_jitter:
            raise UsageError(
                f"`color_jitter` {color_jitter} with `aa` {policy}, which also changes colours; give one, or `aa` ''"
            )
        self._policy = PilTransform(_timm_policy(policy, image_size)) if policy else None
        self._color_jitter, self._erasing = color_jitter, erasing

    def __call__(self, image_HWC: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        if self._policy is not None:
            image_HWC = self._policy(image_HWC, rng)
        elif self._color_jitter:
            image_HWC = _jittered(image_HWC, self._color_jitter, rng)
        if rng.random() < self._erasing.prob:
            image_HWC = _erased(image_HWC, self._erasing, rng)
        return image_HWC


def _timm_policy(name: str, image_size: int) -> Callable[[Image], Image]:
    with needing("finetune", f"`aa` {name}", ", or give `aa` ''"):
        from timm.data.auto_augment import augment_and_mix_transform, auto_augment_transform, rand_augment_transform
    from PIL.Image import Resampling

    kinds = {"rand": rand_augment_transform, "augmix": augment_and_mix_transform}
    # 0.45 is the value in timm's own training: policies name magnitudes, and the caller says how many pixels they mean.
    options = {
        "translate_const": int(image_size * 0.45),
        "img_mean": tuple(min(255, round(255 * each)) for each in IMAGENET_MEAN),
        "interpolation": Resampling.BICUBIC,
    }
    try:
        policy: Callable[[Image], Image] = kinds.get(name.partition("-")[0], auto_augment_transform)(name, options)
    except (AssertionError, KeyError, ValueError) as error:
        raise UsageError(f"`aa` {name}: not a timm augmentation ({error}); e.g. rand-m9-mstd0.5-inc1") from None
    return policy


def _jittered(image_HWC: NDArray[np.uint8], jitter: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Change brightness, contrast and saturation, each by its own random factor, in random order."""
    from PIL import Image, ImageEnhance

    factors = rng.uniform(1 - jitter, 1 + jitter, 3)
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    image = Image.fromarray(image_HWC)
    for each in np.argsort(rng.random(3)):
        image = kinds[each](image).enhance(float(factors[each]))
    return np.asarray(image)


def _erased(image_HWC: NDArray[np.uint8], erasing: Erasing, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Fill boxes of an image; noise is normal, with the data's mean and standard deviation, clipped to 0..255."""
    image_HWC = image_HWC.copy()
    height, width = image_HWC.shape[:2]
    count = int(rng.integers(1, erasing.count + 1))
    for _ in range(count):
        box = _erased_box(height, width, count, rng)
        if box is None:
            continue
        top, left, box_height, box_width = box
        shape = (box_height, box_width, 3) if erasing.mode == "pixel" else (1, 1, 3)
        noise = np.zeros(shape) if erasing.mode == "const" else rng.standard_normal(shape)
        color = 255 * (np.array(IMAGENET_MEAN) + noise * np.array(IMAGENET_STD))
        image_HWC[top : top + box_height, left : left + box_width] = np.clip(np.rint(color), 0, 255).astype(np.uint8)
    return image_HWC


def _erased_box(height: int, width: int, count: int, rng: np.random.Generator) -> tuple[int, int, int, int] | None:
    """Draw top, left, height and width in pixels of a box smaller than the image; None if no draw fits."""
    low, high = (math.log(each) for each in ERASED_RATIO)
    for _ in range(_TRIES):
        area = rng.uniform(*ERASED_AREA) * height * width / count
        ratio = math.exp(rng.uniform(low, high))
        box_height, box_width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if box_height < height and box_width < width:
            top, left = (int(rng.integers(0, space + 1)) for space in (height - box_height, width - box_width))
            return top, left, box_height, box_width
    return None


DEFAULT_SIDE = 224
"""Side of the images in pixels where neither a flag nor weights say it."""
EPILOG = """\b
Examples:
  dataprep-finetune-mae --data-path shards/imagenet --finetune runs/mae/checkpoint-000001000-….pth \\
      --output-dir runs/finetuned --effective-batch-size 1024 --blr 5e-4 --layer-decay 0.65 --mixup 0.8 --cutmix 1.0
  dataprep-finetune-mae --data-path shards/imagenet --finetune mae_pretrain_vit_base.pth --linear-probe \\
      --effective-batch-size 16384 --output-dir runs/probed
  dataprep-finetune-mae --framework jax --data-path gs://bucket/imagenet --finetune runs/mae/checkpoint-….npz \\
      --output-dir runs/finetuned --effective-batch-size 1024 --blr 5e-4 --layer-decay 0.65 --fsdp
  dataprep-finetune-mae --data-path shards/imagenet --output-dir runs/finetuned --resume automatic --eval

\b
Exit codes: 0 trained or evaluated; 1 the loss or a weight was not finite, or a disk or bucket failed; 2 usage or input;
3 undecided, with --diagnose; 143 stopped by a signal after a checkpoint: the same command with --resume automatic
continues.
"""
REFUSED = LAUNCHERS | {
    "resplit": "each image is augmented only once, so there is no augmentation split to exempt from erasing"
}
"""Reasons why options of MAE's fine-tuning are refused, by their names."""
NOT_PROBED: Mapping[str, Any] = {
    "drop_path": 0.0,
    "layer_decay": 1.0,
    "smoothing": 0.0,
    "mixup": 0.0,
    "cutmix": 0.0,
    "cutmix_minmax": None,
    "aa": "",
    "color_jitter": 0.0,
    "reprob": 0.0,
    "ema_decay": 0.0,
    "grad_ckpt": False,
}
"""Values that turn off the options that a linear probe does not use, by the options' names."""
LINEAR_PROBE: Mapping[str, Any] = {
    **NOT_PROBED,
    "epochs": 90,
    "blr": 0.1,
    "min_lr": 0.0,
    "weight_decay": 0.0,
    "global_pool": False,
}
"""Defaults with `linear_probe`, by the options' names."""

FINETUNE_RECIPE = Recipe(batch_size=64, epochs=50, warmup_epochs=5.0)
PROBE_RECIPE = Recipe(batch_size=512, epochs=LINEAR_PROBE["epochs"], warmup_epochs=10.0)


def _probed(text: str, name: str) -> str:
    """Add the default with `linear_probe` to an option's help."""
    return f"{text} With `linear_probe`: {LINEAR_PROBE[name]:g}."


@request
class FinetuneMAE(ShardingOptions, RecipeOptions):
    """Fine-tune a pretrained vision transformer, or probe it (He et al., 2022)."""

    model: str | None = flag(
        None,
        "Name of the encoder, e.g. vit_base_patch16; default: as in `finetune`, or vit_large_patch16.",
        MODEL,
        also=("--arch",),
    )
    finetune: str = flag(
        "",
        "Pretrained weights, on a disk or gs://: a checkpoint of this project, a published MAE file, or timm weights.",
        MODEL,
    )
    linear_probe: bool = flag(False, "Train a linear layer on the frozen encoder.", MODEL)
    input_size: int | None = flag(
        None,
        "Side of the images, pixels; position embeddings are resized to it; default: as in `finetune`, or 224.",
        IMAGES,
        SIDE,
    )
    nb_classes: int | None = flag(
        None, "Number of logits; default: the dataset's number of classes.", MODEL, COUNT, also=("--num-classes",)
    )
    global_pool: bool = flag(True, "Classify the mean of all patches; with `linear_probe`: off.", MODEL, either=True)
    cls_token: bool = flag(False, "Classify the class token, as --no-global-pool does.", MODEL, rare=True)
    drop_path: float = flag(
        0.1,
        "Stochastic depth: probability of dropping a branch of the last block; lower in earlier blocks.",
        MODEL,
        SHARE_BELOW_1,
    )

    epochs: int = redefined(RecipeOptions, "epochs", default=50, text=_probed("Epochs to train.", "epochs"))
    batch_size: int | None = redefined(
        RecipeOptions,
        "batch_size",
        text="Images per device and part of `accum_iter`; -1: from `effective_batch_size`; default: 64, or 512 with "
        "`linear_probe`, fewer for small data.",
    )
    blr: float = redefined(RecipeOptions, "blr", text=_probed("Base learning rate, for a batch of 256.", "blr"))
    min_lr: float = redefined(RecipeOptions, "min_lr", default=1e-6, text=_probed("Final learning rate.", "min_lr"))
    warmup_epochs: float | None = redefined(
        RecipeOptions,
        "warmup_epochs",
        text="Epochs during which the learning rate rises linearly; default: a tenth of the run, at most 5, or with "
        "`linear_probe` 10.",
    )
    weight_decay: float = redefined(
        RecipeOptions,
        "weight_decay",
        text=_probed("Weight decay of matrices; other weights have none.", "weight_decay"),
    )
    layer_decay: float = flag(0.75, "Ratio of a layer's learning rate to the next layer's.", TRAIN, SHARE_ABOVE_0)
    clip_grad: float = flag(0.0, "Maximum norm of the gradient of all parameters; 0: no limit.", TRAIN, NOT_NEGATIVE)

    smoothing: float = flag(
        0.1, "Label smoothing: fraction of a label that is spread over all classes.", TRAIN, SHARE_BELOW_1
    )
    mixup: float = flag(
        0.0, "Mixup alpha: the mixing ratio is drawn from Beta(alpha, alpha); 0: no Mixup.", TRAIN, NOT_NEGATIVE
    )
    cutmix: float = flag(
        0.0,
        "CutMix alpha: the area of the pasted box is drawn from Beta(alpha, alpha); 0: no CutMix.",
        TRAIN,
        NOT_NEGATIVE,
    )
    cutmix_minmax: tuple[float, float] | None = flag(
        None,
        "Smallest and largest side of CutMix's boxes, as fractions of the image's side; instead of `cutmix`.",
        TRAIN,
        SHARE,
        rare=True,
    )
    mixup_prob: float = flag(1.0, "Probability that a batch is mixed.", TRAIN, SHARE, rare=True)
    mixup_switch_prob: float = flag(
        0.5, "Probability of CutMix instead of Mixup, if both are on.", TRAIN, SHARE, rare=True
    )
    mixup_mode: str = flag("batch", "Draw once per batch, per pair, or per image.", TRAIN, choices=MODES, rare=True)
    aa: str = flag("rand-m9-mstd0.5-inc1", "timm's name of an augmentation; '': none.", IMAGES)
    color_jitter: float = flag(
        0.0,
        "Maximum change of brightness, contrast and saturation, as a factor; requires `aa` ''.",
        IMAGES,
        SHARE,
        rare=True,
    )
    reprob: float = flag(0.25, "Random erasing: probability that boxes of an image are erased.", IMAGES, SHARE)
    remode: str = flag(
        "pixel",
        "Content of erased boxes: the mean colour, one random colour, or a random colour per pixel.",
        IMAGES,
        choices=ERASE_MODES,
        rare=True,
    )
    recount: int = flag(1, "Maximum number of erased boxes per image.", IMAGES, COUNT, rare=True)

    num_workers: int | None = redefined(
        RecipeOptions,
        "num_workers",
        text="Processes that decode and augment; 0: threads of this process instead. Default: 0 if images are only "
        "cropped and flipped, else one per core, at most 16.",
        **THREADS_OR_NONE,
    )
    eval: bool = flag(False, "Evaluate the `resume` checkpoint, print the results as JSON, and exit.")
    dist_eval: bool = flag(
        False, "Has no effect: all devices always share an evaluation, and each image counts once.", rare=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.linear_probe:
            for name, value in NOT_PROBED.items():
                if getattr(self, name) != value:
                    raise UsageError(
                        f"`{name}` and `linear_probe`: a probe trains one linear layer on images that are only cropped "
                        f"and flipped; leave `{name}` out"
                    )
            if not self.finetune and not self.init and not self.eval:
                raise UsageError("`linear_probe` without `finetune`: give the weights to probe")
        if self.eval and not self.resume:
            raise UsageError("`eval` without `resume`: give the checkpoint to evaluate, or `automatic`")
        self.mix_config()

    @classmethod
    def of_command_line(cls, given: Container[str], **values: Any) -> FinetuneMAE:
        """Make the flags of a command line, with the defaults of its recipe."""
        return recipe_flags(**{name: value for name, value in values.items() if name in given})

    @property
    def recipe(self) -> Recipe:
        """Values that are taken if they are not given."""
        return PROBE_RECIPE if self.linear_probe else FINETUNE_RECIPE

    @property
    def side(self) -> int:
        """Side of the images, pixels."""
        return self.input_size or DEFAULT_SIDE

    @property
    def pool(self) -> str:
        """Way to pool the tokens that are classified, as `ViTConfig.pool`."""
        return "average" if self.global_pool and not self.cls_token else "token"

    def mix_config(self) -> MixConfig:
        """Settings of Mixup and CutMix."""
        return MixConfig(
            mixup=self.mixup,
            cutmix=self.cutmix,
            cutmix_minmax=self.cutmix_minmax,
            prob=self.mixup_prob,
            switch_prob=self.mixup_switch_prob,
            mode=self.mixup_mode,
        )

    def transform(self) -> FinetuneAugment | None:
        """Return the augmentation of an image after its crop and flip; None for none."""
        erasing = Erasing(prob=self.reprob, mode=self.remode, count=self.recount)
        if not (self.aa or self.color_jitter or self.reprob):
            return None
        return FinetuneAugment(policy=self.aa, color_jitter=self.color_jitter, erasing=erasing, image_size=self.side)

    @property
    def decodes_in_threads(self) -> bool:
        """False: augmentations run in `processes`; threads would wait for each other's interpreter lock."""
        return False

    @property
    def processes(self) -> int:
        """Number of worker processes that decode."""
        if self.num_workers is not None:
            return self.num_workers
        return min(MAX_THREADS, available_cores()) if self.aa or self.color_jitter or self.reprob else 0


def recipe_flags(**given: Any) -> FinetuneMAE:
    """Make flags with the defaults of fine-tuning, or of linear probing if `linear_probe` is given."""
    return FinetuneMAE(**{**(LINEAR_PROBE if given.get("linear_probe") else {}), **given})


@dataclass(kw_only=True)
class FinetuneTask(ClassifierTask):
    """A classifier that remembers its best accuracy."""

    best: BestAccuracy

    def evaluate(self, is_stopped: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Evaluate, and add `best_accuracy`."""
        found = super().evaluate(is_stopped)
        return self.best.judge(found) if found else found


def open_training(flags: FinetuneMAE) -> Training[Any]:
    """Open devices, loaders, model and optimiser; nothing is trained yet."""
    weights = _weights(flags)
    if flags.input_size is None:
        flags = replace(flags, input_size=DEFAULT_SIDE if weights is None else weights.image_size)
    return _open_jax(flags, weights) if flags.is_jax else _open_torch(flags, weights)


def _open_jax(flags: FinetuneMAE, weights: Weights | None) -> Training[JaxBackend]:
    devices = open_jax_devices(flags.tensor_parallel)

    from train.loops.jax_transformer_steps import FinetuneTask, Settings
    from train.models.jax_transformers import VisionTransformer

    data = flags.open_data()
    lr_shares, flags = flags.lr_shares, flags.fitted_to(data.epoch_images, devices)
    model = _open_model(flags, weights, classes_of(data, flags.nb_classes))
    loader, validation = _open_loaders(flags, data, devices)
    training = flags.jax_training(
        devices,
        FinetuneTask(
            model=VisionTransformer(model.config, flags.computation(devices, flags.precision, remat=flags.grad_ckpt)),
            seed=flags.seed,
            mix=flags.mix_config(),
            label_smoothing=flags.smoothing,
        ),
        Settings(
            weight_decay=flags.weight_decay,
            betas=FINETUNE_BETAS,
            layer_decay=flags.layer_decay,
            clip_grad_norm=flags.clip_grad,
            fsdp=flags.fsdp,
        ),
        RunParts(schedule=flags.schedule(), lr_shares=lr_shares, loader=loader, validation=validation),
        is_probe=flags.linear_probe,
        tensors={name: each.numpy() for name, each in model.state_dict().items()},
    )
    training.backend.judge = BestAccuracy(training.logs).judge
    _tell_first_weights(flags, weights, model, training.logs)
    return training


def _open_torch(flags: FinetuneMAE, weights: Weights | None) -> Training[TorchBackend]:
    runtime = flags.open_runtime()
    data = flags.open_data()
    lr_shares, flags = flags.lr_shares, flags.fitted_to(data.epoch_images, runtime)
    schedule = flags.schedule()
    num_classes = classes_of(data, flags.nb_classes)
    model = _open_model(flags, weights, num_classes).to(runtime.device)
    if flags.compile:
        compile_network(model, runtime.device)
    logs = flags.open_logs(runtime)
    _tell_first_weights(flags, weights, model, logs)
    loader, validation = _open_loaders(flags, data, runtime)
    mixer = Mixer(
        config=flags.mix_config(),
        put=runtime.put,
        seed=flags.seed,
        batch_size=lambda: loader.config.batch_size,
        num_classes=num_classes,
    )
    task = FinetuneTask(
        model=model,
        runtime=runtime,
        precision=flags.precision,
        accum_iter=flags.accum_iter,
        label_smoothing=flags.smoothing,
        validation=validation,
        mix=mixer if mixer.config.enabled else None,
        best=BestAccuracy(logs),
    )
    settings = {"lr": schedule.lr, "weight_decay": flags.weight_decay}
    optimizer: torch.optim.Optimizer
    if flags.linear_probe:
        optimizer = LARS(model.head.parameters(), **settings)
    else:
        optimizer = open_layered_adamw(model, layer_decay=flags.layer_decay, **settings)
    parts = RunParts(schedule=schedule, lr_shares=lr_shares, loader=loader, logs=logs)
    return flags.torch_training(task, optimizer, parts, clip_grad_norm=flags.clip_grad)


def _open_loaders(flags: FinetuneMAE, data: Data, devices: Devices) -> tuple[Loader, Loader | None]:
    settings = flags.loader_config(devices, batch_size=flags.effective_batch(devices), image_size=flags.side)
    training = replace(settings, scale=(flags.min_crop, 1.0), transform=flags.transform(), processes=flags.processes)
    resize = flags.side if flags.side > UNCROPPED_SIDE else None
    # Batches of evaluations have the size of one part, so that they fit into memory.
    evaluation = replace(settings, batch_size=settings.batch_size // flags.accum_iter, resize=resize)
    sizes = flags.batch_sizes(data.epoch_images, flags.epochs)
    loader, validation = data.loaders(training, evaluation, sizes=sizes, tells=not flags.eval)
    loader.set_epoch(flags.start_epoch)
    return loader, validation


def evaluate(training: Training[Any]) -> int:
    """Print loss and accuracy on the validation images; return the exit code. Raises UsageError if there are no
    validation images."""
    with training.loader, contextlib.closing(training.backend):
        found = training.backend.evaluate(lambda: False)
    if not found:
        raise UsageError(
            f"{training.loader.dataset.data_url}: no split to evaluate on; expected val, validation or test"
        )
    refuse_not_finite(training.loader.dataset.data_url, found, "evaluate an earlier checkpoint")
    click.echo(json.dumps({name: value for name, value in found.items() if name != "best_accuracy"}))
    return 0


def _open_model(flags: FinetuneMAE, weights: Weights | None, num_classes: int) -> VisionTransformer:
    """Make a classifier with pretrained weights or random ones of the seed; for `eval` with a checkpoint's."""
    torch.manual_seed(flags.seed)
    config = ClassifierConfig(
        image_size=flags.side,
        num_classes=num_classes,
        pool=flags.pool,
        drop_path=flags.drop_path,
        linear_probe=flags.linear_probe,
    )
    model = open_classifier(flags.model, weights, config)
    if flags.eval and weights is not None:
        load_whole(model, weights)
    return model


def _tell_first_weights(flags: FinetuneMAE, weights: Weights | None, model: VisionTransformer, logs: Logs) -> None:
    """Log the model that a run trains, and the source of its initial weights; an evaluation logs nothing."""
    if flags.eval:
        return
    if flags.init:
        first = f"the weights of `init` {flags.init}"
    elif weights is not None:
        first = origin(model, weights)
    else:
        first = "random weights, because `finetune` is not given"
    name = flags.model or (DEFAULT_ENCODER if weights is None else weights.name)
    logs.tell(f"{name}, images of {flags.side} pixels, {counted(model.config.num_classes, 'class')}; {first}")


def _weights(flags: FinetuneMAE) -> Weights | None:
    """Read the weights to begin with, or to evaluate."""
    if not flags.eval:
        return read_weights(flags.finetune) if flags.finetune else None
    if flags.resume != AUTOMATIC:
        return read_weights(flags.resume)
    folder = CheckpointFolder(flags.output_dir, codec=NUMPY)  # weights of both frameworks are evaluated in either
    found = folder.newest_valid(lambda line: click.echo(line, err=True))
    if found is None:
        raise UsageError(f"{flags.output_dir}: no undamaged checkpoint to evaluate; name one with `resume`")
    return weights_of(f"{flags.output_dir}/{found[0].name}", found[1])


def train(flags: FinetuneMAE) -> int:
    """Train, evaluate a checkpoint, or measure what the training would wait for; return the exit code."""
    if flags.is_jax:
        join_jax(flags.device)
    training = open_training(flags)
    return evaluate(training) if flags.eval else run(training, flags, model=flags.model or "finetune_mae")


command = entry_of(FinetuneMAE, train, "dataprep-finetune-mae", epilog=EPILOG, refused=REFUSED)
main = partial(run_entry, command)


if __name__ == "__main__":
    main()
