"""`dataprep build laion`: from a table of URLs to shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Unpack

import click

from dataprep.arguments import StrictCommand
from dataprep.builder.plan import Plan
from dataprep.commands.build_run import Run, Shown, build, refuse_unknown_runner, shards_at_once, shared_options
from dataprep.commands.options import WHOLE, Finite
from dataprep.commands.progress import LaionProgress
from dataprep.commands.web_options import WebOptions, count_lines, limits_of, tell_networks, web_options
from dataprep.dataset.records import SplitManifest
from dataprep.errors import DataprepError, UsageError
from dataprep.fetched.collect import ACTIONS, VERIFIED_HASHES, DuplicateAction, DuplicatePolicy, RowOptions
from dataprep.fetched.encode import ENCODE_FORMATS, RESIZE_MODES, EncodeFormat, EncodeOptions, ResizeMode, RowFilter
from dataprep.fetched.existing import open_fetched, rejected_rows
from dataprep.fetched.plan import FetchRequest, TableRequest, build_options, laion_of
from dataprep.messages import counted, human_bytes, printable, shell_words, shortened
from dataprep.sources import OwnData, own_name_fault
from dataprep.sources.base import UNSTATED
from dataprep.sources.laion import DEFAULT_ROWS_PER_SHARD, open_tables

EPILOG = """\b
Examples:
  dataprep build laion --source laion400m/*.parquet --output gs://bucket/laion --format tfrecord \\
      --contact https://example.org/our-crawler --nsfw UNLIKELY --min-similarity 0.3
  dataprep build laion --source gs://bucket/relaion --output laion --format webdataset \\
      --contact mailto:me@example.org --min-image-size 200 --resize-mode border --exact-duplicates drop
  dataprep build laion --source datacomp/*.parquet --output datacomp --format webdataset --name datacomp-1b \\
      --licence CC-BY-4.0 --contact mailto:me@example.org --verify-hash sha256
  dataprep build laion --source table.csv --column url=LINK --output out --format webdataset \\
      --contact mailto:me@example.org --dry-run

\b
After an interruption run the same command again: no URL of a finished shard is fetched twice.
`dataprep retry-failed` fetches failed rows again.

\b
--host-connections and --host-per-second are divided among the worker processes, on this machine only among those that
can have a shard. FnApiRunner has --workers of them, or --direct_num_workers after --; PortableRunner must be told with
--workers. Dataflow starts one for each vCPU, and needs --max_num_workers and --machine_type. With more --workers than
cores, the cores stay busy while the last rows of a shard wait for slow hosts.

\b
Exit codes: 0 whole; 1 a disk or bucket failed, or no image at all was fetched; 2 wrong usage, or an unreadable
table.
"""
_PNG_COMPRESSION, _QUALITY = 6, 95
EXAMPLES, EXAMPLE_SHARDS = 3, 4
"""Number of rows that are named for each reason when a build ends, and of shards among whose rows they are looked
for."""
FEW_SHARDS = 4
"""Number of shards up to which an interruption costs a large part of a build."""


class _Options(WebOptions):
    """Values of the options that are not arguments of their own."""

    name: str | None
    licence: str | None
    origin: str | None
    columns: tuple[str, ...]
    rows_per_shard: int
    min_image_size: int
    max_image_area: int | None
    max_aspect_ratio: float | None
    min_similarity: float | None
    max_punsafe: float | None
    max_pwatermark: float | None
    nsfw: tuple[str, ...]
    languages: tuple[str, ...]
    verify_hash: str | None
    image_size: int
    resize_mode: ResizeMode
    encode_format: EncodeFormat
    encode_quality: int | None
    exact_duplicates: DuplicateAction
    perceptual_duplicates: DuplicateAction
    duplicate_distance: int


@click.command("laion", cls=StrictCommand, epilog=EPILOG)
@click.argument("others", nargs=-1, type=click.UNPROCESSED, metavar="[MORE TABLES] [-- ENGINE_OPTIONS]")
@click.option(
    "--source",
    "sources",
    multiple=True,
    required=True,
    metavar="URL",
    help="Tables of one folder (.parquet, .csv, .tsv, .jsonl), or the folder, on disk or gs://; may be repeated.",
)
@click.option("--name", help="Name of the dataset, if the table is not LAION's.")
@click.option("--licence", help="Licence of the images, for the manifest; needs --name.  [default: unknown]")
@click.option("--origin", help="Where the table comes from, for the manifest; needs --name.  [default: unknown]")
@click.option(
    "--format",
    "format_name",
    required=True,
    type=click.Choice(["webdataset", "tfrecord"]),
    help="Format of the shards.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="ROLE=NAME",
    help="Name of the column for a role (url, caption, width, …), if it is not a usual one; may be repeated.",
)
@click.option(
    "--rows-per-shard",
    type=WHOLE,
    default=DEFAULT_ROWS_PER_SHARD,
    show_default=True,
    help="Number of table rows in each shard.",
)
@click.option("--min-image-size", type=WHOLE, default=0, metavar="PIXELS", help="Smallest shorter side of an image.")
@click.option("--max-image-area", type=WHOLE, metavar="PIXELS", help="Largest width times height of an image.")
@click.option("--max-aspect-ratio", type=Finite(), help="Largest ratio of longer side to shorter side.")
@click.option("--min-similarity", type=Finite(), help="Smallest similarity of image and caption, from the table.")
@click.option("--max-punsafe", type=Finite(), help="Largest probability of unsafe content, from the table.")
@click.option("--max-pwatermark", type=Finite(), help="Largest probability of a watermark, from the table.")
@click.option("--nsfw", multiple=True, metavar="VALUE", help="Keep only rows with this value of NSFW; may be repeated.")
@click.option("--languages", multiple=True, metavar="CODE", help="Keep only rows in this language; may be repeated.")
@click.option(
    "--verify-hash",
    type=click.Choice(VERIFIED_HASHES),
    help="Reject images whose hash differs from the one in the table.",
)
@click.option(
    "--image-size",
    type=WHOLE,
    default=256,
    show_default=True,
    metavar="PIXELS",
    help="Size to which images are resized.",
)
@click.option(
    "--resize-mode",
    type=click.Choice(RESIZE_MODES),
    default="keep_ratio",
    show_default=True,
    help="How images get the size of --image-size; see docs/laion.md.",
)
@click.option(
    "--encode-format",
    type=click.Choice(list(ENCODE_FORMATS)),
    default="jpg",
    show_default=True,
    help="Format of the stored images.",
)
@click.option(
    "--encode-quality", type=WHOLE, help="Quality of jpg and webp, or compression of png.  [default: 95; png: 6]"
)
@click.option(
    "--exact-duplicates",
    type=click.Choice(ACTIONS),
    default="keep",
    show_default=True,
    help="What to do with images of a shard that have the same bytes; drop keeps one in each shard.",
)
@click.option(
    "--perceptual-duplicates",
    type=click.Choice(ACTIONS),
    default="keep",
    show_default=True,
    help="What to do with images of a shard that look the same.",
)
@click.option(
    "--duplicate-distance",
    type=WHOLE,
    default=0,
    show_default=True,
    metavar="BITS",
    help="Largest difference of the perceptual hashes of images that look the same.",
)
@web_options
@shared_options
def command(
    others: tuple[str, ...],
    run: Run,
    sources: tuple[str, ...],
    format_name: str,
    output: str,
    overwrite: bool,
    **options: Unpack[_Options],
) -> None:
    """Fetch the images of a table of URLs, and build shards of them.

    Requests go to public addresses only, unless --allow-network names others, and are limited for each host; robots.txt
    and opt-out headers are respected (docs/fetching.md). Every row ends with one status and, unless it succeeded, a
    reason, in the shard's sidecar parquet file. Keys, names and columns are those of img2dataset. The rows stay in the
    table's order.
    """
    more = tuple(takewhile(lambda word: not word.startswith("-"), others))
    engine_options = others[len(more) :]
    refuse_unknown_runner(run, engine_options)
    limits = limits_of(options)
    source_url = open_tables((*sources, *more))[0].url
    is_planned = run.dry_run and not run.is_local  # a plan asks no cluster
    at_once = None if is_planned else shards_at_once(run, engine_options, (source_url, output))
    request = FetchRequest(
        options=build_options(format_name, _own_data(options)),
        source_url=source_url,
        output_url=output,
        max_reject_ratio=1.0,
        overwrite=overwrite,
        tables=TableRequest(
            sources=(*sources, *more),
            columns=_columns(options["columns"]),
            rows_per_shard=options["rows_per_shard"],
            limits=limits,
            workers=at_once or 1,
            one_fetches_a_shard=run.is_local and run.part is None,
            rows=_row_options(options),
        ),
    )

    def fetch_lines(plan: Plan, shards: int) -> Iterator[str]:
        yield from _few_lines(plan)
        yield _rate_line(request.tables, shards, is_known=at_once is not None)

    def plan_lines(plan: Plan) -> Iterator[str]:
        yield from _plan_lines(plan)
        yield from (f"  {line}" for line in fetch_lines(plan, plan.num_shards))

    progress = partial(LaionProgress, lines=fetch_lines)
    shown = Shown(progress=progress, plan_lines=plan_lines, split_line=partial(_split_lines, output))
    build(request, run, engine_options, shown, check=lambda _progress: None if run.dry_run else tell_networks(limits))


def _own_data(values: _Options) -> OwnData | None:
    """Return what the user says about the table; None for LAION's."""
    name, stated = values["name"], {key: values[key] for key in ("licence", "origin") if values[key] is not None}
    if name is None:
        if stated:
            raise UsageError(
                f"--{next(iter(stated))}: a dataset that states this needs a name of its own; add --name NAME"
            )
        return None
    if fault := own_name_fault(name):
        raise UsageError(f"{fault}; choose another with --name")
    return OwnData(name=name, licence=values["licence"] or UNSTATED, origin=values["origin"] or UNSTATED)


def _columns(texts: tuple[str, ...]) -> dict[str, str]:
    columns = {}
    for text in texts:
        role, equals, name = text.partition("=")
        if not (role and equals and name):
            raise UsageError(f"--column {text}: expected ROLE=NAME, such as url=LINK")
        columns[role] = name
    return columns


def _row_options(values: _Options) -> RowOptions:
    quality, usual = values["encode_quality"], _PNG_COMPRESSION if values["encode_format"] == "png" else _QUALITY
    return RowOptions(
        encode=EncodeOptions(
            image_size=values["image_size"],
            resize_mode=values["resize_mode"],
            encode_format=values["encode_format"],
            encode_quality=usual if quality is None else quality,
        ),
        duplicates=DuplicatePolicy(
            exact=values["exact_duplicates"],
            perceptual=values["perceptual_duplicates"],
            max_distance=values["duplicate_distance"],
        ),
        verify_hash=values["verify_hash"],
        row_filter=RowFilter(
            min_image_size=values["min_image_size"],
            max_image_area=values["max_image_area"],
            max_aspect_ratio=values["max_aspect_ratio"],
            min_similarity=values["min_similarity"],
            max_punsafe=values["max_punsafe"],
            max_pwatermark=values["max_pwatermark"],
            nsfw=values["nsfw"],
            languages=values["languages"],
        ),
    )


def _plan_lines(plan: Plan) -> Iterator[str]:
    tables, _ = laion_of(plan)
    shards = counted(tables.num_shards, "shard")
    yield f"  {counted(tables.rows, 'row')} in {counted(len(tables.files), 'table')}, {shards}"
    yield f"  columns: {', '.join(f'{role} is {name}' for role, name in tables.columns.items())}"


def _few_lines(plan: Plan) -> Iterator[str]:
    """Yield what an interruption costs if the table has few shards."""
    shards = plan.num_shards
    if shards <= FEW_SHARDS and sum(plan.splits[0].shard_samples) > shards:
        again = "it" if shards == 1 else "those that are not finished"
        yield (
            f"{counted(shards, 'shard')}: an interrupted build begins {again} again; --rows-per-shard N makes smaller "
            "ones"
        )


def _rate_line(tables: TableRequest, shards: int, *, is_known: bool) -> str:
    """Return the rate of requests to one host while so many shards are left.

    Args:
        tables: The tables, with the limits of all workers together.
        shards: Number of shards that are left to build.
        is_known: Whether the number of workers is known.
    """
    limit_per_s = tables.limits.host_per_s
    if not is_known:
        return f"at most {_figure(limit_per_s)} requests/s to one host, divided by the number of the engine's workers"
    busy, divisor = min(tables.workers, shards), tables.fetching(shards)
    line = f"at most {_figure(limit_per_s * busy / divisor)} requests/s to one host"
    if busy > 1:
        line += f", {_figure(limit_per_s / divisor)} by each of {busy:,} workers"
    if busy < divisor:
        whole = f"--host-per-second {shell_words(_figure(limit_per_s))}"
        line += f": {whole} is divided by {divisor:,} workers, of which {busy:,} can have a shard"
    return line


def _figure(number: float) -> str:
    return f"{number:,.3f}".rstrip("0").rstrip(".")


def _split_lines(output: str, split: SplitManifest) -> str:
    rows = sum(split.statuses.values())
    line = (
        f"{split.name}: {counted(split.samples, 'image')} of {counted(rows, 'row')}, "
        f"{counted(len(split.shards), 'shard')}, {human_bytes(split.num_bytes)}"
    )
    lines = [line, *count_lines(split.statuses, split.reasons, _examples(output))]
    if split.samples < rows:
        lines.append(f"  list all rows without an image: dataprep inspect {shell_words(output)} --rejected")
    return "\n".join(lines)


def _examples(output: str) -> dict[str, list[str]]:
    """Return the first rows of each reason in the first shards of a finished dataset."""
    found: dict[str, list[str]] = {}
    with suppress(DataprepError):  # the counts are told without examples, and `dataprep verify` names what is damaged
        dataset = open_fetched(output)
        for row in rejected_rows(dataset.storage, dataset.layout, EXAMPLE_SHARDS):
            lines = found.setdefault(row.reason, [])
            if len(lines) < EXAMPLES:
                lines.append(f"{row.status.replace('_', ' ')}: {shortened(printable(row.url), 200) or 'no URL'}")
    return found
