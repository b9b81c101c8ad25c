"""Bytes to and from URLs: folders on disk, prefixes of buckets, other places to read; the interface is in `base.py`.

A file is published completely or not at all, and never replaces an existing one:

- **Disk**: fsync through the descriptor that made the file, so that no error of writing is missed; then a hard link,
  which fails if the name is taken; then fsync of the folder, and of its parents if they are new. A file system without
  hard links gets a rename that replaces nothing; without either, writing fails.
- **Bucket**: one upload into the build's folder, which for a large shard begins while it is written, and a comparison
  of its CRC32C; a check that the place still belongs to this build; then the server's copy to the final name with
  `if_generation_match=0`.

The content of a place may be hostile. Nothing below a root is written or removed through a link (`folders.py`), and in
`_build/tmp/` only files with the name of a spool file are removed as stale. Credentials are left to google-auth and
never logged.

    base.py, errors.py                the interface, names, errors of all kinds of storage
    local.py, folders.py, spool.py    disk; folders and files opened below a root; files that are being written
    gcs.py, gcs_transfers.py          bucket; its range reads and uploads
    gcs_client.py, gcs_location.py    the client, its retries and errors; the place of a bucket
    hub.py, remote.py, readonly.py    the Hugging Face Hub; S3, Azure and web servers; read-only storage, and buckets
                                      of originals, whose objects are looked up together and remembered
    copies.py, checksums.py           copies of objects; digests
    ranges.py, parquet.py             objects read in ranges; parquet files
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from dataprep.errors import UsageError
from dataprep.messages import did_you_mean, quoted
from dataprep.storage.base import ObjectInfo, Storage
from dataprep.storage.errors import disk_errors

__all__ = ["ObjectInfo", "Storage", "absolute", "disk_errors", "expected", "open_originals", "open_storage"]


def open_storage(url: str) -> Storage:
    """Open the storage at a URL, without reading or creating anything; processes pass it on as its URL.

    Args:
        url: A path, `file:///path`, `gs://bucket/prefix`, or to read `s3://bucket/prefix`, `az://container/prefix`,
            `https://host/prefix` or `hf://datasets/OWNER/NAME`.

    Raises:
        UsageError: The URL is malformed, or its kind is unknown.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        return _open_path(url)
    opener = SCHEMES.get(scheme.lower())
    if opener is None:
        choices = [f"{known}://" for known in SCHEMES]
        hint = did_you_mean(f"{scheme}://", choices, cutoff=0.7)
        raise UsageError(
            f"{quoted(url)}: {scheme}:// is not known, expected a path or one of {', '.join(choices)}{hint}"
        )
    return opener(url)


def absolute(url: str) -> str:
    """Return the URL of a place that stays the same when the process changes its current folder."""
    return url if "://" in url or not url else str(Path.cwd() / url)


def open_originals(url: str) -> Storage:
    """Open the storage of a user's original files; links directly in its root may lead to folders anywhere."""
    from dataprep.storage.local import LocalStorage

    storage = open_storage(url)
    return LocalStorage(Path(storage.url), links="in root") if storage.is_local else storage


def expected(storage: Storage) -> Storage:
    """Prepare a storage for a dataset's archives: a bucket can look up many names at once; any other stays as it is."""
    if storage.is_local:
        return storage
    from dataprep.storage.gcs import GCSStorage
    from dataprep.storage.readonly import Expected
    from dataprep.storage.remote import BucketStorage

    return cast(Storage, Expected(storage)) if isinstance(storage, GCSStorage | BucketStorage) else storage


def _open_path(path: str) -> Storage:
    from dataprep.storage.local import LocalStorage

    if not path or "\0" in path:
        raise UsageError(f"{quoted(path)} is not a path; expected a folder, file:///path or gs://bucket/prefix")
    return LocalStorage(Path(path))


def _open_file_url(url: str) -> Storage:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise UsageError(f"{quoted(url)} names the host {parts.netloc!r}; expected file:///path, with three slashes")
    return _open_path(unquote(url.removeprefix(url[: url.index("://") + 3]).removeprefix(parts.netloc)))


def _open(module: str, name: str, url: str) -> Storage:
    """Open a URL; the module of the place is imported now."""
    opener: Callable[[str], Storage] = getattr(import_module(f"dataprep.storage.{module}"), name)
    return opener(url)


SCHEMES: dict[str, Callable[[str], Storage]] = {
    "file": _open_file_url,
    "gs": partial(_open, "gcs", "GCSStorage"),
    "hf": partial(_open, "hub", "HubStorage"),
    "s3": partial(_open, "remote", "S3Storage"),
    "az": partial(_open, "remote", "AzureStorage"),
    "https": partial(_open, "remote", "WebStorage"),
    "http": partial(_open, "remote", "WebStorage"),
}
"""The function that opens a URL, by the URL's scheme."""
