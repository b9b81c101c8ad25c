"""The list of a dataset's copies: read and written the same, by many at once, and never taken from another kind."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset import replicas
from dataprep.dataset.replicas import REPLICAS, Replica, read_replicas, record_replicas, same_dataset
from dataprep.errors import FormatError, StorageError
from dataprep.storage import open_storage
from dataprep.storage.gcs_location import BucketLocation
from tests.support.samples import examples

texts = st.text(max_size=30)
locations = st.builds(
    lambda location, kind, places: BucketLocation(location=location, location_type=kind, data_locations=tuple(places)),
    texts,
    texts,
    st.lists(texts, max_size=3),
)


def replica(url: str, location: str = "US-CENTRAL1") -> Replica:
    return Replica(url, BucketLocation(location=location, location_type="region"))


@examples
@given(st.dictionaries(texts, locations, max_size=4))
def test_recorded_copies_are_read_back(tmp_path_factory: pytest.TempPathFactory, places: dict[str, BucketLocation]):
    storage = open_storage(str(tmp_path_factory.mktemp("replicas")))
    listed = [Replica(url, places[url]) for url in sorted(places)]
    assert record_replicas(storage, listed) == listed
    assert read_replicas(storage) == listed


def test_a_copy_replaces_the_entry_of_its_place_and_missing_copies_are_dropped(storage):
    assert read_replicas(storage) == []
    record_replicas(storage, [replica("gs://b"), replica("gs://a")])
    assert [each.url for each in read_replicas(storage)] == ["gs://a", "gs://b"]
    record_replicas(storage, [replica("gs://b", "EUROPE-WEST4")], gone=["gs://a"])
    assert read_replicas(storage) == [replica("gs://b", "EUROPE-WEST4")]


def test_concurrent_records_are_all_kept(storage_url):
    urls = [f"gs://bucket-{number}/x" for number in range(6)]
    with ThreadPoolExecutor(len(urls)) as threads:
        list(threads.map(lambda url: record_replicas(open_storage(storage_url), [replica(url)]), urls))
    assert [each.url for each in read_replicas(open_storage(storage_url))] == urls


def test_recording_is_abandoned_if_others_keep_changing_the_list(tmp_path, monkeypatch):
    storage = open_storage(str(tmp_path))
    monkeypatch.setattr(type(storage), "replace", lambda *_: False)
    with pytest.raises(StorageError, match="other processes kept changing it; run the same command again"):
        record_replicas(storage, [replica("gs://a")])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"[" * 100_000,
        b'{"version": 2, "replicas": []}',
        b'{"version": 1, "replicas": [{}]}',
        b'{"version": 1, "replicas": [{"url": "u", "location": "l", "location_type": "t", "data_locations": 7}]}',
    ],
)
def test_another_file_of_that_name_is_left_alone(tmp_path, content):
    storage = open_storage(str(tmp_path))
    storage.create(REPLICAS, content)
    for call in (lambda: read_replicas(storage), lambda: record_replicas(storage, [replica("gs://a")])):
        with pytest.raises(FormatError, match=r"replicas\.json: .*remove it and run dataprep replicate again"):
            call()
    assert storage.read(REPLICAS) == content


def test_a_list_that_is_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(replicas, "MAX_BYTES", 10)
    storage = open_storage(str(tmp_path))
    storage.create(REPLICAS, json.dumps({"version": 1, "replicas": []}).encode())
    with pytest.raises(FormatError, match="expected at most 10"):
        read_replicas(storage)


def test_the_same_dataset_has_a_manifest_of_the_same_bytes(bucket_url):
    first, second = (open_storage(f"{bucket_url}/{name}") for name in ("first", "second"))
    first.create("dataset.json", b"{}")
    original = first.stat("dataset.json")
    assert not same_dataset(second, original)
    second.create("dataset.json", b"{}")
    assert same_dataset(second, original)
    second.delete("dataset.json")
    second.create("dataset.json", b"[]")
    assert not same_dataset(second, original)
