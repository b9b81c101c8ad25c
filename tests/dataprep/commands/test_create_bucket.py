"""Buckets in the emulator, accounts in the stand-in for gcloud."""

import itertools
import json

import pytest
from click.testing import Result

from dataprep.commands import create_bucket
from dataprep.commands.create_bucket import BucketRequest, command
from dataprep.errors import AccessError, DataprepError, UsageError, VerificationError
from dataprep.storage import gcs_client
from dataprep.storage.gcs_location import bucket_location
from tests.support.builds import invoked
from tests.support.fake_gcloud import fake_gcloud

_numbers = itertools.count()
READER = ["roles/storage.legacyBucketReader", "roles/storage.objectViewer"]
WRITER = ["roles/storage.legacyBucketReader", "roles/storage.objectUser"]


@pytest.fixture
def name(gcs) -> str:
    return f"made-{next(_numbers)}"


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    monkeypatch.setattr(create_bucket, "BIND_WAIT_S", 0.0)
    with fake_gcloud(tmp_path / "cloud", monkeypatch) as cloud:
        yield cloud


def create(*words: object) -> Result:
    return invoked(command, *words)


def described(name: str) -> dict:
    return gcs_client.client().get_bucket(name)._properties


def test_a_bucket_is_created_in_the_readers_region(name):
    result = create(f"gs://{name}", "--near", "us-central2-b", "--label", "team=vision", "--label", "run=7")
    assert f"gs://{name} created in us-central2, class STANDARD" in result.stdout
    found = described(name)
    assert (found["location"], found["locationType"]) == ("US-CENTRAL2", "region")
    assert found["labels"] == {"team": "vision", "run": "7"}
    assert found["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"] is True
    assert found["iamConfiguration"]["publicAccessPrevention"] == "enforced"
    assert int(found["softDeletePolicy"]["retentionDurationSeconds"]) == 7 * 86400
    assert [rule["action"]["type"] for rule in found["lifecycle"]["rule"]] == ["AbortIncompleteMultipartUpload"]


def test_a_bucket_is_created_in_the_region_of_a_tpu(name, cloud):
    cloud.add_tpu("my-tpu", zone="us-east5-b")
    create(f"gs://{name}", "--tpu", "my-tpu")
    assert described(name)["location"] == "US-EAST5"


def test_an_existing_bucket_with_the_given_settings_is_a_success(name, gcs):
    arguments = [f"gs://{name}", "--near", "us-central1", "--label", "a=b", "--lifecycle-days", 3]
    create(*arguments)
    before = gcs.stats()["operations"]["A"]
    again = create(*arguments)
    assert "exists already as requested" in again.stdout
    assert gcs.stats()["operations"]["A"] == before
    assert json.loads(create(*arguments, "--json").stdout)["bucket"]["created"] is False


def test_differences_of_an_existing_bucket_are_listed_and_nothing_is_changed(name):
    create(f"gs://{name}", "--near", "us-central1", "--label", "a=b", "--label", "more=1")
    before = described(name)
    other = ["--storage-class", "nearline", "--label", "a=c", "--lifecycle-days", 9, "--soft-delete-days", 0, "--hns"]
    with pytest.raises(VerificationError) as caught:
        create(name, "--near", "us-central1", *other)
    assert caught.value.exit_code == 1
    assert str(caught.value) == (
        f"gs://{name} exists already and differs: storage class: STANDARD, requested: NEARLINE; soft delete, days: 7, "
        "requested: 0; label a: b, requested: c; hierarchical namespace: False, requested: True; lifecycle: no rule "
        "{'action': {'type': 'Delete'}, 'condition': {'age': 9}}; change it with `gcloud storage buckets update`, or "
        "request its existing settings"
    )
    assert described(name) == before


def test_an_existing_bucket_in_another_place_is_refused(name):
    create(f"gs://{name}", "--near", "us-central1")
    with pytest.raises(UsageError, match="not in us-east1, and cannot be moved; choose a different name"):
        create(f"gs://{name}", "--near", "us-east1")


ABANDONED = {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}


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


