"""`dataprep build laion`: from a table of URLs to shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING, Literal

from dataprep.arguments import (
    IMAGES,
    READ,
    WHERE,
    WRITE,
    Pairs,
    Request,
    Texts,
    command_of,
    function_of,
    option,
    request,
    texts,
)
from dataprep.builder.plan import Plan
from dataprep.commands.build_run import Job, Run, dataset_of, run_and_print, shards_at_once
from dataprep.commands.progress import LaionProgress
from dataprep.dataset.records import SplitManifest
from dataprep.errors import DataprepError, UsageError, needing
from dataprep.fetched import collect
from dataprep.fetched.existing import open_fetched, rejected_rows
from dataprep.fetched.plan import FetchRequest, TableRequest, build_options, laion_of
from dataprep.messages import counted, human_bytes, printable, shell_words, shortened
from dataprep.sources import own_name_fault
from dataprep.sources.base import UNSTATED, OwnData
from dataprep.sources.laion import DEFAULT_ROWS_PER_SHARD, open_tables

if TYPE_CHECKING:
    from dataprep.web.requests import Limits


@request
class SiteRequest(Request):
    """Options for asking sites."""

    contact: str = option(
        "Your contact for site owners: an https:// page or mailto:NAME@HOST; part of the User-Agent.",
        metavar="ADDRESS",
        group=READ,
    )
    allow_network: Texts = option(
        "Non-public network to fetch from as well; recorded in the manifest; may be repeated.",
        default=(),
        metavar="CIDR",
        group=READ,
    )
    consent: Literal["strict", "published", "robots"] | None = option(
        "Opt-outs to obey. robots: robots.txt and X-Robots-Tag; published: also every opt-out listed in "
        "docs/fetching.md; strict: also conditional permissions, and rules for other AI agents.",
        default=None,
        shown="published",
        group=READ,
    )
    as_agent: Texts = option(
        "Also obey robots.txt rules for this agent, such as CCBot; may be repeated.",
        default=(),
        metavar="NAME",
        rare=True,
    )
    nameserver: Texts = option(
        "DNS server to use instead of this machine's; may be repeated.", default=(), metavar="ADDRESS", rare=True
    )
    verify_tls: bool = option("Accept any TLS certificate.", default=True, flag="--no-verify-tls", rare=True)
    in_flight: int = option("URLs in flight per worker.", default=1024, low=1)
    host_connections: int = option(
        "Concurrent requests to one host, from all workers together; each worker may make at least one.",
        default=8,
        low=1,
    )
    host_per_second: float = option(
        "Requests per second to one host, from all workers together.", default=16, low=0, open_low=True
    )
    address_connections: int = option(
        "Concurrent requests to all hosts that share an IP address; each worker may make at least one.",
        default=32,
        low=1,
        rare=True,
    )
    address_per_second: float = option(
        "Requests per second to all hosts that share an IP address.", default=64, low=0, open_low=True, rare=True
    )
    connect_seconds: float = option(
        "Maximum time to connect, including TLS.", default=10, low=0, open_low=True, rare=True
    )
    read_seconds: float = option("Maximum pause within a response.", default=10, low=0, open_low=True, rare=True)
    answer_seconds: float = option("Maximum time for a complete response.", default=30, low=0, open_low=True, rare=True)
    row_seconds: float = option(
        "Time after which a row makes no more requests, neither redirects nor retries.",
        default=120,
        low=0,
        open_low=True,
        rare=True,
    )
    retries: int = option("Number of retries after a 429, or a 503 with Retry-After.", default=2, low=0, rare=True)


@request
class WebRequest(SiteRequest):
    """Options for fetching from the web."""

    max_body: int | str = option("Maximum response size.", default=20 << 20, size=True, shown="20MiB", rare=True)


def limits_of(asked: SiteRequest, consent: str = "published") -> Limits:
    """Return the limits of all workers together; `consent` is the policy if none is asked for. Raises UsageError if a
    value is wrong, or the packages for fetching are not installed."""
    with needing("laion", "laion"):
        from dataprep.web.addresses import parse_networks
        from dataprep.web.requests import Consent, Limits
    limits = Limits(
        contact=asked.contact,
        consent=Consent(asked.consent or consent),
        agents=texts(asked.as_agent),
        allow_networks=parse_networks(texts(asked.allow_network)),
        nameservers=texts(asked.nameserver),
        verify_tls=asked.verify_tls,
        in_flight=asked.in_flight,
        host_connections=asked.host_connections,
        host_per_s=asked.host_per_second,
        address_connections=asked.address_connections,
        address_per_s=asked.address_per_second,
        connect_s=asked.connect_seconds,
        read_s=asked.read_seconds,
        answer_s=asked.answer_seconds,
        row_s=asked.row_seconds,
        retries=asked.retries,
    )
    return replace(limits, body_bytes=int(asked.max_body)) if isinstance(asked, WebRequest) else limits


def network_lines(limits: Limits) -> Iterator[str]:
    """Yield a line about the networks that may be fetched from apart from public ones."""
    if limits.allow_networks:
        networks = ", ".join(str(network) for network in limits.allow_networks)
        yield f"fetching from {networks}, too (`allow_network`); the manifest records it"


def count_lines(
    statuses: Mapping[str, int], reasons: Mapping[str, int], examples: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
    """Describe the numbers of rows by status and by reason in lines, with examples of some reasons below them."""
    rows = max(1, sum(statuses.values()))
    lines = [
        f"  {status.replace('_', ' ')}: {count:,} ({100 * count / rows:.1f} %)"
        for status, count in statuses.items()
        if count
    ]
    failures = sorted(((count, reason) for reason, count in reasons.items() if reason != "success"), reverse=True)
    for count, reason in failures[:8]:
        lines.append(f"    {reason}: {count:,}")
        lines += [f"      {example}" for example in (examples or {}).get(reason, ())]
    return lines


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
After an interruption, run the same command again: URLs of finished shards are not fetched twice.
`dataprep retry-failed` fetches failed rows again.

\b
The limits per host and address are divided among the worker processes; on this machine, only among workers that can get
a shard. FnApiRunner has --workers of them, or --direct_num_workers after --; PortableRunner needs --workers. Dataflow
starts one worker per vCPU, and needs --max_num_workers and --machine_type. With more --workers than cores, the cores
stay busy while the last rows of a shard wait for slow hosts.

\b
Exit codes: 0 complete; 1 a disk or bucket failed, or no image at all was fetched; 2 wrong usage, or an unreadable
table.
"""
_PNG_COMPRESSION, _QUALITY = 6, 95
EXAMPLES, EXAMPLE_SHARDS = 3, 4
"""Number of example rows for each reason when a build ends, and number of shards that are searched for them."""
FEW_SHARDS = 4
"""Number of shards up to which an interruption costs a large part of a build."""


