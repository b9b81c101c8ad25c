"""A bucket that is asked for: its lifecycle, what may be asked, and how an existing one differs."""

import itertools
import json

import pytest

from dataprep.cloud.buckets import ROLES, BucketRequest, account_commands, ensure_bucket
from dataprep.errors import UsageError
from dataprep.storage import gcs_client
from dataprep.storage.gcs_location import bucket_location

ABANDONED = {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}
_numbers = itertools.count()


@pytest.fixture
def request_of(gcs):
    name = f"asked-for-{next(_numbers)}"
    return lambda **changed: BucketRequest(**{"name": name, "location": "US-CENTRAL2", **changed})


@pytest.mark.parametrize(
    ("changed", "rules"),
    [
        ({}, [ABANDONED]),
        ({"lifecycle": "nearline"}, [ABANDONED]),
        ({"lifecycle_days": 30}, [ABANDONED, {"action": {"type": "Delete"}, "condition": {"age": 30}}]),
        (
            {"lifecycle_days": 3, "lifecycle": "nearline"},
            [ABANDONED, {"action": {"type": "SetStorageClass", "storageClass": "NEARLINE"}, "condition": {"age": 3}}],
        ),
    ],
)
def test_lifecycle_rules_end_abandoned_uploads_and_apply_the_given_ages(changed, rules):
    request = BucketRequest(name="x", location="US", **changed)
    assert request.rules == request.document()["lifecycle_rules"] == rules
    assert json.loads(json.dumps(request.document()))["labels"] == {}


@pytest.mark.parametrize("days", [1, 6, 91])
def test_days_that_cloud_storage_does_not_take_are_refused(days):
    with pytest.raises(UsageError, match=f"`soft_delete_days` {days}: Cloud Storage takes 0, or 7 to 90"):
        BucketRequest(name="x", location="US", soft_delete_days=days)


def test_a_bucket_is_created_once_with_the_given_settings(request_of):
    request = request_of(labels={"team": "vision"}, lifecycle_days=9)
    assert ensure_bucket(request, None) == (True, [])
    assert ensure_bucket(request, None) == (False, [])


def test_every_difference_of_an_existing_bucket_is_one_line_and_nothing_is_changed(request_of):
    ensure_bucket(request_of(labels={"team": "vision", "more": "1"}), None)
    created, lines = ensure_bucket(
        request_of(labels={"team": "speech"}, storage_class="COLDLINE", soft_delete_days=0, lifecycle_days=9), None
    )
    assert not created
    assert [line.partition(":")[0] for line in lines] == [
        "storage class",
        "soft delete, days",
        "label team",
        "lifecycle",
    ]
    assert "label team: vision, requested: speech" in lines
    bucket = gcs_client.client().get_bucket(request_of().name)
    assert (bucket.storage_class, bucket.labels["team"]) == ("STANDARD", "vision")


def test_an_existing_bucket_in_another_place_is_refused(request_of):
    ensure_bucket(request_of(), None)
    with pytest.raises(UsageError, match="not in us-east1, and cannot be moved; choose a different name"):
        ensure_bucket(request_of(location="US-EAST1"), None)


def test_a_bucket_is_created_with_its_namespace(request_of):
    request = request_of(hierarchical=True)
    assert ensure_bucket(request, None) == (True, [])
    assert bucket_location(request.name).hierarchical
    assert ensure_bucket(request, None) == (False, [])


def test_a_missing_namespace_of_an_existing_bucket_is_a_difference(request_of):
    ensure_bucket(request_of(), None)
    request = request_of(hierarchical=True)
    assert ensure_bucket(request, None) == (False, ["hierarchical namespace: False, requested: True"])


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
