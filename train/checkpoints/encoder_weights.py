"""Encoder weights: vision transformers from our files and other tools' files, by timm's names, and classifiers of them.

Checkpoints of `train.pretrain_mae`, `train.finetune_mae` and `train.train_vit`, the published MAE files
({"model": ...}), timm's state dicts and Hugging Face's ViTMAE can be read, as .pth or .safetensors. Queries, keys and
values have their biases in one vector (timm, ViTDet), or keys have none (BEiT, `no_k_bias_in_vit`). Either form is
converted into the other, since a key's bias changes no output.

Classifiers are fine-tuned completely, or probed by a linear layer: He et al., "Masked autoencoders are scalable vision
learners", CVPR 2022, appendix A.

Shapes: L tokens, D the width.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dataprep.dataset.adopted import open_linked
from dataprep.errors import FormatError, UsageError, needing
from dataprep.storage import open_storage
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.checkpoints.checkpoint import load_any
from train.checkpoints.files import (
    ARRAYS,
    CLASSES,
    NUMPY,
    ORBAX,
    TORCH,
    digest_of_folder,
    digest_of_stream,
    flags_of_its_run,
)
from train.checkpoints.jax_weights import trained_weights
from train.models.sizes import LAYER_NORM_EPSILON, BlockConfig, MAEConfig, ViTConfig, mae_config, mae_names
from train.models.vit import VisionTransformer

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
    """Return the weights of `ViTMAEForPreTraining`, or of `ViTMAEModel` alone, by our names. Raises FormatError if a
    weight is not one of ViTMAE's, or one of three that are joined is missing."""
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
                raise FormatError(
                    f"{url}: {missing[0]} is missing next to {name}; choose a complete checkpoint of ViTMAE"
                )
            found[f"{_BLOCKS[match[1]]}.{match[2]}.attn.qkv.{match[4]}"] = torch.cat([taken[part] for part in names])
        elif module not in _QKV:
            raise _unknown(url, name)
    return found


def to_vitmae(ours: Tensors) -> Tensors:
    """Return weights with biases of keys by the names of `ViTMAEForPreTraining`. Raises FormatError if a weight has no
    place in ViTMAE, such as a classifier's head."""
    theirs: Tensors = {}
    modules = {our: their for their, our in _IN_BLOCK.items()}
    blocks = {our: their for their, our in _BLOCKS.items()}
    names = {our: their for their, our in _NAMES.items()}
    for name, each in ours.items():
        match = _OUR_BLOCK.fullmatch(name)
        if match is None:
            module, end = name, ""
            if module not in names:
                module, _, end = name.rpartition(".")
            if module not in names:
                raise FormatError(f"{name}: ViTMAE has no such weight; it has only an encoder and a pixel decoder")
            theirs[_prefixed(names[module]) + (f".{end}" if end else "")] = each
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


