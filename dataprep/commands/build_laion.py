"""`dataprep build laion`: from a table of URLs to shards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, cast

import click

from dataprep.commands.build import (
    guard_build,
    open_engine,
    print_plan,
    print_result,
    refuse_beam_options,
    shards_at_once,
    shared_options,
)
from dataprep.commands.options import human_bytes
from dataprep.commands.progress import LaionProgress
from dataprep.commands.region_options import named_place, place_of_workers
from dataprep.commands.region_plan import planned_buckets
from dataprep.commands.web_options import count_lines, take_limits, tell_networks, web_options
from dataprep.driver import BuildRequest, prepare, run_build
from dataprep.errors import UsageError
from dataprep.laion.collect import VERIFIED_HASHES, RowOptions
from dataprep.laion.duplicates import ACTIONS, DuplicatePolicy
from dataprep.laion.encode import ENCODE_FORMATS, RESIZE_MODES, EncodeOptions
from dataprep.laion.filters import RowFilter
from dataprep.laion.plan import LaionRequest, build_options, laion_of
from dataprep.plan import Plan
from dataprep.records import SplitManifest
from dataprep.sources.laion import DEFAULT_ROWS_PER_SHARD, open_tables

EPILOG = """\b
Examples:
  dataprep build laion --source laion400m/*.parquet --output gs://bucket/laion --format tfrecord \\
      --contact https://example.org/our-crawler --max-punsafe 0.5 --verify-hash md5
  dataprep build laion --source gs://bucket/relaion --output laion --format webdataset \\
      --contact mailto:me@example.org --min-image-size 200 --resize-mode border --exact-duplicates drop
  dataprep build laion --source table.csv --column url=LINK --output out --format webdataset \\
      --contact mailto:me@example.org --dry-run

\b
Killed? Run the same command again: no URL of a finished shard is asked for twice. What failed is tried again by
`dataprep retry-failed`. --host-connections and --host-per-second are divided by the workers; of a Beam job by
--direct_num_workers, --parallelism, or --max_num_workers times --number_of_worker_harness_threads after --,
and where it has none of these by --workers. More --workers than cores fill the seconds in which the last rows of a
shard wait for slow hosts.

\b
Exit codes: 0 whole; 1 a disk or bucket failed, or nothing came at all; 2 usage, or a table that cannot be read.
"""
_PNG_COMPRESSION, _QUALITY = 6, 95


@click.command("laion", epilog=EPILOG)
@click.argument("others", nargs=-1, type=click.UNPROCESSED, metavar="[MORE TABLES] [-- BEAM_OPTIONS]")
@click.option(
    "--source",
    "sources",
    multiple=True,
    required=True,
    metavar="URL",
    help="Tables of one folder (.parquet, .csv, .tsv, .jsonl), or the folder; on disk or gs://. May be repeated.",
)
@click.option("--format", "format_name", required=True, type=click.Choice(["webdataset", "tfrecord"]))
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="ROLE=NAME",
    help="The column that is url, caption, width, … where it has none of the usual names. May be repeated.",
)
@click.option("--rows-per-shard", type=int, default=DEFAULT_ROWS_PER_SHARD, show_default=True)
@click.option("--min-image-size", type=int, default=0, metavar="PIXELS", help="Of the shorter side.")
@click.option("--max-image-area", type=int, metavar="PIXELS")
@click.option("--max-aspect-ratio", type=float, help="Longer side by shorter side.")
@click.option("--min-similarity", type=float, help="Of image and caption, as the table has it.")
@click.option("--max-punsafe", type=float)
@click.option("--max-pwatermark", type=float)
@click.option("--nsfw", multiple=True, metavar="VALUE", help="Keep these values of NSFW only. May be repeated.")
@click.option("--languages", multiple=True, metavar="CODE", help="Keep these languages only. May be repeated.")
@click.option(
    "--verify-hash", type=click.Choice(VERIFIED_HASHES), help="Refuse bytes of another hash than the table's."
)
@click.option("--image-size", type=int, default=256, show_default=True, metavar="PIXELS")
@click.option("--resize-mode", type=click.Choice(RESIZE_MODES), default="keep_ratio", show_default=True)
@click.option("--encode-format", type=click.Choice(list(ENCODE_FORMATS)), default="jpg", show_default=True)
@click.option("--encode-quality", type=int, help="95; of png the compression, 6.")
@click.option("--exact-duplicates", type=click.Choice(ACTIONS), default="keep", show_default=True)
@click.option("--perceptual-duplicates", type=click.Choice(ACTIONS), default="keep", show_default=True)
@click.option("--duplicate-distance", type=int, default=0, show_default=True, metavar="BITS")
@web_options
@shared_options
def command(
    others: tuple[str, ...],
    sources: tuple[str, ...],
    format_name: str,
    output: str,
    runner: str,
    workers: int,
    stall_minutes: float,
    beside: str | None,
    tpu: str | None,
    region_policy: str,
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Fetch the images of a table of URLs and build shards of them.

    Only public addresses are asked, hosts gently, and robots.txt and opt-out headers are honoured (docs/fetching.md).
    Every row ends with one status and a reason, in the parquet file beside its shard; keys, names and columns are those
    of img2dataset. The rows stay in the table's order.
    """
    more = tuple(takewhile(lambda word: not word.startswith("-"), others))
    beam_options = others[len(more) :]
    refuse_beam_options(runner, beam_options)
    limits = take_limits(options)
    source_url = open_tables((*sources, *more))[0].url
    at_once = shards_at_once(runner, workers, beam_options, (source_url, output))
    request = BuildRequest(
        options=build_options(format_name),
        source_url=source_url,
        output_url=output,
        max_reject_ratio=1.0,
        overwrite=overwrite,
        laion=LaionRequest(
            sources=(*sources, *more),
            columns=_columns(options.pop("columns")),
            rows_per_shard=options.pop("rows_per_shard"),
            limits=limits.divided(at_once),
            rows=_row_options(**options),
        ),
    )
    reader, builder = named_place(beside, tpu), place_of_workers(beam_options)
    if not dry_run:
        guard_build(request, region_policy, reader=reader, builder=builder, runner=runner)
        tell_networks(limits)
    with LaionProgress(quiet=as_json) as progress:
        if dry_run:
            plan, _ = prepare(request, progress, keep=False)
            progress.stop()
            buckets = planned_buckets(plan, request, reader=reader, builder=builder, runner=runner, workers=workers)
            print_plan(plan, request, buckets, _plan_lines(plan), as_json)
            return
        started_s = time.monotonic()
        with open_engine(request, runner, workers, beam_options, 60 * stall_minutes, progress) as engine:
            result = run_build(request, engine, progress)
        elapsed_s = time.monotonic() - started_s
    print_result(result, output, elapsed_s, _split_lines, as_json)


def _columns(texts: tuple[str, ...]) -> dict[str, str]:
    columns = {}
    for text in texts:
        role, equals, name = text.partition("=")
        if not (role and equals and name):
            raise UsageError(f"--column {text}: expected ROLE=NAME, such as url=LINK")
        columns[role] = name
    return columns


def _row_options(
    *,
    verify_hash: str | None,
    image_size: int,
    resize_mode: str,
    encode_format: str,
    encode_quality: int | None,
    exact_duplicates: str,
    perceptual_duplicates: str,
    duplicate_distance: int,
    **limits: Any,
) -> RowOptions:
    usual = _PNG_COMPRESSION if encode_format == "png" else _QUALITY
    return RowOptions(
        row_filter=RowFilter(**limits),
        encode=EncodeOptions(
            image_size=image_size,
            resize_mode=cast(Any, resize_mode),
            encode_format=cast(Any, encode_format),
            encode_quality=usual if encode_quality is None else encode_quality,
        ),
        duplicates=DuplicatePolicy(
            exact=cast(Any, exact_duplicates),
            perceptual=cast(Any, perceptual_duplicates),
            max_distance=duplicate_distance,
        ),
        verify_hash=verify_hash,
    )


def _plan_lines(plan: Plan) -> Iterator[str]:
    tables, _ = laion_of(plan)
    yield f"  {tables.rows:,} rows in {len(tables.files):,} tables, {tables.num_shards:,} shards"
    yield f"  columns: {', '.join(f'{role} is {name}' for role, name in tables.columns.items())}"


def _split_lines(split: SplitManifest) -> str:
    rows = sum(split.statuses.values())
    line = (
        f"{split.name}: {split.samples:,} images of {rows:,} rows, {len(split.shards):,} shards, "
        f"{human_bytes(split.num_bytes)}"
    )
    return "\n".join((line, *count_lines(split.statuses, split.reasons)))
