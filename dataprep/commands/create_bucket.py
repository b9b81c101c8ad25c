"""`dataprep create-bucket`: a bucket in the region of its readers, and an account that may use only that bucket."""

from __future__ import annotations

import json
from typing import Literal

import click

from dataprep.arguments import WHERE, WRITE, Pairs, command_of, option, request
from dataprep.cloud.buckets import BucketRequest, account_email, ensure_account, ensure_bucket
from dataprep.cloud.gcloud import Gcloud
from dataprep.cloud.placement import is_bucket
from dataprep.cloud.region import region_of
from dataprep.cloud.tpu.command_lines import check_labels
from dataprep.commands.build_run import people
from dataprep.commands.region_options import NamedTpu, Note, named_place
from dataprep.errors import UsageError, VerificationError
from dataprep.messages import printable
from dataprep.storage import open_storage

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


def _create(asked: CreateBucket, *, as_json: bool) -> None:
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


command = command_of(CreateBucket, _create, "create-bucket", epilog=EPILOG)