SAFETENSORS = ".safetensors"
SAFETENSORS_KEY = "dataprep"
"""Key of an export's facts, as JSON, in the head of a safetensors file."""
METADATA = "metadata"
"""Key of an export's facts in a .pth file."""
PIXEL_MEAN, PIXEL_STD = "pixel_mean", "pixel_std"
"""Keys of the pixels' mean and deviation in these facts."""
NUM_HEADS = "num_heads"
"""Key of the number of heads in these facts, and among the flags of a run in its checkpoints."""
_PRETRAINING = ("decoder_", "mask_token")
"""Prefixes of the names of tensors that only pretraining uses."""
_SIDE = 224
"""Any valid side of images, pixels, to look up the named sizes; it does not change them."""
_NAMED = re.compile(r"vit_([a-z]+)_patch(\d+)")
DEFAULT_ENCODER = "vit_large_patch16"
"""Encoder of a classifier for which neither a name nor weights are given."""
FINE_TUNED_HEAD_STD = 2e-5
"""Standard deviation of a head's initial weights: so small that the first logits are nearly 0 for any encoder."""
PROBED_HEAD_STD = 0.01
_HEAD = "head."
_NOT_PRETRAINED = (_HEAD, "fc_norm.", "norm.")
"""Prefixes of the names of tensors that only a classifier, or only a pretrained encoder, may have."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """The size of a vision transformer."""

    size: str
    """Name of the size: `base`, `large`, …"""
    patch_size: int
    depth: int
    block: BlockConfig

    @property
    def name(self) -> str:
        """Name of the encoder, e.g. `vit_base_patch16`."""
        return f"vit_{self.size}_patch{self.patch_size}"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean and standard deviation of R, G and B that images were standardised with, for values of 0..1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


_IMAGENET = Statistics(IMAGENET_MEAN, IMAGENET_STD)
"""Statistics of all trainings here, and of MAE's published files."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights read from a file."""

    url: str
    tensors: dict[str, torch.Tensor]
    """Tensors by their names, on the host, without a decoder's."""
    step: int | None
    """Number of updates after which the weights were saved; None if the file does not say it."""
    pixels: Statistics | None = None
    """Mean and deviation of the images that the weights were trained on; None if the file does not say it."""
    classes: tuple[str, ...] = ()
    """Names of the classes that the weights were trained on; empty if the file does not say them."""
    heads: int | None = None
    """Number of heads of a block, as the flags of the weights' run or an export say it; None if the file does not."""

    @property
    def encoder(self) -> Encoder:
        """Encoder that has these weights. Raises FormatError if the weights have none of the known sizes."""
        dim, depth, patch_size = self._shape
        size = _size_of(dim, depth)
        if size is None:
            raise FormatError(
                f"{self.url}: {depth} blocks of width {dim} are not a known encoder; known are {_known_sizes()}"
            )
        block = _sizes()[size].encoder
        heads = self.num_heads or block.num_heads
        block = replace(block, num_heads=heads, k_bias="blocks.0.attn.qkv.bias" in self.tensors)
        return Encoder(size, patch_size, depth, block)

    @property
    def name(self) -> str:
        """Name of the encoder, e.g. `vit_base_patch16`; without a name for its size e.g. `vit_5120x32_patch14`."""
        dim, depth, patch_size = self._shape
        return f"vit_{_size_of(dim, depth) or f'{dim}x{depth}'}_patch{patch_size}"

    @property
    def num_heads(self) -> int | None:
        """Number of heads of a block, which no weight has: as the file says it, else as the encoder's named size has;
        None if there is neither."""
        dim, depth, _ = self._shape
        if self.heads is not None and dim % self.heads == 0:
            return self.heads
        size = _size_of(dim, depth)
        return None if size is None else _sizes()[size].encoder.num_heads

    @property
    def positions(self) -> torch.Tensor:
        """Position embeddings of a class token and a square of patches, (1, L, D). Raises FormatError if the weights
        have no class token."""
        if "cls_token" not in self.tensors or not self._grid:
            raise FormatError(f"{self.url}: no class token; expected an encoder that has one, as MAE and timm have it")
        return self.tensors["pos_embed"]

    @property
    def image_size(self) -> int:
        """Side of the images that the weights were trained on, pixels. Raises FormatError if the position embeddings
        are not of a square of patches."""
        return self._grid * self._shape[2]

    @property
    def _grid(self) -> int:
        """Number of patches along a side of the image."""
        positions = self.tensors.get("pos_embed")
        tokens = 0 if positions is None or positions.dim() != 3 else positions.shape[1]
        patches = tokens - int("cls_token" in self.tensors)
        if patches < 1 or math.isqrt(patches) ** 2 != patches:
            raise FormatError(
                f"{self.url}: pos_embed of {tokens} tokens, expected a square of patches, and a class token if any"
            )
        return math.isqrt(patches)

    @property
    def _shape(self) -> tuple[int, int, int]:
        """Width, number of blocks, side of a patch in pixels."""
        try:
            dim, _, _, patch_size = self.tensors["patch_embed.proj.weight"].shape
            if not patch_size:
                raise ValueError(patch_size)
        except (KeyError, ValueError):
            raise FormatError(
                f"{self.url}: no vision transformer among {len(self.tensors):,} tensors; expected "
                "patch_embed.proj.weight, blocks.0.…, as MAE and timm name them"
            ) from None
        return dim, len({name.split(".")[1] for name in self.tensors if name.startswith("blocks.")}), patch_size


def read_weights(url: str) -> Weights:
    """Read the weights in a file on a disk or gs://.

    Raises:
        UsageError: There is no such file.
        FormatError: The file is damaged, or holds no weights.
    """
    return weights_of(url, _read_safetensors(url) if url.endswith(SAFETENSORS) else load_any(url))


