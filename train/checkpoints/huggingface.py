"""Names of a masked autoencoder's weights in Hugging Face's ViTMAE, and how they become ours and theirs again.

    vit.encoder.layer.0.attention.attention.query.weight (D, D), key, value       blocks.0.attn.qkv.weight (3 D, D)

Both ways keep every number. Hugging Face's default for the layer normalisations is 1e-12 where MAE's authors and this
project have 1e-6: set `layer_norm_eps=1e-6` in `ViTMAEConfig`.

Shapes: D the width of a transformer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from dataprep.errors import FormatError

Tensors = dict[str, torch.Tensor]
_ENCODER = "vit."
_MARK = "embeddings.patch_embeddings.projection.weight"
_NAMES = {
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "layernorm": "norm",
    "decoder.mask_token": "mask_token",
    "decoder.decoder_pos_embed": "decoder_pos_embed",
    "decoder.decoder_embed": "decoder_embed",
    "decoder.decoder_norm": "decoder_norm",
    "decoder.decoder_pred": "decoder_pred",
}
"""Our names of modules and weights outside of blocks, by theirs without the prefix of the encoder."""
_BLOCKS = {"encoder.layer": "blocks", "decoder.decoder_layers": "decoder_blocks"}
_IN_BLOCK = {
    "layernorm_before": "norm1",
    "attention.output.dense": "attn.proj",
    "layernorm_after": "norm2",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}
"""Our names of a block's modules by theirs, without queries, keys and values, which are joined."""
_QKV = tuple(f"attention.attention.{each}" for each in ("query", "key", "value"))
_THEIR_BLOCK = re.compile(r"(encoder\.layer|decoder\.decoder_layers)\.(\d+)\.(.+)\.(weight|bias)")
_OUR_BLOCK = re.compile(r"(blocks|decoder_blocks)\.(\d+)\.(.+)\.(weight|bias)")


def is_vitmae(names: Mapping[str, object]) -> bool:
    """Return whether weights have the names of `ViTMAEForPreTraining` or `ViTMAEModel`."""
    return _MARK in names or _ENCODER + _MARK in names


def from_vitmae(url: str, theirs: Tensors) -> Tensors:
    """Return ViTMAE's weights by our names.

    Args:
        url: Path or URL of the weights, for messages.
        theirs: Weights of `ViTMAEForPreTraining`, or of `ViTMAEModel` alone.

    Raises:
        FormatError: A weight is not one of ViTMAE's, or one of three that are joined is missing.
    """
    found: Tensors = {}
    taken = {name.removeprefix(_ENCODER): each for name, each in theirs.items()}
    for name, each in taken.items():
        match = _THEIR_BLOCK.fullmatch(name)
        if match is None:
            found[_plain(url, name)] = each
        elif (module := match[3]) in _IN_BLOCK:
            found[f"{_BLOCKS[match[1]]}.{match[2]}.{_IN_BLOCK[module]}.{match[4]}"] = each
        elif module == _QKV[0]:
            names = [name.replace(module, part) for part in _QKV]
            if missing := [part for part in names if part not in taken]:
                raise FormatError(f"{url}: {missing[0]} is missing beside {name}; choose a whole checkpoint of ViTMAE")
            found[f"{_BLOCKS[match[1]]}.{match[2]}.attn.qkv.{match[4]}"] = torch.cat([taken[part] for part in names])
        elif module not in _QKV:
            raise _unknown(url, name)
    return found


def to_vitmae(ours: Tensors) -> Tensors:
    """Return weights of a masked autoencoder or its encoder by the names of `ViTMAEForPreTraining`.

    Args:
        ours: Weights by our names, with biases of keys.

    Raises:
        FormatError: A weight has no place in ViTMAE, such as a classifier's head.
    """
    theirs: Tensors = {}
    modules = {our: their for their, our in _IN_BLOCK.items()}
    blocks = {our: their for their, our in _BLOCKS.items()}
    names = {our: their for their, our in _NAMES.items()}
    for name, each in ours.items():
        match, end = _OUR_BLOCK.fullmatch(name), ""
        if match is None:
            if name not in names:
                name, _, end = name.rpartition(".")
            if name not in names:
                raise FormatError(f"{name}.{end} has no place in ViTMAE, which has an encoder and a decoder of pixels")
            theirs[_prefixed(names[name]) + (f".{end}" if end else "")] = each
            continue
        place = _prefixed(f"{blocks[match[1]]}.{match[2]}")
        if match[3] == "attn.qkv":
            parts = each.chunk(3)
            theirs |= {f"{place}.{part}.{match[4]}": own.clone() for part, own in zip(_QKV, parts, strict=True)}
        else:
            theirs[f"{place}.{modules[match[3]]}.{match[4]}"] = each
    return theirs


def _prefixed(name: str) -> str:
    return name if name.startswith("decoder.") else _ENCODER + name


def _plain(url: str, name: str) -> str:
    """Return our name of a weight outside of blocks."""
    if name in _NAMES:
        return _NAMES[name]
    module, _, end = name.rpartition(".")
    if module not in _NAMES:
        raise _unknown(url, name)
    return f"{_NAMES[module]}.{end}"


def _unknown(url: str, name: str) -> FormatError:
    return FormatError(f"{url}: {name} is not a weight of Hugging Face's ViTMAE; expected one without additions")
