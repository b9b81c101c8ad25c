"""`dataprep create-bucket`: a bucket in the region of its readers, and an account that may use only that bucket."""

from __future__ import annotations

import json

import click

from dataprep.arguments import StrictCommand
from dataprep.cloud.buckets import (
    LIFECYCLES,
    ROLES,
    STORAGE_CLASSES,
    BucketRequest,
    account_email,
    ensure_account,
    ensure_bucket,
)
from dataprep.cloud.gcloud import Gcloud
from dataprep.cloud.placement import is_bucket
from dataprep.cloud.region import check_place, region_of
from dataprep.commands.options import COUNT, WHOLE, json_option, label_option, parsed_labels
from dataprep.commands.region_options import named_place, tpu_option
from dataprep.errors import UsageError, VerificationError
from dataprep.messages import printable
from dataprep.storage import open_storage

EPILOG = """\b
Examples:
  dataprep create-bucket gs://my-data --near us-central2-b --project my-project
  dataprep create-bucket gs://my-data --tpu my-v4-32 --label team=vision --lifecycle-days 90 --lifecycle nearline
  dataprep create-bucket gs://my-data --near us-central1-ai1a --cache us-central1-ai1a --hns
  dataprep create-bucket gs://my-data --near europe-west4 --project my-project --service-account my-trainer --dry-run

\b
Exit codes: 0 the bucket was created, or exists with these settings; 1 it exists with other settings; 2 wrong usage,
it exists in another place, or a permission is missing.
"""


@click.command("create-bucket", cls=StrictCommand, epilog=EPILOG)
@click.argument("url", metavar="gs://NAME")
@click.option("--near", "near", metavar="ZONE", help="Zone or region in which the bucket will be read.")
@tpu_option
@click.option(
    "--storage-class", type=click.Choice(STORAGE_CLASSES, case_sensitive=False), default="STANDARD", show_default=True,
    help="Class of new objects; reading any but STANDARD costs money for each GiB.",
)  # fmt: skip
@label_option
@click.option(
    "--lifecycle-days", type=COUNT, help="Age in days at which --lifecycle acts on an object.  [default: never]"
)
@click.option(
    "--lifecycle",
    type=click.Choice(LIFECYCLES),
    default="delete",
    show_default=True,
    help="What happens to an object of that age.",
)
@click.option(
    "--soft-delete-days",
    type=WHOLE,
    default=7,
    show_default=True,
    help="Days for which deleted objects can be restored, and are paid for; 0: none.",
)
@click.option(
    "--cache",
    "caches",
    metavar="ZONE",
    multiple=True,
    help="Zone of the region that gets a Rapid Cache, which costs money while it holds data; may be repeated.",
)
@click.option(
    "--hns",
    "hierarchical",
    is_flag=True,
    help="Create a hierarchical namespace: more requests a second from the start, dearer operations.",
)
@click.option("--project", help="Project that pays for the bucket.  [default: that of the credentials]")
@click.option(
    "--service-account", "account", metavar="NAME", help="Create an account that may use this bucket and nothing else."
)
@click.option(
    "--role", type=click.Choice(tuple(ROLES)), default="reader", show_default=True, help="Rights of that account."
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print what would be created, and the gcloud commands for the account; create nothing.",
)
@json_option
def command(
    url: str,
    near: str | None,
    tpu: str | None,
    storage_class: str,
    labels: tuple[str, ...],
    lifecycle_days: int | None,
    lifecycle: str,
    soft_delete_days: int,
    caches: tuple[str, ...],
    hierarchical: bool,
    project: str | None,
    account: str | None,
    role: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create a bucket in the region of a zone or a TPU, where reading it is free.

    Rights are given on the whole bucket only (uniform access), no right can make it public, and uploads that were never
    finished are removed after a week. An existing bucket is compared with these settings, and never changed.
    """
    place = named_place(near, tpu)
    if place is None:
        raise UsageError(f"{url}: in which region? give --near ZONE or --tpu NAME of its readers")
    request = BucketRequest(
        name=_bucket_name(url),
        location=region_of(place).upper(),
        storage_class=storage_class,
        labels=parsed_labels(labels),
        lifecycle_days=lifecycle_days,
        lifecycle=lifecycle,
        soft_delete_days=soft_delete_days,
        hierarchical=hierarchical,
        caches=tuple(dict.fromkeys(map(check_place, caches))),
    )
    if account is not None and project is None:
        raise UsageError(f"--service-account {account}: its address names its project; add --project")
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
        ensure_account(
            Gcloud(lambda line: click.echo(line, err=as_json), dry_run=dry_run), request.name, account, project, role
        )
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
    for zone in request.caches:
        click.echo(
            f"  cache       in {zone}, requested; it runs some minutes later" if created else f"  cache       in {zone}"
        )
    click.echo(f"  labels      {labels}")
    click.echo(f"  objects     {f'{then} after {request.lifecycle_days:,} days' if request.lifecycle_days else 'kept'}")
    click.echo(
        f"  deleted     kept for {request.soft_delete_days} days"
        if request.soft_delete_days
        else "  deleted     at once"
    )


def _bucket_name(url: str) -> str:
    """Return the name in a bucket's URL; raise UsageError if the URL names more than a bucket."""
    storage = open_storage(url if is_bucket(url) else f"gs://{url}")
    name = storage.url.partition("://")[2]
    if "/" in name:
        raise UsageError(f"{url}: expected only a bucket's name, such as gs://{name.partition('/')[0]}")
    return name
