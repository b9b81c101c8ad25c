"""A service account for one bucket: its name, its commands, and what is repeated until it is known everywhere."""

from __future__ import annotations

import pytest

from dataprep.cloud import accounts
from dataprep.cloud.accounts import ROLES, account_commands, account_email
from dataprep.errors import UsageError


def test_an_account_is_known_by_its_address():
    assert account_email("trainer-1", "my-project") == "trainer-1@my-project.iam.gserviceaccount.com"


@pytest.mark.parametrize("name", ["", "short", "1digit", "Upper-case", "ends-", "x" * 31, "with space", "a@b.cdef"])
def test_a_name_that_google_refuses_is_refused_before_anything_is_made(name: str):
    with pytest.raises(UsageError, match="expected 6 to 30 of a-z, 0-9 and -, the first a letter"):
        account_commands("bucket", name, "my-project", next(iter(ROLES)))


@pytest.mark.parametrize("role", ROLES)
def test_the_account_is_created_once_and_bound_to_this_bucket_alone(role: str):
    create, *bindings = account_commands("bucket", "trainer", "my-project", role)
    assert create[:5] == ["gcloud", "iam", "service-accounts", "create", "trainer"]
    assert [words[-1] for words in bindings] == [f"--role={each}" for each in ROLES[role]]
    for words in bindings:
        assert words[:4] == ["gcloud", "storage", "buckets", "add-iam-policy-binding"]
        assert words[4:6] == ["gs://bucket", "--member=serviceAccount:trainer@my-project.iam.gserviceaccount.com"]


def test_only_an_account_that_is_not_visible_yet_is_waited_for():
    said = "ERROR: Service account trainer@my-project.iam.gserviceaccount.com does not exist."
    assert accounts._UNKNOWN_YET.search(said)
    assert not accounts._UNKNOWN_YET.search("ERROR: bucket does not exist")
