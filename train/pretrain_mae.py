"""Pretrain a masked autoencoder: long sequences, coarse masks, any of our datasets, XLA, CUDA or a CPU.

    dataprep-pretrain-mae --data_path gs://bucket/coco-dup5 --output_dir gs://bucket/runs/mae \\
        --log_dir logs --model mae_vit_base_patch16_dec384d12h8b --effective_batch_size 4096 --batch_size -1 \\
        --input_size 448 --mask_downsampling 2 --norm_pix_loss --epochs 800 --blr 1.5e-4 --use_xla --resume automatic

Shapes: N images of this host, H x W pixels, C = 3 channels, L patches of an image, K of them visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import click
import torch

from loaders.config import LoaderConfig
from loaders.loader import Loader
from loaders.packs.settings import Packs
from loaders.torch import TorchBatch, normalize
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.batches.masks import MaskConfig, draw_masks
from train.batches.pack_masks import PackMaskConfig
from train.flags.entry import EntryCommand, run, run_entry
from train.flags.options import COUNT, COUNT_OR_UNSET, SHARE, SHARE_ABOVE_0, SIDE, flag, flags_of, redefined
from train.flags.packs import PackFlags, check_packs
from train.flags.shared import REFUSED, UNSET, RecipeFlags
from train.loops.loop import Training
from train.loops.packed import PackedMAETask
from train.loops.runtime import Runtime, open_autocast
from train.loops.torch import Task, TorchBackend, rows_of_part
from train.models.mae import MAEConfig, MaskedAutoencoder
from train.models.packed import PackedMAE
from train.models.reconstruction import reconstruction_png
from train.models.registry import mae_config
from train.optim.optimizer import open_adamw
from train.telemetry.logs import Logs

_PICTURE_IMAGES = 4
"""Number of images in the picture that is made after each checkpoint."""
EPILOG = """\b
Examples:
  dataprep-pretrain-mae --data_path shards/coco-dup5 --model mae_vit_tiny_patch16 --device cpu --epochs 2 \\
      --warmup_epochs 1
  dataprep-pretrain-mae --data_path /data/imagenet --use_xla --batch_size -1 --effective_batch_size 4096 \\
      --norm_pix_loss --blr 1.5e-4 --resume automatic --output_dir runs/mae
  dataprep-pretrain-mae --data_path gs://bucket/imagenet --use_xla --effective_batch_size 4096 --norm_pix_loss \\
      --pack_tokens 1024 --pack_images 8

