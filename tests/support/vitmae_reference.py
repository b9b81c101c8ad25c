"""What Hugging Face's ViTMAE computes with weights that are a function of their names.

It runs by itself in an environment with transformers, such as that of the benchmarks' peers, and imports nothing of
this project there:

.bench-venv/bin/python tests/support/vitmae_reference.py tiny > tests/train/checkpoints/vitmae.json
.bench-venv/bin/python tests/support/vitmae_reference.py base OUTPUTS.npz
.bench-venv/bin/python tests/support/vitmae_reference.py encoder WEIGHTS.safetensors OUTPUTS.npz
"""

from __future__ import annotations

import json
import sys
import zlib
from typing import Any

import numpy as np

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "image_size": 16,
        "patch_size": 8,
        "dim": 16,
        "depth": 2,
        "heads": 2,
        "decoder_dim": 8,
        "decoder_depth": 1,
        "decoder_heads": 2,
    },
    "base": {
        "image_size": 224,
        "patch_size": 16,
        "dim": 768,
        "depth": 12,
        "heads": 12,
        "decoder_dim": 512,
        "decoder_depth": 8,
        "decoder_heads": 16,
    },
}
"""Sizes of a masked autoencoder; `base` is that of the paper."""
MASK_RATIO = 0.5
IMAGES = 2
SHOWN = 16
"""Interval of the numbers of an output that the stored file holds."""


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a weight of ViTMAE: normal numbers that depend on its name, around 1 where it scales."""
    scale = 1.0 if name.endswith(".weight") and len(shape) == 1 else 0.0
    drawn = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    return scale + drawn * np.float32(0.5 / max(shape) ** 0.5)


def is_fixed(name: str) -> bool:
    """Return whether a weight is a position, which is computed."""
    return name.endswith(("position_embeddings", "decoder_pos_embed"))


def inputs(size: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return images, NCHW, and for each patch the noise by whose order patches are visible."""
    rng = np.random.default_rng(0)
    side, grid = size["image_size"], size["image_size"] // size["patch_size"]
    return rng.standard_normal((IMAGES, 3, side, side), np.float32), rng.random((IMAGES, grid**2), np.float32)


def places(noise_NL: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the visible patches, and each patch's place in the order of its noise, as ViTMAE chooses them."""
    order_NL = np.argsort(noise_NL, axis=1)
    return order_NL[:, : int(noise_NL.shape[1] * (1 - MASK_RATIO))], np.argsort(order_NL, axis=1)


def config_of(size: dict[str, Any]) -> Any:
    """Return the configuration of ViTMAE."""
    from transformers import ViTMAEConfig

    return ViTMAEConfig(
        image_size=size["image_size"],
        patch_size=size["patch_size"],
        hidden_size=size["dim"],
        num_hidden_layers=size["depth"],
        num_attention_heads=size["heads"],
        intermediate_size=4 * size["dim"],
        decoder_hidden_size=size["decoder_dim"],
        decoder_num_hidden_layers=size["decoder_depth"],
        decoder_num_attention_heads=size["decoder_heads"],
        decoder_intermediate_size=4 * size["decoder_dim"],
        mask_ratio=MASK_RATIO,
        norm_pix_loss=True,
        layer_norm_eps=1e-6,
    )


def reference(size: dict[str, Any]) -> dict[str, Any]:
    """Return the names of ViTMAE's weights, and its outputs."""
    import torch
    from transformers import ViTMAEForPreTraining

    model = ViTMAEForPreTraining(config_of(size)).eval()
    # A new network has zeros for the decoder's positions in transformers 4.57; published weights have positions.
    model.decoder.initialize_weights((size["image_size"] // size["patch_size"]) ** 2)
    state = model.state_dict()
    with torch.no_grad():
        for name, each in state.items():
            if not is_fixed(name):
                each.copy_(torch.from_numpy(weight(name, tuple(each.shape))))
        images, noise = (torch.from_numpy(each) for each in inputs(size))
        encoded = model.vit(images, noise=noise).last_hidden_state
        found = model(images, noise=noise)
    return {
        "names": sorted(state),
        "loss": float(found.loss),
        "encoded": encoded.numpy(),
        "prediction": found.logits.numpy(),
    }


def encoder(weights: str, output: str) -> None:
    """Load weights of an encoder that were exported, and write what ViTMAE's encoder makes of them."""
    import torch
    from safetensors.torch import load_file
    from transformers import ViTMAEForPreTraining

    model = ViTMAEForPreTraining(config_of(SIZES["tiny"])).eval()
    found = model.load_state_dict(load_file(weights), strict=False)
    assert not found.unexpected_keys, found.unexpected_keys
    assert all(name.startswith("decoder.") for name in found.missing_keys), found.missing_keys
    images, noise = (torch.from_numpy(each) for each in inputs(SIZES["tiny"]))
    with torch.no_grad():
        np.savez(output, encoded=model.vit(images, noise=noise).last_hidden_state.numpy())


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "encoder":
        encoder(*rest)
    elif what == "base":
        found = reference(SIZES[what])
        np.savez(rest[0], names=np.asarray(found.pop("names")), **found)
    else:
        found = reference(SIZES[what])
        for name in ("encoded", "prediction"):
            found[name] = np.round(found[name].ravel()[::SHOWN].astype(float), 7).tolist()
        print(json.dumps(found))
