"""`dataprep diagnose`: what a training run waits for, what to do about it, and what that brings."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dataprep.commands.options import Bytes, json_option
from dataprep.errors import UsageError

if TYPE_CHECKING:
    from loaders.devices import Device
    from loaders.trial import Setup

EPILOG = """\b
Examples:
  dataprep diagnose shards/imagenet --device simulated:2000
  dataprep diagnose gs://bucket/imagenet --device xla --model mae_vit_base_patch16 --batch-size 256
  dataprep diagnose shards/imagenet --device cuda --model resnet50 --image-size 224 --html report.html
  dataprep diagnose gs://bucket/coco-dup5 --device simulated:3000,transfer=9000,step-ms=2 --apply
  dataprep diagnose shards/imagenet --device simulated:2000 --json | jq -r '.fixes[0].advice'

\b
A simulated device takes so many images a second and no core: `simulated:RATE`, with `transfer=RATE`, `step-ms=MS` and
`transfer-ms=MS` after commas where the way to it, a step or a transfer take time of their own.
"""


@click.command("diagnose", epilog=EPILOG)
@click.argument("url", metavar="URL")
@click.option("--device", "device_name", required=True, metavar="DEVICE", help="xla, cuda, cpu or simulated:RATE.")
@click.option("--model", help="Of train.models or torchvision, for a device that is not simulated.")
@click.option("--split", default="train", show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=128, show_default=True, help="Images of a step, here.")
@click.option("--image-size", type=click.IntRange(1), default=224, show_default=True, help="Pixels of a side.")
@click.option("--threads", type=click.IntRange(1), help="That decode. Default: one a core, at most 16.")
@click.option("--processes", type=click.IntRange(0), default=0, show_default=True, help="That decode; 0: this one.")
@click.option("--prefetch-batches", type=click.IntRange(1), default=3, show_default=True)
@click.option("--prefetch-bytes", type=Bytes(), default="1GiB", show_default=True)
@click.option("--reads-in-flight", type=click.IntRange(1), help="Requests under way to a bucket. Default: 128.")
@click.option("--cache-dir", type=click.Path(file_okay=False), help="Folder that keeps what a bucket gave.")
@click.option("--decoder", type=click.Choice(["auto", "extension", "library"]), default="auto", show_default=True)
@click.option(
    "--interpolation",
    type=click.Choice(["bicubic", "bilinear", "bilinear-no-antialias"]),
    default="bicubic",
    show_default=True,
)
@click.option("--transform", metavar="MODULE:NAME", help="Python function of (image_HWC, rng).")
@click.option(
    "--transfer-ahead",
    type=click.IntRange(0),
    default=2,
    show_default=True,
    help="Batches sent to the device while it computes; 0: each step waits for its own.",
)
@click.option("--seconds", type=click.FloatRange(0.1), default=2.0, show_default=True, help="To watch the run.")
@click.option("--apply", "apply_fix", is_flag=True, help="Try the best fix that needs no rebuild, and compare.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one self-contained page, too.")
@json_option
def command(
    url: str,
    device_name: str,
    model: str | None,
    seconds: float,
    apply_fix: bool,
    html: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how a training run on the dataset at URL is fed, and name what limits it and the change that helps most.

    The run is the loader with the settings given here and full training steps of the model, for some seconds; then
    fetching, decoding, the transfer and the model are each measured alone, and with the changes that could help.
    """
    if html is not None:
        from dataprep.page import require_report_packages

        require_report_packages()
    device = open_device(device_name, model, options["batch_size"], options["image_size"])
    from dataprep.commands.progress import ImageProgress
    from loaders.diagnose import apply_best, diagnose
    from loaders.findings import to_document

    setup = _setup(url, options)
    with ImageProgress(quiet=as_json) as progress:
        found = diagnose(setup, device, seconds=seconds, progress=progress.step)
        if apply_fix:
            progress.step("the best fix, tried")
            found = apply_best(setup, device, found, seconds=seconds)
    if html is not None:
        from dataprep.page import write_page
        from loaders.report import diagnosis_page

        write_page(diagnosis_page(found), html)
    if as_json:
        click.echo(json.dumps(to_document(found)))
    else:
        from rich.console import Console

        from loaders.report_text import diagnosis_text

        Console(highlight=False).print(diagnosis_text(found))
        if html is not None:
            click.echo(f"written: {html}")


def open_device(name: str, model: str | None, batch_size: int, image_size: int) -> Device:
    """The device of a command line, with the model on it.

    Raises:
        UsageError: No such device, or no model where one is needed.
    """
    from loaders.devices import DEVICES, SIMULATED, parse_simulated

    if name.partition(":")[0] == SIMULATED:
        if model is not None:
            raise UsageError(f"--model {model}: a simulated device takes the time that its name says; leave it out")
        return parse_simulated(name)
    if name not in DEVICES:
        raise UsageError(f"--device {name}: expected {', '.join(DEVICES[:-1])} or {SIMULATED}:IMAGES_PER_S")
    if model is None:
        raise UsageError(f"--device {name}: say which model it trains, e.g. --model resnet50 or mae_vit_base_patch16")
    from train.workload import training_workload

    return training_workload(model, device=name, batch_size=batch_size, image_size=image_size)


def _setup(url: str, options: dict[str, Any]) -> Setup:
    from loaders.config import LoaderConfig
    from loaders.trial import Setup

    transform = options.pop("transform")
    ahead, split = options.pop("transfer_ahead"), options.pop("split")
    config = LoaderConfig(transform=None if transform is None else _function(transform), **options)
    if split != "train":
        config = replace(config, shuffle=False, augment=False)
    return Setup(url=url, split=split, config=config, transfer_ahead=ahead)


def _function(text: str) -> Any:
    module, colon, name = text.partition(":")
    sys.path.insert(0, "")  # as `python -m` has it: the user's own modules lie here
    try:
        if not colon:
            raise ImportError("no colon")
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--transform {text}: expected MODULE:NAME of a Python function ({error})") from error
