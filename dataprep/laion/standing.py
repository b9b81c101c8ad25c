"""A finished dataset of fetched rows as it stands: one of `dataprep build laion`, or an adopted one of img2dataset."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from dataprep.adopt import is_adopted, open_linked
from dataprep.checks.laion import is_laion
from dataprep.errors import UsageError
from dataprep.inspect import readable_manifest
from dataprep.laion.img2dataset import img2dataset_layout
from dataprep.laion.layout import Layout, built_layout
from dataprep.manifest import MANIFEST
from dataprep.records import Manifest
from dataprep.storage import Storage, open_storage


@dataclass(frozen=True, slots=True)
class Standing:
    """A dataset whose failed rows can be tried again."""

    storage: Storage
    data: bytes
    """Of the manifest."""
    manifest: Manifest
    layout: Layout

    @property
    def sha256(self) -> str:
        """Of the manifest's bytes."""
        return hashlib.sha256(self.data).hexdigest()


def open_standing(url: str) -> Standing:
    """Read its manifest.

    Raises:
        UsageError: There is no dataset of fetched rows, or it lacks something.
    """
    storage = open_storage(url)
    try:
        data = storage.read(MANIFEST)
    except FileNotFoundError:
        raise UsageError(f"{storage.url}: no dataset there (no {MANIFEST}); check the URL") from None
    manifest = readable_manifest(storage)
    if is_adopted(manifest):
        storage = open_linked(url)
        return Standing(storage, data, manifest, img2dataset_layout(storage, manifest))
    if not is_laion(manifest):
        raise UsageError(
            f"{storage.url}: {manifest.name} was not fetched from the web; expected a dataset of laion, or one of "
            "img2dataset that was adopted"
        )
    return Standing(storage, data, manifest, built_layout(manifest))
