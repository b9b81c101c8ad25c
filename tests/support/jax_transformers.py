"""Transformers in JAX beside those in PyTorch, in a process of JAX's own.

python -m tests.support.jax_transformers parity [whole]            largest differences of outputs and weights, as JSON
python -m tests.support.jax_transformers runs DATASET FOLDER       what runs of the entries did, as JSON
python -m tests.support.jax_transformers variants DATASET FOLDER   likewise, with other flags
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from dataprep.errors import DataprepError
from loaders import MixtureSource, mixture, open_loader
from loaders.torch import normalize
from tests.support.training import SMALL, log_lines, losses
from train import pretrain_mae, train_vit
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.batches.masks import MaskConfig, draw_masks
from train.batches.mixing import MixConfig, Mixer, draw_mixes
from train.checkpoints.checkpoint import named_leaves
from train.checkpoints.encoder_weights import read_weights
from train.checkpoints.jax_weights import from_torch, to_torch
from train.loops.jax_transformer_steps import FinetuneTask, MAETask
from train.loops.tasks import mean_loss
from train.models import jax_transformers, mae, vit
from train.models.sizes import BlockConfig, MAEConfig, ViTConfig, mae_config

VIT = {
    "image_size": 32,
    "patch_size": 8,
    "embed_dim": 64,
    "num_heads": 2,
    "num_blocks": 2,
    "batch_size": 8,
    "num_classes": 8,
    "epochs": 3,
    "warmup_steps": 5,
    "log_interval_steps": 1,
    "num_workers": 2,
    "test_epoch_interval": 1,
}
"""Flags of a vision transformer that a processor trains in seconds."""

EVERY = {"ckpt_interval_steps": 1, "keep_checkpoints": 9}


def weights_for(model: Any, tensors: dict[str, np.ndarray], *inputs: Any) -> dict[str, Any]:
    """Return a network's weights, taken from PyTorch's."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
    named = named_leaves(shapes)
    arrays = from_torch("test", tensors, {name: leaf.shape for name, leaf in named})
    return jax.tree.unflatten(jax.tree.structure(shapes), [jnp.asarray(arrays[name]) for name, _ in named])


def tensors_of(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return all tensors of a model of PyTorch, on the host."""
    return {name: each.detach().numpy() for name, each in model.state_dict().items()}


def stir(model: torch.nn.Module) -> None:
    """Draw all weights anew, those too that begin as zeros and ones, which would hide that they are not used."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.05 * torch.randn(each.shape, generator=generator))


def mae_parity(config: MAEConfig, **computation: Any) -> dict[str, float]:
    """Largest differences of a masked autoencoder's outputs and of its weights after both ways."""
    theirs = mae.MaskedAutoencoder(config)
    stir(theirs)
    images = np.random.default_rng(0).normal(size=(3, config.image_size, config.image_size, 3)).astype(np.float32)
    masks = draw_masks(MaskConfig(grid=config.grid), seed=0, positions=range(3))
    with torch.no_grad():
        expected = theirs(
            torch.from_numpy(images).permute(0, 3, 1, 2),
            torch.from_numpy(masks.visible_NK).long(),
            torch.from_numpy(masks.place_NL).long(),
        )
    ours = jax_transformers.MaskedAutoencoder(config, jax_transformers.Computation(**computation))
    inputs = images, masks.visible_NK, masks.place_NL
    params = weights_for(ours, tensors_of(theirs), *inputs)
    found = jax.jit(ours.apply)({"params": params}, *inputs)
    mask = np.array([True, True, False])
    first_two = jax.jit(ours.apply)({"params": params}, *(each[:2] for each in inputs)).loss
    masked = jax.jit(ours.apply)({"params": params}, *inputs, mask).loss
    nothing = jax.jit(ours.apply)({"params": params}, *inputs, mask & False).loss
    return {
        "masked": float(abs(masked - first_two)),
        "nothing": float(abs(nothing)),
        "loss": float(abs(found.loss - expected.loss.numpy())),
        "prediction": float(np.abs(found.prediction - expected.prediction.numpy()).max()),
        "hidden": float(np.abs(found.hidden - expected.hidden.numpy()).max()),
        "weights": returned(params, tensors_of(theirs)),
    }


def vit_parity(config: ViTConfig, **computation: Any) -> dict[str, float]:
    """Largest differences of a classifier's logits and of its weights after both ways."""
    theirs = vit.VisionTransformer(config).eval()
    stir(theirs)
    images = np.random.default_rng(0).normal(size=(3, config.image_size, config.image_size, 3)).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    ours = jax_transformers.VisionTransformer(config, jax_transformers.Computation(**computation))
    params = weights_for(ours, tensors_of(theirs), images)
    found = jax.jit(ours.apply)({"params": params}, images)
    return {"logits": float(np.abs(found - expected).max()), "weights": returned(params, tensors_of(theirs))}


def mixed_loss_parity(config: ViTConfig) -> dict[str, float]:
    """Difference of the losses of mixed images of which some could not be read, and of none that could."""
    theirs = vit.VisionTransformer(config).eval()
    stir(theirs)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, config.image_size, config.image_size, 3)).astype(np.uint8)
    mix, found = MixConfig(mixup=0.8, cutmix=1.0, mode="elem"), {}
    ours = jax_transformers.VisionTransformer(config)
    params = weights_for(ours, tensors_of(theirs), images.astype(np.float32))
    task = FinetuneTask(model=ours, seed=1, mix=mix, label_smoothing=0.1)
    mixer = Mixer(config=mix, put=lambda rows: rows, seed=1, batch_size=lambda: 8, num_classes=config.num_classes)
    drawn = draw_mixes(mix, seed=1, positions=range(8), batch_size=8, image_size=config.image_size)
    for name, bad in (("some", [2, 4]), ("all", range(8))):
        labels = rng.integers(0, config.num_classes, 8)
        labels[list(bad)] = -1
        rows = images, labels, labels >= 0, images[::-1], labels[::-1], *drawn
        normal = normalize(torch.from_numpy(images), mean=IMAGENET_MEAN, std=IMAGENET_STD)
        known = torch.from_numpy(labels)
        with torch.no_grad():
            mixed, shares = mixer(normal, known, normal.flip(0), known.flip(0), range(8))
            due = mean_loss(theirs(mixed), shares, known >= 0, 0.1)
        found[name] = float(abs(task.loss(params, rows, jax.random.key(0)) - due.numpy()))
    return found


