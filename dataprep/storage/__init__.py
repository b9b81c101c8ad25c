"""Shard bytes <-> URL: folders on disk and prefixes of Cloud Storage buckets, behind one interface."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dataprep.errors import UsageError
from dataprep.storage.base import ObjectInfo, Storage
from dataprep.storage.disk_errors import disk_errors
from dataprep.storage.names import shown

__all__ = ["ObjectInfo", "Storage", "disk_errors", "open_originals", "open_storage"]


def open_storage(url: str) -> Storage:
    """The storage at a URL; nothing is read or made yet, and the result travels between processes as its URL.

    Args:
        url: a path, `file:///path`, or `gs://bucket/prefix`.

    Raises:
        UsageError: The URL is malformed, or of a kind that is not known.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        return _open_path(url)
    opener = SCHEMES.get(scheme.lower())
    if opener is None:
        near = difflib.get_close_matches(scheme.lower(), SCHEMES, n=1, cutoff=0.5)
        guess = f"; did you mean {near[0]}://?" if near else ""
        choices = ", ".join(f"{known}://" for known in SCHEMES)
        raise UsageError(f"{shown(url)}: {scheme}:// is not known, expected a path or one of {choices}{guess}")
    return opener(url)


def open_originals(url: str) -> Storage:
    """The storage of a user's original files: links directly in its root may lead to folders anywhere."""
    from dataprep.storage.local import LocalStorage

    storage = open_storage(url)
    return LocalStorage(Path(storage.url), links_in_root=True) if storage.is_local else storage


def _open_path(path: str) -> Storage:
    from dataprep.storage.local import LocalStorage

    if not path or "\0" in path:
        raise UsageError(f"{shown(path)} is no path; expected a folder, file:///path or gs://bucket/prefix")
    return LocalStorage(Path(path))


def _open_file_url(url: str) -> Storage:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise UsageError(f"{shown(url)} names the host {parts.netloc!r}; expected file:///path, with three slashes")
    return _open_path(unquote(url.removeprefix(url[: url.index("://") + 3]).removeprefix(parts.netloc)))


def _open_bucket(url: str) -> Storage:
    from dataprep.storage.gcs import GCSStorage

    return GCSStorage(url)


SCHEMES: dict[str, Callable[[str], Storage]] = {"file": _open_file_url, "gs": _open_bucket}
"""How each kind of URL is opened."""
