"""`dataprep diagnose`: what a training run waits for, what to change, and what that gains."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from dataprep.arguments import Bytes, Finite, StrictCommand
from dataprep.commands.options import COUNT, COUNT_OR_NONE, json_option
from dataprep.errors import UndecidedError, UsageError
from dataprep.host.processes import find_modules_here

if TYPE_CHECKING:
    from loaders.decode.decoders import Backend, Interpolation
    from loaders.diagnosis.observed_run import Device, RunSetup


class _Options(TypedDict):
    """Values of the options that become the settings of the run."""

    split: str
    batch_size: int
    image_size: int
    threads: int | None
    processes: int
    prefetch_batches: int
    prefetch_bytes: int
    reads_in_flight: int | None
    cache_dir: str | None
    decoder: Backend
    interpolation: Interpolation
    transform: str | None
    transfer_ahead: int


EPILOG = """\b
Examples:
  dataprep diagnose shards/imagenet --device simulated:2000
  dataprep diagnose gs://bucket/imagenet --device xla --model mae_vit_base_patch16 --batch-size 256
  dataprep diagnose shards/imagenet --device cuda --model resnet50 --image-size 224 --html report.html
  dataprep diagnose gs://bucket/coco-dup5 --device simulated:3000,transfer=9000,step-ms=2 --apply
  dataprep diagnose shards/imagenet --device simulated:2000 --json > before.json
  dataprep diagnose shards/imagenet --device simulated:2000 --threads 16 --compare before.json --html both.html
  dataprep diagnose shards/imagenet --device simulated:2000 --json | jq -r '.fixes[0].advice'

\b
`simulated:RATE` stands for an accelerator that takes RATE images a second, and takes hardly any CPU time. RATE of a
model of your own: time its training steps on one batch that stays on the device, and give the images a second that
they take; docs/bottleneck.md has the lines that do so. After commas, `transfer=RATE` limits the transfer to it, and
`step-ms=MS` and `transfer-ms=MS` add time to each step and each transfer.

