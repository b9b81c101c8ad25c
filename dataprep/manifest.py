"""`dataset.json`: reading, writing, and merging the receipts of a build into it.

The manifest is written last and once. Its bytes hold no time, no absolute path and nothing of who built it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dataprep.columns import table_of
from dataprep.errors import BuildError, FormatError
from dataprep.plan import Plan, PlannedSplit
from dataprep.randomness import ORDER_VERSION
from dataprep.records import Event, Manifest, ShardReceipt, SplitManifest
from dataprep.storage.base import Storage
from dataprep.workspace import index_schema, publish_row_groups, read_receipts

if TYPE_CHECKING:
    import pyarrow as pa

    from dataprep.sources.base import Dataset

MANIFEST = "dataset.json"
SCHEMA_VERSION = "1.1"
_SPLIT_FIELDS = tuple(SplitManifest.__dataclass_fields__)
_ADDED = ("statuses", "reasons")
"""Fields of a split since 1.1; older manifests are read without."""


def manifest_bytes(manifest: Manifest) -> bytes:
    """Canonical JSON: the same manifest gives the same bytes."""
    return json.dumps(asdict(manifest), indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def read_manifest(storage: Storage) -> Manifest | None:
    """The manifest of a finished dataset, or None when there is none.

    Raises:
        FormatError: It is no manifest, or of a version that this code does not know.
    """
    try:
        data = storage.read(MANIFEST)
    except FileNotFoundError:
        return None
    url = storage.url_of(MANIFEST)
    try:
        document = json.loads(data)
        version = str(document["schema_version"])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{url}: not a dataset manifest ({error}); restore it or build again") from error
    if version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise FormatError(f"{url}: schema version {version}, this dataprep reads {SCHEMA_VERSION}; update dataprep")
    try:
        return _manifest_from(document)
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{url}: fields missing or of a wrong type ({error}); restore it or build again") from error


def _manifest_from(document: dict[str, Any]) -> Manifest:
    known = {name: document[name] for name in Manifest.__dataclass_fields__}  # a later minor version may have more
    splits = tuple(
        SplitManifest(
            **{
                **{name: split[name] for name in _SPLIT_FIELDS if name in split or name not in _ADDED},
                "shards": tuple(split["shards"]),
                "class_counts": tuple(split["class_counts"]),
            }
        )
        for split in document["splits"]
    )
    sequences = {name: tuple(document[name]) for name in ("sources", "classes", "files")}
    return Manifest(**{**known, **sequences, "splits": splits})


def merge_split(
    storage: Storage,
    plan: Plan,
    split: PlannedSplit,
    first_index: int,
    seen: Callable[[ShardReceipt], None] = lambda receipt: None,
) -> SplitManifest:
    """Merge the receipts of one split, shard after shard in bounded memory, and write its index files.

    Args:
        seen: Told of every receipt, in the order of the shards.

    Raises:
        BuildError: A receipt is missing.
    """
    import numpy as np

    shards: list[dict[str, Any]] = []
    events: list[Event] = []
    statuses: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    class_counts = np.zeros(len(plan.classes), np.int64)

    def index_rows() -> Iterator[pa.Table]:
        indexes = range(first_index, first_index + len(split.shard_samples))
        for index, found in zip(indexes, read_receipts(storage, indexes), strict=True):
            if found is None:
                raise BuildError(f"{storage.url}: shard {index} has no receipt; run the same command again")
            receipt, rows = found
            seen(receipt)
            shards.append(shard_entry(receipt))
            events.extend(receipt.events)
            if receipt.fetched is not None:
                statuses.update(receipt.fetched.statuses)
                reasons.update(receipt.fetched.reasons)
            if len(class_counts):
                class_counts[:] += np.bincount(rows.column("label").to_pylist(), minlength=len(class_counts))
            yield rows

    index = publish_row_groups(storage, f"index/{split.name}.parquet", index_rows(), index_schema())
    events_file = f"index/{split.name}-events.parquet"
    events_entry = publish_row_groups(storage, events_file, iter([_events_table(events)]), _events_schema())
    return SplitManifest(
        name=split.name,
        samples=sum(shard["samples"] for shard in shards),
        num_bytes=sum(shard["bytes"] for shard in shards),
        shards=tuple(shards),
        class_counts=tuple(int(count) for count in class_counts),
        repeats={"count": split.repeat_count, "stored": split.repeat_stored},
        repaired=_count(events, "repaired"),
        rejected=_count(events, "rejected"),
        index=index,
        events=events_entry,
        statuses=dict(statuses),
        reasons=dict(sorted(reasons.items())),
    )


def build_manifest(plan: Plan, dataset: Dataset, splits: Iterable[SplitManifest], files: Iterable[Any]) -> Manifest:
    """The manifest of a finished build."""
    options = json.loads(json.dumps(asdict(plan.options)))
    sources = [
        {"split": split.name, **source, "enumeration_sha256": split.enumeration_sha256}
        for split in plan.splits
        for source in split.sources
    ]
    return Manifest(
        name=plan.options.dataset,
        schema_version=SCHEMA_VERSION,
        revision=1,
        format=plan.options.format,
        plan_hash=plan.plan_hash,
        order_version=ORDER_VERSION,
        options=options,
        sources=tuple(sources),
        codecs=plan.codecs,
        licence=dataset.licence,
        origin=dataset.origin,
        classes=plan.classes,
        shuffled=True,
        checked=plan.options.images.check,
        partial=plan.options.allow_partial,
        splits=tuple(splits),
        files=tuple(files),
    )


def refuse_rejections(dataset: Storage, plan: Plan, max_ratio: float, splits: Iterable[SplitManifest]) -> None:
    """Raise BuildError, naming images, where more were rejected than `--max-reject-ratio` allows."""
    for split in splits:
        rejected, total = sum(split.rejected.values()), split.samples + sum(split.rejected.values())
        if rejected > max_ratio * total:
            names = ", ".join(f"{event.key} ({event.reason})" for event in rejections(dataset, split.name, 10))
            more = f" and {rejected - 10:,} more" if rejected > 10 else ""
            raise BuildError(
                f"{split.name}: {rejected:,} of {total:,} images were rejected, allowed are "
                f"{int(max_ratio * total):,} (--max-reject-ratio {max_ratio:g}): {names}{more}. Mend the originals, or "
                f"run the same command with --max-reject-ratio {_ratio_above(rejected, total)}: the shards are done"
            )


def rejections(storage: Storage, split: str, most: int) -> list[Event]:
    """The first rejected images of a split."""
    return [event for event in read_events(storage, split) if event.kind == "rejected"][:most]


def read_events(storage: Storage, split: str) -> list[Event]:
    """Every repair and rejection of a split, in the order of its shards."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(storage.read(f"index/{split}-events.parquet")))
    table = file.read(use_threads=False)
    return [Event(**row) for row in table.to_pylist()]


def bytes_entry(name: str, data: bytes) -> dict[str, Any]:
    """`{file, bytes, sha256}` of a file about to be written."""
    return {"file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def shard_entry(receipt: ShardReceipt) -> dict[str, Any]:
    """`{file, samples, bytes, sha256, crc32c}`, as the manifest lists a shard."""
    return {
        "file": receipt.file,
        "samples": receipt.samples,
        "bytes": receipt.num_bytes,
        "sha256": receipt.sha256,
        "crc32c": receipt.crc32c,
    }


def _events_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in Event.__dataclass_fields__])


def _events_table(events: list[Event]) -> pa.Table:
    schema = _events_schema()
    return table_of(([getattr(event, name) for event in events] for name in schema.names), schema)


def _count(events: Iterable[Event], kind: str) -> dict[str, int]:
    return dict(sorted(Counter(event.reason for event in events if event.kind == kind).items()))


def _ratio_above(rejected: int, total: int) -> str:
    return f"{(int(rejected / total * 10_000) + 1) / 10_000:g}"
