"""Layers of a vision transformer, for learning rates that grow from the pixels to the head."""

from __future__ import annotations


def layer_of(name: str, last: int) -> int:
    """Return the layer of a weight: 0 for the patch embedding, from 1 on the blocks, `last` for the head.

    Args:
        name: Name of a weight of a vision transformer, as PyTorch's network has it.
        last: Number of blocks plus one.
    """
    if name.startswith("blocks."):
        return int(name.split(".")[1]) + 1
    return 0 if name.startswith(("cls_token", "pos_embed", "patch_embed")) else last