@request
class BuildLaion(WebRequest, Run):
    """Fetch the images listed in a table of URLs, and build shards from them.

    Requests go only to public addresses, unless `allow_network` names others, and are limited per host and address.
    Opt-outs of sites and images are respected (docs/fetching.md). Every row gets a status and, unless it succeeded, a
    reason, in the shard's sidecar parquet file. Keys, names and columns are the same as img2dataset's. The rows stay in
    the table's order.
    """

    source: Texts = option(
        "Table file (.parquet, .csv, .tsv, .jsonl) or a folder of tables, on a disk or at a URL. Repeat for more "
        "files from the same folder.",
        metavar="URL",
        group=READ,
    )
    format: Literal["webdataset", "tfrecord"] = option("Format of the shards.", group=WRITE)
    name: str | None = option("Name of the dataset, if the table is not LAION's.", default=None, group=WRITE)
    licence: str | None = option(
        "Licence of the images, for the manifest; needs `name`.", default=None, shown="unknown", group=WRITE
    )
    origin: str | None = option(
        "Origin of the table, for the manifest; needs `name`.", default=None, shown="unknown", group=WRITE
    )
    column: Pairs = option(
        "Column for a role (url, caption, width, …), if dataprep does not recognise its name; may be repeated.",
        default_factory=dict,
        metavar="ROLE=NAME",
        example="url=LINK",
        group=READ,
    )
    rows_per_shard: int = option("Number of table rows per shard.", default=DEFAULT_ROWS_PER_SHARD, group=WRITE)
    min_image_size: int = option("Minimum shorter side of an image.", default=0, metavar="PIXELS", group=READ)
    max_image_area: int | None = option(
        "Maximum width times height of an image.", default=None, metavar="PIXELS", group=READ
    )
    max_aspect_ratio: float | None = option("Maximum ratio of longer to shorter side.", default=None, group=READ)
    min_similarity: float | None = option(
        "Minimum similarity of image and caption, according to the table.", default=None, group=READ
    )
    max_punsafe: float | None = option(
        "Maximum probability of unsafe content, according to the table.", default=None, group=READ
    )
    max_pwatermark: float | None = option(
        "Maximum probability of a watermark, according to the table.", default=None, group=READ
    )
    nsfw: Texts = option(
        "Keep only rows with this NSFW value; may be repeated.", default=(), metavar="VALUE", group=READ
    )
    languages: Texts = option(
        "Keep only rows in this language; may be repeated.", default=(), metavar="CODE", group=READ
    )
    verify_hash: Literal["md5", "sha256"] | None = option(
        "Reject images whose hash differs from the hash in the table.", default=None, group=READ
    )
    image_size: int = option("Size of the resized images.", default=256, metavar="PIXELS", group=IMAGES)
    resize_mode: collect.ResizeMode = option(
        "How to resize images to `image_size`; see docs/laion.md.", default="keep_ratio", group=IMAGES
    )
    encode_format: collect.EncodeFormat = option("Format of the stored images.", default="jpg", group=IMAGES)
    encode_quality: int | None = option(
        "Quality of jpg and webp, or compression of png.", default=None, shown="95; png: 6", group=IMAGES
    )
    exact_duplicates: collect.DuplicateAction = option(
        "What to do with images in a shard that have the same bytes; drop keeps one per shard.",
        default="keep",
        group=IMAGES,
    )
    perceptual_duplicates: collect.DuplicateAction = option(
        "What to do with images in a shard that look the same.", default="keep", group=IMAGES
    )
    duplicate_distance: int = option(
        "Maximum perceptual-hash distance at which two images count as duplicates.",
        default=0,
        metavar="BITS",
        group=IMAGES,
        rare=True,
    )
    engine_options: Texts = option(
        "More tables, and then the engine's options, as after -- on the command line.",
        default=(),
        rest=True,
        metavar="[MORE TABLES] [-- ENGINE_OPTIONS]",
        group=WHERE,
    )

    def tables(self) -> tuple[str, ...]:
        """Return all tables: a shell puts the matches of a pattern such as `laion/*.parquet` after `source`."""
        return (*texts(self.source), *takewhile(_is_no_option, texts(self.engine_options)))

    def engine_words(self) -> tuple[str, ...]:
        return tuple(dropwhile(_is_no_option, texts(self.engine_options)))

    def job(self) -> Job:
        limits, sources = limits_of(self), self.tables()
        source_url = open_tables(sources)[0].url
        is_planned = self.dry_run and not self.is_local  # a plan asks no cluster
        at_once = None if is_planned else shards_at_once(self, (source_url, str(self.output)))
        asked = FetchRequest(
            options=build_options(self.format, _own_data(self)),
            source_url=source_url,
            output_url=str(self.output),
            max_reject_ratio=1.0,
            overwrite=self.overwrite,
            tables=TableRequest(
                sources=sources,
                columns=dict(self.column),
                rows_per_shard=self.rows_per_shard,
                limits=limits,
                workers=at_once or 1,
                one_fetches_a_shard=self.is_local and self.part is None,
                rows=_row_options(self),
            ),
        )

        def fetch_lines(plan: Plan, shards: int) -> Iterator[str]:
            yield from _few_lines(plan)
            yield _rate_line(asked.tables, shards, is_known=at_once is not None)

        def plan_lines(plan: Plan) -> Iterator[str]:
            tables, _ = laion_of(plan)
            shards = counted(tables.num_shards, "shard")
            yield f"  {counted(tables.rows, 'row')} in {counted(len(tables.files), 'table')}, {shards}"
            yield f"  columns: {', '.join(f'{role} is {name}' for role, name in tables.columns.items())}"
            yield from (f"  {line}" for line in fetch_lines(plan, plan.num_shards))

        return Job(
            run=self,
            request=asked,
            plan_lines=plan_lines,
            split_line=partial(_split_lines, str(self.output)),
            open_progress=partial(LaionProgress, lines=fetch_lines),
            warnings=() if self.dry_run else tuple(network_lines(limits)),
        )


