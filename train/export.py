"""Export of a checkpoint's weights to a file that timm, ViTDet, Hugging Face and others read.

dataprep-export runs/mae/checkpoint-000040000-….pth vit_base.safetensors
timm.create_model("vit_base_patch16_224", num_classes=0).load_state_dict(load_file("vit_base.safetensors"))

docs/checkpoints.md shows how timm and Hugging Face load a file, and what its facts are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click

from dataprep.arguments import Request, option, request
from dataprep.errors import UsageError, needing
from dataprep.messages import counted
from dataprep.storage import disk_errors, open_storage
from dataprep.storage.checksums import crc32c_of_file
from train.checkpoints.files import CLASSES
from train.flags.options import entry_of, run_entry

with needing("torch", "dataprep-export"):
    import torch

    from train.checkpoints.encoder_weights import (
        METADATA,
        NUM_HEADS,
        PIXEL_MEAN,
        PIXEL_STD,
        SAFETENSORS,
        SAFETENSORS_KEY,
        folded_head,
        read_weights,
        source_digest,
        to_vitmae,
        with_key_bias,
        without_key_bias,
    )

SUFFIXES = (SAFETENSORS, ".pth")
NAMES: dict[str, Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]] = {"timm": dict, "vitmae": to_vitmae}
"""Functions from tensors by our names, which are timm's, to tensors by other names."""
KEY_BIAS: dict[str, Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]] = {
    "add": with_key_bias,
    "remove": without_key_bias,
    "keep": dict,
}
EPILOG = """\b
Examples:
  dataprep-export runs/mae/checkpoint-000040000-….pth vit_base.safetensors
  dataprep-export gs://bucket/runs/vit10b/checkpoint-000300000-….json vit10b.safetensors
  dataprep-export mae_pretrain_vit_base.pth without_key_bias.pth --key-bias remove

\b
Exit codes: 0 written, or OUTPUT exists with the same bytes; 1 CHECKPOINT is damaged, or OUTPUT exists with other
bytes; 2 usage or input.
"""


@dataclass(frozen=True, slots=True)
class Exported:
    """Facts about an exported file."""

    output: str
    model: str
    """Name of the encoder, e.g. `vit_base_patch16`, or `vit_5120x32_patch14` if its size has no name."""
    image_size: int
    """Side of the images, pixels."""
    num_heads: int | None
    """Number of heads of a block; None if neither the source nor the encoder's name says it."""
    num_classes: int
    """Number of logits; 0: the encoder alone was written."""
    tensors: int
    parameters: int
    bytes: int
    step: int | None
    """Number of updates after which the source was saved; None if it does not say so."""
    source: str
    source_digest: str
    """First 16 digits of the SHA-256 of the source's bytes; see `train.checkpoints.encoder_weights.source_digest`."""
    pixel_mean: tuple[float, ...] | None
    """Mean of R, G and B that images were standardised with, for values of 0..1; None if the source has none."""
    pixel_std: tuple[float, ...] | None
    """Standard deviation of R, G and B, as for `pixel_mean`."""
    classes: list[str] | None
    """Names of the classes by the number of their logit, fewer than logits if the run had more of them; None if there
    is no head, or the source does not say them."""
    already_there: bool
    """Whether the file was there with the same bytes, so that nothing was written."""


