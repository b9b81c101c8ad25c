"""The place of a bucket, from Cloud Storage: location, its regions, and the storage class of objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dataprep.errors import AccessError, UndecidedError
from dataprep.storage import gcs_client
from dataprep.storage.gcs_client import bucket_errors

if TYPE_CHECKING:
    from google.cloud.storage import Client

GET_BUCKET = "storage.buckets.get"
LIST_OBJECTS = "storage.objects.list"
LIST_CACHES = "storage.anywhereCaches.list"
# The region check runs before the first byte of every run, and must not wait five minutes.
DEADLINES = gcs_client.Deadlines(lost_s=5.0, refused_s=15.0)
_BUCKET_FIELDS = "location,locationType,customPlacementConfig,storageClass,autoclass,hierarchicalNamespace"
_LISTED_FIELDS = "items(name,size,storageClass),nextPageToken"


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketLocation:
    """The place of a bucket. Cloud Storage writes names in upper or lower case; they are kept as they are."""

    location: str
    """A region, a code such as `NAM4`, or a group such as `US`, which can be a multi-region or a dual-region."""
    location_type: str = ""
    """`region`, `zone`, `dual-region` or `multi-region`; empty if Cloud Storage does not say."""
    data_locations: tuple[str, ...] = ()
    """The two regions of a configurable dual-region, or the zone of a zonal bucket."""
    storage_class: str | None = None
    """Storage class of new objects; None if the account may not see it."""
    autoclass: bool | None = None
    """Whether Autoclass is on, so that reads cost no retrieval fee; None if the account may not see it."""
    hierarchical: bool = False
    """Whether Cloud Storage says that the bucket has a hierarchical namespace."""
    caches: tuple[str, ...] | None = None
    """Zones where the bucket has a running Rapid Cache; None if that is not known."""
    missing_permission: str = ""
    """Permission that the account lacks to see all fields."""


class StoredObject(NamedTuple):
    """One object of a listing."""

    name: str
    num_bytes: int
    storage_class: str


def bucket_location(bucket: str) -> BucketLocation:
    """Read a bucket's place with one request, or with two if the account may see only its storage layout.

    Raises:
        AccessError: The bucket does not exist, or there are no credentials.
        UndecidedError: The account may see neither; the text names both permissions.
        StorageError: Cloud Storage cannot be reached.
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
            f"{url}: its location cannot be read: the account in use has neither permission {GET_BUCKET} nor "
            f"{LIST_OBJECTS}, which shows the storage layout; grant one of them"
        ) from error


def running_caches(bucket: str) -> tuple[str, ...]:
    """Return the zones where a bucket has a running Rapid Cache (formerly Anywhere Cache), with one request. Raises
    AccessError if the permission is missing, or the server does not know caches, and StorageError."""
    url = f"gs://{bucket}"
    client = _client(url)
    with bucket_errors(url, LIST_CACHES):
        items = _get(client, f"/b/{bucket}/anywhereCaches", {}).get("items") or []
    zones = {each.get("zone", "").lower() for each in items if each.get("state", "").lower() == "running"}
    return tuple(sorted(zones - {""}))


def stored_objects(bucket: str, prefix: str) -> Iterator[StoredObject]:
    """Iterate over every object below a prefix with its storage class; one request for each thousand. Raises
    AccessError if a permission is missing, and StorageError."""
    url = f"gs://{bucket}/{prefix}".rstrip("/")
    with bucket_errors(url, LIST_OBJECTS):
        root = f"{prefix}/" if prefix else ""
        for blob in _client(url).list_blobs(bucket, prefix=root, fields=_LISTED_FIELDS, retry=_retry()):
            yield StoredObject(blob.name[len(root) :], blob.size or 0, (blob.storage_class or "STANDARD").lower())


def _client(url: str) -> Client:
    with bucket_errors(url, GET_BUCKET):
        return gcs_client.client()


def _get(client: Client, path: str, query: dict[str, str]) -> dict[str, Any]:
    """Send a GET as the library's own calls do, because it has no call for the storage layout or for caches."""
    timeout_s = gcs_client.request_timeout_s(DEADLINES)
    found: dict[str, Any] = client._get_resource(path, query_params=query, timeout=timeout_s, retry=_retry())
    return found


def _retry() -> Any:
    return gcs_client.retry_policy(deadlines=DEADLINES)


def _location_of(document: dict[str, Any], missing_permission: str = "") -> BucketLocation:
    """Read Cloud Storage's description of a bucket, which lacks fields that the account may not see."""
    placement, autoclass, hierarchy = (
        document.get(name) or {} for name in ("customPlacementConfig", "autoclass", "hierarchicalNamespace")
    )
    is_whole = not missing_permission
    return BucketLocation(
        location=document.get("location", ""),
        location_type=document.get("locationType", ""),
        data_locations=tuple(placement.get("dataLocations") or ()),
        storage_class=document.get("storageClass") if is_whole else None,
        autoclass=bool(autoclass.get("enabled")) if is_whole else None,
        hierarchical=bool(hierarchy.get("enabled")),
        missing_permission=missing_permission,
    )