\b
Exit codes: 0 trained; 1 the loss was not finite, or a disk or bucket failed; 2 usage or input; 143 stopped by a
signal after a checkpoint: the same command with --resume automatic continues.
"""


@dataclass(frozen=True, kw_only=True)
class Flags(PackFlags, RecipeFlags):
    """Flags of long_seq_mae, and our own."""

    model: str = flag("mae_vit_large_patch16", "Name of encoder, patch and decoder.")
    input_size: int = flag(224, "Side of the images, pixels.", SIDE)
    patch_size: int = flag(UNSET, "Side of a patch, pixels; -1: as the model's name says.", COUNT_OR_UNSET)
    decoder_embed_dim: int = flag(UNSET, "Width of the decoder; -1: the model's.", COUNT_OR_UNSET)
    decoder_depth: int = flag(UNSET, "Blocks of the decoder; -1: the model's.", COUNT_OR_UNSET)
    no_k_bias_in_vit: bool = flag(False, "Leave out the bias of keys in attention, as BEiT does.")
    norm_pix_loss: bool = flag(False, "Predict pixels that are standardised in each patch.")
    mask_ratio: float = flag(0.75, "Share of the patches that are masked.", SHARE)
    mask_downsampling: int = flag(1, "Side, in patches, of the squares that are masked together.", COUNT)
    decoder_downsampling: int = flag(1, "Side, in patches, of one token of the decoder.", COUNT)
    pred_downsampling: int = flag(1, "Side, in patches, of one prediction.", COUNT)

    min_crop: float = redefined(RecipeFlags, "min_crop", default=0.2)
    max_crop: float = flag(1.0, "Largest area of a crop, as a share of the image's area.", SHARE_ABOVE_0)
    use_byol_crop: bool = flag(
        False, "Clip a crop that is larger than the image, as BYOL does, instead of drawing another one."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_with_packs({"diagnose": self.diagnose, "use_byol_crop": self.use_byol_crop})
        self.refuse_with_packs({"mask_downsampling": self.mask_downsampling > 1})

    def model_options(self) -> dict[str, object]:
        """Options of the model, as `mae_config` takes them."""
        own = {
            "patch_size": self.patch_size,
            "decoder_dim": self.decoder_embed_dim,
            "decoder_depth": self.decoder_depth,
        }
        return {
            "norm_pix_loss": self.norm_pix_loss,
            "decoder_downsampling": self.decoder_downsampling,
            "pred_downsampling": self.pred_downsampling,
            "k_bias": not self.no_k_bias_in_vit,
            **{name: value for name, value in own.items() if value != UNSET},
        }


@dataclass(kw_only=True)
class MAETask(Task):
    """Training of a masked autoencoder, with a picture of its predictions after each checkpoint."""

    model: MaskedAutoencoder
    runtime: Runtime
    masks: MaskConfig
    loader: Loader
    seed: int
    accum_iter: int
    precision: str

    def parts(self, batch: TorchBatch, positions: range) -> Iterator[torch.Tensor]:
        """Yield the losses of the parts that `rows_of_part` makes."""
        own = self.loader.positions(positions.start // self.loader.config.batch_size)
        masks = draw_masks(self.masks, seed=self.seed, positions=own)
        visible_NK, place_NL = (
            self.runtime.put(torch.from_numpy(each)).long() for each in (masks.visible_NK, masks.place_NL)
        )
        for part in range(self.accum_iter):
            images_NHWC, visible, place = (
                rows_of_part(each, part, self.accum_iter) for each in (batch.images, visible_NK, place_NL)
            )
            with open_autocast(self.runtime.device, self.precision):
                loss: torch.Tensor = self.model(_normalised(images_NHWC), visible, place).loss
            yield loss

    def picture(self, weights: Mapping[str, Any], step: int, logs: Logs) -> None:
        """Log predictions for the same few images each time, computed on the host so that no device compiles for it."""
        if logs.folder is None:
            return
        model = MaskedAutoencoder(self.model.config)
        model.load_state_dict(weights)
        masks = draw_masks(self.masks, seed=self.seed, positions=range(len(self._shown)))
        visible_NK, place_NL = (torch.from_numpy(each).long() for each in (masks.visible_NK, masks.place_NL))
        png, height, width = reconstruction_png(
            model, self._shown, visible_NK, place_NL, mean=IMAGENET_MEAN, std=IMAGENET_STD
        )
        logs.picture(step, "reconstruction", png, height=height, width=width)

    @cached_property
    def _shown(self) -> torch.Tensor:
        """The first images of the dataset, NHWC, uint8."""
        config = LoaderConfig(
            batch_size=min(_PICTURE_IMAGES, self.loader.order.num_samples),
            image_size=self.loader.config.image_size,
            shuffle=False,
            augment=False,
            threads=1,
        )
        with Loader(self.loader.dataset, config) as few:
            return torch.from_numpy(next(iter(few)).images.copy())


def _normalised(images_NHWC: torch.Tensor) -> torch.Tensor:
    return normalize(images_NHWC, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def open_training(flags: Flags) -> Training[TorchBackend]:
    """Open all that a run needs: devices, loader, model, optimiser; nothing is trained yet."""
    runtime = flags.open_runtime()
    batch = flags.effective_batch(runtime)
    config = mae_config(flags.model, image_size=flags.input_size, **flags.model_options())
    packs = flags.packs(config.patch_size, crop=(flags.min_crop, flags.max_crop))
    if packs is not None:
        check_packs(packs, batch, runtime, flags.accum_iter)
    schedule = flags.schedule(batch)
    settings = flags.loader_config(runtime, batch_size=batch, image_size=flags.input_size)
    loader = flags.open_data().training_loader(
        replace(settings, scale=(flags.min_crop, flags.max_crop), clip_crop=flags.use_byol_crop, packs=packs)
    )
    loader.set_epoch(flags.start_epoch)
    torch.manual_seed(flags.seed)
    task = (
        _squares_task(flags, config, runtime, loader) if packs is None else _packs_task(flags, config, runtime, packs)
    )
    return Training(
        config=flags.loop_config(),
        backend=TorchBackend(
            runtime=runtime,
            model=task.model,
            optimizer=open_adamw(task.model, lr=schedule.lr, weight_decay=flags.weight_decay),
            task=task,
            accum_iter=flags.accum_iter,
            agreement_steps=flags.log_interval_steps,
        ),
        schedule=schedule,
        loader=loader,
        logs=flags.open_logs(runtime),
        checkpoints=flags.open_checkpoints(),
        description=asdict(flags),
    )


def _squares_task(flags: Flags, config: MAEConfig, runtime: Runtime, loader: Loader) -> MAETask:
    return MAETask(
        model=MaskedAutoencoder(config).to(runtime.device),
        runtime=runtime,
        masks=MaskConfig(grid=config.grid, ratio=flags.mask_ratio, unit=flags.mask_downsampling),
        loader=loader,
        seed=flags.seed,
        accum_iter=flags.accum_iter,
        precision=flags.precision,
    )


def _packs_task(flags: Flags, config: MAEConfig, runtime: Runtime, packs: Packs) -> PackedMAETask:
    return PackedMAETask(
        model=PackedMAE(config, packs, flags.position_kind).to(runtime.device),
        runtime=runtime,
        masks=PackMaskConfig(packs=packs, ratio=flags.mask_ratio),
        seed=flags.seed,
        accum_iter=flags.accum_iter,
        precision=flags.precision,
    )


@click.command("pretrain_mae", cls=EntryCommand, epilog=EPILOG, context_settings={"max_content_width": 110})
@flags_of(Flags, REFUSED)
def command(**values: Any) -> int:
    """Pretrain a masked autoencoder (He et al., 2022; Hu et al., 2022)."""
    flags = Flags(**values)
    return run(open_training(flags), flags, model=flags.model)


def main() -> None:
    """Run the program."""
    run_entry(command)


if __name__ == "__main__":
    main()
