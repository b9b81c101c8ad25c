"""Pretrain a masked autoencoder: long sequences, coarse masks, any of our datasets, in PyTorch or JAX.

    dataprep-pretrain-mae --data-path gs://bucket/coco-dup5 --output-dir gs://bucket/runs/mae \\
        --log-dir logs --model mae_vit_base_patch16_dec384d12h8b --effective-batch-size 4096 --batch-size -1 \\
        --input-size 448 --mask-downsampling 2 --norm-pix-loss --epochs 800 --blr 1.5e-4 --use-xla --resume automatic
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dataprep.arguments import IMAGES, request
from loaders.loader import Loader
from loaders.packs import Packs
from train.batches.data import Data
from train.batches.masks import MaskConfig, PackMaskConfig
from train.flags.jax import ShardingOptions, join_jax, open_jax_devices
from train.flags.options import (
    COUNT,
    COUNT_OR_UNSET,
    MODEL,
    SHARE,
    SHARE_ABOVE_0,
    SIDE,
    entry_of,
    flag,
    redefined,
    run,
    run_entry,
)
from train.flags.shared import REFUSED, UNSET, PackOptions, RecipeOptions, RunParts, check_packs
from train.loops.backend import Devices
from train.loops.loop import Training
from train.models.sizes import MAEConfig, mae_config

if TYPE_CHECKING:
    from train.loops.jax import JaxBackend
    from train.loops.runtime import Runtime
    from train.loops.tasks import MAETask, PackedMAETask
    from train.loops.torch import TorchBackend

BETAS = (0.9, 0.95)
"""Betas of AdamW in the MAE recipe."""
EPILOG = """\b
Examples:
  dataprep-pretrain-mae --data-path shards/coco-dup5 --model mae_vit_tiny_patch16 --device cpu --epochs 2 \\
      --warmup-epochs 1
  dataprep-pretrain-mae --data-path /data/imagenet --use-xla --batch-size -1 --effective-batch-size 4096 \\
      --norm-pix-loss --blr 1.5e-4 --resume automatic --output-dir runs/mae
  dataprep-pretrain-mae --data-path gs://bucket/imagenet --use-xla --effective-batch-size 4096 --norm-pix-loss \\
      --pack-tokens 1024 --pack-images 8
  dataprep-pretrain-mae --framework jax --data-path gs://bucket/imagenet --effective-batch-size 4096 --fsdp \\
      --precision bfloat16 --norm-pix-loss --blr 1.5e-4 --resume automatic --output-dir gs://bucket/runs/mae

