"""`dataprep build folder`: builds verified shards from a user's own pictures, in any tree or archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dataprep.build.plan import BuildOptions
from dataprep.build.request import BuildRequest
from dataprep.commands.build import refuse_unfit
from dataprep.commands.build_options import image_options, image_policy, plan_lines, shard_options, split_line
from dataprep.commands.build_run import Run, Shown, build, refuse_unknown_runner, shared_options
from dataprep.commands.options import Finite
from dataprep.commands.progress import BuildProgress
from dataprep.dataset.documents import JsonObject
from dataprep.errors import UsageError
from dataprep.sources import OwnData, own_name_fault
from dataprep.sources.own import SPLITS, UNSTATED, name_from
from dataprep.sources.tree import ARCHIVES
from dataprep.storage import open_storage

EPILOG = """\b
Examples:
  dataprep build folder --source ~/Pictures --output shards --format webdataset
  dataprep build folder --source pets --output gs://bucket/pets --format tfrecord --val-fraction 0.1 --resize 256
  dataprep build folder --source pets.zip --output shards --format webdataset --name pets --licence CC-BY-4.0
  dataprep build folder --source scans --output shards --format webdataset --label-from diagnosis \\
      --val-fraction 0.2 --group-by patient --default age=-1 --drop notes

\b
Splits are the top folders train, val (or valid, validation) and test; without them everything is train. Classes are
the folders directly below, if all pictures lie in such folders and there are two or more.

\b
metadata.csv, metadata.jsonl or metadata.parquet, in any folder, has a row for each picture: its path relative to that
folder as file_name, and any other columns, which every shard stores and a loader's fields=("caption",) reads. A column
label is the class.

\b
After an interruption, a crash or a full disk run the same command again: it builds only what is missing, and the
result has the same bytes.
"""


def _pairs(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    pairs = [value.partition("=") for value in values]
    if not all(name and equals for name, equals, _ in pairs):
        raise click.BadParameter("expected COLUMN=VALUE")
    return tuple(sorted((name, value) for name, _, value in pairs))


@click.command("folder", epilog=EPILOG)
@click.argument("beam_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- BEAM_OPTIONS]")
@click.option(
    "--source", required=True, metavar="URL", help="Folder, gs:// prefix, or one .zip or .tar, that holds the pictures."
)
@click.option("--name", help="Name of the dataset.  [default: made of the last part of --source]")
@click.option("--licence", default=UNSTATED, show_default=True, help="Licence of the pictures, for the manifest.")
@click.option("--origin", default=UNSTATED, show_default=True, help="Where the pictures come from, for the manifest.")
@click.option(
    "--label-from",
    metavar="folder|COLUMN|none",
    help="Take the class from the folder, from a column of the metadata, or store none.  [default: the column label, "
    "else the folder if every picture has one]",
)
@click.option(
    "--val-fraction",
    type=Finite(0, 1),
    default=0.0,
    help="Share of train that becomes val. A picture's key and --seed decide, so new pictures move no others.",
)
@click.option("--group-by", metavar="COLUMN", help="Keep pictures with the same value in this column in one split.")
@click.option(
    "--default",
    "defaults",
    multiple=True,
    metavar="COLUMN=VALUE",
    callback=_pairs,
    help="Value for pictures that have none in this column; may be repeated.",
)
@click.option("--drop", multiple=True, metavar="COLUMN", help="Leave this column out; may be repeated.")
@click.option(
    "--pass-over", multiple=True, metavar="SUFFIX", help="Leave files with this suffix out, e.g. heic; may be repeated."
)
@shard_options
@image_options
@shared_options
def command(
    beam_options: tuple[str, ...],
    run: Run,
    source: str,
    output: str,
    format_name: str,
    splits: tuple[str, ...],
    overwrite: bool,
    max_reject_ratio: float | None,
    **options: Any,
) -> None:
    """Build your own pictures: any tree of files, or a zip or tar of one.

    Nothing is unpacked or renamed. A valid RGB or grey JPEG keeps its bytes. Other pictures (PNG, WebP, GIF, BMP)
    are re-encoded as JPEG; those that cannot be decoded are rejected and listed.
    """
    refuse_unknown_runner(run.runner, beam_options)
    root, archive = _place(source)
    own = _own_data(source, archive, options)
    images = image_policy(options)
    for split in splits:
        if split not in SPLITS:
            raise UsageError(f"--split {split}: expected one of {', '.join(SPLITS)}")
    request = BuildRequest(
        options=BuildOptions(
            dataset="folder", format=format_name, splits=tuple(splits), images=images, own=own, **options
        ),
        source_url=root,
        output_url=output,
        max_reject_ratio=max_reject_ratio or 0.0,
        overwrite=overwrite,
    )
    refuse_unfit(request)
    build(request, run, beam_options, Shown(progress=BuildProgress, plan_lines=plan_lines, split_line=split_line))


def _place(source: str) -> tuple[str, str]:
    """Return the root of the originals, and the name of the archive if the source is one."""
    url = open_storage(source).url.rstrip("/")
    if url.lower().rpartition(".")[2] not in ARCHIVES or ("://" not in url and Path(url).is_dir()):
        return source, ""
    root, _, name = url.rpartition("/")
    return root or "/", name


def _own_data(source: str, archive: str, options: JsonObject) -> OwnData:
    """Remove the options about the user's own data from a command's options, and return them."""
    name = options.pop("name") or name_from(open_storage(source).url)
    if fault := own_name_fault(name):
        raise UsageError(f"{fault}; choose another with --name")
    own = {key: options.pop(key) for key in ("licence", "origin", "label_from", "val_fraction", "group_by", "defaults")}
    return OwnData(
        name=name,
        archive=archive,
        split_seed=options["seed"] if own["val_fraction"] else 0,
        drop=tuple(sorted(options.pop("drop"))),
        pass_over=tuple(sorted(suffix.lower().lstrip(".") for suffix in options.pop("pass_over"))),
        **own,
    )
