"""Lists what a dataset leaves out, finished or not: rows without an image, or rejected images, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dataprep.builder.finished import readable_manifest
from dataprep.builder.output import OpenBuild
from dataprep.builder.receipts import finished_shards, read_receipts
from dataprep.builder.references import original_names
from dataprep.dataset.adopted import is_adopted, open_named_data
from dataprep.dataset.index import open_events
from dataprep.dataset.paths import readable
from dataprep.dataset.records import Event, Manifest, SplitManifest
from dataprep.errors import UsageError
from dataprep.formats.img2dataset import SUCCESS, reason_of, sidecars_of
from dataprep.inspection.inspect import chosen_splits, unfinished_build
from dataprep.storage import Storage, open_storage
from dataprep.storage.parquet import read_columns

_ROW_COLUMNS = ("key", "status", "error_message", "url")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A row or an original that a dataset has no image of."""

    split: str
    key: str
    status: str
    """The row's newest status; `rejected` for an original from an archive, a folder or a table of files."""
    reason: str
    origin: str
    """URL of the row, or path of the original; a finished dataset knows paths without the suffix only."""
    detail: str = ""
    """Details of the reason; empty for rows."""


def rejected(url: str, split: str | None = None) -> Iterator[Rejected]:
    """Yield everything that the dataset leaves out, from the sidecars of its shards or from its events; of a build that
    is not finished, what its shards have left out so far.

    Args:
        url: URL of a dataset.
        split: Split to list; None for all.

    Raises:
        FormatError: A file is missing or damaged.
        UsageError: There is no such dataset or split.
    """
    storage = open_storage(url)
    claim = unfinished_build(storage)
    if claim is not None:
        yield from _of_build(OpenBuild(claim, storage), split)
        return
    manifest = readable_manifest(storage)
    for chosen in chosen_splits(manifest, split):
        if chosen.statuses:
            yield from _rows(storage, manifest, chosen)
            continue
        for batch in open_events(storage, chosen.name).batches(["key", "kind", "reason", "detail"]):
            for event in batch.to_pylist():
                if event["kind"] == "rejected":
                    yield _of_event(chosen.name, Event(**event), readable(event["key"]))


def _of_build(build: OpenBuild, split: str | None) -> Iterator[Rejected]:
    """Yield the rejected images of the shards that a build has done; its references know their files."""
    names = [planned.name for planned in build.plan.splits]
    if split not in (None, *names):
        raise UsageError(f"--split {split}: the build has {', '.join(names)}")
    done = finished_shards(build.storage, build.root)
    chosen = [name for name in names if split in (None, name)]
    indexes = [(name, index) for name in chosen for index in build.plan.shards_of(name) if index in done]
    receipts = read_receipts(build.storage, (index for _, index in indexes), build.root)
    for (name, index), found in zip(indexes, receipts, strict=True):
        events = [event for event in found[0].events if event.kind == "rejected"] if found is not None else []
        if events:
            originals = original_names(build, [index], (event.key for event in events))
            for event in events:
                yield _of_event(name, event, originals.get(event.key, readable(event.key)))


def _of_event(split: str, event: Event, origin: str) -> Rejected:
    return Rejected(
        split=split, key=event.key, status="rejected", reason=event.reason, origin=origin, detail=event.detail
    )


def _rows(storage: Storage, manifest: Manifest, split: SplitManifest) -> Iterator[Rejected]:
    from dataprep.fetched.existing import built_layout, rejected_rows

    if is_adopted(manifest):
        yield from _adopted_rows(open_named_data(storage, manifest), split)
        return
    for row in rejected_rows(storage, built_layout(manifest)):
        yield Rejected(split=split.name, key=row.key, status=row.status, reason=row.reason, origin=row.url)


def _adopted_rows(storage: Storage, split: SplitManifest) -> Iterator[Rejected]:
    """Yield the rows without an image from the parquet files that img2dataset wrote next to its shards."""
    for shard in split.shards:
        table = read_columns(storage, sidecars_of(shard["file"])[0], _ROW_COLUMNS)
        columns = (table.column(name).to_pylist() for name in _ROW_COLUMNS)
        for key, status, message, url in zip(*columns, strict=True):
            if status != SUCCESS:
                reason = reason_of(message or "")
                yield Rejected(split=split.name, key=key, status=status, reason=reason, origin=url or "")
