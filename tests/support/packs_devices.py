"""Packs through the adapters of JAX and PyTorch/XLA, in processes of their own: compilations of an epoch are counted.

python -m tests.support.packs_devices jax URL        prints {"batches": …, "compiled": …, "keys": …, "sums": …}
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from loaders import Packs, open_packs

PACKS = Packs(tokens=48, images=4, patch=8)
BATCH = 32


def by_jax(url: str) -> dict[str, Any]:
    """Attention within images over every batch of two epochs, on a mesh of all devices."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh

    from loaders.jax import JaxPackBatch, device_batches

    @jax.jit
    def attend(patches, segments, positions):
        tokens = patches.astype(jnp.float32) / 255 + positions.sum(-1, keepdims=True)
        mask = segments[:, :, None] == segments[:, None, :]
        scores = jnp.where(mask, tokens @ tokens.swapaxes(1, 2), -jnp.inf)
        return (jax.nn.softmax(scores, axis=-1) @ tokens).sum()

    report: dict[str, Any] = {"batches": 0, "keys": [], "sums": [], "shapes": []}
    with open_packs(url, batch_size=BATCH, packs=PACKS, threads=1) as loader:
        mesh = Mesh(np.array(jax.devices()), ("data",))
        for _ in range(2):
            for batch in device_batches(loader, mesh):
                assert isinstance(batch, JaxPackBatch)
                assert bool(jnp.isfinite(attend(batch.images, batch.segments, batch.positions)))
                report["batches"] += 1
                report["keys"].append(batch.keys)
                report["sums"].append(int(batch.images.astype(jnp.int32).sum()))
                report["shapes"].append([list(batch.labels.shape), list(batch.grids.shape), len(jax.devices())])
    report["compiled"] = attend._cache_size()
    return report


def by_xla(url: str) -> dict[str, Any]:
    """The same on the devices of PyTorch/XLA."""
    import torch
    import torch_xla
    import torch_xla.debug.metrics as met

    from loaders.torch import TorchPackBatch
    from loaders.xla import device_batches

    report: dict[str, Any] = {"batches": 0, "keys": [], "sums": [], "compilations": []}
    with open_packs(url, batch_size=BATCH, packs=PACKS, threads=1) as loader:
        for _ in range(2):
            for batch in device_batches(loader):
                assert isinstance(batch, TorchPackBatch)
                assert torch.equal(batch.segments.cpu(), torch.from_numpy(batch.segments_on_host))
                tokens = batch.images.float() / 255 + batch.positions.sum(-1, keepdim=True)
                mask = batch.segments[:, :, None] == batch.segments[:, None, :]
                attended = torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens, attn_mask=mask)
                total = attended.sum()
                torch_xla.sync()
                assert total.isfinite()
                report["batches"] += 1
                report["keys"].append(batch.keys)
                report["sums"].append(int(batch.images.int().sum()))
                found = met.metric_data("CompileTime")
                report["compilations"].append(0 if found is None else found[0])
    return report


def by_training(module: str, url: str, folder: str, flags: str) -> dict[str, Any]:
    """How many graphs XLA had compiled after each step of a run."""
    import torch_xla.debug.metrics as met

    entry = importlib.import_module(module)
    values = {"data_path": url, "device": "xla", "output_dir": folder, **json.loads(flags)}
    training = entry.open_training(entry.command.kind(**values))
    compiled: list[int] = []
    end_step = training.backend.runtime.end_step

    def counted() -> None:
        end_step()
        found = met.metric_data("CompileTime")
        compiled.append(0 if found is None else found[0])

    training.backend.runtime.end_step = counted
    assert training.run() == 0
    return {"compilations": compiled}


if __name__ == "__main__":
    _, kind, dataset_url, *more = sys.argv
    devices = {"jax": by_jax, "xla": by_xla}
    report = devices[kind](dataset_url) if kind in devices else by_training(kind, dataset_url, *more)
    print(json.dumps(report))
