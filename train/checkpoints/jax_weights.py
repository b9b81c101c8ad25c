"""Weights of transformers between JAX and PyTorch: the same numbers by other names and in other layouts.

    blocks/attn/qkv/kernel     (depth, D, 3, heads, D / heads)     blocks.0.attn.qkv.weight, …     (3 D, D)

Arrays of JAX have the names and layouts of `train/models/jax_transformers.py`, tensors of PyTorch the names of
`train/models/vit.py` and `mae.py`, which are timm's. Both are NumPy arrays here, so that JAX's side needs no PyTorch.

Shapes: D the width of a transformer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep.errors import FormatError, UsageError
from train.checkpoints.files import ARRAYS
from train.models.sizes import layer_of, mae_config, sincos_positions

Arrays = Mapping[str, NDArray[Any]]
_STACKED = ("blocks", "decoder_blocks")
_AXES = {
    "patch_embed/proj/kernel": (3, 2, 0, 1),
    "decoder_downsample/kernels/kernel": (3, 2, 0, 1),
    "decoder_upsample/kernels/kernel": (0, 3, 1, 2),
}
"""JAX's dimensions in PyTorch's order, for each kernel of a convolution, by its name."""
_JOINED = {"qkv/kernel": 1, "proj/kernel": 2}
"""Number of dimensions that are summed over, for each kernel with dimensions of heads, by the end of its name."""
_FIXED = ("pos_embed", "decoder_pos_embed")
"""Tensors of PyTorch that a masked autoencoder computes, and does not train."""
_PROBED, _STATISTICS = "head.1.", "head.0."
"""Prefixes of a linear probe's weights, and of the running statistics of the features that it gets."""
_SHOWN = 3
_ADVICE = "use the flags that it was trained with, or choose another file"


def to_torch(params: Arrays) -> dict[str, NDArray[Any]]:
    """Return JAX's weights by PyTorch's names, in its layouts."""
    found: dict[str, NDArray[Any]] = {}
    for name, array in params.items():
        if name.split("/")[0] in _STACKED:
            found |= {_torch_name(name, layer): _to_layout(name, each) for layer, each in enumerate(array)}
        else:
            found[_torch_name(name)] = _to_layout(name, array)
    return found


