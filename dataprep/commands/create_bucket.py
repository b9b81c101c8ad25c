"""`dataprep create-bucket`: a bucket beside those who read it, and an account that may use it and nothing else."""

from __future__ import annotations

import json
import re

import click

from dataprep.bucket_accounts import ROLES, account_email, ensure_account
from dataprep.buckets import LIFECYCLES, STORAGE_CLASSES, BucketRequest, ensure_bucket
from dataprep.commands.options import json_option
from dataprep.commands.region_options import named_place, tpu_option
from dataprep.commands.text import one_line
from dataprep.errors import UsageError, VerificationError
from dataprep.placement import is_bucket
from dataprep.region import region_of
from dataprep.storage import open_storage
from dataprep.tpu.fleet import Gcloud

EPILOG = """\b
Examples:
  dataprep create-bucket gs://my-data --beside us-central2-b --project my-project
  dataprep create-bucket gs://my-data --tpu my-v4-32 --label team=vision --lifecycle-days 90 --lifecycle nearline
  dataprep create-bucket gs://my-data --beside europe-west4 --project my-project --service-account my-trainer --dry-run

\b
Exit codes: 0 created, or there as asked, 1 there and different, 2 usage, there in another place, or not permitted.
"""
_LABEL = re.compile(r"[a-z][-_a-z0-9]{0,62}=[-_a-z0-9]{0,63}")


@click.command("create-bucket", epilog=EPILOG)
@click.argument("url", metavar="gs://NAME")
@click.option("--beside", metavar="ZONE", help="Zone or region in which it will be read.")
@tpu_option
@click.option(
    "--storage-class", type=click.Choice(STORAGE_CLASSES, case_sensitive=False), default="STANDARD", show_default=True,
    help="Of new objects; all but STANDARD cost by the GiB whenever they are read.",
)  # fmt: skip
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="For the bill; may be repeated.")
@click.option("--lifecycle-days", type=click.IntRange(min=1), help="Age at which objects are deleted, or moved.")
@click.option(
    "--lifecycle", type=click.Choice(LIFECYCLES), default="delete", show_default=True, help="What then happens."
)
@click.option(
    "--soft-delete-days", type=int, default=7, show_default=True, help="To have deleted objects back; paid. 0: none."
)
@click.option("--project", help="That pays. [default: of the credentials]")
@click.option(
    "--service-account", "account", metavar="NAME", help="Make one that may use this bucket and nothing else."
)
@click.option("--role", type=click.Choice(tuple(ROLES)), default="reader", show_default=True, help="Of that account.")
@click.option("--dry-run", is_flag=True, help="Print what would be made, and the gcloud commands for the account.")
@json_option
def command(
    url: str,
    beside: str | None,
    tpu: str | None,
    storage_class: str,
    labels: tuple[str, ...],
    lifecycle_days: int | None,
    lifecycle: str,
    soft_delete_days: int,
    project: str | None,
    account: str | None,
    role: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create a bucket in the region of a zone or a TPU, where reading it is free.

    Rights are given on the bucket alone (uniform access), the public is kept out whatever rights are given, and uploads
    that nobody finished are removed after a week. A bucket that stands already is compared, never changed.
    """
    place = named_place(beside, tpu)
    if place is None:
        raise UsageError(f"{url}: in which region? give --beside ZONE or --tpu NAME of its readers")
    request = BucketRequest(
        name=_bucket_name(url),
        location=region_of(place).upper(),
        storage_class=storage_class,
        labels=_parsed_labels(labels),
        lifecycle_days=lifecycle_days,
        lifecycle=lifecycle,
        soft_delete_days=soft_delete_days,
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
            f"gs://{request.name} stands already and differs: {one_line('; '.join(differences))}; change it with "
            "`gcloud storage buckets update`, or ask for what it is"
        )
    if account is not None and project is not None:
        ensure_account(
            Gcloud(lambda line: click.echo(line, err=as_json), dry_run=dry_run), request.name, account, project, role
        )
        if not (dry_run or as_json):
            click.echo(f"{email} may {'read' if role == 'reader' else 'read and write'} it, and nothing else")


def _print(request: BucketRequest, *, created: bool, dry_run: bool) -> None:
    did = "would be created" if dry_run else "created" if created else "stands already as asked"
    click.echo(f"gs://{request.name} {did} in {request.location.lower()}, class {request.storage_class}")
    if not (created or dry_run):
        return
    then = {"delete": "deleted", "nearline": "moved to NEARLINE"}[request.lifecycle]
    labels = ", ".join(f"{key}={value}" for key, value in request.labels.items()) or "none"
    click.echo("  access      uniform, never public")
    click.echo(f"  labels      {labels}")
    click.echo(f"  objects     {f'{then} after {request.lifecycle_days:,} days' if request.lifecycle_days else 'kept'}")
    click.echo(
        f"  deleted     kept for {request.soft_delete_days} days"
        if request.soft_delete_days
        else "  deleted     at once"
    )


def _bucket_name(url: str) -> str:
    """Raises UsageError where the URL is more, or less, than a bucket."""
    storage = open_storage(url if is_bucket(url) else f"gs://{url}")
    name = storage.url.partition("://")[2]
    if "/" in name:
        raise UsageError(f"{url}: a bucket's name alone is expected, such as gs://{name.partition('/')[0]}")
    return name


def _parsed_labels(labels: tuple[str, ...]) -> dict[str, str]:
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise UsageError(f"--label {label!r}: expected KEY=VALUE of a-z, 0-9, _ and -, the key's first a letter")
    return dict(label.split("=", 1) for label in labels)
