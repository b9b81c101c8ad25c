"""`dataprep demo-data`: small originals in the true archive layouts."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Literal

import click

from dataprep.commands.options import human_bytes, json_option
from dataprep.commands.progress import BuildProgress
from dataprep.demo_data import write_demo

EPILOG = """\b
Examples:
  dataprep demo-data coco originals
  dataprep demo-data imagenet originals --images 2000 --odd
"""


@click.command("demo-data", epilog=EPILOG)
@click.argument("dataset", type=click.Choice(["coco", "imagenet"]))
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--images",
    type=click.IntRange(min=20),
    default=400,
    show_default=True,
    help="Of the split train; val comes on top.",
)
@click.option("--odd", is_flag=True, help="Add the oddities of the real datasets: PNG, CMYK, truncated, …")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@json_option
def command(
    dataset: Literal["coco", "imagenet"], directory: Path, images: int, odd: bool, seed: int, as_json: bool
) -> None:
    """Write original files of DATASET, made of real photographs, into DIRECTORY.

    The photographs are those that scikit-image and scikit-learn ship; sizes and qualities follow ImageNet's. The
    archives have the names and layouts of the real ones, so every command works on them, with --allow-partial
    because the counts are not the published ones.
    """
    with BuildProgress(quiet=as_json) as progress:
        made = partial(progress.reading, "photographs")
        report = write_demo(dataset, directory, images=images, odd=odd, seed=seed, progress=made)
    if as_json:
        click.echo(json.dumps(asdict(report), default=str))
        return
    for path in sorted(directory.iterdir()):
        click.echo(f"{path}  {human_bytes(path.stat().st_size)}")
