"""The request of a build from tables of URLs, its plan (a shard for each range of the tables' rows), and the part of a
manifest that only datasets of fetched images have.

The functions of a manifest are pure; if `option_faults` yields nothing, its options can be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from dataprep.builder.plan import BuildOptions, BuildRequest, Plan, PlannedSplit
from dataprep.dataset.documents import convert
from dataprep.dataset.manifest import built_as, source_faults
from dataprep.dataset.records import Manifest
from dataprep.errors import FormatError, SourceError, UsageError
from dataprep.fetched.collect import RowOptions
from dataprep.fetched.shard import FETCHED_FORMATS, ShardNames, ShardSchema, built_names, refuse_unfit, schema_with
from dataprep.formats.img2dataset import STATUSES
from dataprep.host.versions import codec_versions
from dataprep.messages import counted, quoted
from dataprep.sources import BUILT, laion
from dataprep.sources.archives import Progress
from dataprep.sources.base import OwnData
from dataprep.sources.tables import Column

if TYPE_CHECKING:
    from dataprep.web.requests import Limits


MAX_DIGITS = 12
"""Maximum number of digits of a shard's number."""
_RESIZER = "opencv-python-headless"
_TABLE_FIELDS = ("split", "name", "bytes", "rows", "sha256")


def laion_codecs() -> dict[str, str]:
    """Return the versions of the libraries that turn downloads into images."""
    return codec_versions(_RESIZER)


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRequest:
    """The tables to fetch, and the options for fetching."""

    sources: tuple[str, ...]
    """URLs of tables, or of one folder of them."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column name by role, for columns that have none of the role's usual names."""
    rows_per_shard: int = laion.DEFAULT_ROWS_PER_SHARD
    rows: RowOptions = field(default_factory=RowOptions)
    limits: Limits
    """Limits of all workers together; not a part of the plan."""
    workers: int = 1
    """Number of worker processes, on all machines."""
    one_fetches_a_shard: bool = True
    """Whether no shard is ever fetched by two processes at once. Parts of a build and the engines of clusters may try a
    shard again while its first worker, which they take to be lost, still fetches."""

    def fetching(self, shards: int) -> int:
        """Return the number of processes among which the limits are divided while so many shards are left to build."""
        return min(self.workers, max(shards, 1)) if self.one_fetches_a_shard else self.workers


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchRequest(BuildRequest):
    """A build whose originals are tables of URLs; any number of rows may fail."""

    tables: TableRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class LaionOptions:
    """Options in plan and manifest: everything that is needed to read, compare and retry the shards."""

    columns: dict[str, str]
    """Name of the column of each role."""
    carried: tuple[Column, ...]
    """Columns of the table that are copied unchanged."""
    rows_per_shard: Annotated[int, Meta(ge=1)]
    shard_digits: Annotated[int, Meta(ge=1, le=MAX_DIGITS)]
    """Minimum number of digits of a shard's number in names."""
    rows: RowOptions

    @property
    def schema(self) -> ShardSchema:
        """Columns of all shards."""
        return schema_with(self.carried, self.rows)

    def document(self) -> dict[str, object]:
        """Return the options as JSON values."""
        document: dict[str, object] = json.loads(json.dumps(asdict(self)))
        return document


def options_of(tables: laion.LaionTables, rows: RowOptions) -> LaionOptions:
    """Return the options of a plan over these tables."""
    return LaionOptions(
        columns=tables.columns,
        carried=tables.carried,
        rows_per_shard=tables.rows_per_shard,
        shard_digits=tables.shard_digits,
        rows=rows,
    )


def options_from(document: Any, *, where: str = "options", at: str = "$") -> LaionOptions:
    """Read the JSON values of `LaionOptions.document`.

    Raises:
        FormatError: A value is missing, of another type or out of range.
        UsageError: An option has an invalid value.
    """
    return convert(document, LaionOptions, where=where, at=at, advice="build it again")


