"""`dataprep diagnose`: what a training run waits for, what to change, and what that gains."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dataprep.arguments import IMAGES, READ, WHERE, WRITE, Place, Request, command_of, option, request, spelled_document
from dataprep.errors import UndecidedError, UsageError, needing
from dataprep.host.processes import find_modules_here
from dataprep.messages import did_you_mean

if TYPE_CHECKING:
    from loaders.diagnosis.observed_run import Device, RunSetup


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
`simulated:RATE` simulates an accelerator that takes RATE images per second, and needs hardly any CPU time. To find the
RATE for your own model, time its training steps on one batch that stays on the device; docs/bottleneck.md has the code.
After commas, `transfer=RATE` limits the transfer to that rate, and `step-ms=MS` and `transfer-ms=MS` add time to each
step and each transfer.

Exit codes: 0 diagnosed, 1 a disk or bucket failed, 2 wrong usage or input, 3 undecided: the measurements contradict
each other, or other programs used the cores.
"""


@request
class Diagnose(Request):
    """Find what limits a training run on the dataset at URL, and which change helps most.

    For a few seconds, the loader feeds full training steps of the model, with the settings given here. Fetching,
    decoding, the transfer and the model are also measured alone, and again with each change that could help.
    """

    url: Place = option("Folder or gs:// prefix of the dataset.", metavar="URL", kw_only=False, group=READ)
    device: str = option(
        "Device to train on: xla, tpu, cuda or cpu; or simulated:RATE, a simulated device that takes RATE images per "
        "second.",
        metavar="DEVICE",
        group=WHERE,
    )
    model: str | None = option(
        "Model from train.models or torchvision; required unless the device is simulated.", default=None, group=WHERE
    )
    split: str = option("Split to read.", default="train", group=READ)
    batch_size: int = option("Images per step on this host.", default=128, low=1, group=IMAGES)
    image_size: int = option("Side of the cropped images, in pixels.", default=224, low=1, group=IMAGES)
    threads: int | None = option(
        "Decoding threads.", default=None, low=1, shown="one per core, at most 16", group=WHERE
    )
    processes: int = option("Decoding processes; 0: decode in threads of this process.", default=0, low=0, group=WHERE)
    prefetch_batches: int = option("Batches prepared ahead.", default=3, low=1, group=READ, rare=True)
    prefetch_bytes: int | str = option(
        "Memory for data read ahead.", default=2**30, size=True, shown="1GiB", group=READ, rare=True
    )
    reads_in_flight: int | None = option(
        "Concurrent requests to a bucket.", default=None, low=1, shown="128", group=READ, rare=True
    )
    cache_dir: str | None = option(
        "Folder that caches data read from a bucket.", default=None, metavar="FOLDER", group=READ, rare=True
    )
    decoder: Literal["auto", "extension", "library"] = option(
        "JPEG decoder: the compiled extension, or a library; auto: the extension if it was compiled.",
        default="auto",
        group=IMAGES,
        rare=True,
    )
    interpolation: Literal["bicubic", "bilinear", "bilinear-no-antialias"] = option(
        "Filter that resizes crops.", default="bicubic", group=IMAGES
    )
    transform: str | None = option(
        "Python function of (image_HWC, rng), applied to every image.",
        default=None,
        metavar="MODULE:NAME",
        group=IMAGES,
    )
    transfer_ahead: int = option(
        "Batches sent ahead to the device while it computes; 0: each step waits for its own batch.",
        default=2,
        low=0,
        group=WHERE,
        rare=True,
    )
    seconds: float = option("Length of the measured run, in seconds.", default=2.0, low=0.1)
    apply: bool = option(
        "Run once with the best change of settings, and compare the rate with the prediction.", default=False
    )
    html: Path | None = option("Also write a self-contained HTML page.", default=None, metavar="FILE", group=WRITE)
    compare: Path | None = option(
        "Compare the rates with an earlier run's --json output in this file.", default=None, metavar="FILE"
    )

    def setup(self) -> RunSetup:
        """Return the run that is measured."""
        from loaders.config import LoaderConfig
        from loaders.diagnosis.observed_run import RunSetup

        config = LoaderConfig(
            batch_size=self.batch_size,
            image_size=self.image_size,
            threads=self.threads,
            processes=self.processes,
            prefetch_batches=self.prefetch_batches,
            prefetch_bytes=int(self.prefetch_bytes),
            reads_in_flight=self.reads_in_flight,
            cache_dir=self.cache_dir,
            decoder=self.decoder,
            interpolation=self.interpolation,
            transform=None if self.transform is None else _function(self.transform),
            shuffle=self.split == "train",
            augment=self.split == "train",
        )
        return RunSetup(url=str(self.url), split=self.split, config=config, transfer_ahead=self.transfer_ahead)


