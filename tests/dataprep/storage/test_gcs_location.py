"""What a bucket tells of its place, and the classes of its objects, whatever the account may see."""

import pytest

from dataprep.errors import AccessError, UndecidedError
from dataprep.storage import open_storage
from dataprep.storage.gcs_location import (
    LIST_CACHES,
    BucketLocation,
    StoredObject,
    bucket_location,
    running_caches,
    stored_objects,
)
from tests.support.gcs_emulator import GCSEmulator

GET_BUCKET, LIST_OBJECTS = "storage.buckets.get", "storage.objects.list"


@pytest.fixture(scope="module", autouse=True)
def buckets(gcs: GCSEmulator) -> None:
    gcs.create_bucket("told-cold", location="EUROPE-WEST4", storage_class="NEARLINE")
    gcs.create_bucket("told-auto", location="EUROPE-WEST4", storage_class="NEARLINE", autoclass=True)
    gcs.create_bucket("told-dual", location="US", data_locations=("US-CENTRAL1", "US-WEST1"))
    gcs.create_bucket("told-zonal", location="us-central1", data_locations=("us-central1-a",), storage_class="RAPID")
    gcs.create_bucket("told-layout", location="US-CENTRAL1", deny=[GET_BUCKET])
    gcs.create_bucket("told-nothing", location="US-CENTRAL1", deny=[GET_BUCKET, LIST_OBJECTS])


def test_a_bucket_reports_its_class_and_location():
    assert bucket_location("told-cold") == BucketLocation(
        location="EUROPE-WEST4", location_type="region", storage_class="NEARLINE", autoclass=False
    )
    assert bucket_location("told-auto").autoclass is True


def test_buckets_of_several_places_list_them():
    assert bucket_location("told-dual").data_locations == ("US-CENTRAL1", "US-WEST1")
    zonal = bucket_location("told-zonal")
    assert (zonal.location_type, zonal.data_locations) == ("zone", ("us-central1-a",))


def test_the_storage_layout_gives_the_location_and_names_the_missing_permission():
    found = bucket_location("told-layout")
    assert (found.location, found.location_type, found.missing_permission) == ("US-CENTRAL1", "region", GET_BUCKET)
    assert (found.storage_class, found.autoclass) == (None, None)


def test_both_missing_permissions_are_named():
    with pytest.raises(UndecidedError, match=f"neither permission {GET_BUCKET} nor {LIST_OBJECTS}"):
        bucket_location("told-nothing")


def test_a_missing_bucket_is_an_access_error():
    with pytest.raises(AccessError, match="the bucket gs://told-never does not exist"):
        bucket_location("told-never")


def test_objects_are_listed_with_their_sizes_and_own_classes(gcs: GCSEmulator):
    storage = open_storage("gs://told-cold/data")
    for name in ("a", "b/c"):
        storage.create(name, b"123")
    gcs.set_storage_class("told-cold/data/b/c", "ARCHIVE")
    listed = list(stored_objects("told-cold", "data"))
    assert listed == [StoredObject("a", 3, "nearline"), StoredObject("b/c", 3, "archive")]
    assert [each.name for each in stored_objects("told-cold", "")] == ["data/a", "data/b/c"]
    with pytest.raises(AccessError, match=LIST_OBJECTS):
        list(stored_objects("told-nothing", ""))


def test_running_caches_are_listed_by_their_zones(gcs: GCSEmulator):
    gcs.create_bucket("told-caches", location="US", caches=("US-CENTRAL1-A", "us-east1-d"))
    gcs.create_bucket("told-no-caches", location="US", deny=[LIST_CACHES])
    assert running_caches("told-caches") == ("us-central1-a", "us-east1-d")
    assert running_caches("told-cold") == ()
    with pytest.raises(AccessError, match=f"permission {LIST_CACHES} is missing"):
        running_caches("told-no-caches")
