"""`dataprep retry-failed`: fetch again what failed, as new shards of a finished dataset."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from dataprep.commands.options import json_option, workers_option
from dataprep.commands.progress import LaionProgress
from dataprep.commands.web_options import count_lines, take_limits, tell_networks, web_options
from dataprep.laion.encode import RESIZE_MODES
from dataprep.laion.newest import Choice, rows_to_try
from dataprep.laion.retry import Engine, Retried, retry_failed, retry_shard
from dataprep.laion.standing import open_standing
from dataprep.pool import Pool

EPILOG = """\b
Examples:
  dataprep retry-failed gs://bucket/laion --contact https://example.org/our-crawler
  dataprep retry-failed laion --contact mailto:me@example.org --reason timeout --reason 'http 403'
  dataprep retry-failed laion --contact mailto:me@example.org --all --dry-run
  dataprep adopt cc3m && dataprep retry-failed cc3m --contact mailto:me@example.org \\
      --resize-mode keep_ratio --resize-only-if-bigger

\b
Killed? Run the same command again: it goes on with what was begun.

\b
Exit codes: 0 done, whether anything came or not; 1 a disk or bucket failed, or another process changed the dataset;
2 no such dataset there.
"""
_WORKER_MODULES = (
    "dataprep.cli", "dataprep.laion.retry", "dataprep.laion.fetching", "numpy", "pyarrow.parquet", "simplejpeg", "cv2",
)  # fmt: skip


_MAKING = (
    click.option(
        "--image-size", type=click.IntRange(min=1), metavar="PIXELS", help="As img2dataset was told; its default: 256."
    ),
    click.option(
        "--resize-mode",
        type=click.Choice(RESIZE_MODES),
        help="As img2dataset was told; must be said, its default: border.",
    ),
    click.option(
        "--resize-only-if-bigger", is_flag=True, default=None, help="As img2dataset was told; its default: off."
    ),
    click.option("--skip-reencode", is_flag=True, default=None, help="As img2dataset was told; its default: off."),
    click.option("--encode-quality", type=int, help="As img2dataset was told; its default: 95; of png to be said."),
    click.option("--min-image-size", type=int, metavar="PIXELS", help="As img2dataset was told; its default: none."),
    click.option("--max-image-area", type=int, metavar="PIXELS", help="As img2dataset was told; its default: none."),
    click.option("--max-aspect-ratio", type=float, help="As img2dataset was told; its default: none."),
)
"""How img2dataset made the images of an adopted dataset, with its own defaults."""


def _making_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_MAKING):
        command = option(command)
    return command


@click.command("retry-failed", epilog=EPILOG)
@click.argument("url", metavar="URL")
@click.option("--reason", "reasons", multiple=True, metavar="TEXT", help="Only rows of this reason. May be repeated.")
@click.option(
    "--all", "everything", is_flag=True, help="Every row that failed, also where it is of no use to ask again."
)
@_making_options
@web_options
@workers_option
@click.option("--dry-run", is_flag=True, help="Say what would be tried and ask for nothing.")
@json_option
def command(
    url: str,
    reasons: tuple[str, ...],
    everything: bool,
    workers: int,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Try failed rows of the dataset at URL again; what comes now is added as new shards after the last one.

    By default those whose failure may pass: timeouts, resets, names that were not found, 429, and 500 to 599. No shard
    that stands is touched; the manifest becomes the next revision, in which every row has its newest status.

    The dataset may be what img2dataset wrote, once `dataprep adopt` has been there. How it was told to make images
    stands nowhere in it, so say so where that was not its default; the sizes of what is there are compared.
    """
    choice = Choice(reasons=reasons, everything=everything)
    limits = take_limits(options)
    making = {name: value for name, value in options.items() if value is not None}
    if dry_run:
        _print_choice(url, choice, as_json)
        return
    tell_networks(limits)
    started_s = time.monotonic()
    with LaionProgress(quiet=as_json) as progress:
        progress.step("looking for failed rows")
        with _local_engine(workers, progress) as engine:
            retried = retry_failed(
                url,
                choice,
                limits.divided(workers),
                engine,
                planned=progress.shards,
                shard_done=progress.shard_done,
                log=progress.log,
                making=making,
            )
    _print(url, retried, time.monotonic() - started_s, as_json)


@contextmanager
def _local_engine(workers: int, progress: LaionProgress) -> Iterator[Engine]:
    with Pool(workers, progress.log, preload=_WORKER_MODULES) as pool:
        yield lambda job, indexes: pool.run(partial(retry_shard, job), indexes)


def _print_choice(url: str, choice: Choice, as_json: bool) -> None:
    standing = open_standing(url)
    storage = standing.storage
    counts = dict(Counter(place.reason for place in rows_to_try(storage, standing.layout, choice)).most_common())
    if as_json:
        click.echo(json.dumps({"url": storage.url, "rows": sum(counts.values()), "reasons": counts}))
        return
    click.echo(f"{storage.url}: {sum(counts.values()):,} rows would be tried again")
    for reason, count in counts.items():
        click.echo(f"  {reason}: {count:,}")


def _print(url: str, retried: Retried, elapsed_s: float, as_json: bool) -> None:
    manifest = retried.manifest
    split = manifest.splits[0]
    if as_json:
        summary = {
            "url": url,
            "revision": manifest.revision,
            "rows": retried.rows,
            "came": retried.came,
            "shards": retried.shards,
            "statuses": split.statuses,
            "reasons": split.reasons,
            "elapsed_s": round(elapsed_s, 3),
        }
        click.echo(json.dumps(summary))
        return
    if not retried.rows:
        click.echo(f"{url}: nothing to try; revision {manifest.revision} stands")
    elif not retried.came:
        click.echo(f"{url}: {retried.rows:,} rows were tried and none came; nothing is changed")
    else:
        click.echo(
            f"{url} is whole at revision {manifest.revision}: {retried.came:,} of {retried.rows:,} rows came, in "
            f"{retried.shards:,} new shards and {elapsed_s:.1f} s"
        )
    click.echo("\n".join(count_lines(split.statuses, split.reasons)))
