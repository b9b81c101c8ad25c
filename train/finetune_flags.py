"""The flags of `train.finetune_mae`: those of MAE's fine-tuning and linear probing with their meaning, and ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dataprep.cpu import available_cores
from dataprep.errors import UsageError
from loaders.config import MAX_THREADS
from train.finetune_augment import ERASE_MODES, Erasing, FinetuneAugment
from train.flags import flag
from train.mixing import MODES, MixConfig
from train.recipe_flags import RecipeFlags
from train.run_flags import REFUSED as LAUNCHERS

REFUSED = LAUNCHERS | {
    "resplit": "images are augmented once, there are no splits of augmentations to spare from erasing"
}
NOT_PROBED: dict[str, Any] = {
    "drop_path": 0.0,
    "layer_decay": 1.0,
    "smoothing": 0.0,
    "mixup": 0.0,
    "cutmix": 0.0,
    "cutmix_minmax": None,
    "aa": "",
    "color_jitter": 0.0,
    "reprob": 0.0,
}
"""What a linear probe does without, and the values that say so."""
LINEAR_PROBE: dict[str, Any] = NOT_PROBED | {
    "epochs": 90,
    "batch_size": 512,
    "blr": 0.1,
    "min_lr": 0.0,
    "warmup_epochs": 10.0,
    "weight_decay": 0.0,
    "global_pool": False,
}
"""Defaults of --linear_probe."""


def _probed(text: str, name: str) -> str:
    return f"{text} Of --linear_probe: {LINEAR_PROBE[name]:g}."


@dataclass(frozen=True, kw_only=True)
class Flags(RecipeFlags):
    """All that the command line may say; the defaults are fine-tuning's."""

    model: str | None = flag(
        None, "Encoder, e.g. vit_base_patch16; default: that of --finetune, or vit_large_patch16.", also=("arch",)
    )
    finetune: str = flag(
        "", "Pretrained weights: a checkpoint of ours, a published MAE file, or timm's, on disk or gs://."
    )
    linear_probe: bool = flag(False, "Train a linear layer on the frozen encoder.")
    input_size: int = flag(224, "Side of the images, pixels; positions are resized to it.")
    nb_classes: int | None = flag(None, "Logits; default: the data's classes.", also=("num_classes",))
    global_pool: bool = flag(True, "The mean of all patches is classified; --linear_probe: off.", either=True)
    cls_token: bool = flag(False, "The class token is classified; the same as --no_global_pool.")
    drop_path: float = flag(0.1, "Probability to leave out a branch of the last block; less of earlier ones.")

    epochs: int = flag(50, _probed("Epochs to train.", "epochs"))
    batch_size: int | None = flag(
        None, "Images of one device and one part; -1: from effective_batch_size. Default 64, of --linear_probe 512."
    )
    blr: float = flag(1e-3, _probed("Base learning rate, of a batch of 256.", "blr"))
    min_lr: float = flag(1e-6, _probed("Learning rate at the end.", "min_lr"))
    warmup_epochs: float = flag(5.0, _probed("Linear rise of the learning rate, in epochs.", "warmup_epochs"))
    weight_decay: float = flag(0.05, _probed("Of weights; biases, norms and tokens have none.", "weight_decay"))
    layer_decay: float = flag(0.75, "Learning rate of a layer as a share of the next one's.")
    clip_grad: float = flag(0.0, "Longest gradient, of all parameters together; 0: as it is.")

    smoothing: float = flag(0.1, "Share of a label that all classes get.")
    mixup: float = flag(0.0, "Both parameters of the distribution of shares when images are mixed; 0: they are not.")
    cutmix: float = flag(0.0, "The same when boxes are cut out of one and put into the other.")
    cutmix_minmax: tuple[float, float] | None = flag(
        None, "Least and largest side of the boxes, as shares; for cutmix."
    )
    mixup_prob: float = flag(1.0, "That a batch is mixed at all.")
    mixup_switch_prob: float = flag(0.5, "Of boxes, where both are on.")
    mixup_mode: str = flag("batch", "One draw for a batch, for two partners, or for each image.", choices=MODES)
    aa: str = flag("rand-m9-mstd0.5-inc1", "timm's name of an augmentation; '': none.")
    color_jitter: float = flag(0.0, "Brightness, contrast, saturation change by up to this factor; with --aa ''.")
    reprob: float = flag(0.25, "Of an image to have a box erased.")
    remode: str = flag("pixel", "The mean colour, one random colour, or one for each pixel.", choices=ERASE_MODES)
    recount: int = flag(1, "Most boxes of an image.")

    num_workers: int | None = flag(
        None,
        "Processes that decode and augment; 0: threads of this one do, the default where images are only cropped and "
        "flipped. Else one a core, at most 16.",
    )
    eval: bool = flag(False, "Evaluate --resume, print the numbers as JSON, and end.")
    dist_eval: bool = flag(False, "All devices share the evaluation, each image counts once: always so.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.linear_probe:
            for name, value in NOT_PROBED.items():
                if getattr(self, name) != value:
                    raise UsageError(
                        f"--{name} and --linear_probe: a probe trains one linear layer on images that are cropped and "
                        f"flipped; leave --{name} out"
                    )
            if not self.finetune and not self.eval:
                raise UsageError("--linear_probe without --finetune: give the weights that are probed")
        if not 0 <= self.smoothing < 1:
            raise UsageError(f"--smoothing must be at least 0 and below 1, got {self.smoothing}")
        if self.eval and not self.resume:
            raise UsageError("--eval without --resume: give the checkpoint to evaluate, or `automatic`")
        self.mix_config()

    @property
    def pool(self) -> str:
        """As `ViTConfig.pool`."""
        return "average" if self.global_pool and not self.cls_token else "token"

    def mix_config(self) -> MixConfig:
        """How images are mixed."""
        return MixConfig(
            mixup=self.mixup,
            cutmix=self.cutmix,
            cutmix_minmax=self.cutmix_minmax,
            prob=self.mixup_prob,
            switch_prob=self.mixup_switch_prob,
            mode=self.mixup_mode,
        )

    def transform(self) -> FinetuneAugment | None:
        """What happens to an image after its crop and flip; None for nothing."""
        erasing = Erasing(prob=self.reprob, mode=self.remode, count=self.recount)
        if not (self.aa or self.color_jitter or self.reprob):
            return None
        return FinetuneAugment(
            policy=self.aa, color_jitter=self.color_jitter, erasing=erasing, image_size=self.input_size
        )

    @property
    def processes(self) -> int:
        """That decode, beside this one: an augmentation holds the interpreter, so that threads would wait in a row."""
        if self.num_workers is not None:
            return self.num_workers
        return min(MAX_THREADS, available_cores()) if self.aa or self.color_jitter or self.reprob else 0


def recipe_flags(**given: Any) -> Flags:
    """Flags with the defaults of fine-tuning, or of linear probing where that is given."""
    defaults = LINEAR_PROBE if given.get("linear_probe") else {}
    if given.get("effective_batch_size"):
        defaults = {name: value for name, value in defaults.items() if name != "batch_size"}
    return Flags(**{**defaults, **given})