\b
Exit codes: 0 trained; 1 the loss or a weight was not finite, or a disk or bucket failed; 2 usage or input; 3 undecided,
with --diagnose; 143 stopped by a signal after a checkpoint: the same command with --resume automatic continues.
"""


@request
class PretrainMAE(ShardingOptions, PackOptions, RecipeOptions):
    """Pretrain a masked autoencoder (He et al., 2022; Hu et al., 2022)."""

    model: str = flag("mae_vit_large_patch16", "Name of the encoder, patch size and decoder.", MODEL)
    input_size: int = flag(224, "Side of the images, pixels.", IMAGES, SIDE)
    patch_size: int = flag(UNSET, "Side of a patch, pixels; -1: from the model's name.", MODEL, COUNT_OR_UNSET)
    decoder_embed_dim: int = flag(UNSET, "Width of the decoder; -1: the model's.", MODEL, COUNT_OR_UNSET, rare=True)
    decoder_depth: int = flag(UNSET, "Blocks of the decoder; -1: the model's.", MODEL, COUNT_OR_UNSET, rare=True)
    no_k_bias_in_vit: bool = flag(False, "Leave out the key bias in attention, as BEiT does.", MODEL, rare=True)
    norm_pix_loss: bool = flag(False, "Predict pixels standardised within each patch.", MODEL)
    mask_ratio: float = flag(0.75, "Fraction of the patches to mask.", MODEL, SHARE)
    mask_downsampling: int = flag(1, "Side, in patches, of the squares that are masked together.", MODEL, COUNT)
    decoder_downsampling: int = flag(1, "Side, in patches, of one token of the decoder.", MODEL, COUNT, rare=True)
    pred_downsampling: int = flag(1, "Side, in patches, of one prediction.", MODEL, COUNT, rare=True)

    min_crop: float = redefined(RecipeOptions, "min_crop", default=0.2)
    max_crop: float = flag(
        1.0, "Largest crop area, as a fraction of the image's area.", IMAGES, SHARE_ABOVE_0, rare=True
    )
    use_byol_crop: bool = flag(
        False,
        "Clip a crop that exceeds the image, as BYOL does, instead of drawing a new crop.",
        IMAGES,
        rare=True,
    )

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


def open_training(flags: PretrainMAE) -> Training[Any]:
    """Open devices, loader, model and optimiser; nothing is trained yet."""
    config = mae_config(flags.model, image_size=flags.input_size, **flags.model_options())
    return _open_jax(flags, config) if flags.is_jax else _open_torch(flags, config)


def _open_jax(flags: PretrainMAE, config: MAEConfig) -> Training[JaxBackend]:
    devices = open_jax_devices(flags.tensor_parallel)

    from train.loops.jax_transformer_steps import MAETask, Settings
    from train.models.jax_transformers import MaskedAutoencoder

    data = flags.open_data()
    lr_shares, flags = flags.lr_shares, flags.fitted_to(data.epoch_images, devices)
    loader = _open_loader(flags, data, devices, None)
    computation = flags.computation(devices, flags.precision, remat=flags.grad_ckpt)
    model = MaskedAutoencoder(config, computation)
    return flags.jax_training(
        devices,
        MAETask(model=model, masks=_masks(flags, config), loader=loader, seed=flags.seed),
        Settings(weight_decay=flags.weight_decay, betas=BETAS, fsdp=flags.fsdp),
        RunParts(schedule=flags.schedule(), lr_shares=lr_shares, loader=loader),
    )


def _open_torch(flags: PretrainMAE, config: MAEConfig) -> Training[TorchBackend]:
    import torch

    from train.loops.torch import compile_network
    from train.optim.optimizer import open_adamw

    runtime = flags.open_runtime()
    data = flags.open_data()
    lr_shares, flags = flags.lr_shares, flags.fitted_to(data.epoch_images, runtime)
    packs = flags.packs(config.patch_size, crop=(flags.min_crop, flags.max_crop))
    if packs is not None:
        check_packs(packs, flags.first_batch or flags.effective_batch(runtime), runtime, flags.accum_iter)
    schedule = flags.schedule()
    loader = _open_loader(flags, data, runtime, packs)
    torch.manual_seed(flags.seed)
    task = _torch_task(flags, config, runtime, loader, packs)
    if flags.compile:
        compile_network(task.model, runtime.device)
    optimizer = open_adamw(task.model, lr=schedule.lr, weight_decay=flags.weight_decay, betas=BETAS)
    return flags.torch_training(task, optimizer, RunParts(schedule=schedule, lr_shares=lr_shares, loader=loader))


def _open_loader(flags: PretrainMAE, data: Data, devices: Devices, packs: Packs | None) -> Loader:
    settings = flags.loader_config(devices, batch_size=flags.effective_batch(devices), image_size=flags.input_size)
    loader = data.training_loader(
        replace(settings, scale=(flags.min_crop, flags.max_crop), clip_crop=flags.use_byol_crop, packs=packs),
        flags.batch_sizes(data.epoch_images, flags.epochs),
    )
    loader.set_epoch(flags.start_epoch)
    return loader


def _masks(flags: PretrainMAE, config: MAEConfig) -> MaskConfig:
    return MaskConfig(grid=config.grid, ratio=flags.mask_ratio, unit=flags.mask_downsampling)


def _torch_task(
    flags: PretrainMAE, config: MAEConfig, runtime: Runtime, loader: Loader, packs: Packs | None
) -> MAETask | PackedMAETask:
    from train.loops.tasks import MAETask, PackedMAETask
    from train.models.mae import MaskedAutoencoder
    from train.models.packed import PackedMAE

    shared: Mapping[str, Any] = {name: getattr(flags, name) for name in ("precision", "accum_iter", "seed")}
    if packs is None:
        squares = MaskedAutoencoder(config).to(runtime.device)
        return MAETask(model=squares, masks=_masks(flags, config), loader=loader, runtime=runtime, **shared)
    model = PackedMAE(config, packs, flags.pack_positions).to(runtime.device)
    masks = PackMaskConfig(packs=packs, ratio=flags.mask_ratio)
    return PackedMAETask(model=model, masks=masks, runtime=runtime, **shared)


def train(flags: PretrainMAE) -> int:
    """Train, or measure what the training would wait for; return the exit code."""
    if flags.is_jax:
        join_jax(flags.device)
    return run(open_training(flags), flags, model=flags.model)


command = entry_of(PretrainMAE, train, "dataprep-pretrain-mae", epilog=EPILOG, refused=REFUSED)
main = partial(run_entry, command)


if __name__ == "__main__":
    main()