def weights_of(url: str, state: Mapping[str, Any]) -> Weights:
    """Find the weights in a state that was read from a file. Raises FormatError if there are no weights."""
    if ARRAYS in state:
        arrays = trained_weights(url, state)
        tensors = {name: torch.tensor(each) for name, each in arrays.items()}
        state = {**state, "model": tensors}
    named, pixels, classes = state.get("model", state), _statistics(state), _classes(state)
    if not isinstance(named, dict) or not all(
        isinstance(name, str) and isinstance(each, torch.Tensor) for name, each in named.items()
    ):
        raise FormatError(f'{url}: no weights; expected tensors by their names, or those under "model"')
    if is_vitmae(named):
        named, pixels = from_vitmae(url, named), _IMAGENET
    step = state.get("step")
    kept = {name: each for name, each in named.items() if not name.startswith(_PRETRAINING)}
    return Weights(url, kept, step if isinstance(step, int) else None, pixels, classes, _heads(state))


def source_digest(url: str) -> str:
    """Return the first 16 digits of a file's SHA-256, which a checkpoint of ours has in its name; for a checkpoint by
    Orbax, which is a folder, the digits of `digest_of_folder`."""
    folder, _, name = url.rpartition("/")
    if name.endswith(ORBAX):
        return digest_of_folder(open_storage(url))
    if named := TORCH.parse(name) or NUMPY.parse(name):
        return named.digest
    with open_linked(folder or ".").open(name) as file:
        return digest_of_stream(file)


def named_encoder(name: str) -> Encoder:
    """Return the encoder of a name such as `vit_base_patch16`; any side of a patch may follow any size. Raises
    UsageError if there is no such size."""
    match = _NAMED.fullmatch(name)
    config = _sizes().get(match[1]) if match else None
    if match is None or config is None:
        raise UsageError(f"no encoder {name!r}; expected vit_SIZE_patchN of {_known_sizes()}, e.g. vit_base_patch16")
    return Encoder(match[1], int(match[2]), config.encoder_depth, config.encoder)


