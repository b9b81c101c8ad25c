"""`dataprep build laion`: from a table of URLs to shards."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from itertools import takewhile
from typing import Any, cast

import click

from dataprep.commands.build import OUTPUT_ADVICE, open_engine, shards_at_once, shared_options
from dataprep.commands.options import human_bytes
from dataprep.commands.progress import LaionProgress
from dataprep.commands.region_options import named_place, place_of_workers, runs_here
from dataprep.commands.region_plan import PlannedBucket
from dataprep.commands.web_options import count_lines, take_limits, tell_networks, web_options
from dataprep.cost import writing_cost
from dataprep.driver import BuildRequest, BuildResult, prepare, run_build
from dataprep.errors import UsageError
from dataprep.laion.collect import VERIFIED_HASHES, RowOptions
from dataprep.laion.duplicates import ACTIONS, DuplicatePolicy
from dataprep.laion.encode import ENCODE_FORMATS, RESIZE_MODES, EncodeOptions
from dataprep.laion.filters import RowFilter
from dataprep.laion.plan import LaionRequest, build_options, laion_of
from dataprep.machine import this_zone
from dataprep.placement import guard, is_bucket, placement_of
from dataprep.plan import Plan
from dataprep.prices import published_prices
from dataprep.sources.laion import DEFAULT_ROWS_PER_SHARD, open_tables
from dataprep.traffic import Traffic

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
    if beam_options and runner == "local":
        raise UsageError(f"got Beam options {' '.join(beam_options)} with --runner local; name a Beam runner")
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
        guard(output, region_policy, where=reader, advice=OUTPUT_ADVICE)
        if runs_here(runner) or builder is not None:
            guard(source_url, region_policy, where=builder)
        tell_networks(limits)
    with LaionProgress(quiet=as_json) as progress:
        if dry_run:
            plan, _ = prepare(request, progress, keep=False)
            progress.stop()
            _print_plan(plan, request, reader, as_json)
            return
        started_s = time.monotonic()
        with open_engine(request, runner, workers, beam_options, 60 * stall_minutes, progress) as engine:
            result = run_build(request, engine, progress)
        elapsed_s = time.monotonic() - started_s
    _print_result(result, output, elapsed_s, as_json)


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


def _print_plan(plan: Plan, request: BuildRequest, reader: str | None, as_json: bool) -> None:
    buckets = _buckets(plan, request, reader)
    if as_json:
        click.echo(json.dumps(plan.document() | {"buckets": [bucket.document() for bucket in buckets]}))
        return
    tables, _ = laion_of(plan)
    click.echo(f"laion as {plan.options.format} to {request.output_url}, plan {plan.plan_hash[:12]}")
    click.echo(f"  {tables.rows:,} rows in {len(tables.files):,} tables, {tables.num_shards:,} shards")
    click.echo(f"  columns: {', '.join(f'{role} is {name}' for role, name in tables.columns.items())}")
    for bucket in buckets:
        click.echo(bucket.line)
    click.echo("Nothing was fetched or written (--dry-run).")


def _buckets(plan: Plan, request: BuildRequest, reader: str | None) -> list[PlannedBucket]:
    """Where the output lies, and what the requests cost; nobody knows the images' bytes before they came."""
    if not is_bucket(request.output_url):
        return []
    place = placement_of(request.output_url, reader or this_zone())
    # Of a shard: three files written and copied to their places, a receipt, a list before what waited is removed.
    traffic = Traffic(inserts=8 * plan.num_shards + 5, gets=6 * plan.num_shards, num_bytes=0)
    cost = None
    if place.bucket is not None:
        cost = writing_cost(traffic.inserts, traffic.gets, place.bucket, traffic.num_bytes, published_prices())
    planned = PlannedBucket(
        role="output",
        url=place.url,
        where=place.where,
        verdict=place.verdict.kind,
        usd_per_gib=place.verdict.usd_per_gib,
        reason=place.verdict.reason,
        traffic=traffic,
        cost=cost,
    )
    return [planned]


def _print_result(result: BuildResult, output: str, elapsed_s: float, as_json: bool) -> None:
    manifest = result.manifest
    if as_json:
        summary = asdict(manifest) | {"url": output, "elapsed_s": round(elapsed_s, 3)}
        summary["shards_built"] = result.shards_built
        json.dump(summary, sys.stdout)
        click.echo()
        return
    for split in manifest.splits:
        rows = sum(split.statuses.values())
        click.echo(
            f"{split.name}: {split.samples:,} images of {rows:,} rows, {len(split.shards):,} shards, "
            f"{human_bytes(split.num_bytes)}"
        )
        click.echo("\n".join(count_lines(split.statuses, split.reasons)))
    if result.shards_built == 0:
        click.echo(f"{output} was whole already; nothing was done")
    else:
        click.echo(f"{output} is whole, in {elapsed_s:.1f} s; check it with: dataprep verify {output}")
