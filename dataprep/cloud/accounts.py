"""Creates, through `gcloud`, a service account with exactly the rights in one bucket that a training run needs."""

from __future__ import annotations

import re
import time

from dataprep.cloud.gcloud import Gcloud, meaning
from dataprep.errors import UsageError

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


def account_email(name: str, project: str) -> str:
    """Return the email address of a service account.

    Raises:
        UsageError: No account could have this name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"--service-account {name!r}: expected 6 to 30 of a-z, 0-9 and -, the first a letter")
    return f"{name}@{project}.iam.gserviceaccount.com"


def account_commands(bucket: str, name: str, project: str, role: str) -> list[list[str]]:
    """Return the commands that create the account and then give it each role on the bucket."""
    email = account_email(name, project)
    shown = f"{role} of gs://{bucket}"
    create = ["gcloud", "iam", "service-accounts", "create", name, f"--project={project}", f"--display-name={shown}"]
    bind = ["gcloud", "storage", "buckets", "add-iam-policy-binding", f"gs://{bucket}"]
    return [create] + [[*bind, f"--member=serviceAccount:{email}", f"--role={each}"] for each in ROLES[role]]


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