def gradient_memory() -> dict[str, int]:
    """Bytes that the gradient of a masked autoencoder needs for a batch of 8, by what its blocks keep."""
    kept = jax_transformers.KEPT
    found = {"dense": gradient_bytes(), "nothing": gradient_bytes(remat=True)}
    jax_transformers.KEPT = jax.checkpoint_policies.everything_saveable
    found["everything"] = gradient_bytes()
    jax_transformers.KEPT = kept
    return found


def gradient_bytes(**computation: Any) -> int:
    """Compile a gradient without computing it; return the bytes of its temporary arrays."""
    config = mae_config("mae_vit_tiny_patch16", image_size=224)
    model = jax_transformers.MaskedAutoencoder(config, jax_transformers.Computation(**computation))
    masks = MaskConfig(grid=config.grid)
    inputs = (
        jax.ShapeDtypeStruct((8, 224, 224, 3), "float32"),
        jax.ShapeDtypeStruct((8, masks.num_visible), "int32"),
        jax.ShapeDtypeStruct((8, masks.num_patches), "int32"),
    )
    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
    gradient = jax.jit(jax.grad(lambda params, *inputs: model.apply({"params": params}, *inputs).loss))
    found: int = gradient.lower(params, *inputs).compile().memory_analysis().temp_size_in_bytes
    return found


def returned(params: Any, tensors: dict[str, np.ndarray]) -> float:
    """Largest difference of trained weights that went to JAX and back."""
    back = to_torch({name: np.asarray(each) for name, each in named_leaves(params)})
    fixed = {"pos_embed", "decoder_pos_embed"} if "mask_token" in tensors else set()
    assert back.keys() == tensors.keys() - fixed
    return max(float(np.abs(back[name] - tensors[name]).max()) for name in back)


def parity() -> dict[str, Any]:
    """Compare two networks with most of the options that change which weights they have, and how they are computed."""
    coarse = mae_config(
        "mae_vit_micro_patch8",
        image_size=64,
        decoder_downsampling=4,
        pred_downsampling=2,
        k_bias=False,
        norm_pix_loss=True,
    )
    block = BlockConfig(dim=32, num_heads=2)
    config = ViTConfig(image_size=32, patch_size=8, depth=2, block=block, num_classes=5, pool="token", class_token=True)
    return {
        "coarse": mae_parity(coarse, remat=True),
        "memory": gradient_memory(),
        "token": vit_parity(config),
        "mixed": mixed_loss_parity(config),
    }


