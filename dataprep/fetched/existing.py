"""Opens a finished dataset of fetched rows: one of `dataprep build laion`, or an adopted one of img2dataset."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from dataprep.builder.finished import readable_manifest
from dataprep.dataset.adopted import is_adopted
from dataprep.dataset.manifest import MANIFEST, MANIFEST_ADVICE, MAX_MANIFEST_BYTES, no_dataset
from dataprep.dataset.records import Manifest
from dataprep.errors import UsageError
from dataprep.fetched.layout import Layout, built_layout
from dataprep.fetched.manifest import is_fetched
from dataprep.messages import shell_words
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


def open_fetched(url: str) -> FetchedDataset:
    """Open a finished dataset of fetched rows, and read its manifest.

    Raises:
        UsageError: There is no dataset, or `dataprep build laion` has not written it.
    """
    storage = open_storage(url)
    data = read_bounded(storage, MANIFEST, MAX_MANIFEST_BYTES, advice=MANIFEST_ADVICE)
    if data is None:
        raise no_dataset(storage)
    manifest = readable_manifest(storage)
    if is_adopted(manifest) and any(split.statuses for split in manifest.splits):
        raise UsageError(
            f"{storage.url}: {manifest.name} was fetched by img2dataset; expected a dataset of laion. dataprep inspect "
            f"{shell_words(url)} --rejected lists its failed rows, and dataprep build laion builds a table of them"
        )
    if not is_fetched(manifest):
        raise UsageError(f"{storage.url}: {manifest.name} was not fetched from the web; expected a dataset of laion")
    return FetchedDataset(storage, data, manifest, built_layout(manifest))
