"""Decides whether data outside of a dataset's folder may be read: only if the user has named their place.

The index of an adopted dataset may lie apart from its data, and the manifest then says where the data are. Anyone may
have written that manifest, so the place is read only after the user has named it: by adopting the data on this machine,
which is remembered in the user's own state folder, or in DATAPREP_DATA_URL. The same holds for links that lead out of
adopted data.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from dataprep.dataset.links import DATA_URL, is_adopted, open_data, open_linked
from dataprep.dataset.records import Manifest
from dataprep.errors import UsageError
from dataprep.messages import shell_words
from dataprep.storage import Storage

_named: set[tuple[str, str]] = set()
"""URLs of index and data that this process adopted; needed if the state folder cannot be written."""


def remember_data(index: Storage, data: Storage) -> None:
    """Remember that the user adopted the data in `data` with the index in `index`."""
    _named.add((index.url, data.url))
    path = _memory(index.url, data.url)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{index.url}\n{data.url}\n")
    except (OSError, UnicodeError):
        pass  # the user is asked to adopt the data again, which is quick


def open_named_data(storage: Storage, manifest: Manifest) -> Storage:
    """Open the place of a dataset's shards. If the user did not name it, links out of it are not followed.

    Raises:
        UsageError: The user has not named a place outside of the dataset; the text says how to.
        FormatError: The manifest names no place.
    """
    return open_data(storage, manifest, named=check_named(storage, manifest))


def check_named(storage: Storage, manifest: Manifest) -> bool:
    """Return whether the user named the place of adopted data; refuse an unnamed place outside of the dataset.

    Args:
        storage: Where the manifest and the index are.
        manifest: The manifest, as read from there.

    Returns:
        True if links in the data may lead anywhere, because the user vouches for them.

    Raises:
        UsageError: The user has not named the place; the text says how to.
    """
    if not is_adopted(manifest):
        return False
    data = open_data(storage, manifest, named=False)
    named = os.environ.get(DATA_URL)
    if (
        (storage.url, data.url) in _named
        or (named and open_linked(named).url == data.url)
        or _memory(storage.url, data.url).exists()
    ):
        return True
    if f"{data.url}/".startswith(f"{storage.url}/"):
        return False
    place, adopt = shell_words(data.url), shell_words("dataprep", "adopt", data.url, "--index", storage.url)
    raise UsageError(
        f"{storage.url}: its manifest says that the data lie in {place}, which you did not name on this machine; "
        f'if that is what you want to read, run "{adopt}" once, or set {DATA_URL}={shell_words(data.url)}'
    )


def _memory(index_url: str, data_url: str) -> Path:
    root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    name = hashlib.sha256(f"{index_url}\n{data_url}".encode()).hexdigest()[:32]
    return root / "dataprep" / "adopted" / name
