"""Pretrain a masked autoencoder: long sequences, coarse masks, any of our datasets, in PyTorch or JAX.

    dataprep-pretrain-mae --data_path gs://bucket/coco-dup5 --output_dir gs://bucket/runs/mae \\
        --log_dir logs --model mae_vit_base_patch16_dec384d12h8b --effective_batch_size 4096 --batch_size -1 \\
        --input_size 448 --mask_downsampling 2 --norm_pix_loss --epochs 800 --blr 1.5e-4 --use_xla --resume automatic
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from loaders.loader import Loader
from loaders.packs import Packs
from train.batches.masks import MaskConfig, PackMaskConfig
from train.flags.jax import JaxRun, ShardingFlags, join_jax, open_jax_devices
from train.flags.options import (
    COUNT,
    COUNT_OR_UNSET,
    SHARE,
    SHARE_ABOVE_0,
    SIDE,
    EntryCommand,
    flag,
    flags_of,
    redefined,
    run,
    run_entry,
)
from train.flags.shared import REFUSED, UNSET, PackFlags, RecipeFlags, check_packs, fitted_warmup
from train.loops.backend import Devices
from train.loops.loop import Training
from train.models.sizes import MAEConfig, mae_config

if TYPE_CHECKING:
    from train.loops.jax import JaxBackend
    from train.loops.mae import MAETask
    from train.loops.packed import PackedMAETask
    from train.loops.runtime import Runtime
    from train.loops.torch import TorchBackend

BETAS = (0.9, 0.95)
"""Betas of AdamW in the MAE recipe."""
EPILOG = """\b
Examples:
  dataprep-pretrain-mae --data_path shards/coco-dup5 --model mae_vit_tiny_patch16 --device cpu --epochs 2 \\
      --warmup_epochs 1
  dataprep-pretrain-mae --data_path /data/imagenet --use_xla --batch_size -1 --effective_batch_size 4096 \\
      --norm_pix_loss --blr 1.5e-4 --resume automatic --output_dir runs/mae
  dataprep-pretrain-mae --data_path gs://bucket/imagenet --use_xla --effective_batch_size 4096 --norm_pix_loss \\
      --pack_tokens 1024 --pack_images 8
  dataprep-pretrain-mae --framework jax --data_path gs://bucket/imagenet --effective_batch_size 4096 --fsdp \\
      --precision bfloat16 --norm_pix_loss --blr 1.5e-4 --resume automatic --output_dir gs://bucket/runs/mae

