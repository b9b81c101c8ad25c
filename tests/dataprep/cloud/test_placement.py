"""The check before a bucket's first byte, with places that are given: nothing is asked of any server."""

import logging
from dataclasses import replace

import pytest

from dataprep.cloud import placement
from dataprep.cloud.placement import bucket_name, guard, is_bucket, placement_of, url_to_read
from dataprep.cloud.region import CACHED, CO_LOCATED, PAID, UNKNOWN
from dataprep.errors import AccessError, StorageError, UsageError
from dataprep.storage.gcs_location import BucketLocation

EUROPE = BucketLocation(location="EUROPE-WEST4", location_type="region")


@pytest.fixture
def american(monkeypatch):
    """This machine is in America; returns a function that sets what is known of every bucket."""
    monkeypatch.setattr(placement, "this_zone", lambda: "us-central1-a")

    def place(found):
        def location(_bucket):
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(placement, "_location", location)

    place(EUROPE)
    return place


@pytest.mark.parametrize(("url", "name"), [("gs://b/x/y", "b"), ("GS://b", "b"), ("/data/x", None), ("s3://b/x", None)])
def test_only_urls_of_cloud_storage_are_in_buckets(url, name):
    assert is_bucket(url) == (name is not None)
    assert name is None or bucket_name(url) == name


def test_an_unknown_policy_is_refused_even_where_nothing_is_paid():
    with pytest.raises(UsageError, match="the region policy must be one of refuse, warn, off, got 'maybe'"):
        guard("/data/x", "maybe")


def test_a_paid_reading_is_refused_with_its_price_and_what_to_do(american):
    with pytest.raises(UsageError) as error:
        guard("gs://b/x", "refuse")
    assert str(error.value) == (
        "gs://b/x lies in europe-west4 and is read from us-central1-a: $0.05 per GiB; read it from its own region or "
        "copy it beside the reader (dataprep check-region gs://b/x shows what both cost), or accept the price with "
        "--region-policy warn"
    )


def test_a_paid_reading_is_warned_of_once(american, caplog):
    placement._say.cache_clear()
    with caplog.at_level(logging.WARNING, "dataprep"):
        found = [guard("gs://b/x", "warn") for _ in range(2)]
    assert [each.verdict.kind for each in found] == [PAID, PAID]
    assert caplog.text.count("$0.05 per GiB") == 1


def test_a_reading_from_the_same_region_is_free(american):
    assert guard("gs://b/x", "refuse", where="europe-west4-b").verdict.is_free


def test_retrieval_and_hits_of_a_cache_are_not_refused(american, monkeypatch):
    american(replace(EUROPE, storage_class="ARCHIVE"))
    assert guard("gs://b/x", "refuse", where="europe-west4-b").verdict.kind == CO_LOCATED
    american(BucketLocation(location="US", location_type="multi-region"))
    monkeypatch.setattr(placement, "_caches", lambda _bucket: ("us-central1-a",))
    found = guard("gs://b/x", "refuse").verdict
    assert (found.kind, found.usd_per_gib) == (CACHED, 0.0006)


@pytest.mark.parametrize(("url", "policy"), [("/data/x", "refuse"), ("gs://b/x", "off")])
def test_no_server_is_asked_if_the_policy_cannot_refuse(american, url, policy):
    american(AssertionError("asked"))
    assert guard(url, policy) is None
    assert url_to_read(url, policy) == url


def test_outside_google_cloud_no_server_is_asked_and_nothing_is_refused(american, monkeypatch):
    american(AssertionError("asked"))
    monkeypatch.setattr(placement, "this_zone", lambda: None)
    assert guard("gs://b/x", "refuse") is None
    assert url_to_read("gs://b/x", "refuse") == "gs://b/x"


def test_a_place_that_cannot_be_found_out_is_unknown_and_not_refused(american):
    american(StorageError("no answer"))
    found = guard("gs://b/x", "refuse")
    assert (found.verdict.kind, found.bucket) == (UNKNOWN, None)
    assert found.verdict.reason == "it is not known where the bucket is: no answer"


def test_a_bucket_that_does_not_exist_is_left_to_the_reading_itself(american):
    american(AccessError("no such bucket"))
    assert guard("gs://b/x", "refuse") is None
    assert url_to_read("gs://b/x", "refuse") == "gs://b/x"
    with pytest.raises(AccessError):
        placement_of("gs://b/x", "us-central1-a")


def test_without_a_paid_reading_no_copy_is_looked_for(american):
    american(BucketLocation(location="US-CENTRAL1", location_type="region"))
    assert url_to_read("gs://b/x", "refuse") == "gs://b/x"
