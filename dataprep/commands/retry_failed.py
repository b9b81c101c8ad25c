"""`dataprep retry-failed`: failed rows, fetched again as new shards of a finished dataset."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import click

from dataprep.arguments import OTHER, READ, Place, Texts, command_of, function_of, option, request, texts
from dataprep.builder.pool import Pool
from dataprep.commands.build_laion import WebRequest, count_lines, limits_of, network_lines
from dataprep.commands.progress import LaionProgress, LocalRun, Viewer, people
from dataprep.dataset.opened import Dataset
from dataprep.dataset.records import ShardReceipt
from dataprep.fetched.existing import Choice, FetchedDataset, open_fetched, rows_to_try
from dataprep.fetched.retry import Retried, RetryJob, check_reasons, retry_shard
from dataprep.fetched.retry import retry_failed as retry_failed_rows
from dataprep.messages import counted

EPILOG = """\b
Examples:
  dataprep retry-failed gs://bucket/laion --contact https://example.org/our-crawler
  dataprep retry-failed laion --contact mailto:me@example.org --reason timeout --reason 'http 403'
  dataprep retry-failed laion --contact mailto:me@example.org --all --dry-run

\b
After an interruption, run the same command again: it continues where it stopped.

\b
Exit codes: 0 done, whether or not any row was fetched; 1 a disk or bucket failed, or another process changed the
dataset; 2 no such dataset, or no such reason.
"""
_WORKER_MODULES = (
    "dataprep.fetched.retry", "dataprep.fetched.fetching", "numpy",
    "pyarrow.parquet", "simplejpeg", "cv2",
)  # fmt: skip


@request
class RetryFailed(WebRequest, LocalRun):
    """Fetch failed rows of the dataset at URL again, and add the images as new shards after the last one.

    By default, only retryable failures are fetched again: timeouts, resets, names that were not found, and statuses
    408, 429 and 500 to 599, of the image or its site's robots.txt. Existing shards do not change. The manifest becomes
    the next revision, with the latest status of every row.
    """

    url: Place = option("Folder or gs:// prefix of the dataset.", metavar="URL", kw_only=False, group=READ)
    reason: Texts = option(
        "Fetch only rows that failed for this reason, as named in the dataset's counts; may be repeated.",
        default=(),
        metavar="TEXT",
        group=READ,
    )
    all: bool = option("Fetch every failed row, whatever the reason.", default=False, group=READ)
    dry_run: bool = option("Print which rows would be fetched, and fetch nothing.", default=False, group=OTHER)


def _dataset(asked: RetryFailed) -> Dataset:
    """Fetch failed rows again, and return the dataset; a dry run returns it as it is."""
    found = _retried(asked, asked.viewer())
    return Dataset(url=str(asked.url), known=found[0].manifest)


def _retried(asked: RetryFailed, viewer: Viewer) -> tuple[Retried | FetchedDataset, dict[str, int]]:
    """Fetch failed rows again; in a dry run count them by reason."""
    choice = Choice(reasons=texts(asked.reason), everything=asked.all)
    limits = limits_of(asked)
    with LaionProgress(viewer) as progress:
        progress.step("looking for failed rows")
        if asked.dry_run:
            dataset = open_fetched(str(asked.url))
            check_reasons(choice, dataset.manifest)
            counts = Counter(place.reason for place in rows_to_try(dataset, choice))
            return dataset, dict(counts.most_common())
        for line in network_lines(limits):
            progress.warn(line, keep=False)
        with Pool(asked.workers, progress.warn, preload=_WORKER_MODULES, stall_s=progress.stall_s) as pool:

            def retry(job: RetryJob, indexes: list[int]) -> Iterator[ShardReceipt]:
                share = replace(job, limits=job.limits.divided(min(asked.workers, len(indexes))))
                return pool.run(partial(retry_shard, share), indexes)

            return retry_failed_rows(str(asked.url), choice, limits, retry, progress), {}


def _print(asked: RetryFailed, *, as_json: bool) -> None:
    started_s = time.monotonic()
    found, counts = _retried(asked, people(asked, quiet=as_json))
    if isinstance(found, Retried):
        _print_retried(str(asked.url), found, time.monotonic() - started_s, as_json)
    else:
        url, rows = found.storage.url, sum(counts.values())
        lines = [f"{url}: {counted(rows, 'row')} would be retried"]
        lines += [f"  {reason}: {count:,}" for reason, count in counts.items()]
        click.echo(json.dumps({"url": url, "rows": rows, "reasons": counts}) if as_json else "\n".join(lines))


retry_failed = function_of(RetryFailed, _dataset, "retry_failed")
command = command_of(RetryFailed, _print, "retry-failed", epilog=EPILOG)


def _print_retried(url: str, retried: Retried, elapsed_s: float, as_json: bool) -> None:
    manifest, split = retried.manifest, retried.manifest.splits[0]
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
        click.echo(f"{url}: no rows to retry; the dataset stays at revision {manifest.revision}")
    elif not retried.came:
        click.echo(f"{url}: {retried.rows:,} rows were retried and none was fetched; nothing was changed")
    else:
        click.echo(
            f"{url} is complete at revision {manifest.revision}: {retried.came:,} of {retried.rows:,} rows "
            f"were fetched, in {counted(retried.shards, 'new shard')} and {elapsed_s:.1f} s"
        )
    click.echo("\n".join(count_lines(split.statuses, split.reasons)))