def run(entry: Any, folder: Path, **flags: Any) -> dict[str, Any]:
    """Train by an entry; return its losses, what it said, or its error."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            training = entry.open_training(entry.command.kind(output_dir=str(folder), **flags))
            training.resume(flags.get("resume", ""))
            training.run()
    except DataprepError as error:
        return {"error": str(error)}
    lines = [json.loads(line) for line in log_lines(folder)]
    evaluations = [line for line in lines if "val_loss" in line]
    return {"losses": losses(folder), "evaluations": evaluations, "said": said.getvalue()}


def runs(data: str, folder: Path) -> dict[str, Any]:
    """Train in both frameworks from the same checkpoint, with everything on that JAX can shard and compute again."""
    common = {"data_path": data, "device": "cpu", **SMALL, "norm_pix_loss": True}
    ours = {**common, "framework": "jax", "fsdp": True, "grad_ckpt": True, "ema_decay": 0.5}
    found = {"torch": run(pretrain_mae, folder / "torch", **common, **EVERY, max_steps=4)}
    first = checkpoint(folder / "torch", 1)
    found["whole"] = run(pretrain_mae, folder / "whole", **ours, max_steps=4, resume=first)
    for max_steps, resume in ((2, first), (4, "automatic")):
        found["parts"] = run(pretrain_mae, folder / "parts", **ours, orbax=True, max_steps=max_steps, resume=resume)
    for name in ("whole", "parts"):
        weights = read_weights(checkpoint(folder / name, 4))
        found[f"{name} weights"] = [weights.name, weights.image_size, weights.step, len(weights.tensors)]
    found["back"] = run(pretrain_mae, folder / "back", **common, resume=checkpoint(folder / "whole", 4))
    found["other masks"] = other_masks(data)
    return found


def other_masks(data: str) -> int:
    """Number of a mixture's samples whose mask is another one with two hosts."""
    mix = mixture([(data, 3, "train"), MixtureSource(url=data, split="val", name="val")])
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    found: list[Counter[tuple[str, bytes]]] = []  # a sample of the smaller dataset comes several times
    for world_size in (1, 2):
        found.append(Counter())
        for rank in range(world_size):
            with open_loader(mix, batch_size=16, image_size=8, rank=rank, world_size=world_size) as loader:
                task = MAETask(model=None, masks=MaskConfig(grid=8), loader=loader, seed=0)  # type: ignore[arg-type]
                for number, batch in zip(range(3), loader, strict=False):
                    rows = range(16 * number + rank, 16 * (number + 1), world_size)
                    visible = np.asarray(task.rows(batch, rows, sharding)[2])  # type: ignore[arg-type]
                    found[-1].update((key, each.tobytes()) for key, each in zip(batch.keys, visible, strict=True))
    assert found[0].total() == found[1].total()
    return (found[0] - found[1]).total()


def variants(data: str, folder: Path) -> dict[str, Any]:
    """Train with other flags, and vision transformers."""
    common = {"data_path": data, "device": "cpu", "max_steps": 4}
    small = {**common, **SMALL, "norm_pix_loss": True}
    found = {"torch": run(pretrain_mae, folder / "torch", **small, **EVERY)}
    first = checkpoint(folder / "torch", 1)
    flags: dict[str, dict[str, Any]] = {
        "plain": {},
        "heads": {"tensor_parallel": 2, "accum_iter": 2},
        "both": {"tensor_parallel": 2, "fsdp": True, "no_scan": True},
    }
    for name, each in flags.items():
        found[name] = run(pretrain_mae, folder / name, **small, **each, framework="jax", resume=first)
    found["vit torch"] = run(train_vit, folder / "vit torch", **common, **VIT, **EVERY)
    first = checkpoint(folder / "vit torch", 1)
    found["vit"] = run(train_vit, folder / "vit", **common, **VIT, framework="jax", resume=first)
    evaluated = {**VIT, "epochs": 1, "warmup_steps": 0, "mlp_dropout": 0.1}
    for name in ("dropout", "dropout again"):
        found[name] = run(train_vit, folder / name, **common, **evaluated, framework="jax")
    return found


def checkpoint(folder: Path, step: int) -> str:
    """Return the path of the checkpoint of a step."""
    (found,) = folder.glob(f"checkpoint-{step:09d}*")
    return str(found)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "parity":
        print(json.dumps(parity()))
    else:
        print(json.dumps({"runs": runs, "variants": variants}[what](rest[0], Path(rest[1]))))
