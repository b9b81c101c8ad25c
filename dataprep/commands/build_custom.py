"""`dataprep build module:NAME`: builds verified shards with somebody's own dataset class."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import cleandoc
from typing import Any, cast

import click

from dataprep.arguments import StrictCommand
from dataprep.builder.plan import BuildOptions
from dataprep.builder.request import BuildRequest
from dataprep.commands.build import build_images
from dataprep.commands.build_options import image_options, image_policy, shard_options
from dataprep.commands.build_run import Run, refuse_unknown_runner, shared_options
from dataprep.errors import UsageError
from dataprep.sources import OwnData, own_name_fault
from dataprep.sources.custom import CustomDataset, custom_dataset

EPILOG = """\b
Examples:
  dataprep build my_pets:Pets --source ~/pets --output shards --format webdataset
  dataprep build pets --source gs://bucket/pets --output gs://bucket/shards --format tfrecord --resize 256

\b
docs/own-dataset.md has a complete class.
"""


@click.command("build", cls=StrictCommand)
@click.argument("engine_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE_OPTIONS]")
@click.option("--source", required=True, metavar="URL", help="Folder or gs:// prefix that the class lists.")
@click.option("--name", help="Name of the dataset.  [default: that of the class]")
@click.option("--licence", help="Licence of the images, for the manifest.  [default: that of the class]")
@click.option("--origin", help="Where the images come from, for the manifest.  [default: that of the class]")
@click.option(
    "--repeat",
    type=click.Choice(["virtual", "physical"]),
    default="virtual",
    show_default=True,
    help="For a class with several passes in an epoch: store each image once, or all passes.",
)
@click.option("--allow-partial", is_flag=True, help="Accept other counts of images than the class states.")
@shard_options
@image_options
@shared_options
def _custom(
    class_name: str,
    engine_options: tuple[str, ...],
    run: Run,
    source: str,
    name: str | None,
    licence: str | None,
    origin: str | None,
    output: str,
    format_name: str,
    splits: tuple[str, ...],
    overwrite: bool,
    max_reject_ratio: float | None,
    **options: Any,
) -> None:
    """The class says where each image lies; dataprep checks, shuffles, packs and verifies them.

    A valid RGB or grey JPEG keeps its bytes. Other images are re-encoded; images that cannot be decoded are rejected
    and listed.
    """
    refuse_unknown_runner(run, engine_options)
    dataset = custom_dataset(class_name)
    for split in splits:
        dataset.split_facts(split)
    request = BuildRequest(
        options=BuildOptions(
            dataset=dataset.place,
            format=format_name,
            splits=splits or tuple(dataset.facts),
            images=image_policy(options),
            own=_described(dataset, name, licence, origin),
            **options,
        ),
        source_url=source,
        output_url=output,
        max_reject_ratio=max_reject_ratio or 0.0,
        overwrite=overwrite,
    )
    build_images(request, run, engine_options)


def command_of(class_name: str) -> click.Command:
    """Return the command that builds with a class; it imports the class when it is called."""
    return StrictCommand(
        class_name,
        params=_custom.params,
        callback=partial(cast(Callable[..., None], _custom.callback), class_name),
        help=f"Build with your own dataset class {class_name}.\n\n{cleandoc(_custom.help or '')}",
        epilog=EPILOG,
    )


def _described(dataset: CustomDataset, name: str | None, licence: str | None, origin: str | None) -> OwnData:
    own = OwnData(
        name=dataset.name if name is None else name,
        licence=dataset.licence if licence is None else licence,
        origin=dataset.origin if origin is None else origin,
    )
    if fault := own_name_fault(own.name):
        raise UsageError(f"{fault}; choose another with --name")
    return own
