"""Plans of a few shards, made without originals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from dataprep.builder.plan import BuildOptions, Plan, PlannedSplit
from dataprep.builder.recipe import Planned
from dataprep.builder.references import refs_schema, repair_references, store_references
from dataprep.dataset.columns import table_of
from dataprep.dataset.records import SampleRef
from dataprep.host.versions import codec_versions


def small_plan(shard_samples: tuple[int, ...] = (2, 1), fmt: str = "webdataset", **options: Any) -> Plan:
    """ImageNet's val split in shards of so many samples."""
    split = PlannedSplit(
        name="val",
        shard_samples=shard_samples,
        repeat_count=1,
        repeat_stored=1,
        sources=({"name": "ILSVRC2012_img_val.tar", "bytes": 1000},),
        enumeration_sha256="0" * 64,
        source_bytes=900,
    )
    asked = BuildOptions(dataset="imagenet", format=fmt, splits=("val",), **options)
    return Plan(options=asked, codecs=codec_versions(), classes=("n01440764", "n01443537"), splits=(split,))


def refs_of(plan: Plan, index: int) -> list[SampleRef]:
    """The references of a shard: its samples are called after it."""
    split, _ = plan.locate(index)
    return [SampleRef(f"s{index}-{i}", "x.tar", 10 * i, 10, i % 2) for i in range(split.shard_samples[index])]


def refs_table(refs: Sequence[SampleRef], *, with_annotations: bool = False, with_crc32c: bool = False) -> pa.Table:
    """References as a plan stores them."""
    schema = refs_schema(with_annotations=with_annotations, with_crc32c=with_crc32c)
    columns = [[getattr(ref, name) for ref in refs] for name in refs_schema().names]
    if with_annotations:
        columns.append([ref.annotations.decode() for ref in refs])
    if with_crc32c:
        columns.append([ref.crc32c for ref in refs])
    return table_of(columns, schema)


def planned(plan: Plan) -> Planned:
    """A plan with references that can be stored."""
    tables, schema = _tables(plan), refs_schema()
    return Planned(plan, partial(store_references, tables, schema), partial(repair_references, tables, schema))


def _tables(plan: Plan) -> Iterator[pa.Table]:
    return (refs_table(refs_of(plan, index)) for index in range(plan.num_shards))
