"""Says what a request to Cloud Storage does, and to which bucket. Pure: method, host and target in, a value out.

JSON API   /storage/v1/b/BUCKET/o/NAME, below /download, /upload and /resumable/upload, too
XML API    /BUCKET/NAME, or /NAME at the host BUCKET.storage.googleapis.com
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qs, unquote

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_STORAGE_HOST = re.compile(
    r"(?:(?P<bucket>.+)\.)?(?:storage|storage-download|storage-upload|content-storage|commondatastorage)"
    r"(?:\.mtls|\.[a-z0-9-]+\.rep)?\.googleapis\.com"
)
_OLD_HOST = "www.googleapis.com"
"""Host of the JSON API in older clients; other APIs of Google share it."""
_COPIES = ("rewriteTo", "copyTo", "compose")
_READS = ("GET", "HEAD")


class Kind(StrEnum):
    """What a request does, as Cloud Storage bills it."""

    READ = "read"
    """Bytes of an object: class B, and egress."""
    LOOK = "look"
    """Metadata: class B."""
    LIST = "list"
    """A listing: class A."""
    WRITE = "write"
    """An insert or a change: class A."""
    COPY = "copy"
    """A copy that the servers make: class A, and perhaps a transfer that never passes through the client."""
    FREE = "free"
    """A removal, or the next chunk of an upload."""
    OTHER = "other"
    """A request that is not for Cloud Storage, or a batch of requests."""


@dataclass(frozen=True, slots=True)
class StorageRequest:
    """One request."""

    kind: Kind
    bucket: str | None
    """None if the request names none, or a name that no bucket can have."""
    name: str = ""
    """Name of the object, empty for requests about a bucket."""

    @property
    def is_refusable(self) -> bool:
        """Whether the request is refused when the budget is spent: reads are; a checkpoint can still be stored."""
        return self.kind in (Kind.READ, Kind.LOOK, Kind.LIST)


def is_storage_host(host: str) -> bool:
    """Return whether objects of Cloud Storage are served at a host."""
    return host == _OLD_HOST or _STORAGE_HOST.fullmatch(host) is not None


def parse_request(method: str, host: str, target: str) -> StorageRequest:
    """Take a request apart.

    Args:
        method: The HTTP method.
        host: The host that it is for, in lower case; empty for an emulator.
        target: Path and query as sent, percent-encoded.
    """
    path, _, query = target.partition("?")
    segments = [unquote(segment) for segment in path.lstrip("/").split("/")]
    options = parse_qs(query, keep_blank_values=True)
    is_media = segments[0] == "download" or options.get("alt") == ["media"]
    while segments[0] in ("download", "upload", "resumable") and "storage" in segments[1:3]:
        del segments[0]
    if segments[0] == "storage" and segments[1:2] and segments[1].startswith("v1"):
        return _json_request(method, segments[2:], is_media=is_media, is_chunk="upload_id" in options)
    if segments[0] == "batch" or host == _OLD_HOST:
        return StorageRequest(Kind.OTHER, None)
    found = _STORAGE_HOST.fullmatch(host)
    bucket = found["bucket"] if found and found["bucket"] else segments.pop(0)
    return _xml_request(method, bucket, "/".join(segments), is_chunk="upload_id" in options)


def _json_request(method: str, segments: list[str], *, is_media: bool, is_chunk: bool) -> StorageRequest:
    if segments[:1] != ["b"]:
        return StorageRequest(Kind.OTHER, None)
    bucket = _checked(segments[1]) if len(segments) > 1 else None
    name = segments[3] if len(segments) > 3 and segments[2] == "o" else ""
    if any(each in _COPIES for each in segments[4:]):
        return StorageRequest(Kind.COPY, bucket, name)
    if method not in _READS:
        return StorageRequest(_change(method, is_chunk=is_chunk), bucket, name)
    if name and is_media:
        return StorageRequest(Kind.READ, bucket, name)
    is_list = len(segments) == 1 or segments[2:] == ["o"]
    return StorageRequest(Kind.LIST if is_list else Kind.LOOK, bucket, name)


def _xml_request(method: str, bucket: str, name: str, *, is_chunk: bool) -> StorageRequest:
    checked = _checked(bucket)
    if method not in _READS:
        return StorageRequest(_change(method, is_chunk=is_chunk), checked, name)
    if not name:
        return StorageRequest(Kind.LIST, checked)
    return StorageRequest(Kind.READ if method == "GET" else Kind.LOOK, checked, name)


def _change(method: str, *, is_chunk: bool) -> Kind:
    return Kind.FREE if is_chunk or method == "DELETE" else Kind.WRITE


def _checked(bucket: str) -> str | None:
    return bucket if _BUCKET.fullmatch(bucket) else None