def _diagnose(asked: Diagnose, *, as_json: bool) -> int:
    if asked.html is not None:
        from dataprep.pages import require_report_packages

        require_report_packages()
    from loaders.diagnosis.findings import to_document
    from loaders.metrics.earlier import compare, read_earlier

    before = read_earlier(asked.compare, "stages", "dataprep diagnose --json")  # first: an error is found early
    device = open_device(asked.device, asked.model, asked.batch_size, asked.image_size)
    from dataprep.commands.progress import ImageProgress
    from loaders.diagnosis.diagnose import apply_best, diagnose

    setup = asked.setup()
    with ImageProgress(quiet=as_json) as progress:
        found = diagnose(setup, device, seconds=asked.seconds, progress=progress.step)
        if asked.apply:
            progress.step("the best fix, tried")
            found = apply_best(setup, device, found, seconds=asked.seconds)
    document = to_document(found)
    comparison = compare(before, document)
    if asked.html is not None:
        from dataprep.pages import write_page
        from loaders.diagnosis.report import diagnosis_page

        write_page(diagnosis_page(found, comparison), asked.html)
    if as_json:
        more = {} if comparison is None else {"comparison": asdict(comparison)}
        click.echo(json.dumps(spelled_document(Diagnose, document | more)))
    else:
        from dataprep.host.piped import open_console, print_lines
        from loaders.diagnosis.report import diagnosis_text

        console = open_console()
        print_lines(console, diagnosis_text(found))
        if comparison is not None:
            print_lines(console, "", comparison.text())
        if asked.html is not None:
            click.echo(f"written: {asked.html}")
    return UndecidedError.exit_code if found.undecided else 0


command = command_of(Diagnose, _diagnose, "diagnose", epilog=EPILOG)


def open_device(name: str, model: str | None, batch_size: int, image_size: int) -> Device:
    """Open the device of this name, with the model on it. Raises UsageError if there is no such device, or it needs a
    model and none is given."""
    from loaders.diagnosis.observed_run import DEVICES, SIMULATED, parse_simulated

    if name.partition(":")[0] == SIMULATED:
        if model is not None:
            raise UsageError(f"`model` {model}: a simulated device has the speed in its name; leave `model` out")
        return parse_simulated(name)
    if name not in DEVICES:
        hint = did_you_mean(name, DEVICES)
        raise UsageError(f"`device` {name}: expected {', '.join(DEVICES[:-1])} or {SIMULATED}:IMAGES_PER_S{hint}")
    if model is None:
        raise UsageError(f"`device` {name}: name the `model` to train, e.g. resnet50 or mae_vit_base_patch16")
    with needing("torch", f"`device` {name}"):
        from train.loops.workload import training_workload

    return training_workload(model, device=name, batch_size=batch_size, image_size=image_size)


def _function(text: str) -> Any:
    module, colon, name = text.partition(":")
    find_modules_here()
    try:
        if not colon:
            raise ImportError("no colon")
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"`transform` {text}: expected MODULE:NAME of a Python function ({error})") from error
