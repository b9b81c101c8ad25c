"""Creates buckets for training data, and service accounts with exactly the rights that a run needs in one bucket.

A bucket is in the region of its readers, closed to the public, with a lifecycle. A request is a value; an existing
bucket is compared with it, and never changed. Accounts are made through `gcloud`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

from dataprep.cloud.gcloud import Gcloud, meaning
from dataprep.cloud.region import describe
from dataprep.cloud.tpu.command_lines import gcloud_line
from dataprep.errors import AccessError, UsageError
from dataprep.messages import first_line
from dataprep.storage import gcs_client
from dataprep.storage.gcs_client import bucket_errors
from dataprep.storage.gcs_location import BucketLocation

if TYPE_CHECKING:
    from google.cloud.storage import Bucket, Client

ABANDONED_UPLOAD_DAYS = 7
"""Age at which parts of unfinished uploads are removed: they cost as much as objects, and no listing shows them."""
PUBLIC_ACCESS = "enforced"
"""Setting of Cloud Storage's public access prevention, for every bucket."""
_DAY_S = 86_400
_CREATE = "storage.buckets.create"
ROLES = {
    "reader": ("roles/storage.objectViewer", "roles/storage.legacyBucketReader"),
    "writer": ("roles/storage.objectUser", "roles/storage.legacyBucketReader"),
}
"""Roles on the bucket only. The first allows to read, or to read and write, objects; the second has
storage.buckets.get, without which the cost of reading the bucket is not fully known."""
_UNKNOWN_YET = re.compile(r"service account \S+ does not exist", re.IGNORECASE)
_NAME = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
BIND_TRIES = 12
"""Maximum number of attempts to give a new account its roles: it may take a minute until it is known everywhere."""
BIND_WAIT_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketRequest:
    """The settings of a bucket to create. Rights are granted on the bucket only, never on single objects or to all."""

    name: str
    location: str
    """Region of the bucket, in upper case."""
    storage_class: str = "STANDARD"
    labels: Mapping[str, str] = field(default_factory=dict)
    lifecycle_days: int | None = None
    """Age of objects, in days, at which the lifecycle acts; None for never."""
    lifecycle: Literal["delete", "nearline"] = "delete"
    """Action at that age."""
    soft_delete_days: int = 7
    """Number of days for which deleted objects can be restored and must be paid for; 0, or 7 to 90."""
    hierarchical: bool = False
    """Whether objects are in folders; this cannot be changed later."""

    def __post_init__(self) -> None:
        if self.soft_delete_days and not 7 <= self.soft_delete_days <= 90:
            raise UsageError(f"`soft_delete_days` {self.soft_delete_days}: Cloud Storage takes 0, or 7 to 90")

    @property
    def rules(self) -> list[dict[str, object]]:
        """Rules of the lifecycle, as Cloud Storage writes them."""
        rules = [({"type": "AbortIncompleteMultipartUpload"}, ABANDONED_UPLOAD_DAYS)]
        if self.lifecycle_days is not None:
            nearline = {"type": "SetStorageClass", "storageClass": "NEARLINE"}
            rules.append((nearline if self.lifecycle == "nearline" else {"type": "Delete"}, self.lifecycle_days))
        return [{"action": action, "condition": {"age": days}} for action, days in rules]

    def document(self) -> dict[str, object]:
        """Return the request as JSON values."""
        access = {"uniform_access": True, "public_access": PUBLIC_ACCESS}
        return {**asdict(self), "labels": dict(self.labels), **access, "lifecycle_rules": self.rules}


def ensure_bucket(request: BucketRequest, project: str | None) -> tuple[bool, list[str]]:
    """Create a bucket, or compare the existing one.

    Args:
        project: Project that pays; None for the project of the credentials.

    Returns:
        Whether the bucket was created, and a line for each difference of an existing one.

    Raises:
        UsageError: The bucket exists in another location, or no project is known.
        AccessError: The bucket belongs to someone else, or may not be created.
        StorageError: Cloud Storage cannot be reached.
    """
    from google.api_core.exceptions import Conflict

    url = f"gs://{request.name}"
    with bucket_errors(url, _CREATE):
        client = gcs_client.client()
    found = _found(client, request.name)
    if found is None:
        if project is None and client.project is None and not gcs_client.emulator_url():
            raise UsageError(f"{url}: no project is known; add `project`")
        try:
            _create(client, request, project)
            return True, []
        except Conflict:  # another process was faster
            found = _found(client, request.name)
    if found is None:
        raise AccessError(f"{url}: the name is taken, and you cannot access the bucket; choose a different name")
    _check_place(found, request)
    return False, _differences(found, request)


