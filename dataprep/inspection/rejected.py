"""Lists what a finished dataset leaves out: rows without an image, or rejected images, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dataprep.build.finished import readable_manifest
from dataprep.dataset.events import open_events
from dataprep.dataset.keys import readable
from dataprep.inspection.inspect import chosen_splits
from dataprep.storage import open_storage


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A row or an original that a dataset has no image of."""

    split: str
    key: str
    status: str
    """The row's newest status; `rejected` for an original from an archive, a folder or a table of files."""
    reason: str
    origin: str
    """URL of the row, or path of the original."""
    detail: str = ""
    """Details of the reason; empty for rows."""


def rejected(url: str, split: str | None = None) -> Iterator[Rejected]:
    """Yield everything that the dataset leaves out, from the sidecars of its shards or from its events.

    Args:
        url: URL of a finished dataset.
        split: Split to list; None for all.

    Raises:
        FormatError: A file is missing or damaged.
        UsageError: There is no such dataset or split.
    """
    storage = open_storage(url)
    for chosen in chosen_splits(readable_manifest(storage), split):
        if chosen.statuses:
            yield from _rows(url, chosen.name)
            continue
        for batch in open_events(storage, chosen.name).batches(["key", "kind", "reason", "detail"]):
            for event in batch.to_pylist():
                if event["kind"] == "rejected":
                    yield Rejected(
                        split=chosen.name,
                        key=event["key"],
                        status="rejected",
                        reason=event["reason"],
                        origin=readable(event["key"]),
                        detail=event["detail"],
                    )


def _rows(url: str, split: str) -> Iterator[Rejected]:
    from dataprep.fetched.existing import open_fetched
    from dataprep.fetched.newest import rejected_rows

    dataset = open_fetched(url)
    for row in rejected_rows(dataset.storage, dataset.layout):
        yield Rejected(split=split, key=row.key, status=row.status, reason=row.reason, origin=row.url)
