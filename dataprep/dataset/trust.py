"""Decides whether data outside of a dataset's folder may be read: only if the user has named their place.

The index of an adopted dataset may lie apart from its data, and the manifest then says where the data are. Anyone may
have written that manifest, so the place is read only after the user has named it: by adopting the data on this machine,
which is remembered in the user's own state folder, or in DATAPREP_DATA_URL.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from dataprep.dataset.links import is_adopted, open_data, open_linked
from dataprep.dataset.records import Manifest
from dataprep.errors import UsageError
from dataprep.storage import Storage

DATA_URL = "DATAPREP_DATA_URL"
_named: set[tuple[str, str]] = set()
"""URLs of index and data that this process adopted; needed if the state folder cannot be written."""


def remember_data(index: Storage, data: Storage) -> None:
    """Remember that the user adopted the data in `data` with the index in `index`."""
    if index.url == data.url:
        return
    _named.add((index.url, data.url))
    path = _memory(index.url, data.url)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{index.url}\n{data.url}\n")
    except (OSError, UnicodeError):
        pass  # the user is asked to adopt the data again, which is quick


def refuse_unnamed_data(storage: Storage, manifest: Manifest) -> None:
    """Refuse data outside of the dataset that the user did not name.

    Args:
        storage: Where the manifest and the index are.
        manifest: The manifest, as read from there.

    Raises:
        UsageError: The user has not named the place; the text says how to.
    """
    if not is_adopted(manifest):
        return
    data = open_data(storage, manifest)
    named = os.environ.get(DATA_URL)
    if (
        f"{data.url}/".startswith(f"{storage.url}/")
        or (storage.url, data.url) in _named
        or (named and open_linked(named).url == data.url)
        or _memory(storage.url, data.url).exists()
    ):
        return
    raise UsageError(
        f"{storage.url}: its manifest says that the data lie in {data.url}, which you did not name on this machine; "
        f'if that is what you want to read, run "dataprep adopt {data.url} --index {storage.url}" once, or set '
        f"{DATA_URL}={data.url}"
    )


def _memory(index_url: str, data_url: str) -> Path:
    root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    name = hashlib.sha256(f"{index_url}\n{data_url}".encode()).hexdigest()[:32]
    return root / "dataprep" / "adopted" / name
