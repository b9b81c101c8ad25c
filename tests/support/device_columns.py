"""What an adapter makes of columns: `python -m tests.support.device_columns jax URL` prints it for the first batch.

For each field: its type's name, and for arrays dtype, shape and sum.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from loaders import open_loader
from tests.support.adapters import ADAPTERS

SETTINGS = {"batch_size": 12, "image_size": 32, "fields": ("latent", "hash", "words")}


def described(value: Any) -> list[Any]:
    """Return what a field's values are."""
    if isinstance(value, list):
        return ["list", len(value)]
    on_host = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    if on_host.dtype.kind == "O":
        return [type(value).__name__, list(on_host.shape)]
    return [type(value).__name__, str(on_host.dtype), list(on_host.shape), float(on_host.astype(np.float64).sum())]


if __name__ == "__main__":
    name, url = sys.argv[1:]
    batches = ADAPTERS[name]().batches
    with open_loader(url, **SETTINGS) as loader:
        first = next(iter(batches(loader)))
        fields = first["fields"] if isinstance(first, dict) else first.fields
        host = {field: each.cpu() if name == "xla" and hasattr(each, "cpu") else each for field, each in fields.items()}
        print(json.dumps({field: described(each) for field, each in host.items()}), flush=True)