Exit codes: 0 diagnosed, 1 a disk or bucket failed, 2 wrong usage or input, 3 undecided: the run was clearly faster
than one of its stages alone, or slower than the stages promise while other programs used the cores, or it waits for
cores of which other programs used more or fewer meanwhile.
"""


@click.command("diagnose", cls=StrictCommand, epilog=EPILOG)
@click.argument("url", metavar="URL")
@click.option(
    "--device",
    "device_name",
    required=True,
    metavar="DEVICE",
    help="Device that trains: xla, tpu, cuda, cpu or simulated:RATE.",
)
@click.option("--model", help="Model of train.models or torchvision; every device but a simulated one needs it.")
@click.option("--split", default="train", show_default=True, help="Split that is read.")
@click.option("--batch-size", type=COUNT, default=128, show_default=True, help="Images in a step on this host.")
@click.option(
    "--image-size", type=COUNT, default=224, show_default=True, help="Sides of the cropped images, in pixels."
)
@click.option("--threads", type=COUNT, help="Threads that decode.  [default: one for each core, at most 16]")
@click.option(
    "--processes",
    type=COUNT_OR_NONE,
    default=0,
    show_default=True,
    help="Processes that decode; 0: threads of this process do.",
)
@click.option("--prefetch-batches", type=COUNT, default=3, show_default=True, help="Batches that are prepared ahead.")
@click.option("--prefetch-bytes", type=Bytes(), default="1GiB", show_default=True, help="Memory for data read ahead.")
@click.option("--reads-in-flight", type=COUNT, help="Requests to a bucket at the same time.  [default: 128]")
@click.option("--cache-dir", type=click.Path(file_okay=False), help="Folder that keeps what was read from a bucket.")
@click.option(
    "--decoder",
    type=click.Choice(["auto", "extension", "library"]),
    default="auto",
    show_default=True,
    help="What decodes JPEGs: the compiled extension, or a library; auto: the extension where it was compiled.",
)
@click.option(
    "--interpolation",
    type=click.Choice(["bicubic", "bilinear", "bilinear-no-antialias"]),
    default="bicubic",
    show_default=True,
    help="How crops are resized.",
)
@click.option(
    "--transform", metavar="MODULE:NAME", help="Python function of (image_HWC, rng) that changes every image."
)
@click.option(
    "--transfer-ahead",
    type=COUNT_OR_NONE,
    default=2,
    show_default=True,
    help="Batches sent ahead to the device while it computes; 0: each step waits for its own batch.",
)
@click.option("--seconds", type=Finite(0.1), default=2.0, show_default=True, help="Length of the measured run.")
@click.option(
    "--apply",
    "apply_fix",
    is_flag=True,
    help="Run once with the best change of settings, and compare its rate with the prediction.",
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one self-contained page as well.")
@click.option(
    "--compare",
    "compared",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show the rates beside those of an earlier run, whose --json is in this file.",
)
@json_option
def command(
    url: str,
    device_name: str,
    model: str | None,
    seconds: float,
    apply_fix: bool,
    html: Path | None,
    compared: Path | None,
    as_json: bool,
    **options: Unpack[_Options],
) -> None:
    """Find what limits a training run on the dataset at URL, and which change helps most.

    For some seconds the loader feeds full training steps of the model, with the settings given here. Fetching,
    decoding, the transfer and the model are also measured alone, and again with each change that could help.
    """
    if html is not None:
        from dataprep.pages import require_report_packages

        require_report_packages()
    from loaders.report.terminal import compare_diagnoses, read_diagnosis

    before = None if compared is None else read_diagnosis(compared)  # first: an error is found at once
    device = open_device(device_name, model, options["batch_size"], options["image_size"])
    from dataprep.commands.progress import ImageProgress
    from loaders.diagnosis.diagnose import apply_best, diagnose
    from loaders.diagnosis.findings import to_document

    setup = _setup(url, options)
    with ImageProgress(quiet=as_json) as progress:
        found = diagnose(setup, device, seconds=seconds, progress=progress.step)
        if apply_fix:
            progress.step("the best fix, tried")
            found = apply_best(setup, device, found, seconds=seconds)
    comparison = None if before is None else compare_diagnoses(before, found)
    if html is not None:
        from dataprep.pages import write_page
        from loaders.report.page import diagnosis_page

        write_page(diagnosis_page(found, comparison), html)
    if as_json:
        beside = {} if comparison is None else {"comparison": asdict(comparison)}
        click.echo(json.dumps(to_document(found) | beside))
    else:
        from dataprep.host.piped import open_console, print_lines
        from loaders.report.terminal import comparison_text, diagnosis_text

        console = open_console()
        print_lines(console, diagnosis_text(found))
        if comparison is not None:
            print_lines(console, "", comparison_text(comparison, None if found.undecided else found.limit))
        if html is not None:
            click.echo(f"written: {html}")
    if found.undecided:
        click.get_current_context().exit(UndecidedError.exit_code)


def open_device(name: str, model: str | None, batch_size: int, image_size: int) -> Device:
    """Open the device that a command line names, with the model on it.

    Raises:
        UsageError: There is no such device, or it needs a model and none is given.
    """
    from loaders.diagnosis.observed_run import DEVICES, SIMULATED, parse_simulated

    if name.partition(":")[0] == SIMULATED:
        if model is not None:
            raise UsageError(f"--model {model}: a simulated device has the speed in its name; leave --model out")
        return parse_simulated(name)
    if name not in DEVICES:
        raise UsageError(f"--device {name}: expected {', '.join(DEVICES[:-1])} or {SIMULATED}:IMAGES_PER_S")
    if model is None:
        raise UsageError(f"--device {name}: name the model to train, e.g. --model resnet50 or mae_vit_base_patch16")
    from train.loops.workload import training_workload

    return training_workload(model, device=name, batch_size=batch_size, image_size=image_size)


def _setup(url: str, options: _Options) -> RunSetup:
    from loaders.config import LoaderConfig
    from loaders.diagnosis.observed_run import RunSetup

    transform, split = options["transform"], options["split"]
    config = LoaderConfig(
        batch_size=options["batch_size"],
        image_size=options["image_size"],
        threads=options["threads"],
        processes=options["processes"],
        prefetch_batches=options["prefetch_batches"],
        prefetch_bytes=options["prefetch_bytes"],
        reads_in_flight=options["reads_in_flight"],
        cache_dir=options["cache_dir"],
        decoder=options["decoder"],
        interpolation=options["interpolation"],
        transform=None if transform is None else _function(transform),
        shuffle=split == "train",
        augment=split == "train",
    )
    return RunSetup(url=url, split=split, config=config, transfer_ahead=options["transfer_ahead"])


def _function(text: str) -> Any:
    module, colon, name = text.partition(":")
    find_modules_here()
    try:
        if not colon:
            raise ImportError("no colon")
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--transform {text}: expected MODULE:NAME of a Python function ({error})") from error
