"""Pretrain a masked autoencoder: long sequences, coarse masks, any of our datasets, XLA, CUDA or a CPU.

    python -m train.pretrain_mae --data_path gs://bucket/coco-dup5 --output_dir gs://bucket/runs/mae \\
        --log_dir logs --model mae_vit_base_patch16_dec384d12h8b --effective_batch_size 4096 --batch_size -1 \\
        --input_size 448 --mask_downsampling 2 --norm_pix_loss --epochs 800 --blr 1.5e-4 --use_xla --resume automatic

Shapes: N images of this host, H x W pixels, C = 3 channels, L patches of an image, K of them visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import click
import torch

from loaders.config import LoaderConfig
from loaders.loader import Loader
from loaders.torch import TorchBatch, normalize
from train.checkpoint import CheckpointFolder
from train.data import IMAGENET_MEAN, IMAGENET_STD, open_data
from train.entry import run, run_entry
from train.flags import flags_of
from train.logs import Logs
from train.loop import Task, Training
from train.mae_flags import Flags
from train.masks import MaskConfig, draw_masks
from train.models import mae_config
from train.models.mae import MaskedAutoencoder
from train.optimizer import open_adamw
from train.reconstruction import reconstruction_png
from train.run_flags import REFUSED
from train.runtime import Runtime, open_autocast, open_runtime

_PICTURE_IMAGES = 4
EPILOG = """\b
Examples:
  python -m train.pretrain_mae --data_path shards/coco-dup5 --model mae_vit_tiny_patch16 --device cpu --epochs 2 \\
      --warmup_epochs 1
  python -m train.pretrain_mae --data_path /data/imagenet --use_xla --batch_size -1 --effective_batch_size 4096 \\
      --norm_pix_loss --blr 1.5e-4 --resume automatic --output_dir runs/mae

\b
Exit codes: 0 trained; 1 the loss was not finite, or a disk or bucket failed; 2 usage or input; 143 stopped by a
signal after a checkpoint: the same command with --resume automatic goes on.
"""


@dataclass(kw_only=True)
class MAETask(Task):
    """The loss of a batch."""

    model: MaskedAutoencoder
    runtime: Runtime
    masks: MaskConfig
    loader: Loader
    seed: int
    accum_iter: int
    precision: str

    def parts(self, batch: TorchBatch, positions: range) -> Iterator[torch.Tensor]:
        """Every accum_iter-th row is a part: rows that lie on one device stay there."""
        masks = draw_masks(self.masks, seed=self.seed, positions=positions)
        visible_NK, place_NL = (
            self.runtime.put(torch.from_numpy(each)).long() for each in (masks.visible_NK, masks.place_NL)
        )
        for part in range(self.accum_iter):
            images_NHWC, visible, place = (
                each.view(-1, self.accum_iter, *each.shape[1:])[:, part]
                for each in (batch.images, visible_NK, place_NL)
            )
            with open_autocast(self.runtime.device, self.precision):
                loss: torch.Tensor = self.model(_normalised(images_NHWC), visible, place).loss
            yield loss

    def picture(self, weights: dict[str, Any], step: int, logs: Logs) -> None:
        """The same few images each time, on the host's processor: no device has to compile anything for it."""
        if logs.folder is None:
            return
        model = MaskedAutoencoder(self.model.config)
        model.load_state_dict(weights)
        masks = draw_masks(self.masks, seed=self.seed, positions=range(len(self._shown)))
        visible_NK, place_NL = (torch.from_numpy(each).long() for each in (masks.visible_NK, masks.place_NL))
        png, height, width = reconstruction_png(
            model, self._shown, _normalised(self._shown), visible_NK, place_NL, mean=IMAGENET_MEAN, std=IMAGENET_STD
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


def open_training(flags: Flags) -> Training:
    """All that a run needs: devices, loader, model, optimiser; nothing is trained yet."""
    runtime = open_runtime(flags.device_name, pin_memory=flags.pin_mem)
    batch = flags.effective_batch(runtime)
    config = mae_config(flags.model, image_size=flags.input_size, **flags.model_options())
    masks = MaskConfig(grid=config.grid, ratio=flags.mask_ratio, unit=flags.mask_downsampling)
    schedule = flags.schedule(batch)
    data = open_data(flags.data_path, index_dir=flags.index_dir, region_policy=flags.region_policy)
    loader = data.training_loader(
        batch_size=batch,
        seed=flags.seed,
        rank=runtime.rank,
        world_size=runtime.world_size,
        image_size=flags.input_size,
        scale=(flags.min_crop, flags.max_crop),
        clip_crop=flags.use_byol_crop,
        threads=flags.num_workers,
        region_policy=flags.region_policy,
    )
    loader.set_epoch(flags.start_epoch)
    torch.manual_seed(flags.seed)
    model = MaskedAutoencoder(config).to(runtime.device)
    return Training(
        config=flags.loop_config(),
        runtime=runtime,
        model=model,
        optimizer=open_adamw(model, lr=schedule.lr, weight_decay=flags.weight_decay),
        schedule=schedule,
        loader=loader,
        task=MAETask(
            model=model,
            runtime=runtime,
            masks=masks,
            loader=loader,
            seed=flags.seed,
            accum_iter=flags.accum_iter,
            precision=flags.precision,
        ),
        logs=Logs(flags.log_folder, enabled=runtime.rank == 0),
        checkpoints=CheckpointFolder(flags.output_dir, keep=flags.keep_checkpoints) if flags.output_dir else None,
        description=asdict(flags),
    )


@click.command("pretrain_mae", epilog=EPILOG, context_settings={"max_content_width": 110})
@flags_of(Flags, REFUSED)
def command(**values: Any) -> int:
    """Pretrain a masked autoencoder (He et al., 2022; Hu et al., 2022)."""
    flags = Flags(**values)
    return run(open_training(flags), flags, name=flags.model)


def main() -> None:
    """Entry point."""
    run_entry(command)


if __name__ == "__main__":
    main()
