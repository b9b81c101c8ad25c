"""`dataprep build folder`: builds verified shards from a user's own pictures, in any tree or archive."""

from __future__ import annotations

from typing import Any

import click

from dataprep.arguments import StrictCommand
from dataprep.commands.build_options import image_options, shard_options
from dataprep.commands.build_own import RERUN, build_own, own_options, place_of
from dataprep.commands.build_run import Run, refuse_unknown_runner, shared_options
from dataprep.sources.folder import text_files
from dataprep.sources.tree import ARCHIVES, PACKED

TextFiles = tuple[tuple[str, str], ...]

EPILOG = f"""\b
Examples:
  dataprep build folder --source ~/Pictures --output shards --format webdataset
  dataprep build folder --source pets --output gs://bucket/pets --format tfrecord --val-fraction 0.1 --resize 256
  dataprep build folder --source pets.zip --output shards --format webdataset --name pets --licence CC-BY-4.0
  dataprep build folder --source pairs --output shards --format webdataset --text-files caption
  dataprep build folder --source scans --output shards --format webdataset --label-from diagnosis \\
      --val-fraction 0.2 --group-by patient --default age=-1 --drop notes

\b
Splits are the top folders train, val (or valid, validation) and test; without them everything is train. Classes are
the folders directly below, if all pictures lie in such folders and there are two or more.

\b
metadata.csv, metadata.jsonl or metadata.parquet, in any folder, has a row for each picture: its path relative to that
folder as file_name, and any other columns, which every shard stores and a loader's fields=("caption",) reads. A column
label is the class.


With --text-files caption the text of cat.txt is the caption of cat.jpg; every picture needs such a file, or --default.

{RERUN}"""


def _text_files(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> TextFiles:
    return text_files(values)


@click.command("folder", cls=StrictCommand, epilog=EPILOG)
@click.argument("engine_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE_OPTIONS]")
@click.option(
    "--source",
    required=True,
    metavar="URL",
    help="Folder, gs:// prefix or hf://datasets/OWNER/NAME[@REVISION][/PATH] that holds the pictures, or one .zip or "
    ".tar.",
)
@click.option(
    "--label-from",
    metavar="folder|COLUMN|none",
    help="Take the class from the folder, from a column of the metadata, or store none.  [default: the column label, "
    "else the folders, if every picture is in one and there are two or more]",
)
@click.option(
    "--text-files",
    multiple=True,
    metavar="NAME[=SUFFIX]",
    callback=_text_files,
    help="Store the text file of each picture (cat.txt for cat.jpg) as the feature NAME, e.g. caption. SUFFIX is the "
    "suffix of these files if it is not txt. May be repeated.",
)
@click.option(
    "--pass-over",
    multiple=True,
    metavar="SUFFIX|NAME",
    help="Leave files with this suffix (heic) or of this name (notes.txt, 'draft-*.png') out; may be repeated.",
)
@own_options
@shard_options
@image_options
@shared_options
def command(engine_options: tuple[str, ...], run: Run, source: str, **options: Any) -> None:
    """Build your own pictures: any tree of files, or an uncompressed zip or tar of one.

    Nothing is unpacked or renamed. A valid RGB or grey JPEG keeps its bytes. Other pictures (PNG, WebP, GIF, BMP)
    are re-encoded as JPEG; those that cannot be decoded are rejected and listed.
    """
    refuse_unknown_runner(run, engine_options)
    place = place_of(source, lambda url: url.lower().rpartition(".")[2] in ARCHIVES | PACKED)
    build_own("folder", place, run, engine_options, options)
