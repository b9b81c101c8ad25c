"""How a finished dataset of fetched rows lies, whoever wrote it: all that trying its failed rows again must know."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dataprep.checks.laion import files_beside, laion_options
from dataprep.laion.finish import tfds_files
from dataprep.laion.names import ShardNames, built_names
from dataprep.laion.plan import LaionOptions
from dataprep.laion.shard import ShardSchema
from dataprep.records import Manifest, SplitManifest
from dataprep.sources.laion import RENAMED, SPLIT, Row


class Replacement(NamedTuple):
    """What a file holds, and is to hold."""

    before: bytes
    after: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One split of shards, a parquet file of all rows beside each."""

    parquet_files: Sequence[str]
    """By a shard's place."""
    numbers: Sequence[int]
    """By a shard's place, its number, with which the keys of its rows begin."""
    key_digits: int
    """Of a row's number, with which they end."""
    names: ShardNames
    """Of shards to come."""
    shard_rows: int
    """At most, of shards to come."""
    schema: ShardSchema
    row_of: Callable[[dict[str, Any]], Row]
    """A row of the table of URLs, from one of a parquet file."""
    reason_of: Callable[[str], str]
    """The phrase for an `error_message`."""
    described: Callable[[SplitManifest], dict[str, Replacement]]
    """The files by which TFDS reads it, for a split that has grown."""


def built_layout(manifest: Manifest) -> Layout:
    """That of `dataprep build laion`. Expects a manifest in which nothing was found."""
    options, (split,) = laion_options(manifest), manifest.splits
    places = range(len(split.shards))

    def described(grown: SplitManifest) -> dict[str, Replacement]:
        old = tfds_files(manifest.format, options, split)
        new = tfds_files(manifest.format, options, grown)
        return {name: Replacement(old[name], content) for name, content in new.items()}

    return Layout(
        parquet_files=[files_beside(manifest, place)[0] for place in places],
        numbers=places,
        key_digits=math.ceil(math.log10(options.rows_per_shard)),
        names=built_names(manifest.format, SPLIT, options.shard_digits),
        shard_rows=options.rows_per_shard,
        schema=options.schema,
        row_of=_row_reader(options),
        reason_of=str,
        described=described,
    )


def _row_reader(options: LaionOptions) -> Callable[[dict[str, Any]], Row]:
    carried = [column.name for column in options.schema.carried]
    written = dict(zip((column.name for column in options.carried), carried, strict=True))
    columns = {role: role if role in RENAMED else written[name] for role, name in options.columns.items()}

    def row_of(fields: dict[str, Any]) -> Row:
        roles = {role: fields[name] for role, name in columns.items()}
        return Row(fields["key"], roles, tuple(fields[name] for name in carried))

    return row_of
