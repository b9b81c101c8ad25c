"""Base networks beside those of others with the same weights: the largest differences of their outputs.

timm is installed with this project, transformers with the benchmarks' peers. big_vision is on no package index: its
networks do not run here. What is shown of it is its layout of weights, as timm reads it: weights of ours, written by
big_vision's names, give timm's network our outputs.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np
import timm
import torch

from tests.support.jax_transformers import tensors_of, weights_for
from tests.support.markdown import ROOT
from tests.support.vitmae_reference import SIZES, inputs, is_fixed, places, weight
from train.checkpoints.encoder_weights import from_vitmae, to_vitmae
from train.models import jax_transformers, mae
from train.models.sizes import BlockConfig, MAEConfig, ViTConfig, mae_config

VIT = ViTConfig(image_size=224, patch_size=16, depth=12, block=BlockConfig(dim=768, num_heads=12), num_classes=1000)
TIMM = "vit_base_patch16_224"
PEERS = ROOT / ".bench-venv/bin/python"


def timm_and_big_vision(folder: Path) -> dict[str, float]:
    """Compare the logits of ViT-B/16: with timm's weights, and with ours that timm reads as big_vision's."""
    torch.manual_seed(0)
    theirs = timm.create_model(TIMM, num_classes=1000).eval()
    images = np.random.default_rng(0).normal(size=(4, 224, 224, 3)).astype(np.float32)
    ours = jax_transformers.VisionTransformer(VIT)
    params = weights_for(ours, tensors_of(theirs), images)
    apply = jax.jit(ours.apply)
    found = {"timm, ViT-B/16, logits": _difference(apply({"params": params}, images), _logits(theirs, images))}
    drawn = jax.jit(ours.init)(jax.random.key(1), images[:1])["params"]
    np.savez(folder / "big_vision.npz", **big_vision_names(jax.tree.map(np.asarray, drawn)))
    theirs.load_pretrained(str(folder / "big_vision.npz"))
    name = "big_vision's layout as timm reads it, ViT-B/16, logits"
    return found | {name: _difference(apply({"params": drawn}, images), _logits(theirs, images))}


def big_vision_names(params: Any) -> dict[str, np.ndarray]:
    """Return our weights by the names of big_vision's ViT, whose blocks are one loop, too."""
    blocks, top = params["blocks"], "params/Transformer/encoderblock"
    attention, qkv = f"{top}/MultiHeadDotProductAttention_0", blocks["attn"]["qkv"]
    modules = {
        "params/embedding": params["patch_embed"]["proj"],
        "params/Transformer/encoder_norm": params["norm"],
        "params/head": params["head"],
        f"{top}/LayerNorm_0": blocks["norm1"],
        f"{top}/LayerNorm_1": blocks["norm2"],
        f"{attention}/out": blocks["attn"]["proj"],
        f"{top}/MlpBlock_0/Dense_0": blocks["mlp"]["fc1"],
        f"{top}/MlpBlock_0/Dense_1": blocks["mlp"]["fc2"],
    }
    for part, name in enumerate(("query", "key", "value")):
        modules[f"{attention}/{name}"] = {"kernel": qkv["kernel"][:, :, part], "bias": qkv["bias"][:, part]}
    found = {f"{place}/{name}": each for place, module in modules.items() for name, each in module.items()}
    return found | {"params/cls": params["cls_token"], "params/pos_embedding": params["pos_embed"]}


def vitmae(folder: Path) -> dict[str, float]:
    """Compare the base masked autoencoder of both frameworks with Hugging Face's ViTMAE."""
    size, output = SIZES["base"], folder / "vitmae.npz"
    script = [str(PEERS), "tests/support/vitmae_reference.py", "base", str(output)]
    subprocess.run(script, cwd=ROOT, check=True)
    expected = np.load(output)
    config = mae_config("mae_vit_base_patch16", image_size=224, norm_pix_loss=True)
    network = mae.MaskedAutoencoder(config).eval()
    theirs = to_vitmae(network.state_dict())
    assert sorted(theirs) == list(expected["names"])
    drawn = {name: torch.from_numpy(weight(name, tuple(each.shape))) for name, each in theirs.items()}
    network.load_state_dict(from_vitmae("x", theirs | {name: drawn[name] for name in drawn if not is_fixed(name)}))
    images, noise = inputs(size)
    visible, place = places(noise)
    with torch.no_grad():
        in_torch = network(*(torch.from_numpy(each) for each in (images, visible, place)))
    in_jax = _in_jax(config, network, (images.transpose(0, 2, 3, 1), visible, place))
    return {
        "ViTMAE, base, loss, PyTorch": _difference(in_torch.loss.numpy(), expected["loss"]),
        "ViTMAE, base, prediction, PyTorch": _difference(in_torch.prediction_NPV.numpy(), expected["prediction"]),
        "ViTMAE, base, loss, JAX": _difference(in_jax.loss, expected["loss"]),
        "ViTMAE, base, prediction, JAX": _difference(in_jax.prediction_NPV, expected["prediction"]),
    }


def _in_jax(config: MAEConfig, network: torch.nn.Module, given: tuple[np.ndarray, ...]) -> Any:
    ours = jax_transformers.MaskedAutoencoder(config)
    return jax.jit(ours.apply)({"params": weights_for(ours, tensors_of(network), *given)}, *given)


def _logits(model: torch.nn.Module, images_NHWC: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = model(torch.from_numpy(images_NHWC).permute(0, 3, 1, 2)).numpy()
    return found


def _difference(ours: Any, theirs: Any) -> float:
    return float(np.abs(np.asarray(ours) - theirs).max())