def test_a_bucket_of_somebody_else_is_refused(name, gcs):
    gcs.create_bucket(name, location="US-CENTRAL1", deny=["storage.buckets.get"])
    with pytest.raises(AccessError, match="may be someone else's: choose a different name"):
        create(f"gs://{name}", "--near", "us-central1-a")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gs://x-y-z"], "give its readers' zone as --near, or their --tpu"),
        (["gs://x-y-z/prefix", "--near", "us-central1"], "expected only a bucket's name"),
        (["gs://x-y-z", "--near", "us-central"], "is not a zone or region"),
        (["gs://x-y-z", "--near", "us-central1", "--label", "Team=x"], "expected KEY=VALUE"),
        (["gs://x-y-z", "--near", "us-central1", "--service-account", "trainer"], "add --project"),
        *(
            (["gs://x-y-z", "--near", "us-central1", "--soft-delete-days", days], "Cloud Storage takes 0, or 7 to 90")
            for days in (1, 6, 91)
        ),
    ],
)
def test_wrong_arguments_are_refused_with_the_right_form(arguments, said):
    with pytest.raises(DataprepError, match=said) as caught:
        create(*arguments)
    assert caught.value.exit_code == 2


# The account


@pytest.mark.parametrize(("role", "roles"), [("reader", READER), ("writer", WRITER)])
def test_an_account_gets_least_rights_on_this_bucket_alone(name, cloud, role, roles):
    arguments = [f"gs://{name}", "--near", "us-central1", "--project", "proj"]
    arguments += ["--service-account", "my-trainer", "--role", role]
    result = create(*arguments)
    email = "my-trainer@proj.iam.gserviceaccount.com"
    assert f"{email} may read{' and write' if role == 'writer' else ''} it, and nothing else" in result.stdout
    assert cloud.read(email, "account")["roles"] == {f"gs://{name}": roles}
    assert len(cloud.calls("add-iam-policy-binding")) == 3  # the first found a new account not known yet
    assert json.loads(create(*arguments, "--json").stdout)["service_account"] == email
    assert cloud.read(email, "account")["roles"] == {f"gs://{name}": roles}


@pytest.mark.parametrize("account", ["", "short", "1digit", "Upper-case", "ends-", "x" * 31, "with space", "a@b.cdef"])
def test_an_account_that_google_refuses_is_refused_before_anything_is_made(account, cloud):
    with pytest.raises(UsageError, match="expected 6 to 30 of a-z, 0-9 and -, the first a letter"):
        create("x-y-z", "--near", "us-central1", "--project", "proj", "--service-account", account)
    assert cloud.calls() == []


def test_a_refusal_of_gcloud_is_reported_and_not_retried(name, cloud):
    cloud.fail("add-iam-policy-binding", "PERMISSION_DENIED: Permission 'iam.serviceAccounts.create' denied")
    with pytest.raises(AccessError, match="this account may not do that"):
        create(name, "--near", "us-central1", "--project", "proj", "--service-account", "my-trainer")
    assert len(cloud.calls("add-iam-policy-binding")) == 1


def test_a_dry_run_shows_the_commands_and_asks_nobody(name, cloud, gcs):
    before = gcs.stats()["requests"]
    arguments = [f"gs://{name}", "--near", "us-central1-a", "--project", "proj", "--service-account", "my-trainer"]
    result = create(*arguments, "--dry-run")
    member = "--member=serviceAccount:my-trainer@proj.iam.gserviceaccount.com"
    bind = f"gcloud storage buckets add-iam-policy-binding gs://{name} {member}"
    assert result.stdout.splitlines() == [
        f"gs://{name} would be created in us-central1, class STANDARD",
        "  access      uniform, never public",
        "  labels      none",
        "  objects     kept",
        "  deleted     kept for 7 days",
        f"gcloud iam service-accounts create my-trainer --project=proj '--display-name=reader of gs://{name}'",
        f"{bind} --role=roles/storage.objectViewer",
        f"{bind} --role=roles/storage.legacyBucketReader",
    ]
    assert gcs.stats()["requests"] == before
    assert cloud.calls() == []


def test_a_mistyped_region_gets_a_note_before_anything_is_created(name):
    result = create(f"gs://{name}", "--near", "us-cental2-b", "--project", "proj", "--dry-run")
    assert result.stderr == "note: us-cental2 is not a region that dataprep knows; did you mean us-central2?\n"


def test_a_hierarchical_namespace_is_requested_and_named(name):
    assert "namespace   hierarchical" in create(f"gs://{name}", "--near", "us-central1-ai1a", "--hns").stdout
    assert bucket_location(name).hierarchical
    assert "exists already" in create(f"gs://{name}", "--near", "us-central1-ai1a", "--hns").stdout
