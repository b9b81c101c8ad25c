"""`dataprep map`: adds columns to a finished dataset: values of samples that functions make or tables have."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import click

from dataprep.arguments import OTHER, READ, WHERE, WRITE, Functions, Place, command_of, function_of, option, request
from dataprep.column_functions import find_function, place_of
from dataprep.commands.build_run import EngineRun, open_engine
from dataprep.commands.progress import BuildProgress, Viewer, people
from dataprep.dataset.column_files import Column
from dataprep.dataset.views import address
from dataprep.errors import UsageError
from dataprep.mapping import COLUMNS, TABLES, Work, join_column, map_column, plan_column, table_version
from dataprep.messages import counted

EPILOG = """\b
Examples:
  dataprep map shards --column latent=my_module:encode
  dataprep map gs://bucket/laion --column latent=my_module:Encoder --workers 1 --batch-size 256
  dataprep map shards --column embedding=timm:vit_small_patch14_dinov2.lvd142m --image-size 224
  dataprep map shards --column caption=captions.parquet --on key
  dataprep map shards --column latent=my_module:encode --runner ray

\b
After an interruption, or after the dataset has grown, run the same command again: it computes only what is missing.

\b
Exit codes: 0 complete, 1 a function failed, 2 wrong usage.
"""


@request
class Map(EngineRun):
    """Add columns to the finished dataset at URL: a value for each sample, in separate files, joined by position.

    A function gets a batch of samples, as RGB arrays unless it says otherwise (dataprep.Columns), and returns a number,
    array, text or bytes for each. A table has a row for each sample, and the value in its column of the same name.
    Loaders read columns like stored fields; the shards do not change.
    """

    url: Place = option("Folder or gs:// prefix of the dataset.", metavar="URL", kw_only=False, group=READ)
    columns: Functions = option(
        "Name of a column, and the source of its values: module:NAME of a function, or of a class (one instance per "
        "process); a model (timm:MODEL, open_clip:MODEL@TAG or vae:FOLDER); or a parquet or CSV file. May be repeated.",
        kw_only=False,
        flag="--column",
        metavar="NAME=FUNCTION",
        example="latent=my_module:encode",
        group=WRITE,
    )
    on: str | None = option("Table column with the samples' keys.", default=None, metavar="NAME", group=READ)
    batch_size: int | None = option(
        "Samples per call; by default as the function says, or 64.", default=None, low=1, group=OTHER
    )
    image_size: int | None = option(
        "Side of the images that a function or model gets, in pixels; by default as it says.",
        default=None,
        low=1,
        group=OTHER,
    )
    devices: int = option(
        "Number of this machine's accelerators to use; each has its own process, which sees no other accelerator.",
        default=0,
        low=0,
        group=WHERE,
    )
    version: str = option(
        "Version of the functions: values of the same version are kept. By default, a digest of the module's source.",
        default="",
        metavar="TEXT",
        group=OTHER,
    )
    overwrite: bool = option(
        "Compute all values again, even if a different function computed them.", default=False, group=WRITE
    )
    dry_run: bool = option("Show what would be computed, and write nothing.", default=False, group=OTHER)

    def __post_init__(self) -> None:
        """Replace functions by their names, and check the values."""
        if isinstance(self.columns, dict):
            object.__setattr__(self, "columns", {name: place_of(each) for name, each in self.columns.items()})
        super().__post_init__()
        if not self.columns:
            raise UsageError("no column is given; add `columns` NAME=FUNCTION")


@dataclass(frozen=True, slots=True)
class Mapped:
    """Columns that were made, or would be. It shows itself in a terminal."""

    url: str
    made: dict[str, int]
    """Samples whose values this run made, or would make, by column."""
    existed: dict[str, int]
    """Samples whose values were there before, by column."""
    types: dict[str, str]
    """Type of the values by column, such as `float16 (4, 32, 32)`; empty after a dry run, which makes none."""

    def __str__(self) -> str:
        lines = []
        for name, count in self.made.items():
            kept = f"; {self.existed[name]:,} had values" if self.existed[name] else ""
            done, of = ("computed", f": {self.types[name]}") if self.types[name] else ("would be computed", "")
            lines.append(f"{name}: {done} for {counted(count, 'sample')}{of}{kept}")
        return "\n".join(lines)


def _mapped(asked: Map, viewer: Viewer | None = None) -> Mapped:
    url, view = address(str(asked.url))
    if view:
        raise UsageError(
            f"{asked.url}: a column belongs to a dataset, not to a view; add it to {url}, and its views will have it, "
            "too"
        )
    asked.choice()  # refuses what no engine can do
    made, existed, types = dict[str, int](), dict[str, int](), dict[str, str]()
    with BuildProgress(viewer or asked.viewer()) as progress:
        for name, given in asked.columns.items():
            work, make = _planned(asked, url, name, str(given), progress)
            column = None if asked.dry_run else make()
            made[name], existed[name] = work.wanted_samples, sum(work.samples) - work.wanted_samples
            types[name] = "" if column is None else str(column.type)
    return Mapped(url, made, existed, types)


def _planned(asked: Map, url: str, name: str, given: str, progress: BuildProgress) -> tuple[Work, Callable[[], Column]]:
    """Return what a column lacks, and the function that makes it."""
    if given.lower().endswith(TABLES):
        if asked.on is None:
            raise UsageError(f"`columns` {name}={given}: a table needs a column with the keys; name it with `on`")
        on = asked.on
        version = asked.version or table_version(given)
        work = plan_column(url, name, f"table {given.rpartition('/')[2]}", version, overwrite=asked.overwrite)

        def join() -> Column:
            progress.begin(f"joining {name}", work.wanted_samples)
            return join_column(work, given, on, progress=lambda samples: progress.advance(samples, 0))

        return work, join
    if asked.on is not None:
        raise UsageError(f"`on` {asked.on}: `columns` {name} is not a table such as captions.parquet")
    function = find_function(
        given, version=asked.version, batch=asked.batch_size, size=asked.image_size, devices=asked.devices
    )
    work = plan_column(url, name, function.place, function.version, overwrite=asked.overwrite)

    def compute() -> Column:
        at, choice = work.storage.url, replace(asked, workers=asked.devices or asked.workers).choice()
        with open_engine(choice, COLUMNS.worker_modules, at, at, progress) as engine:
            return map_column(work, function, engine, progress)

    return work, compute


def _print(asked: Map, *, as_json: bool) -> None:
    found = _mapped(asked, people(asked, quiet=as_json))
    nothing = " (dry run: nothing was written)" if asked.dry_run else ""
    click.echo(json.dumps(asdict(found)) if as_json else f"{found}{nothing}")


map = function_of(Map, _mapped, "map")
command = command_of(Map, _print, "map", epilog=EPILOG)