def resized_positions(pos_embed_1LD: torch.Tensor, grid: int) -> torch.Tensor:
    """Resize the positions of a class token and a square of patches to another square, bicubic as MAE's fine-tuning."""
    class_1LD, patches_1LD = pos_embed_1LD[:, :1], pos_embed_1LD[:, 1:]
    side = math.isqrt(patches_1LD.shape[1])
    if side == grid:
        return pos_embed_1LD
    square = patches_1LD.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(square, size=(grid, grid), mode="bicubic", align_corners=False)
    return torch.cat([class_1LD, resized.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


def with_key_bias(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put the biases of queries, keys and values into one vector, `qkv.bias`; keys that had none get zeros."""
    out = dict(tensors)
    for name in [name for name in tensors if name.endswith("attn.q_bias")]:
        prefix = name.removesuffix("q_bias")
        query, value = out.pop(name), out.pop(f"{prefix}v_bias")
        out[f"{prefix}qkv.bias"] = torch.cat([query, torch.zeros_like(query), value])
    return out


def without_key_bias(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Split biases into `q_bias` and `v_bias`; biases of keys, which shift all scores of a query alike, are dropped."""
    out = dict(tensors)
    for name in [name for name in tensors if name.endswith("attn.qkv.bias")]:
        prefix = name.removesuffix("qkv.bias")
        query, _, value = out.pop(name).chunk(3)
        out |= {f"{prefix}q_bias": query.clone(), f"{prefix}v_bias": value.clone()}
    return out


@cache
def _sizes() -> dict[str, MAEConfig]:
    """Configurations of masked autoencoders, one for each size of encoder."""
    sizes: dict[str, MAEConfig] = {}
    for name in mae_names():
        size = name.split("_")[2]
        if size not in sizes:
            sizes[size] = mae_config(name, image_size=_SIDE)
    return sizes


def _size_of(dim: int, depth: int) -> str | None:
    """Return the name of a size, if it has one."""
    shapes = {(config.encoder.dim, config.encoder_depth): size for size, config in _sizes().items()}
    return shapes.get((dim, depth))


def _known_sizes() -> str:
    return ", ".join(f"{size} ({config.encoder_depth} x {config.encoder.dim})" for size, config in _sizes().items())


def _statistics(state: Mapping[str, Any]) -> Statistics | None:
    """Return how images were standardised: as an export says, else as our trainings and MAE's do; None for other files.

    A dictionary of tensors alone is a file of timm's, whose models differ.
    """
    if METADATA not in state:
        return _IMAGENET if "model" in state else None
    facts = state[METADATA] if isinstance(state[METADATA], dict) else {}
    found = []
    for values in (facts.get(PIXEL_MEAN), facts.get(PIXEL_STD)):
        if not isinstance(values, list | tuple) or [type(each) for each in values] != [float] * 3:
            return None
        found.append(tuple(values))
    return Statistics(*found)


def _classes(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the classes, as a checkpoint of ours or an export says; none for other files."""
    facts = state.get(METADATA)
    found = (facts if isinstance(facts, dict) else state).get(CLASSES)
    if not isinstance(found, list | tuple) or not all(isinstance(name, str) for name in found):
        return ()
    return tuple(found) if len(set(found)) == len(found) else ()


def _heads(state: Mapping[str, Any]) -> int | None:
    """Return the number of heads, as a run's flags or an export says it; None for other files."""
    facts = state.get(METADATA, state.get("description"))
    found = facts.get(NUM_HEADS) if isinstance(facts, dict) else None
    return found if type(found) is int and found > 0 else None


def _read_safetensors(url: str) -> dict[str, Any]:
    with needing("finetune", url):
        from safetensors import SafetensorError
        from safetensors.torch import load
    folder, _, name = url.rpartition("/")
    if Path(url).is_dir():
        raise UsageError(f"{url}: a folder, expected a file")
    try:
        data = open_linked(folder or ".").read(name)
        tensors: dict[str, torch.Tensor] = load(data)
    except FileNotFoundError:
        raise UsageError(f"{url}: not found; give a checkpoint, a .pth or a .safetensors file") from None
    except SafetensorError as error:
        raise FormatError(f"{url}: damaged, or not a safetensors file ({error})") from None
    texts = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
    try:
        return {"model": tensors, METADATA: json.loads(texts.get(SAFETENSORS_KEY, "null"))}
    except ValueError:  # not written by an export
        return {"model": tensors, METADATA: None}


def check_model(where: str, found: Any, own: Mapping[str, torch.Tensor], changes: list[str]) -> None:
    """Raise UsageError if tensors are of another model; `changes` are flags with other values in the run that saved
    them, e.g. "`model` vit_base_patch16"."""
    if difference := difference_of(found, own):
        raise UsageError(
            f"{where}: from another model: {difference}{flags_of_its_run(changes)}; use the flags that it was trained "
            "with"
        )


def difference_of(found: Any, own: Mapping[str, torch.Tensor]) -> str:
    """Describe the first name or shape that differs between tensors and a model; '' if none does."""
    if not isinstance(found, dict):
        return f"{_shape(found)}, expected tensors by their names"
    for name in sorted(map(str, found.keys() ^ own.keys())):
        return f"{name} is only in {'the file' if name in found else 'this model'}"
    for name, tensor in own.items():
        theirs = found[name]
        if not isinstance(theirs, torch.Tensor) or theirs.shape != tensor.shape:
            return f"{name} is {_shape(theirs)}, in this model {_shape(tensor)}"
    return ""


def restore_optimizer(where: str, optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Restore moments from a checkpoint; learning rates, decays and other settings stay as on this command line. Raises
    UsageError if the moments are of another optimiser."""
    own = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(state)
        for parameter, moments in optimizer.state.items():
            for each in moments.values():
                if isinstance(each, torch.Tensor) and each.dim() and each.shape != parameter.shape:
                    raise ValueError(f"moments of {_shape(each)} for weights of {_shape(parameter)}")
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: from another optimiser ({error}); use the flags that it was trained with") from None
    for group, values in zip(optimizer.param_groups, own, strict=True):
        group.update(values)


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        kind = type(value).__name__
        return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    return " x ".join(map(str, value.shape)) or "a number"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierConfig:
    """Settings that a classifier adds to an encoder's."""

    image_size: int
    """Side of the images, pixels; positions are resized to it."""
    num_classes: int
    """Number of logits."""
    pool: str
    """Way to pool the tokens that are classified, as `ViTConfig.pool`."""
    drop_path: float = 0.0
    """Probability of dropping a branch of the last block, as `ViTConfig.drop_path`."""
    linear_probe: bool = False
    """Whether the encoder is frozen; the head then gets features that are normalised over the batch."""


def open_classifier(name: str | None, weights: Weights | None, config: ClassifierConfig) -> VisionTransformer:
    """Make a vision transformer with pretrained weights, or random ones from torch's generator.

    Raises:
        UsageError: The name of the encoder is unknown, or the weights have another.
        FormatError: The weights are not of a known encoder.
    """
    encoder = _encoder(name, weights)
    model = VisionTransformer(
        ViTConfig(
            image_size=config.image_size,
            patch_size=encoder.patch_size,
            depth=encoder.depth,
            block=encoder.block,
            num_classes=config.num_classes,
            pool=config.pool,
            drop_path=config.drop_path,
        )
    )
    nn.init.trunc_normal_(model.head.weight, std=PROBED_HEAD_STD if config.linear_probe else FINE_TUNED_HEAD_STD)
    if weights is not None:
        _load(model, weights)
    if config.linear_probe:
        model.requires_grad_(False)
        head = model.head.requires_grad_()
        # As in the paper, because features of a masked autoencoder differ much in scale.
        norm = nn.BatchNorm1d(encoder.block.dim, affine=False, eps=LAYER_NORM_EPSILON)
        model.head = nn.Sequential(norm, head)  # type: ignore[assignment]
    return model


def origin(model: VisionTransformer, weights: Weights) -> str:
    """Describe how many tensors of a classifier are from pretrained weights, and name its new parts."""
    own = model.state_dict()
    new = [name for name in own if name not in weights.tensors or name.startswith(_HEAD)]
    parts = ", ".join(sorted({name.split(".")[0] for name in new}))
    return f"{len(own) - len(new)} of {len(own)} tensors are from {weights.url}, the rest ({parts}) is new"


def load_whole(model: VisionTransformer, weights: Weights) -> None:
    """Load all tensors of a classifier, including its head. Raises UsageError if the tensors are of another model."""
    check_model(weights.url, weights.tensors, model.state_dict(), [])
    model.load_state_dict(weights.tensors)


def folded_head(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Fold a probe's normalisation and linear layer into one linear layer: `head.weight` and `head.bias`."""
    if "head.0.running_var" not in tensors:
        return tensors
    kept = {name: each for name, each in tensors.items() if not name.startswith("head.")}
    scale_D = (tensors["head.0.running_var"] + LAYER_NORM_EPSILON).rsqrt()
    weight_CD = tensors["head.1.weight"] * scale_D
    bias_C = tensors["head.1.bias"] - weight_CD @ tensors["head.0.running_mean"]
    return kept | {"head.weight": weight_CD, "head.bias": bias_C}


def _encoder(name: str | None, weights: Weights | None) -> Encoder:
    if weights is None:
        return named_encoder(name or DEFAULT_ENCODER)
    if name is not None and name != weights.encoder.name:
        raise UsageError(f"`model` {name}, but {weights.url} is of {weights.encoder.name}; leave `model` out")
    return weights.encoder


def _load(model: VisionTransformer, weights: Weights) -> None:
    own = model.state_dict()
    grid = model.config.image_size // model.config.patch_size
    if weights.positions.shape[-1] != model.config.block.dim:
        raise UsageError(
            f"{weights.url}: pos_embed of width {weights.positions.shape[-1]}, expected {model.config.block.dim}"
        )
    found = {name: each for name, each in weights.tensors.items() if not name.startswith(_HEAD)}
    found["pos_embed"] = resized_positions(weights.positions, grid)
    differing = found.keys() ^ own.keys()
    if wrong := sorted(name for name in differing if not name.startswith(_NOT_PRETRAINED)):
        raise UsageError(
            f"{weights.url}: not the network {weights.encoder.name}: {len(wrong)} tensors are only in one of the two, "
            f"the first is {wrong[0]}"
        )
    kept = {name: found.get(name, each) for name, each in own.items()}
    check_model(weights.url, kept, own, [])
    model.load_state_dict(kept)
