"""`dataprep build table`: builds verified shards from a user's own table of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dataprep.arguments import StrictCommand
from dataprep.commands.build_options import image_options, shard_options
from dataprep.commands.build_own import RERUN, build_own, own_options, place_of
from dataprep.commands.build_run import Run, refuse_unknown_runner, shared_options
from dataprep.errors import UsageError
from dataprep.sources.tables import is_table

EPILOG = f"""\b
Examples:
  dataprep build table --source food101 --output shards --format webdataset
  dataprep build table --source hf://datasets/OWNER/NAME --output gs://bucket/name --format tfrecord --resize 256
  dataprep build table --source pets/labels.csv --output shards --format webdataset --label-from breed \\
      --val-fraction 0.1
  dataprep build table --source gs://bucket --table lists/train.parquet --output gs://bucket/pets --format tfrecord

\b
Tables are parquet files with the bytes of images in a column, as the Hugging Face Hub has them, or parquet, CSV, TSV
or JSON lines with paths. A path is relative to the table or to --source, or begins with --source; it leads nowhere
else. Splits are in the names of tables: data/train-00000-of-00012.parquet, validation.csv, test/0.parquet.

\b
A column label, or the only one of type ClassLabel, has the classes. All other columns become features, which every
shard stores and a loader's fields=("caption",) reads.

\b
Image bytes are unpacked below OUTPUT/_build first, which takes as much space as the images; --dry-run says how much.

{RERUN}"""


@click.command("table", cls=StrictCommand, epilog=EPILOG)
@click.argument("engine_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE_OPTIONS]")
@click.option(
    "--source",
    required=True,
    metavar="URL",
    help="A table, or the folder, gs:// prefix or hf://datasets/OWNER/NAME[@REVISION][/PATH] that holds tables and "
    "images.",
)
@click.option("--table", "only", metavar="PATH", help="Table, or folder of tables, below --source.  [default: all]")
@click.option(
    "--image-column", metavar="COLUMN", help="Column of the images.  [default: the only one that may hold them]"
)
@click.option(
    "--key-from",
    metavar="path|row|COLUMN",
    help="Source of the keys: the images' paths, the names of tables with row numbers, or a column.  [default: path if "
    "the first image has one, else row]",
)
@click.option(
    "--label-from",
    metavar="COLUMN|none",
    help="Column of the classes.  [default: label, or the only one of type ClassLabel]",
)
@own_options
@shard_options
@image_options
@shared_options
def command(engine_options: tuple[str, ...], run: Run, source: str, only: str | None, **options: Any) -> None:
    """Build the images of your own tables: their bytes in parquet files, or paths in any table.

    A valid RGB or grey JPEG keeps its bytes. Other images (PNG, WebP, GIF, BMP) are re-encoded as JPEG; those that
    cannot be decoded are rejected and listed, and with --max-reject-ratio so are those that do not exist or are of a
    type that is not read, such as TIFF.
    """
    refuse_unknown_runner(run, engine_options)
    root, name = place_of(source, lambda url: is_table(url) or Path(url).is_file())
    if name and only:
        raise UsageError(f"--table {only}: --source is a table itself; give the folder that holds both as --source")
    build_own("table", (root, (only or name).strip("/")), run, engine_options, options)
