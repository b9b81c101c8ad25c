"""A bucket as data for training should have it: beside its readers, closed to the public, its lifecycle said.

What is asked for is a value; a bucket that stands is compared with it, and never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dataprep.errors import AccessError, UsageError
from dataprep.region import describe
from dataprep.storage import gcs_client
from dataprep.storage.gcs_errors import bucket_errors, one_line
from dataprep.storage.gcs_location import BucketLocation

if TYPE_CHECKING:
    from google.cloud.storage import Bucket, Client

STORAGE_CLASSES = ("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE")
LIFECYCLES = ("delete", "nearline")
# Parts of uploads that nobody finished cost as much as objects, and no list shows them.
ABANDONED_UPLOAD_DAYS = 7
_DAY_S = 86_400
_CREATE = "storage.buckets.create"


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketRequest:
    """What a bucket should be."""

    name: str
    location: str
    """A region, in upper case."""
    storage_class: str = "STANDARD"
    labels: Mapping[str, str] = field(default_factory=dict)
    lifecycle_days: int | None = None
    """Age of objects at which the lifecycle acts; None: never."""
    lifecycle: str = "delete"
    """One of LIFECYCLES: what happens then."""
    soft_delete_days: int = 7
    """So long what is deleted can be had back, and is paid for; 0 or 7 to 90."""
    uniform_access: bool = True
    """Rights are given on the bucket alone, never on single objects."""
    public_access: str = "enforced"
    """The prevention of it."""

    def __post_init__(self) -> None:
        if self.soft_delete_days and not 7 <= self.soft_delete_days <= 90:
            raise UsageError(f"--soft-delete-days {self.soft_delete_days}: Cloud Storage takes 0, or 7 to 90")

    @property
    def rules(self) -> list[dict[str, Any]]:
        """Of the lifecycle, as Cloud Storage writes them."""
        abandoned = {"type": "AbortIncompleteMultipartUpload"}
        rules: list[dict[str, Any]] = [{"action": abandoned, "condition": {"age": ABANDONED_UPLOAD_DAYS}}]
        if self.lifecycle_days is not None:
            action = {"type": "Delete"}
            if self.lifecycle == "nearline":
                action = {"type": "SetStorageClass", "storageClass": "NEARLINE"}
            rules.append({"action": action, "condition": {"age": self.lifecycle_days}})
        return rules

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "labels": dict(self.labels), "lifecycle_rules": self.rules}


def ensure_bucket(request: BucketRequest, project: str | None) -> tuple[bool, list[str]]:
    """Create a bucket, or compare the one that stands.

    Args:
        project: That pays; None: of the credentials.

    Returns:
        Whether it was created, and how one that stood differs, one line each.

    Raises:
        UsageError: It stands in another place, or no project is known.
        AccessError: It is somebody else's, or may not be created.
        StorageError: Cloud Storage cannot be reached.
    """
    from google.api_core.exceptions import Conflict

    url = f"gs://{request.name}"
    with bucket_errors(url, _CREATE):
        client = gcs_client.client()
    found = _found(client, request.name)
    if found is None:
        if project is None and client.project is None and not gcs_client.emulator_url():
            raise UsageError(f"{url}: no project is known; add --project")
        try:
            _create(client, request, project)
            return True, []
        except Conflict:  # another one was faster
            found = _found(client, request.name)
    if found is None:
        raise AccessError(f"{url}: the name is taken, and the bucket cannot be seen; choose another name")
    _check_place(found, request)
    return False, _differences(found, request)


def _found(client: Client, name: str) -> Bucket | None:
    from google.api_core.exceptions import Forbidden, NotFound

    try:
        with bucket_errors(f"gs://{name}", "storage.buckets.get"):
            try:
                return client.get_bucket(name, retry=gcs_client.retry_policy())
            except NotFound:
                return None
    except AccessError as error:
        if not isinstance(error.__cause__, Forbidden):
            raise
        raise AccessError(
            f"gs://{name}: a bucket of this name stands already and may not be seen (storage.buckets.get is missing); "
            "it may be somebody else's: choose another name"
        ) from error


def _create(client: Client, request: BucketRequest, project: str | None) -> None:
    from google.api_core.exceptions import Forbidden

    bucket = client.bucket(request.name)
    bucket.storage_class = request.storage_class
    bucket.labels = dict(request.labels)
    bucket.lifecycle_rules = request.rules
    bucket.iam_configuration.uniform_bucket_level_access_enabled = request.uniform_access
    bucket.iam_configuration.public_access_prevention = request.public_access
    bucket.soft_delete_policy.retention_duration_seconds = request.soft_delete_days * _DAY_S
    try:
        with bucket_errors(f"gs://{request.name}", _CREATE):
            client.create_bucket(bucket, project=project, location=request.location, retry=gcs_client.retry_policy())
    except AccessError as error:
        if not isinstance(error.__cause__, Forbidden):
            raise
        raise AccessError(
            f"gs://{request.name}: it may not be created: permission {_CREATE} is missing in the project; ask for "
            f"roles/storage.admin there ({one_line(error.__cause__)})"
        ) from error


def _check_place(found: Bucket, request: BucketRequest) -> None:
    place = BucketLocation(
        location=found.location or "",
        location_type=found.location_type or "",
        data_locations=tuple(found.data_locations or ()),
    )
    if place.location.upper() != request.location.upper() or place.location_type not in ("", "region"):
        raise UsageError(
            f"gs://{request.name}: it stands already, in {describe(place)}, not in {request.location.lower()}, and "
            "buckets do not move; choose another name"
        )


def _differences(found: Bucket, request: BucketRequest) -> list[str]:
    """Labels and rules beyond those that were asked for are none."""
    rules = [dict(rule) for rule in found.lifecycle_rules]
    soft_delete_s = found.soft_delete_policy.retention_duration_seconds
    pairs: list[tuple[str, object, object]] = [
        ("storage class", found.storage_class, request.storage_class),
        ("uniform access", bool(found.iam_configuration.uniform_bucket_level_access_enabled), request.uniform_access),
        ("public access prevention", found.iam_configuration.public_access_prevention, request.public_access),
        ("soft delete, days", (soft_delete_s or 0) // _DAY_S, request.soft_delete_days),
        *((f"label {key}", found.labels.get(key), value) for key, value in request.labels.items()),
    ]
    lines = [f"{what}: {got}, asked for was {due}" for what, got, due in pairs if got != due]
    return lines + [f"lifecycle: no rule {rule}" for rule in request.rules if rule not in rules]