build_laion = function_of(BuildLaion, dataset_of, "build_laion")
command = command_of(BuildLaion, run_and_print, "laion", epilog=EPILOG)


def _is_no_option(word: str) -> bool:
    return not word.startswith("-")


def _own_data(values: BuildLaion) -> OwnData | None:
    """Return the user's facts about the table; None for LAION's."""
    name = values.name
    stated = {key: value for key in ("licence", "origin") if (value := getattr(values, key)) is not None}
    if name is None:
        if stated:
            raise UsageError(f"`{next(iter(stated))}`: a dataset that states this needs its own name; add `name`")
        return None
    if fault := own_name_fault(name):
        raise UsageError(f"{fault}; choose another with `name`")
    return OwnData(name=name, licence=values.licence or UNSTATED, origin=values.origin or UNSTATED)


def _row_options(values: BuildLaion) -> collect.RowOptions:
    quality, usual = values.encode_quality, _PNG_COMPRESSION if values.encode_format == "png" else _QUALITY
    return collect.RowOptions(
        encode=collect.EncodeOptions(
            image_size=values.image_size,
            resize_mode=values.resize_mode,
            encode_format=values.encode_format,
            encode_quality=usual if quality is None else quality,
        ),
        duplicates=collect.DuplicatePolicy(
            exact=values.exact_duplicates,
            perceptual=values.perceptual_duplicates,
            max_distance=values.duplicate_distance,
        ),
        verify_hash=values.verify_hash,
        row_filter=collect.RowFilter(
            min_image_size=values.min_image_size,
            max_image_area=values.max_image_area,
            max_aspect_ratio=values.max_aspect_ratio,
            min_similarity=values.min_similarity,
            max_punsafe=values.max_punsafe,
            max_pwatermark=values.max_pwatermark,
            nsfw=texts(values.nsfw),
            languages=texts(values.languages),
        ),
    )


