"""Opens a finished dataset of fetched rows: one of `dataprep build laion`, or an adopted one of img2dataset."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from dataprep.builder.finished import readable_manifest
from dataprep.dataset.adopted import is_adopted, open_named_data
from dataprep.dataset.manifest import MANIFEST, MANIFEST_ADVICE, MAX_MANIFEST_BYTES, no_dataset
from dataprep.dataset.records import Manifest
from dataprep.errors import UsageError
from dataprep.fetched.img2dataset import img2dataset_layout
from dataprep.fetched.layout import Layout, built_layout
from dataprep.fetched.manifest import is_fetched
from dataprep.storage import Storage, open_storage
from dataprep.storage.base import read_bounded


@dataclass(frozen=True, slots=True)
class FetchedDataset:
    """A dataset whose failed rows can be tried again."""

    storage: Storage
    data: bytes
    """Content of `dataset.json`."""
    manifest: Manifest
    layout: Layout

    @property
    def sha256(self) -> str:
        """SHA-256 of `dataset.json`."""
        return hashlib.sha256(self.data).hexdigest()


def open_fetched(url: str, split: str | None = None) -> FetchedDataset:
    """Open a finished dataset of fetched rows, and read its manifest.

    Args:
        url: URL of the dataset.
        split: Split whose rows are meant; None for the only one.

    Raises:
        UsageError: There is no dataset of fetched rows, or its rows cannot be tried again.
    """
    storage = open_storage(url)
    data = read_bounded(storage, MANIFEST, MAX_MANIFEST_BYTES, advice=MANIFEST_ADVICE)
    if data is None:
        raise no_dataset(storage)
    manifest = readable_manifest(storage)
    if split is not None:
        manifest = replace(manifest, splits=tuple(each for each in manifest.splits if each.name == split))
    if is_adopted(manifest):
        storage = open_named_data(storage, manifest)
        return FetchedDataset(storage, data, manifest, img2dataset_layout(storage, manifest))
    if not is_fetched(manifest):
        raise UsageError(
            f"{storage.url}: {manifest.name} was not fetched from the web; expected a dataset of laion, or one of "
            "img2dataset that was adopted"
        )
    return FetchedDataset(storage, data, manifest, built_layout(manifest))