\b
Exit codes: 0 trained; 1 the loss or a weight was not finite, or a disk or bucket failed; 2 usage or input; 3 undecided,
with --diagnose; 143 stopped by a signal after a checkpoint: the same command with --resume automatic continues.
"""


@dataclass(frozen=True, kw_only=True)
class Flags(ShardingFlags, PackFlags, RecipeFlags):
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
        self.check_framework(
            torch={
                "use_xla": self.use_xla,
                "device xla": self.device == "xla",
                "pin_mem": self.pin_mem is not None,
                "pack_tokens": bool(self.pack_tokens),
            },
            jax={"fsdp": self.fsdp, "grad_ckpt": self.grad_ckpt},
        )
        self.refuse_with_packs({"diagnose": self.diagnose, "use_byol_crop": self.use_byol_crop})
        self.refuse_with_packs({"compile": self.compile})
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


def open_training(flags: Flags) -> Training[Any]:
    """Open all that a run needs: devices, loader, model, optimiser; nothing is trained yet."""
    config = mae_config(flags.model, image_size=flags.input_size, **flags.model_options())
    return _open_jax(flags, config) if flags.is_jax else _open_torch(flags, config)


def _open_jax(flags: Flags, config: MAEConfig) -> Training[JaxBackend]:
    devices = open_jax_devices(flags.tensor_parallel)

    from train.loops.jax_transformer_steps import MAETask, Settings
    from train.models.jax_transformers import MaskedAutoencoder

    batch = flags.effective_batch(devices)
    return JaxRun(
        flags=flags,
        devices=devices,
        is_orbax=flags.orbax,
        task=MAETask(
            model=MaskedAutoencoder(config, flags.computation(devices, flags.precision, remat=flags.grad_ckpt)),
            masks=_masks(flags, config),
            seed=flags.seed,
        ),
        settings=Settings(
            weight_decay=flags.weight_decay,
            betas=BETAS,
            accum_iter=flags.accum_iter,
            ema_decay=flags.ema_decay,
            fsdp=flags.fsdp,
            seed=flags.seed,
        ),
        schedule=flags.schedule(batch),
        config=flags.loop_config(),
        loader=_open_loader(flags, devices, batch, None),
    ).open()


def _open_torch(flags: Flags, config: MAEConfig) -> Training[TorchBackend]:
    import torch

    from train.loops.torch import TorchBackend, compile_network
    from train.optim.optimizer import open_adamw

    runtime = flags.open_runtime()
    batch = flags.effective_batch(runtime)
    packs = flags.packs(config.patch_size, crop=(flags.min_crop, flags.max_crop))
    if packs is not None:
        check_packs(packs, batch, runtime, flags.accum_iter)
    schedule = flags.schedule(batch)
    loader = _open_loader(flags, runtime, batch, packs)
    torch.manual_seed(flags.seed)
    task = (
        _squares_task(flags, config, runtime, loader) if packs is None else _packs_task(flags, config, runtime, packs)
    )
    if flags.compile:
        compile_network(task.model, runtime.device)
    return Training(
        config=flags.loop_config(),
        backend=TorchBackend(
            runtime=runtime,
            model=task.model,
            optimizer=open_adamw(task.model, lr=schedule.lr, weight_decay=flags.weight_decay, betas=BETAS),
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


def _open_loader(flags: Flags, devices: Devices, batch: int, packs: Packs | None) -> Loader:
    settings = flags.loader_config(devices, batch_size=batch, image_size=flags.input_size)
    loader = flags.open_data().training_loader(
        replace(settings, scale=(flags.min_crop, flags.max_crop), clip_crop=flags.use_byol_crop, packs=packs)
    )
    loader.set_epoch(flags.start_epoch)
    return loader


def _masks(flags: Flags, config: MAEConfig) -> MaskConfig:
    return MaskConfig(grid=config.grid, ratio=flags.mask_ratio, unit=flags.mask_downsampling)


def _squares_task(flags: Flags, config: MAEConfig, runtime: Runtime, loader: Loader) -> MAETask:
    from train.loops.mae import MAETask
    from train.models.mae import MaskedAutoencoder

    return MAETask(
        model=MaskedAutoencoder(config).to(runtime.device),
        runtime=runtime,
        masks=_masks(flags, config),
        loader=loader,
        seed=flags.seed,
        accum_iter=flags.accum_iter,
        precision=flags.precision,
    )


def _packs_task(flags: Flags, config: MAEConfig, runtime: Runtime, packs: Packs) -> PackedMAETask:
    from train.loops.packed import PackedMAETask
    from train.models.packed import PackedMAE

    return PackedMAETask(
        model=PackedMAE(config, packs, flags.position_kind).to(runtime.device),
        runtime=runtime,
        masks=PackMaskConfig(packs=packs, ratio=flags.mask_ratio),
        seed=flags.seed,
        accum_iter=flags.accum_iter,
        precision=flags.precision,
    )


@click.command("dataprep-pretrain-mae", cls=EntryCommand, epilog=EPILOG, context_settings={"max_content_width": 110})
@flags_of(Flags, REFUSED)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> int:
    """Pretrain a masked autoencoder (He et al., 2022; Hu et al., 2022)."""
    flags = fitted_warmup(Flags(**values), context, Flags.epochs)
    if flags.is_jax:
        join_jax(flags.device)
    return run(open_training(flags), flags, model=flags.model)


def main() -> None:
    """Run the program."""
    run_entry(command)


if __name__ == "__main__":
    main()
