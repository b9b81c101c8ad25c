"""What Cloud Storage refuses is one line that names the permission, the bucket or the next step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest

from dataprep.errors import AccessError
from dataprep.storage import gcs_client
from dataprep.storage.gcs import GCSStorage
from dataprep.storage.gcs_client import bucket_errors
from tests.support.gcs_emulator import GCSEmulator
from tests.support.storages import all_calls


@pytest.fixture
def storage(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> GCSStorage:
    monkeypatch.setattr(gcs_client, "RETRY_FIRST_WAIT_S", 0.002)
    monkeypatch.setattr(gcs_client, "RETRY_LONGEST_WAIT_S", 0.02)
    return GCSStorage(bucket_url)


@pytest.mark.parametrize(
    ("call", "permission"),
    [
        (lambda storage: storage.stat("x"), "storage.objects.get"),
        (lambda storage: storage.read("x"), "storage.objects.get"),
        (lambda storage: storage.read_range("x", 0, 1), "storage.objects.get"),
        (lambda storage: list(storage.list()), "storage.objects.list"),
        (lambda storage: storage.create("x", b""), "storage.objects.create"),
        (lambda storage: storage.delete("x"), "storage.objects.delete"),
    ],
)
def test_a_missing_permission_is_named(
    gcs: GCSEmulator, storage: GCSStorage, call: Callable[[GCSStorage], Any], permission: str
) -> None:
    gcs.set_faults(1, kinds=["403"])
    wanted = rf"{storage.url}/?x?: permission {permission} is missing; grant it to the account in use, for example with"
    with pytest.raises(AccessError, match=wanted):
        call(storage)


def test_invalid_credentials_say_how_to_get_others(gcs: GCSEmulator, storage: GCSStorage) -> None:
    gcs.set_faults(1, kinds=["401"])
    for call in all_calls(storage):
        with pytest.raises(AccessError, match='no valid credentials; run "gcloud auth application-default login"'):
            call()


def test_a_missing_bucket_is_named(gcs: GCSEmulator) -> None:
    storage = GCSStorage("gs://no-such-bucket/data")
    for call in all_calls(storage)[:-2]:
        with pytest.raises(AccessError, match="the bucket gs://no-such-bucket does not exist; create it, or check"):
            call()


def test_a_bucket_whose_reader_pays_says_what_to_do() -> None:
    with (
        pytest.raises(AccessError, match=r"requester pays.*: gcloud storage cp --recursive --billing-project=P"),
        bucket_errors("gs://other/data", "storage.objects.get"),
    ):
        raise BadRequest("Bucket is a requester pays bucket but no user project provided.")


def test_without_credentials_the_next_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    storage = GCSStorage("gs://some-bucket/data")
    for call in all_calls(storage):
        with pytest.raises(AccessError, match=r'gs://some-bucket/data.* no valid credentials; run "gcloud auth'):
            call()
