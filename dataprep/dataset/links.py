"""Opens adopted data, which may lie apart from their index; links among them may lead anywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from dataprep.dataset.records import Manifest
from dataprep.errors import FormatError
from dataprep.storage import Storage, open_storage
from dataprep.storage.local import LocalStorage


def open_linked(url: str) -> Storage:
    """Open the storage of a user's own data: links to files and folders are followed, loops are cut.

    Raises:
        UsageError: The URL is malformed.
    """
    storage = open_storage(url)
    return LinkedFolder(Path(storage.url)) if storage.is_local else storage


def open_data(storage: Storage, manifest: Manifest) -> Storage:
    """Open the storage of a dataset's shards: that of the manifest, or for adopted data the one that the manifest
    names.

    Args:
        storage: Where the manifest and the index are.
        manifest: The manifest, as read from there.

    Raises:
        FormatError: The data_url in the manifest is not a text.
    """
    if not is_adopted(manifest):
        return storage
    data_url = manifest.options["adopted"].get("data_url")
    if data_url is not None and not isinstance(data_url, str):
        raise FormatError(f"{storage.url}: options.adopted names no data_url; adopt the data again with --overwrite")
    return open_linked(data_url or storage.url)


def is_adopted(manifest: Manifest) -> bool:
    """Tell whether other tools wrote the data; the manifest may be hostile."""
    return isinstance(manifest.options, dict) and isinstance(manifest.options.get("adopted"), dict)


class LinkedFolder(LocalStorage):
    """A folder of adopted data, whose owner vouches for its links; `LocalStorage` refuses links that lead outside."""

    def __reduce__(self) -> tuple[Callable[[], LocalStorage], tuple[()]]:
        return partial(LinkedFolder, self.root), ()

    def _check_inside(self, folder: Path) -> None:
        """Allow every folder: the owner of the data put the links there."""
