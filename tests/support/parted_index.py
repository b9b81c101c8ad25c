"""Small datasets whose index is in parts, as that of a large one is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dataprep.dataset import index
from dataprep.dataset.index import ANNOTATIONS, index_schema, open_index, publish_index, publish_row_groups
from dataprep.dataset.manifest import MANIFEST, manifest_bytes, read_manifest, schema_version
from dataprep.dataset.records import FileEntry, Manifest, SplitManifest
from dataprep.storage import Storage, open_storage
from tests.support.faults import linked_copy


@contextmanager
def parts_of(rows: int) -> Iterator[None]:
    """In this process an index of more rows is written in parts of about so many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "MAX_ROWS_IN_ONE", rows)
        patch.setattr(index, "PART_ROWS", rows)
        yield


def in_parts(source: Path, target: Path, rows: int) -> Manifest:
    """A linked copy of a dataset on disk, with the same index in parts."""
    linked_copy(source, target)
    storage = open_storage(str(target))
    manifest = read_manifest(storage)
    assert manifest is not None
    with parts_of(rows):
        splits = tuple(_in_parts(storage, manifest, split) for split in manifest.splits)
    parted = replace(manifest, splits=splits, schema_version=schema_version(splits))
    storage.delete(MANIFEST)
    storage.create(MANIFEST, manifest_bytes(parted))
    return parted


def _in_parts(storage: Storage, manifest: Manifest, split: SplitManifest) -> SplitManifest:
    whole = open_index(storage, split)
    groups = [whole.read_group(shard) for shard in range(len(split.shards))]
    schema = index_schema(with_annotations=ANNOTATIONS in whole.columns, with_files="file" in whole.columns)
    storage.delete(split.index["file"])

    def put(name: str, part: range) -> FileEntry:
        found: list[pa.Table] = [groups[shard] for shard in part]
        return publish_row_groups(storage, name, iter(found), schema)

    return replace(split, index=publish_index(split.name, [shard["samples"] for shard in split.shards], put))