def plan_tables(request: TableRequest, options: BuildOptions, progress: Progress | None = None) -> Plan:
    """Measure the tables and plan one shard for each range of their rows.

    Raises:
        SourceError: The tables are absent, damaged, empty, or have different columns.
        UsageError: Options need something that the tables or the format do not have.
    """
    storage, names = laion.open_tables(request.sources)
    tables = laion.measure_tables(
        storage, names, rows_per_shard=request.rows_per_shard, overrides=request.columns, progress=progress
    )
    refuse_unfit(tables, request.rows, options.format)
    if not tables.rows:
        raise SourceError(f"{storage.url}: no row in {counted(len(names), 'table')}; check `source`")
    sources = tuple(laion.source_entries(tables))
    split = PlannedSplit(
        name=laion.SPLIT,
        shard_samples=tables.shard_rows,
        repeat_count=1,
        repeat_stored=1,
        sources=sources,
        enumeration_sha256=hashlib.sha256(json.dumps(sources).encode()).hexdigest(),
        source_bytes=0,  # not known before they are fetched
    )
    details = {"tables": tables.document(), "rows": asdict(request.rows)}
    return Plan(options=options, codecs=laion_codecs(), classes=(), splits=(split,), details=details)


def laion_of(plan: Plan) -> tuple[laion.LaionTables, LaionOptions]:
    """Return the tables of a plan, and its options."""
    at, details = f"$.{plan.options.dataset}", plan.details or {}
    tables = laion.tables_from_document(details.get("tables"))
    rows = convert(details.get("rows"), RowOptions, where="plan", at=f"{at}.rows", advice="build it again")
    return tables, options_of(tables, rows)


def build_options(format_name: str, own: OwnData | None = None) -> BuildOptions:
    """Return the options that builds of every recipe have; `own` is what the user says about the table."""
    return BuildOptions(dataset=laion.LAION.name, format=format_name, splits=(laion.SPLIT,), own=own)


def is_fetched(manifest: Manifest) -> bool:
    """Return whether a build has fetched the images of a dataset."""
    dataset = BUILT.get(built_as(manifest))
    return dataset is not None and dataset.recipe == "web"


def laion_options(manifest: Manifest) -> LaionOptions:
    """Return the options of a fetched dataset's manifest in which `option_faults` found nothing."""
    name = built_as(manifest)
    return options_from(manifest.options.get(name), where="manifest", at=f"$.options.{name}")


def option_faults(manifest: Manifest) -> Iterator[str]:
    """Yield the faults that keep sources, options or counts from being read."""
    yield from source_faults(manifest, _TABLE_FIELDS)
    if manifest.format not in FETCHED_FORMATS:
        yield f"format {quoted(manifest.format)}, expected {' or '.join(FETCHED_FORMATS)}"
    networks = manifest.options.get("allow_networks")
    if not isinstance(networks, list) or not all(isinstance(text, str) for text in networks):
        yield f"options.allow_networks is {quoted(networks)}, expected a list of networks"
    try:
        options = laion_options(manifest)
        carried = {name for name, _ in options.carried}
        sound = "url" in options.columns and options.columns.keys() <= laion.ROLES.keys()
        sound &= all(role in laion.RENAMED or name in carried for role, name in options.columns.items())
        problem = "" if sound else "an unknown role, or one whose column is not among those carried"
    except (FormatError, UsageError) as error:
        problem = str(error)
    if problem:
        yield f"options.{built_as(manifest)} cannot be read ({problem})"
    for split in manifest.splits:
        if set(split.statuses) != set(STATUSES):
            yield f"split {split.name}: statuses {quoted(sorted(split.statuses))}, expected {', '.join(STATUSES)}"


def sidecars_of(manifest: Manifest, number: int) -> tuple[str, str]:
    """Return the names of a shard's parquet file and of its stats."""
    names = names_of(manifest)
    return names.parquet_file(number), names.stats_file(number)


def sidecar_names(manifest: Manifest) -> frozenset[str]:
    """Return the names of the sidecars of all shards."""
    names = names_of(manifest)
    numbers = range(len(manifest.splits[0].shards))
    return frozenset(name_of(number) for number in numbers for name_of in (names.parquet_file, names.stats_file))


def names_of(manifest: Manifest) -> ShardNames:
    """Return the names of the files in a dataset's shards."""
    return built_names(manifest.name, manifest.format, laion.SPLIT, laion_options(manifest).shard_digits)


def sidecar_faults(manifest: Manifest) -> Iterator[str]:
    """Yield a line for sidecars that are not listed, and one for files that are not sorted by name."""
    listed = [entry["file"] for entry in manifest.files]
    missing = sorted(sidecar_names(manifest) - set(listed))
    if missing:
        yield f"files: {len(missing):,} are not listed, the first is {missing[0]}"
    if listed != sorted(set(listed)):
        yield "files are not sorted by name, or one occurs twice"
