"""Where a bucket is, as Cloud Storage tells: its location, the regions behind it, and the class of what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dataprep.errors import AccessError, UndecidedError
from dataprep.storage import gcs_client
from dataprep.storage.gcs_errors import bucket_errors

if TYPE_CHECKING:
    from google.cloud.storage import Client

GET_BUCKET = "storage.buckets.get"
LIST_OBJECTS = "storage.objects.list"
# Nobody waits five minutes for a price: a guard stands before the first byte of every run.
IMPATIENCE = gcs_client.Impatience(lost_s=5.0, refused_s=15.0)
_BUCKET_FIELDS = "location,locationType,customPlacementConfig,storageClass,autoclass"
_LISTED_FIELDS = "items(name,size,storageClass),nextPageToken"


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketLocation:
    """A bucket's place. Cloud Storage writes names in upper or lower case; they are kept as they come."""

    location: str
    """A region, a code such as `NAM4`, or a group such as `US`, which alone does not tell of what kind it is."""
    location_type: str = ""
    """`region`, `zone`, `dual-region` or `multi-region`; empty where it was not said."""
    data_locations: tuple[str, ...] = ()
    """The two regions of a configurable dual-region, or the zone of a zonal bucket."""
    storage_class: str | None = None
    """Of new objects; None where it may not be seen."""
    autoclass: bool | None = None
    """Then reading costs no retrieval; None where it may not be seen."""
    missing_permission: str = ""
    """What the account lacks to see all of this."""


class StoredObject(NamedTuple):
    """One object of a listing."""

    name: str
    num_bytes: int
    storage_class: str


def bucket_location(bucket: str) -> BucketLocation:
    """Ask for a bucket's place: one request, or two where only its storage layout may be seen.

    Raises:
        AccessError: The bucket does not exist, or there are no credentials.
        UndecidedError: The account may see neither; both permissions are named.
        StorageError: It cannot be reached.
    """
    from google.api_core.exceptions import Forbidden

    url = f"gs://{bucket}"
    client = _client(url)
    try:
        with bucket_errors(url, GET_BUCKET):
            return _location_of(_get(client, f"/b/{bucket}", {"fields": _BUCKET_FIELDS}))
    except AccessError as error:
        if not isinstance(error.__cause__, Forbidden):
            raise
    try:
        with bucket_errors(url, LIST_OBJECTS):
            return _location_of(_get(client, f"/b/{bucket}/storageLayout", {}), missing_permission=GET_BUCKET)
    except AccessError as error:
        if not isinstance(error.__cause__, Forbidden):
            raise
        raise UndecidedError(
            f"{url}: its location may not be seen: permission {GET_BUCKET} is missing, and so is {LIST_OBJECTS}, with "
            "which its storage layout is seen; grant one of them to the account in use"
        ) from error


def stored_objects(bucket: str, prefix: str) -> Iterator[StoredObject]:
    """Every object below a prefix with its storage class; one request a thousand.

    Raises:
        AccessError: A permission is missing.
        StorageError: The bucket cannot be reached.
    """
    url = f"gs://{bucket}/{prefix}".rstrip("/")
    with bucket_errors(url, LIST_OBJECTS):
        root = f"{prefix}/" if prefix else ""
        for blob in _client(url).list_blobs(bucket, prefix=root, fields=_LISTED_FIELDS, retry=_retry()):
            yield StoredObject(blob.name[len(root) :], blob.size or 0, (blob.storage_class or "STANDARD").lower())


def _client(url: str) -> Client:
    with bucket_errors(url, GET_BUCKET):
        return gcs_client.client()


def _get(client: Client, path: str, query: dict[str, str]) -> dict[str, Any]:
    """The library has no call for the storage layout; this is what its own calls are made of."""
    timeout_s = gcs_client.request_timeout_s(IMPATIENCE)
    found: dict[str, Any] = client._get_resource(path, query_params=query, timeout=timeout_s, retry=_retry())
    return found


def _retry() -> Any:
    return gcs_client.retry_policy(impatience=IMPATIENCE)


def _location_of(document: dict[str, Any], missing_permission: str = "") -> BucketLocation:
    placement = document.get("customPlacementConfig") or {}
    is_whole = not missing_permission
    return BucketLocation(
        location=document.get("location", ""),
        location_type=document.get("locationType", ""),
        data_locations=tuple(placement.get("dataLocations") or ()),
        storage_class=document.get("storageClass") if is_whole else None,
        autoclass=bool((document.get("autoclass") or {}).get("enabled")) if is_whole else None,
        missing_permission=missing_permission,
    )