def _few_lines(plan: Plan) -> Iterator[str]:
    """Yield a note on the cost of an interruption if the table has few shards."""
    shards = plan.num_shards
    if shards <= FEW_SHARDS and sum(plan.splits[0].shard_samples) > shards:
        unfinished = "it" if shards == 1 else "unfinished shards"
        yield (
            f"{counted(shards, 'shard')}: an interrupted build restarts {unfinished}; --rows-per-shard N makes smaller "
            "shards"
        )


def _rate_line(tables: TableRequest, shards: int, *, is_known: bool) -> str:
    """Return the rate of requests to one host while this many shards are left, if the number of workers is known."""
    limit_per_s = tables.limits.host_per_s
    if not is_known:
        return f"at most {_figure(limit_per_s)} requests/s to one host, divided among the engine's workers"
    busy, divisor = min(tables.workers, shards), tables.fetching(shards)
    line = f"at most {_figure(limit_per_s * busy / divisor)} requests/s to one host"
    if busy > 1:
        line += f", {_figure(limit_per_s / divisor)} from each of {busy:,} workers"
    if busy < divisor:
        whole = f"--host-per-second {shell_words(_figure(limit_per_s))}"
        line += f": {whole} is divided among {divisor:,} workers, but only {busy:,} can get a shard"
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
    with suppress(DataprepError):  # the counts are shown without examples, `dataprep verify` names damaged files
        for row in rejected_rows(open_fetched(output), EXAMPLE_SHARDS):
            lines = found.setdefault(row.reason, [])
            if len(lines) < EXAMPLES:
                lines.append(f"{row.status.replace('_', ' ')}: {shortened(printable(row.url), 200) or 'no URL'}")
    return found
