"""The layout of a finished dataset of fetched rows, built or adopted: everything that a retry must know about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.fetched.finish import facts_of, tfds_files
from dataprep.fetched.manifest import laion_options, sidecars_of
from dataprep.fetched.names import ShardNames, built_names
from dataprep.fetched.plan import LaionOptions
from dataprep.fetched.shard import ShardSchema
from dataprep.sources.laion import RENAMED, SPLIT, Row
from dataprep.sources.tables import Value


class Replacement(NamedTuple):
    """The content of a file, and the content that replaces it."""

    before: bytes
    after: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The layout of one split; each shard has a parquet file of all its rows."""

    parquet_files: Sequence[str]
    """Parquet file of each shard, by its position."""
    key_digits: int
    """Number of digits of a row's number, with which keys end."""
    names: ShardNames
    """Names of the shards that a retry adds."""
    shard_rows: int
    """Maximum number of rows of a shard that a retry adds."""
    schema: ShardSchema
    row_of: Callable[[dict[str, Value]], Row]
    """Function that turns a row of a parquet file into a row of the table of URLs."""
    described: Callable[[SplitManifest], dict[str, Replacement]]
    """Function that returns the new TFDS files, by name, for a split with more shards."""


def built_layout(manifest: Manifest) -> Layout:
    """Return the layout of a dataset whose manifest has no faults."""
    options, dataset, (split,) = laion_options(manifest), facts_of(manifest), manifest.splits

    def described(grown: SplitManifest) -> dict[str, Replacement]:
        old = tfds_files(dataset, manifest.format, options, split)
        new = tfds_files(dataset, manifest.format, options, grown)
        return {name: Replacement(old[name], content) for name, content in new.items()}

    return Layout(
        parquet_files=[sidecars_of(manifest, place)[0] for place in range(len(split.shards))],
        key_digits=math.ceil(math.log10(options.rows_per_shard)),
        names=built_names(manifest.name, manifest.format, SPLIT, options.shard_digits),
        shard_rows=options.rows_per_shard,
        schema=options.schema,
        row_of=_row_reader(options),
        described=described,
    )


def _row_reader(options: LaionOptions) -> Callable[[dict[str, Value]], Row]:
    carried = [column.name for column in options.schema.carried]
    written = dict(zip((column.name for column in options.carried), carried, strict=True))
    columns = {role: role if role in RENAMED else written[name] for role, name in options.columns.items()}

    def row_of(fields: dict[str, Value]) -> Row:
        roles = {role: fields[name] for role, name in columns.items()}
        return Row(str(fields["key"]), roles, tuple(fields[name] for name in carried))

    return row_of