def export(source: str, output: str, *, key_bias: str = "add", names: str = "timm") -> Exported:
    """Write an encoder, and a classifier's head if it has one, to a new file: completely or not at all.

    Args:
        source: Our checkpoint (one file, parts or by Orbax), published MAE file, or file of timm's; on a disk or gs://.
        output: Path or URL of a .safetensors or .pth file.
        key_bias: `add`: biases for queries, keys and values, as in timm and ViTDet; `remove`: for queries and values
            only, as in BEiT; `keep`: as in the source.
        names: `timm`, or `vitmae`: the encoder by the names of Hugging Face's `ViTMAEForPreTraining`.

    Raises:
        UsageError: The source does not exist, or the name of the output has another suffix.
        FormatError: The source is damaged, or is not a vision transformer.
        ConflictError: The output exists and has other bytes.
    """
    if not output.endswith(SUFFIXES):
        raise UsageError(f"{output}: expected a name that ends with {' or '.join(SUFFIXES)}")
    if names == "vitmae" and key_bias != "add":
        raise UsageError(f"`names` vitmae, `key_bias` {key_bias}: ViTMAE needs key biases; leave `key_bias` out")
    weights = read_weights(source)
    by_our_names = KEY_BIAS[key_bias](folded_head(weights.tensors))
    tensors = {name: each.detach().contiguous() for name, each in sorted(NAMES[names](by_our_names).items())}
    num_classes = len(by_our_names.get("head.bias", ()))
    classes = list(weights.classes) if 0 < len(weights.classes) <= num_classes else None
    facts = {
        "model": weights.name,
        "image_size": weights.image_size,
        NUM_HEADS: weights.num_heads,
        "num_classes": num_classes,
        "step": weights.step,
        "source": source.rpartition("/")[2],
        "source_digest": source_digest(source),
        PIXEL_MEAN: weights.pixels.mean if weights.pixels else None,
        PIXEL_STD: weights.pixels.std if weights.pixels else None,
        CLASSES: classes,
    }
    folder, _, name = output.rpartition("/")
    storage = open_storage(folder or ".")
    spool = storage.spool_path(name)
    try:
        with disk_errors(spool):
            _write(spool, tensors, {key: value for key, value in facts.items() if value is not None}, name)
            num_bytes = spool.stat().st_size
        already_there = storage.stat(name) is not None
        storage.publish(spool, name, crc32c_of_file(spool))  # refuses bytes that differ from the existing ones
    finally:
        storage.remove_stale_spools()  # and the folder of spool files, which is empty now
    return Exported(
        output=output,
        tensors=len(tensors),
        parameters=sum(each.numel() for each in tensors.values()),
        bytes=num_bytes,
        already_there=already_there,
        **facts,  # type: ignore[arg-type]
    )


def _write(path: Path, tensors: dict[str, torch.Tensor], facts: dict[str, object], name: str) -> None:
    """Write tensors and facts; equal ones give equal bytes."""
    if name.endswith(SAFETENSORS):
        with needing("finetune", name, ", or give .pth"):
            from safetensors.torch import save
        # Not safetensors' save_file: it would replace this file, whose descriptor the storage keeps to sync it.
        path.write_bytes(save(tensors, {SAFETENSORS_KEY: json.dumps(facts)}))
        return
    with path.open("wb") as file:  # given a path, torch writes its name into the file
        torch.save({"model": tensors, METADATA: facts}, file)


@request
class Export(Request):
    """Write the weights of CHECKPOINT, complete or in parts, to OUTPUT (.safetensors or .pth), with timm's names."""

    checkpoint: str = option("Checkpoint, published MAE file or timm file.", kw_only=False)
    output: str = option("Path or URL of the new file.", kw_only=False)
    key_bias: str = option(
        "add: biases for queries, keys and values, as in timm and ViTDet; remove: no key bias, as in BEiT.",
        default="add",
        choices=tuple(KEY_BIAS),
    )
    names: str = option(
        "timm: names that ViTDet also reads; vitmae: names of Hugging Face's ViTMAEForPreTraining, without a decoder.",
        default="timm",
        choices=tuple(NAMES),
    )
    json: bool = option("Print a summary as JSON.", default=False)


def run(asked: Export) -> int:
    """Export, and print the result; return the exit code."""
    done = export(asked.checkpoint, asked.output, key_bias=asked.key_bias, names=asked.names)
    if asked.json:
        click.echo(json.dumps(asdict(done), indent=1))
        return 0
    if done.already_there:
        click.echo(f"{done.output} already exists with the same bytes; nothing was written", err=True)
    else:
        heads = f", {counted(done.num_heads, 'head')}" if done.num_heads else ""
        classes = f", {done.num_classes:,} classes" if done.num_classes else ""
        click.echo(
            f"{done.output}: {done.model} at {done.image_size} pixels{heads}{classes}, {done.tensors:,} tensors, "
            f"{done.parameters:,} parameters, {done.bytes:,} bytes",
            err=True,
        )
    return 0


command = entry_of(Export, run, "dataprep-export", epilog=EPILOG)
main = partial(run_entry, command)


if __name__ == "__main__":
    main()
