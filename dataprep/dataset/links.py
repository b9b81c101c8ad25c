"""Opens adopted data, which may lie apart from their index.

Users put links to other disks into their data, and a stranger's archive may contain links to a user's private files.
So links that lead out of the data are followed only if the user has named their place (trust.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dataprep.dataset.records import Manifest
from dataprep.errors import FormatError
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
    return LocalStorage(Path(storage.url), links="anywhere") if storage.is_local else storage


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
    if named or not data.is_local:
        return data
    index = () if data.url == storage.url else ("--index", storage.url)
    advice = (
        f"you did not adopt {data.url} on this machine: if that is what you want to read, run "
        f'"dataprep adopt {shell_words(data.url, *index)}" once, or set {DATA_URL}={shell_words(data.url)}; otherwise '
        "put a copy in the place of the link"
    )
    return LocalStorage(Path(data.url), advice=advice)


def is_adopted(manifest: Manifest) -> bool:
    """Return whether other tools wrote the data; the manifest may be hostile."""
    return isinstance(manifest.options, dict) and isinstance(manifest.options.get("adopted"), dict)


def adopted_fields(manifest: Manifest) -> dict[str, int]:
    """Return the number of samples of adopted data that have each field beside the image, such as a caption, by its
    sorted name; empty for other datasets, and for an index that is older than this count."""
    missing = manifest.options["adopted"].get("fields") if is_adopted(manifest) else None
    samples = sum(split.samples for split in manifest.splits)
    return {name: samples - count for name, count in sorted(missing.items())} if isinstance(missing, dict) else {}


LINKS: dict[str, Callable[[str], Storage]] = {
    "in root": open_originals,
    "inside": open_storage,
    "anywhere": open_linked,
}
"""How links in a source are followed, and the function that opens it so.

`in root`: those directly in its root lead anywhere; for original files. `inside`: for a dataset, and for adopted data
whose place the user did not name. `anywhere`: for adopted data whose place they named.
"""


def links_of(manifest: Manifest, *, named: bool) -> str:
    """Return how links in the data of a dataset are followed: a name in LINKS."""
    return "anywhere" if is_adopted(manifest) and named else "inside"
