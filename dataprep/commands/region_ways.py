"""Shows the ways in which data can be read many times, with what each costs: `check-region` and `plan-input`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import date
from math import ceil

import click

from dataprep.cloud.prices import stale_tables
from dataprep.cloud.region import region_of
from dataprep.cloud.ways import CACHE, COPY, Way
from dataprep.messages import printable, shell_words, usd

STORAGE_REGION = "us-central1"
"""Region whose published price of storage, in buckets and caches, is used everywhere."""
_NEW_BUCKET = "gs://NEW-BUCKET"
_PRICE_MARGIN = 1.1
"""Factor for --max-usd: a dataset has an index, and perhaps other splits, beside the data that were priced."""


def storage_notes(ways: Iterable[Way]) -> list[str]:
    """Return a note if the storage of a copy or a cache is priced as in another region."""
    regions = {region_of(way.place) for way in ways if way.kind in (CACHE, COPY)} - {STORAGE_REGION}
    return [f"keeping data in {each} is priced as in {STORAGE_REGION}" for each in sorted(regions)]


def copy_commands(
    url: str, where: str, *, is_dataset: bool | None, once_usd: float, as_shards: bool = False
) -> list[str]:
    """Return the commands that copy data into a new bucket beside the reader.

    Args:
        url: The data, in a bucket.
        where: The reader's zone or region.
        is_dataset: Whether the data are a dataset of dataprep; None if that is not known: then both ways to copy them
            are returned, each with a comment.
        once_usd: Price of the copying.
        as_shards: Whether that is the price of copying shards, because the number of objects is not known.
    """
    path = "".join(url.partition("://")[2].partition("/")[1:])
    create = f"dataprep create-bucket {_NEW_BUCKET} --beside {shell_words(where)}"
    replicate = f"dataprep replicate {shell_words(url, '--to', _NEW_BUCKET + path.rstrip('/'))}"
    copy = f"gcloud storage cp --recursive {shell_words(url)} {_NEW_BUCKET}/"
    if is_dataset is None:
        other = "other data; the price needs --objects" if as_shards else "other data"
        most = ceil(once_usd * _PRICE_MARGIN)
        return [create, f"{replicate} --max-usd {most:d}     # a dataset of dataprep", f"{copy}     # {other}"]
    return [create, replicate if is_dataset else copy]


def echo_commands(commands: Iterable[str]) -> None:
    """Print commands below the line of `do` that names them."""
    for each in commands:
        click.echo(f"              {printable(each)}")


def echo_stale_prices() -> None:
    """Print a note on the tables of prices that are old."""
    if line := stale_tables(date.today()):
        click.echo(f"note: {line}")


def way_document(way: Way) -> dict[str, object]:
    """Return a way as JSON values."""
    return {
        **asdict(way),
        "once": {**asdict(way.once), "total": way.once.total},
        "read": {**asdict(way.read), "total": way.read.total},
        "total": way.total,
    }


def months_text(months: float) -> str:
    """Write a number of months as `1 month` or `2.5 months`."""
    return f"{months:g} month" if months == 1 else f"{months:g} months"


def way_line(way: Way, *, months: float) -> str:
    """Describe a way in one line, the sum first.

    Args:
        way: The way with its costs.
        months: For how long the copy or the cache is kept.
    """
    kept = f"{usd(way.kept)} to keep it for {months_text(months)}"
    read = f"{usd(way.read.transfer + way.read.retrieval)} to read, {usd(way.read.operations)} for requests"
    if way.kind == CACHE:
        return (
            f"a Rapid Cache in {way.place}: at most {usd(way.total)} ({usd(way.once.total)} for the first reading, "
            f"{usd(way.ingest)} to write it into the cache, {kept}, then {read})"
        )
    if way.kind == COPY:
        return f"a copy in {way.place}: {usd(way.total)} ({usd(way.once.total)} to make it, {kept}, {read})"
    return f"from {way.place.lower()}: {usd(way.total)} ({read})"
