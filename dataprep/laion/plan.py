"""What a build of laion is asked for, and the plan that it makes of it: a shard for each range of the tables' rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dataprep.errors import SourceError
from dataprep.laion.collect import RowOptions, row_options_from
from dataprep.laion.make import refuse_unfit
from dataprep.laion.shard import ShardSchema, schema_with
from dataprep.plan import BuildOptions, Plan, PlannedSplit, codec_versions
from dataprep.sources.laion import (
    DEFAULT_ROWS_PER_SHARD,
    LAION,
    SPLIT,
    LaionTables,
    measure_tables,
    open_tables,
    source_entries,
    tables_from_document,
)
from dataprep.sources.tables import Column, Progress

if TYPE_CHECKING:
    from dataprep.web.limits import Limits

_RESIZER = "opencv-python-headless"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaionRequest:
    """What is asked of a build besides its format and its place."""

    sources: tuple[str, ...]
    """Tables, or one folder of them."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """By role, the name of its column, where that is none of the usual ones."""
    rows_per_shard: int = DEFAULT_ROWS_PER_SHARD
    rows: RowOptions = field(default_factory=RowOptions)
    limits: Limits
    """One worker's; no part of the plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaionOptions:
    """What plan and manifest hold of a build: all by which its shards can be read, compared, and tried again."""

    columns: dict[str, str]
    """By role, the name of its column in the table."""
    carried: tuple[Column, ...]
    """The table's columns that are written as they are."""
    rows_per_shard: int
    shard_digits: int
    """Of a shard's number in names."""
    rows: RowOptions

    @property
    def schema(self) -> ShardSchema:
        """Of all shards."""
        return schema_with(self.carried, self.rows)

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        document: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return document


def options_of(tables: LaionTables, rows: RowOptions) -> LaionOptions:
    """Of a plan."""
    return LaionOptions(
        columns=tables.columns,
        carried=tables.carried,
        rows_per_shard=tables.rows_per_shard,
        shard_digits=tables.shard_digits,
        rows=rows,
    )


def options_from(document: Mapping[str, Any]) -> LaionOptions:
    """Read back what `LaionOptions.document` gave. Raises KeyError, TypeError, ValueError or UsageError for others."""
    return LaionOptions(
        columns=dict(document["columns"]),
        carried=tuple(Column(*column) for column in document["carried"]),
        rows_per_shard=int(document["rows_per_shard"]),
        shard_digits=int(document["shard_digits"]),
        rows=row_options_from(document["rows"]),
    )


def plan_tables(request: LaionRequest, options: BuildOptions, progress: Progress | None = None) -> Plan:
    """Measure the tables and plan a shard for each range of their rows.

    Raises:
        SourceError: The tables are absent, damaged, empty, or not alike.
        UsageError: Options ask for what tables or format do not have.
    """
    storage, names = open_tables(request.sources)
    tables = measure_tables(
        storage, names, rows_per_shard=request.rows_per_shard, overrides=request.columns, progress=progress
    )
    refuse_unfit(tables, request.rows, options.format)
    if not tables.rows:
        raise SourceError(f"{storage.url}: no row in {len(names):,} tables; check --source")
    sources = tuple(source_entries(tables))
    split = PlannedSplit(
        name=SPLIT,
        shard_samples=tables.shard_rows,
        repeat_count=1,
        repeat_stored=1,
        sources=sources,
        enumeration_sha256=hashlib.sha256(json.dumps(sources).encode()).hexdigest(),
        source_bytes=0,  # nobody knows before they are fetched
    )
    laion = {"tables": tables.document(), "rows": asdict(request.rows)}
    return Plan(options=options, codecs=codec_versions(_RESIZER), classes=(), splits=(split,), laion=laion)


def laion_of(plan: Plan) -> tuple[LaionTables, LaionOptions]:
    """The tables of a plan, and its options."""
    laion = plan.laion or {}
    tables = tables_from_document(laion["tables"])
    return tables, options_of(tables, row_options_from(laion["rows"]))


def build_options(format_name: str) -> BuildOptions:
    """What all builds have."""
    return BuildOptions(dataset=LAION.name, format=format_name, splits=(SPLIT,))
