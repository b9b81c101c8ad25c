"""`dataprep retry-failed`: failed rows, fetched again as new shards of a finished dataset."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Unpack

import click

from dataprep.arguments import StrictCommand
from dataprep.builder.pool import Pool
from dataprep.commands.options import json_option, workers_option, workers_stall_option
from dataprep.commands.progress import LaionProgress
from dataprep.commands.web_options import WebOptions, count_lines, limits_of, tell_networks, web_options
from dataprep.dataset.records import ShardReceipt
from dataprep.fetched.existing import Choice, open_fetched, rows_to_try
from dataprep.fetched.retry import Engine, Retried, RetryJob, check_reasons, retry_failed, retry_shard
from dataprep.messages import counted

EPILOG = """\b
Examples:
  dataprep retry-failed gs://bucket/laion --contact https://example.org/our-crawler
  dataprep retry-failed laion --contact mailto:me@example.org --reason timeout --reason 'http 403'
  dataprep retry-failed laion --contact mailto:me@example.org --all --dry-run

\b
After an interruption run the same command again: it continues where it stopped.

\b
Exit codes: 0 done, whether any row could be fetched or not; 1 a disk or bucket failed, or another process changed the
dataset; 2 no such dataset, or no such reason.
"""
_WORKER_MODULES = (
    "dataprep.fetched.retry", "dataprep.fetched.fetching", "numpy",
    "pyarrow.parquet", "simplejpeg", "cv2",
)  # fmt: skip


@click.command("retry-failed", cls=StrictCommand, epilog=EPILOG)
@click.argument("url", metavar="URL")
@click.option(
    "--reason",
    "reasons",
    multiple=True,
    metavar="TEXT",
    help="Fetch only rows that failed for this reason, as the dataset's counts name it; may be repeated.",
)
@click.option("--all", "everything", is_flag=True, help="Fetch every failed row, whatever the reason.")
@web_options
@workers_option
@workers_stall_option
@click.option("--dry-run", is_flag=True, help="Print which rows would be fetched, and fetch nothing.")
@json_option
def command(
    url: str,
    reasons: tuple[str, ...],
    everything: bool,
    workers: int,
    stall_minutes: float,
    dry_run: bool,
    as_json: bool,
    **options: Unpack[WebOptions],
) -> None:
    """Fetch failed rows of the dataset at URL again, and add the images as new shards after the last one.

    By default the rows are those with retryable failures: timeouts, resets, names that were not found, and statuses
    408, 429 and 500 to 599, of the image or of its site's robots.txt. No existing shard is changed. The manifest
    becomes the next revision, in which every row has its newest status.
    """
    choice = Choice(reasons=reasons, everything=everything)
    limits = limits_of(options)
    if not dry_run:
        tell_networks(limits)
    started_s = time.monotonic()
    with LaionProgress(quiet=as_json, stall_s=60 * stall_minutes) as progress:
        progress.step("looking for failed rows")
        if dry_run:
            dataset = open_fetched(url)
            check_reasons(choice, dataset.manifest)
            counts = Counter(place.reason for place in rows_to_try(dataset.storage, dataset.layout, choice))
            progress.stop()
            _print_choice(dataset.storage.url, dict(counts.most_common()), as_json)
            return
        with _local_engine(workers, progress) as engine:
            retried = retry_failed(url, choice, limits, engine, progress)
    _print(url, retried, time.monotonic() - started_s, as_json)


@contextmanager
def _local_engine(workers: int, progress: LaionProgress) -> Iterator[Engine]:
    with Pool(workers, progress.warn, preload=_WORKER_MODULES, stall_s=progress.stall_s) as pool:

        def retry(job: RetryJob, indexes: list[int]) -> Iterator[ShardReceipt]:
            share = replace(job, limits=job.limits.divided(min(workers, len(indexes))))
            return pool.run(partial(retry_shard, share), indexes)

        yield retry


def _print_choice(url: str, counts: dict[str, int], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"url": url, "rows": sum(counts.values()), "reasons": counts}))
        return
    click.echo(f"{url}: {counted(sum(counts.values()), 'row')} would be tried again")
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
        click.echo(f"{url}: no rows to try; revision {manifest.revision} stays")
    elif not retried.came:
        click.echo(f"{url}: {retried.rows:,} rows were tried and none was fetched; nothing is changed")
    else:
        click.echo(
            f"{url} is whole at revision {manifest.revision}: {retried.came:,} of {retried.rows:,} rows were fetched, "
            f"in {counted(retried.shards, 'new shard')} and {elapsed_s:.1f} s"
        )
    click.echo("\n".join(count_lines(split.statuses, split.reasons)))
