"""`dataprep create-bucket`: a bucket in the region of its readers, and an account that may use only that bucket.

A bucket is closed to the public, and has a lifecycle. An existing bucket is compared with the request, and never
changed. Accounts are made through `gcloud`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

import click

from dataprep.arguments import WHERE, WRITE, Pairs, command_of, option, request
from dataprep.cloud.gcloud import Gcloud, meaning
from dataprep.cloud.placement import is_bucket
from dataprep.cloud.region import describe, region_of
from dataprep.cloud.tpu.command_lines import check_labels, gcloud_line
from dataprep.commands.progress import people
from dataprep.commands.region_options import NamedTpu, Note, named_place
from dataprep.errors import AccessError, UsageError, VerificationError
from dataprep.messages import first_line, printable
from dataprep.storage import gcs_client, open_storage
from dataprep.storage.gcs_client import bucket_errors
from dataprep.storage.gcs_location import BucketLocation

if TYPE_CHECKING:
    from google.cloud.storage import Bucket, Client

EPILOG = """\b
Examples:
  dataprep create-bucket gs://my-data --near us-central2-b --project my-project
  dataprep create-bucket gs://my-data --tpu my-v4-32 --label team=vision --lifecycle-days 90 --lifecycle nearline
  dataprep create-bucket gs://my-data --near us-central1-a --hns
  dataprep create-bucket gs://my-data --near europe-west4 --project my-project --service-account my-trainer --dry-run

\b
Exit codes: 0 the bucket was created, or exists with these settings; 1 it exists with different settings; 2 wrong usage,
it exists in a different location, or a permission is missing.
"""
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


@request
class CreateBucket(NamedTpu):
    """Create a bucket in the region of a zone or TPU, where reading it is free.

    Access is granted only for the complete bucket (uniform access), the bucket cannot be made public, and unfinished
    uploads are deleted after a week. An existing bucket is compared with these settings, but never changed.
    """

    url: str = option("Name of the bucket.", metavar="gs://NAME", kw_only=False, group=WRITE)
    near: str | None = option(
        "Zone or region where the bucket will be read.", default=None, metavar="ZONE", group=WHERE
    )
    storage_class: Literal["standard", "nearline", "coldline", "archive"] = option(
        "Storage class of new objects; every class except standard charges per GiB read.",
        default="standard",
        group=WRITE,
    )
    label: Pairs = option(
        "Label for the bill; may be repeated.",
        default_factory=dict,
        example="team=vision",
        metavar="KEY=VALUE",
        group=WRITE,
    )
    lifecycle_days: int | None = option(
        "Age in days at which `lifecycle` acts on an object.", default=None, low=1, shown="never", group=WRITE
    )
    lifecycle: Literal["delete", "nearline"] = option(
        "What to do with objects older than `lifecycle_days`.", default="delete", group=WRITE
    )
    soft_delete_days: int = option(
        "Days for which deleted objects can be restored, and are billed; 0: none.", default=7, group=WRITE
    )
    hns: bool = option(
        "Create a hierarchical namespace: more requests per second from the start, but more expensive operations.",
        default=False,
        group=WRITE,
    )
    project: str | None = option(
        "Project that pays for the bucket.", default=None, shown="the credentials' project", group=WHERE
    )
    service_account: str | None = option(
        "Create an account that may use this bucket and nothing else.", default=None, metavar="NAME"
    )
    role: Literal["reader", "writer"] = option("Access of `service_account` to the bucket.", default="reader")
    dry_run: bool = option(
        "Print what would be created, and the gcloud commands for the account; create nothing.", default=False
    )

    def bucket(self, note: Note) -> BucketRequest:
        """Return the requested bucket. Raises UsageError if its name, a place or a label is malformed, or nothing says
        the region."""
        place = named_place(self.near, self.tpu, note)
        if place is None:
            raise UsageError(f"{self.url}: its region is missing; give its readers' zone as `near`, or their `tpu`")
        check_labels(self.label)
        return BucketRequest(
            name=_bucket_name(self.url),
            location=region_of(place).upper(),
            storage_class=self.storage_class.upper(),
            labels=self.label,
            lifecycle_days=self.lifecycle_days,
            lifecycle=self.lifecycle,
            soft_delete_days=self.soft_delete_days,
            hierarchical=self.hns,
        )


def _run(asked: CreateBucket, *, as_json: bool) -> None:
    request = asked.bucket(people(asked, quiet=as_json).note)
    account, project, dry_run, role = asked.service_account, asked.project, asked.dry_run, asked.role
    if account is not None and project is None:
        raise UsageError(f"`service_account` {account}: its address names its project; add `project`")
    email = None if account is None or project is None else account_email(account, project)
    created, differences = (False, []) if dry_run else ensure_bucket(request, project)
    if as_json:
        bucket = {**request.document(), "created": created, "differences": differences}
        click.echo(json.dumps({"bucket": bucket, "service_account": email, "role": role if email else None}))
    elif not differences:
        _print(request, created=created, dry_run=dry_run)
    if differences:
        raise VerificationError(
            f"gs://{request.name} exists already and differs: {printable('; '.join(differences))}; change it with "
            "`gcloud storage buckets update`, or request its existing settings"
        )
    if account is not None and project is not None:
        gcloud = Gcloud(lambda line: click.echo(line, err=as_json), dry_run=dry_run)
        ensure_account(gcloud, request.name, account, project, role)
        if not (dry_run or as_json):
            click.echo(f"{email} may {'read' if role == 'reader' else 'read and write'} it, and nothing else")


def _print(request: BucketRequest, *, created: bool, dry_run: bool) -> None:
    did = "would be created" if dry_run else "created" if created else "exists already as requested"
    click.echo(f"gs://{request.name} {did} in {request.location.lower()}, class {request.storage_class}")
    if not (created or dry_run):
        return
    then = {"delete": "deleted", "nearline": "moved to NEARLINE"}[request.lifecycle]
    labels = ", ".join(f"{key}={value}" for key, value in request.labels.items()) or "none"
    click.echo("  access      uniform, never public")
    if request.hierarchical:
        click.echo("  namespace   hierarchical")
    click.echo(f"  labels      {labels}")
    click.echo(f"  objects     {f'{then} after {request.lifecycle_days:,} days' if request.lifecycle_days else 'kept'}")
    deleted = f"kept for {request.soft_delete_days} days" if request.soft_delete_days else "immediately"
    click.echo(f"  deleted     {deleted}")


def _bucket_name(url: str) -> str:
    """Return the name in a bucket's URL; raise UsageError if the URL names more than a bucket."""
    storage = open_storage(url if is_bucket(url) else f"gs://{url}")
    name = storage.url.partition("://")[2]
    if "/" in name:
        raise UsageError(f"{url}: expected only a bucket's name, such as gs://{name.partition('/')[0]}")
    return name


# The bucket, and its account


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


command = command_of(CreateBucket, _run, "create-bucket", epilog=EPILOG)
