"""Opens adopted data, which may lie apart from their index.

Users put links to other disks into their data, and a stranger's archive may contain links to a user's private files.
So links that lead out of the data are followed only if the user has named their place (trust.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dataprep.dataset.records import Manifest
from dataprep.errors import FormatError, UsageError
from dataprep.messages import shell_words
from dataprep.storage import Storage, open_originals, open_storage
from dataprep.storage.local import LocalStorage

DATA_URL = "DATAPREP_DATA_URL"
"""Environment variable by which a user names the place of adopted data."""


def open_linked(url: str) -> Storage:
    """Open the storage of a user's own data: links to files and folders are followed, loops are cut.

    Raises:
        UsageError: The URL is malformed.
    """
    storage = open_storage(url)
    return LinkedFolder(Path(storage.url)) if storage.is_local else storage


def open_data(storage: Storage, manifest: Manifest, *, named: bool) -> Storage:
    """Open the storage of a dataset's shards: that of the manifest, or for adopted data the one that the manifest
    names.

    Args:
        storage: Where the manifest and the index are.
        manifest: The manifest, as read from there.
        named: Whether the user named the place of adopted data, and so vouches for the links in it
            (`trust.check_named`). If not, a link that leads out of the data is a UsageError when it is read.

    Raises:
        FormatError: The data_url in the manifest is not a text.
    """
    if not is_adopted(manifest):
        return storage
    data_url = manifest.options["adopted"].get("data_url")
    if data_url is not None and not isinstance(data_url, str):
        raise FormatError(f"{storage.url}: options.adopted names no data_url; adopt the data again with --overwrite")
    data = open_linked(data_url or storage.url)
    return ConfinedFolder(Path(data.url), storage.url) if data.is_local and not named else data


def is_adopted(manifest: Manifest) -> bool:
    """Return whether other tools wrote the data; the manifest may be hostile."""
    return isinstance(manifest.options, dict) and isinstance(manifest.options.get("adopted"), dict)


def adopted_fields(manifest: Manifest) -> dict[str, int]:
    """Return the number of samples of adopted data that have each field beside the image, such as a caption, by its
    sorted name; empty for other datasets, and for an index that is older than this count."""
    missing = manifest.options["adopted"].get("fields") if is_adopted(manifest) else None
    samples = sum(split.samples for split in manifest.splits)
    return {name: samples - count for name, count in sorted(missing.items())} if isinstance(missing, dict) else {}


class LinkedFolder(LocalStorage):
    """A folder of adopted data, whose owner vouches for its links; `LocalStorage` refuses links that lead outside."""

    def __reduce__(self) -> tuple[Callable[[], LocalStorage], tuple[()]]:
        return partial(LinkedFolder, self.root), ()

    def _check_inside(self, folder: Path) -> None:
        """Allow every folder: the owner of the data put the links there."""


class ConfinedFolder(LocalStorage):
    """An adopted folder that this user did not name: reading through a link out of it is refused.

    Args:
        root: The folder.
        index_url: URL of its manifest and index, for the error.
    """

    def __init__(self, root: Path, index_url: str) -> None:
        super().__init__(root)
        self._index_url = index_url

    def __reduce__(self) -> tuple[Callable[[], LocalStorage], tuple[()]]:
        return partial(ConfinedFolder, self.root, self._index_url), ()

    def _located(self, name: str) -> str:
        path = super()._located(name)
        if os.path.islink(path):  # noqa: PTH114 - a Path costs more than the call, which every read makes
            self._check_inside(Path(path))
        return path

    def _check_inside(self, folder: Path) -> None:
        try:
            super()._check_inside(folder)
        except UsageError:
            raise UsageError(self._leads_out(folder)) from None

    def _leads_out(self, path: Path) -> str:
        """Return the error text for a path out of the folder; it names the first link out of it."""
        below = path.relative_to(self.root)
        on_the_way = [self.root / each for each in (*reversed(below.parents), below)]
        link = next(each for each in on_the_way if not each.resolve().is_relative_to(self.root))
        index = () if self._index_url == self.url else ("--index", self._index_url)
        return (
            f"{link} is a link out of the adopted folder, to {link.resolve()}, and you did not adopt {self.root} on "
            f'this machine; if that is what you want to read, run "dataprep adopt {shell_words(self.root, *index)}" '
            f"once, or set {DATA_URL}={shell_words(self.root)}; otherwise put a copy in the place of the link"
        )


def _open_confined(url: str) -> Storage:
    storage = open_storage(url)
    return ConfinedFolder(Path(storage.url), storage.url) if storage.is_local else storage


LINKS: dict[str, Callable[[str], Storage]] = {
    "in root": open_originals,
    "inside": open_storage,
    "confined": _open_confined,
    "anywhere": open_linked,
}
"""How links in a source are followed, and the function that opens it so.

`in root`: links directly in its root lead anywhere; for original files. `inside`: links to folders stay inside; for a
dataset. `confined`: all links stay inside; for adopted data whose place the user did not name. `anywhere`: for adopted
data whose place they named.
"""


def links_of(manifest: Manifest, *, named: bool) -> str:
    """Return how links in the data of a dataset are followed: a name in LINKS."""
    if not is_adopted(manifest):
        return "inside"
    return "anywhere" if named else "confined"
