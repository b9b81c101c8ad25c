"""What Cloud Storage refuses is one line that names the permission, the bucket or the next step."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep.errors import AccessError, StorageError
from dataprep.storage import gcs_client
from dataprep.storage.gcs import GCSStorage
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


def test_a_bucket_whose_reader_pays_is_read_once_a_project_is_named(
    gcs: GCSEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs.create_bucket("reader-pays", reader_pays=True)
    storage = GCSStorage("gs://reader-pays/data")
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "")
    gcs_client.bill("my-project")
    storage.create("x", b"0123")
    assert [info.name for info in storage.list()] == ["x"]
    assert (storage.stat("x").num_bytes, storage.read("x"), storage.read_range("x", 1, 2)) == (4, b"0123", b"12")
    monkeypatch.delenv("GOOGLE_CLOUD_QUOTA_PROJECT")
    for call in all_calls(storage)[:5]:
        with pytest.raises(
            AccessError, match=r"\(requester pays\): name .*, `billing_project` or GOOGLE_CLOUD_QUOTA_PROJECT=PROJECT"
        ):
            call()


def test_an_object_that_is_sent_decompressed_is_named_at_once(gcs: GCSEmulator) -> None:
    gcs.create_bucket("compressed")
    blob = gcs_client.client().bucket("compressed").blob("x.tar")
    blob.content_encoding = "gzip"
    blob.upload_from_string(gzip.compress(b"0123" * 99))
    retries = gcs_client.retries.count
    with pytest.raises(
        StorageError, match=r"gs://compressed/x.tar: stored with Content-Encoding gzip, .* store it witho"
    ):
        GCSStorage("gs://compressed").read_range("x.tar", 2, 20)
    assert gcs_client.retries.count == retries


def test_without_credentials_the_next_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    storage = GCSStorage("gs://some-bucket/data")
    for call in all_calls(storage):
        with pytest.raises(AccessError, match=r'gs://some-bucket/data.* no valid credentials; run "gcloud auth'):
            call()
