"""A finished dataset as loaders see it: the manifest, one split, where its shards and its index are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataprep.adopt.links import open_data
from dataprep.errors import UsageError
from dataprep.manifest import MANIFEST, read_manifest
from dataprep.placement import guard
from dataprep.records import Manifest, SplitManifest
from dataprep.replicas import url_to_read
from dataprep.storage import open_storage
from loaders.rows import SplitRows

if TYPE_CHECKING:
    from dataprep.storage.base import Storage


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a loader reads; picklable, for its worker processes."""

    url: str
    manifest: Manifest
    split: SplitManifest

    def storage(self) -> Storage:
        """Where the shards are."""
        return open_data(open_storage(self.url), self.manifest)

    def rows(self, deadline_s: float) -> SplitRows:
        """The index of the split, read within a deadline."""
        return SplitRows(open_storage(self.url), self.manifest, self.split, deadline_s=deadline_s)

    @property
    def passes(self) -> int:
        """Over the stored samples, in one epoch."""
        return self.split.repeats["count"] // self.split.repeats["stored"]


def open_dataset(url: str, split: str, region_policy: str = "refuse") -> Dataset:
    """Read a dataset's manifest. Every bucket that a loader reads is named here first, and judged before it is read.

    Where reading the URL would be paid, the copy of it that this machine reads for less is opened in its place, as
    `replicas.json` lists them.

    Raises:
        UsageError: There is no such dataset or split, or reading it from here costs money and the policy refuses that.
    """
    url = url_to_read(url, region_policy)
    storage = open_storage(url)
    guard(url, region_policy)
    manifest = read_manifest(storage)
    if manifest is None:
        raise UsageError(
            f"{storage.url_of(MANIFEST)}: not found; give a dataset that `dataprep build` finished, "
            "or index other data with `dataprep adopt`"
        )
    found = {each.name: each for each in manifest.splits}
    if split not in found:
        raise UsageError(f"{storage.url}: no split {split!r}; it has {', '.join(found)}")
    dataset = Dataset(url, manifest, found[split])
    guard(dataset.storage().url, region_policy)  # adopted data may lie in another bucket than their index
    return dataset
