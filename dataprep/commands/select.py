"""`dataprep select`: makes a view of a dataset, DATA@NAME, which loaders and commands open in its place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

import click

from dataprep.arguments import OTHER, READ, WRITE, Place, Places, Texts, command_of, function_of, option, request, texts
from dataprep.builder.finished import readable_manifest
from dataprep.commands.progress import ImageProgress, Viewer, Watched, people
from dataprep.dataset.views import Choice, address, find_view
from dataprep.errors import UsageError
from dataprep.messages import counted, shortened
from dataprep.selection import Selection
from dataprep.selection import select as select_samples
from dataprep.storage import open_storage

EPILOG = """\b
Examples:
  dataprep select shards --name large --where "width >= 256 and height >= 256"
  dataprep select gs://bucket/laion --name clean --where "similarity > 0.3" --dedup exact --except takedown.txt
  dataprep select shards@clean --name tenth --sample 0.1
  dataprep select shards --name clean --refresh
  dataprep train vit --data-path shards@clean

\b
Exit codes: 0 made, 1 a list names samples that the dataset does not have, 2 no view was made.
"""
_SHOWN = 10
UNKNOWN = 1
"""Exit code if lines of a list name no sample."""


@request
class Select(Watched):
    """Choose samples of the dataset at URL as a view, without copying or changing them.

    Loaders, training, inspect, convert, diagnose and bench open URL@NAME like a dataset of only these samples: each
    comes once per epoch. For every other sample, the view records why it is left out.

    A condition is SQL over the columns of one sample: key, split, label, class_name, height, width and image_bytes, and
    the fields stored with it, such as caption. A missing value meets no condition. DuckDB evaluates it.
    """

    url: Place = option(
        "Folder or gs:// prefix of the dataset, or URL@NAME to choose from a view.",
        metavar="URL",
        kw_only=False,
        group=READ,
    )
    name: str = option("Name of the view.", metavar="NAME", group=WRITE)
    where: Texts = option(
        "Keep samples that meet this SQL condition; may be repeated.", default=(), metavar="SQL", group=READ
    )
    except_: Places = option(
        "Leave out the samples listed in this file: on each line a key, or a value of the field url, sha256 or md5.",
        default=(),
        metavar="FILE",
        group=READ,
    )
    dedup: str | None = option(
        "Of images in all splits with the same bytes (`exact`), or whose hashes in a column differ by at most this "
        "many bits (`'phash<=4'`; `dataprep map` makes the column), keep the first by key.",
        default=None,
        metavar="exact|COLUMN<=BITS",
        group=READ,
    )
    sample: float = option(
        "Share of the samples to draw at random; whether a sample is drawn depends only on its key and the seed.",
        default=1.0,
        low=0,
        high=1,
        open_low=True,
        group=READ,
    )
    seed: int = option("Seed of the random draw.", default=0, low=0, group=READ)
    allow_missing: bool = option("Accept lists with samples that do not exist.", default=False, group=OTHER)
    refresh: bool = option(
        "Recreate an existing view with the same options, after the dataset has changed.", default=False, group=OTHER
    )
    overwrite: bool = option(
        "Replace a view of this name that was made with different options.", default=False, group=WRITE
    )
    dry_run: bool = option("Count the samples, and write nothing.", default=False, group=OTHER)


def _selected(asked: Select, viewer: Viewer | None = None) -> Selection:
    """Make a view; a list that names unknown samples is not an error."""
    url, of = address(str(asked.url))
    choice = Choice(
        of=of,
        where=texts(asked.where),
        left_out=texts(asked.except_),
        dedup=asked.dedup or "",
        sample=asked.sample,
        seed=asked.seed,
    )
    if asked.refresh:
        before = find_view(open_storage(url), asked.name)
        if before is None:
            raise UsageError(f"{url}: no view {asked.name} to refresh")
        if choice != Choice():
            raise UsageError("`refresh` recreates a view with the same options; for different options, use `overwrite`")
        choice = before[0].choice
    elif replace(choice, of="") == Choice():
        raise UsageError("nothing is chosen; give `where`, `except`, `dedup` or `sample`")
    with ImageProgress(viewer or asked.viewer()) as progress:
        samples = sum(split.samples for split in readable_manifest(open_storage(url)).splits)
        progress.begin("selecting", samples * (2 if choice.dedup else 1))
        found = select_samples(
            url,
            asked.name,
            choice,
            overwrite=asked.overwrite or asked.refresh,
            dry_run=asked.dry_run,
            progress=lambda looked_at: progress.advance(looked_at, 0),
        )
    return replace(found, unknown=()) if asked.allow_missing else found


def _print(asked: Select, *, as_json: bool) -> None:
    found = _selected(asked, people(asked, quiet=as_json))
    nothing = " (dry run: nothing was written)" if asked.dry_run else ""
    click.echo(json.dumps(asdict(found)) if as_json else f"{found}\n{found.url}{nothing}")
    print_unknown(found.unknown, "--except")


def print_unknown(unknown: Sequence[str], of: str) -> None:
    """Print the lines of the lists of an option that name no sample, and end with an exit code, if there are any."""
    if unknown:
        shown = ", ".join(shortened(line, 80) for line in unknown[:_SHOWN])
        more = f" and {len(unknown) - _SHOWN:,} more" if len(unknown) > _SHOWN else ""
        lines = counted(len(unknown), "line")
        click.echo(f"no sample for {lines} of {of}: {shown}{more}; --allow-missing accepts that", err=True)
        raise SystemExit(UNKNOWN)


select = function_of(Select, _selected, "select")
command = command_of(Select, _print, "select", epilog=EPILOG)
