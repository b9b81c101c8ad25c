"""Buckets of the emulator are what they were created as, and requests are billed as Cloud Storage bills them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import google.cloud.storage as gcs_library
import pytest
from google.auth.credentials import AnonymousCredentials

from tests.support.gcs_emulator import GCSEmulator


@pytest.fixture(scope="module")
def emulator() -> Iterator[GCSEmulator]:
    with GCSEmulator() as emulator:
        yield emulator


@pytest.fixture
def client(emulator: GCSEmulator) -> gcs_library.Client:
    options = {"api_endpoint": emulator.url}
    return gcs_library.Client(project="p", credentials=AnonymousCredentials(), client_options=options)


@pytest.mark.parametrize(
    ("name", "created", "location_type"),
    [
        ("one-region", {"location": "europe-west4"}, "region"),
        ("one-code", {"location": "nam4", "storage_class": "NEARLINE"}, "dual-region"),
        ("two-regions", {"location": "US", "data_locations": ["US-EAST1", "US-WEST1"]}, "dual-region"),
        ("one-multi", {"location": "eu", "autoclass": True}, "multi-region"),
        ("one-zone", {"location": "us-east1", "data_locations": ["us-east1-b"], "storage_class": "RAPID"}, "zone"),
    ],
)
def test_a_bucket_is_what_it_was_created_as(emulator, client, name, created, location_type):
    emulator.create_bucket(name, **created)
    bucket = client.get_bucket(name)
    assert (bucket.location, bucket.location_type) == (created["location"].upper(), location_type)
    assert bucket.data_locations == created.get("data_locations")
    assert bucket.storage_class == created.get("storage_class", "STANDARD")
    assert bucket.autoclass_enabled == created.get("autoclass", False)


def settled(emulator) -> dict:
    """Return the counts when ten looks in a row found no request; one finds none on a machine that stands still."""
    before, quiet = emulator.stats(), 0
    while quiet < 10:
        time.sleep(0.05)
        after = emulator.stats()
        quiet = quiet + 1 if after == before else 0
        before = after
    return before


def test_requests_are_billed_by_their_class_unless_they_fail(emulator, client):
    emulator.create_bucket("billed", location="us-east1")
    bucket = client.bucket("billed")
    bucket.blob("first").upload_from_string(b"")  # some versions of the library look at the bucket, once
    before = settled(emulator)
    bucket.blob("x").upload_from_string(b"12345")
    large = bucket.blob("large")
    large.chunk_size = 2**18
    large.upload_from_string(bytes(2**20))  # in four chunks
    list(client.list_blobs("billed"))
    assert bucket.blob("x").download_as_bytes(start=1, end=2) == b"23"
    assert not bucket.blob("none").exists()
    client.get_bucket("billed")
    bucket.blob("x").delete()
    after = emulator.stats()
    found = {kind: after["operations"][kind] - before["operations"].get(kind, 0) for kind in ("A", "B")}
    assert found == {"A": 3, "B": 2}
    assert after["bytes_served"] - before["bytes_served"] == 2