def from_torch(where: str, tensors: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """Return PyTorch's weights by JAX's names, in its layouts; `shapes` are those of the model's weights in JAX. Raises
    UsageError if a weight is missing, has another shape, or is not one of the model's."""
    taken = dict(tensors)
    found = {}
    for name, shape in shapes.items():
        if name.split("/")[0] in _STACKED:
            layers = [_from_layout(where, name, layer, taken, shape[1:]) for layer in range(shape[0])]
            found[name] = np.stack(layers) if layers else np.zeros(shape, np.float32)
        else:
            found[name] = _from_layout(where, name, None, taken, shape)
    if rest := sorted(taken.keys() - set(_FIXED)):
        raise UsageError(f"{where}: from another model: this one has no {', '.join(rest[:_SHOWN])}; {_ADVICE}")
    return found


def state_from_torch(
    where: str,
    state: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    decay_vectors: bool = False,
    layered: bool = False,
) -> dict[str, NDArray[Any]]:
    """Return weights and AdamW's moments of a PyTorch checkpoint as the arrays of a JAX checkpoint.

    Args:
        shapes: Shapes of the model's weights by JAX's names.
        decay_vectors: Whether the optimiser has vectors in one group with matrices.
        layered: Whether every layer has groups of its own, as in `train.optim.optimizer`.

    Raises:
        UsageError: The weights are of another model, or the moments of another optimiser.
        FormatError: The moments are damaged.
    """
    model = {name: np.asarray(each) for name, each in state["model"].items()}
    found = {f"params/{name}": each for name, each in from_torch(where, model, shapes).items()}
    try:
        optimizer = state["optimizer"]
        names = moments_order(model, optimizer, decay_vectors=decay_vectors, layered=layered)
        moments = {name: optimizer["state"][index] for index, name in enumerate(names)}
        moments = {name: {key: np.asarray(each) for key, each in own.items()} for name, own in moments.items()}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{where}: moments are invalid ({error!r}); choose another checkpoint") from None
    for ours, theirs in (("mu", "exp_avg"), ("nu", "exp_avg_sq")):
        named = {name: each[theirs] for name, each in moments.items()}
        found |= {f"optimizer/{ours}/{name}": each for name, each in from_torch(where, named, shapes).items()}
    steps = {int(each["step"]) for each in moments.values()}
    if len(steps) != 1:
        raise UsageError(f"{where}: weights with {len(steps)} numbers of updates, expected one for all of them")
    return found | {"optimizer/count": np.asarray(steps.pop(), np.int32)}


def probe_state_from_torch(
    where: str, state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[Any]]:
    """Return weights, statistics and momentum of a linear probe's PyTorch checkpoint as the arrays of a JAX checkpoint.

    Raises:
        UsageError: The weights are of another model.
        FormatError: The momentum is damaged.
    """
    weights, statistics = split_probe({name: np.asarray(each) for name, each in state["model"].items()})
    found = {f"params/{name}": each for name, each in from_torch(where, weights, shapes).items()}
    found |= {f"statistics/{name}": each for name, each in statistics.items()}
    try:
        kernel, bias = (np.asarray(state["optimizer"]["state"][index]["momentum"]) for index in range(2))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{where}: momentum is invalid ({error!r}); choose another checkpoint") from None
    return found | {"momentum/kernel": kernel.T, "momentum/bias": bias}


def split_probe(tensors: Arrays) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return a linear probe's weights by the names of a classifier, and the running statistics of its features."""
    statistics = {
        name[len(_STATISTICS) :]: each.astype(np.int32 if each.dtype.kind == "i" else np.float32)
        for name, each in tensors.items()
        if name.startswith(_STATISTICS)
    }
    kept = {name: each for name, each in tensors.items() if not name.startswith(_STATISTICS)}
    return {name.replace(_PROBED, "head."): each for name, each in kept.items()}, statistics


def _joined_probe(weights: Arrays, statistics: Arrays) -> dict[str, NDArray[Any]]:
    """Join weights and statistics again: the inverse of `split_probe`."""
    found = {
        f"{_PROBED}{name[len('head.') :]}" if name.startswith("head.") else name: each for name, each in weights.items()
    }
    return found | {f"{_STATISTICS}{name}": each for name, each in statistics.items()}


def trained_weights(where: str, state: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the weights of a checkpoint of JAX by PyTorch's names: the moving average, if the run kept one. Raises
    UsageError if it is not a checkpoint of a transformer."""
    arrays: Arrays = state[ARRAYS]
    for prefix in ("average/", "params/"):
        named = {name[len(prefix) :]: each for name, each in arrays.items() if name.startswith(prefix)}
        if named:
            break
    if "patch_embed/proj/kernel" not in named:
        raise UsageError(f"{where}: no transformer among {len(arrays):,} arrays; expected patch_embed/proj/kernel")
    found = to_torch(named)
    start = "statistics/"
    if statistics := {name[len(start) :]: each for name, each in arrays.items() if name.startswith(start)}:
        return _joined_probe(found, statistics)
    if "mask_token" in found:
        found |= _fixed_positions(found, state.get("description", {}))
    return found


def _fixed_positions(tensors: Arrays, description: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the tensors that PyTorch's `MaskedAutoencoder` keeps next to its weights, by the run's options."""
    patch_size = tensors["patch_embed.proj.weight"].shape[2]
    config = mae_config(str(description["model"]), image_size=int(description["input_size"]), patch_size=patch_size)
    kernel = tensors.get("decoder_downsample.weight")
    grids = config.grid, config.grid // (1 if kernel is None else kernel.shape[2])
    widths = tensors["cls_token"].shape[-1], tensors["mask_token"].shape[-1]
    return {name: sincos_positions(dim, grid) for name, dim, grid in zip(_FIXED, widths, grids, strict=True)}


def moments_order(model: Arrays, optimizer: Mapping[str, Any], *, decay_vectors: bool, layered: bool) -> list[str]:
    """Return the names of the trained weights in the order of their moments in PyTorch's AdamW."""
    trained = [name for name in model if name not in _FIXED or "mask_token" not in model]
    if not layered:
        return sorted(trained, key=lambda name: _is_vector(name, model[name]) and not decay_vectors)
    last = 1 + len({name.split(".")[1] for name in trained if name.startswith("blocks.")})
    decays = any(group["weight_decay"] for group in optimizer["param_groups"])
    return sorted(trained, key=lambda name: (layer_of(name, last), decays and not _is_vector(name, model[name])))


def _is_vector(name: str, tensor: NDArray[Any]) -> bool:
    return tensor.ndim <= 1 or name.endswith(("_token", "pos_embed"))


def _torch_name(name: str, layer: int | None = None) -> str:
    first, *rest = name.replace("/kernels/", "/").split("/")
    if rest and rest[-1] in ("kernel", "scale"):
        rest[-1] = "weight"
    return ".".join([first, *([] if layer is None else [str(layer)]), *rest])


def _to_layout(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if name in _AXES:
        return np.ascontiguousarray(array.transpose(_AXES[name]))
    if name.endswith("/kernel"):
        summed = _summed(name)
        return np.ascontiguousarray(array.reshape(int(np.prod(array.shape[:summed])), -1).T)
    return array.ravel() if name.endswith(("qkv/bias", "q_bias", "v_bias")) else array


def _from_layout(
    where: str, name: str, layer: int | None, taken: dict[str, NDArray[Any]], shape: tuple[int, ...]
) -> NDArray[Any]:
    """Take a tensor out of `taken`, and return it in JAX's layout."""
    theirs = _torch_name(name, layer)
    if theirs not in taken:
        raise UsageError(f"{where}: from another model: {theirs} is only in this model; {_ADVICE}")
    tensor = taken.pop(theirs)
    expected = _to_layout(name, np.broadcast_to(np.float32(0), shape)).shape
    if tensor.shape != expected:
        raise UsageError(
            f"{where}: from another model: {theirs} is {tensor.shape}, in this model {expected}; {_ADVICE}"
        )
    if name in _AXES:
        return np.ascontiguousarray(tensor.transpose(np.argsort(_AXES[name])))
    return np.ascontiguousarray((tensor.T if name.endswith("/kernel") else tensor).reshape(shape))


def _summed(name: str) -> int:
    return next((count for end, count in _JOINED.items() if name.endswith(end)), 1)