def cache_command(bucket: str, zone: str) -> list[str]:
    """Return the command that adds a Rapid Cache to an existing bucket."""
    return gcloud_line("storage", "buckets", "anywhere-caches", "create", f"gs://{bucket}", zone)


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
            f"gs://{name}: a bucket of this name exists already, but you cannot access it (storage.buckets.get is "
            "missing); it may be someone else's: choose a different name"
        ) from error


def _create(client: Client, request: BucketRequest, project: str | None) -> None:
    from google.api_core.exceptions import Forbidden

    bucket = client.bucket(request.name)
    bucket.storage_class = request.storage_class
    if request.hierarchical:
        bucket.hierarchical_namespace_enabled = True
    bucket.labels = dict(request.labels)
    bucket.lifecycle_rules = request.rules
    bucket.iam_configuration.uniform_bucket_level_access_enabled = True
    bucket.iam_configuration.public_access_prevention = PUBLIC_ACCESS
    bucket.soft_delete_policy.retention_duration_seconds = request.soft_delete_days * _DAY_S
    try:
        with bucket_errors(f"gs://{request.name}", _CREATE):
            client.create_bucket(bucket, project=project, location=request.location, retry=gcs_client.retry_policy())
    except AccessError as error:
        if not isinstance(error.__cause__, Forbidden):
            raise
        raise AccessError(
            f"gs://{request.name}: it cannot be created: permission {_CREATE} is missing in the project; ask for "
            f"roles/storage.admin there ({first_line(error.__cause__)})"
        ) from error


def _check_place(found: Bucket, request: BucketRequest) -> None:
    place = BucketLocation(
        location=found.location or "",
        location_type=found.location_type or "",
        data_locations=tuple(found.data_locations or ()),
    )
    if place.location.upper() != request.location.upper() or place.location_type not in ("", "region"):
        raise UsageError(
            f"gs://{request.name}: it exists already, in {describe(place)}, not in {request.location.lower()}, and "
            "cannot be moved; choose a different name"
        )


def _differences(found: Bucket, request: BucketRequest) -> list[str]:
    """List differences from a request; further labels and rules of the bucket do not count."""
    rules = [dict(rule) for rule in found.lifecycle_rules]
    soft_delete_s = found.soft_delete_policy.retention_duration_seconds
    pairs: list[tuple[str, object, object]] = [
        ("storage class", found.storage_class, request.storage_class),
        ("uniform access", bool(found.iam_configuration.uniform_bucket_level_access_enabled), True),
        ("public access prevention", found.iam_configuration.public_access_prevention, PUBLIC_ACCESS),
        ("soft delete, days", (soft_delete_s or 0) // _DAY_S, request.soft_delete_days),
        *((f"label {key}", found.labels.get(key), value) for key, value in request.labels.items()),
    ]
    if request.hierarchical:
        pairs.append(("hierarchical namespace", bool(found.hierarchical_namespace_enabled), True))
    lines = [f"{what}: {got}, requested: {due}" for what, got, due in pairs if got != due]
    return lines + [f"lifecycle: no rule {rule}" for rule in request.rules if rule not in rules]


def account_email(name: str, project: str) -> str:
    """Return the email address of a service account.

    Raises:
        UsageError: No account could have this name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"`service_account` {name!r}: expected 6 to 30 of a-z, 0-9 and -, the first a letter")
    return f"{name}@{project}.iam.gserviceaccount.com"


def account_commands(bucket: str, name: str, project: str, role: str) -> list[list[str]]:
    """Return the commands that create the account and then give it each role on the bucket."""
    email = account_email(name, project)
    shown = f"{role} of gs://{bucket}"
    create = gcloud_line("iam", "service-accounts", "create", name, project=project, display_name=shown)
    bind = ("storage", "buckets", "add-iam-policy-binding", f"gs://{bucket}")
    member = f"serviceAccount:{email}"
    return [create, *(gcloud_line(*bind, member=member, role=each) for each in ROLES[role])]


def ensure_account(gcloud: Gcloud, bucket: str, name: str, project: str, role: str) -> None:
    """Create the account unless it exists, and give it its roles; may be repeated.

    Raises:
        DataprepError: gcloud could not do it.
    """
    create, *bindings = account_commands(bucket, name, project, role)
    ran = gcloud.run(create)
    if ran.returncode and not re.search("ALREADY_EXISTS|already exists", ran.stderr):
        raise meaning(create, ran.stderr)
    for argv in bindings:
        for left in reversed(range(BIND_TRIES)):
            ran = gcloud.run(argv)
            if not ran.returncode:
                break
            if not left or not _UNKNOWN_YET.search(ran.stderr):
                raise meaning(argv, ran.stderr)
            time.sleep(BIND_WAIT_S)
