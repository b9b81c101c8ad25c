"""The check before a bucket's first byte, with places that are given: nothing is asked of any server."""

import logging
import os
import socket
from dataclasses import replace

import pytest

from dataprep.cloud import placement
from dataprep.cloud.placement import (
    bucket_name,
    endpoints,
    guard,
    is_bucket,
    placement_of,
    this_machine,
    this_zone,
    url_to_read,
)
from dataprep.cloud.region import CACHED, CO_LOCATED, PAID, UNKNOWN
from dataprep.errors import AccessError, StorageError, UsageError
from dataprep.storage.gcs_location import BucketLocation
from tests.support.metadata_server import metadata_server

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
        "gs://b/x is in europe-west4 and is read from us-central1-a: $0.05 per GiB; read it from its own region or "
        "copy it near the reader (dataprep check-region gs://b/x shows what both cost), or accept the price with "
        "`region_policy` warn"
    )


@pytest.mark.parametrize(
    ("url", "environment", "kind", "usd"),
    [
        ("s3://b/x", {}, PAID, 0.09),
        ("s3://b/x", {"AWS_REGION": "eu-west-1"}, PAID, 0.09),
        ("s3://b/x", {"AWS_REGION": "sa-east-1"}, UNKNOWN, None),
        ("s3://b/x", {"AWS_ENDPOINT_URL": "https://me.r2.cloudflarestorage.com"}, UNKNOWN, None),
        ("s3://b/x", {"AWS_SKIP_SIGNATURE": "true"}, UNKNOWN, None),
        ("az://b/x", {}, UNKNOWN, None),
        ("https://host/x", {}, UNKNOWN, None),
        ("hf://datasets/some/dogs", {}, UNKNOWN, None),
    ],
)
def test_reading_from_outside_google_cloud_is_paid_or_unknown_never_free(
    american, monkeypatch, caplog, url, environment, kind, usd
):
    placement._say.cache_clear()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING, "dataprep"):
        found = guard(url, "warn")
    assert (found.verdict.kind, found.verdict.usd_per_gib) == (kind, usd)
    assert (
        "outside AWS: $0.09 per GiB" if usd else "it is not known what reading it from outside costs"
    ) in caplog.text
    if kind == PAID:
        with pytest.raises(UsageError, match=r"s3://b/x: AWS charges for reading from .*: \$0.09 per GiB; .* copy it"):
            guard(url, "refuse")


def test_a_paid_reading_is_warned_of_once(american, caplog):
    placement._say.cache_clear()
    with caplog.at_level(logging.WARNING, "dataprep"):
        found = [guard("gs://b/x", "warn") for _ in range(2)]
    assert [each.verdict.kind for each in found] == [PAID, PAID]
    assert caplog.text.count("$0.05 per GiB") == 1


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


VARIABLES = (
    "NO_GCE_CHECK GCE_METADATA_HOST GCE_METADATA_ROOT GCE_METADATA_IP TPU_SKIP_MDS_QUERY TPU_WORKER_HOSTNAMES"
).split()
HOURS_S = 36_000.0


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ask(monkeypatch):
    """The zone and everything."""

    def asked(address: str):
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        return this_zone(), this_machine()

    return asked


@pytest.fixture
def patient(monkeypatch):
    """Time for a server that answers, on a machine that may stand still."""
    monkeypatch.setattr(placement, "DEADLINE_S", 100.0)


@pytest.mark.usefixtures("patient")
def test_a_tpu_vm_reports_its_zone_and_its_hosts(ask):
    with metadata_server() as server:
        zone, found = ask(server.address)
    assert zone == found.zone == "us-central2-b"
    assert found.hosts == ("10.128.0.2", "10.128.0.3")


@pytest.mark.usefixtures("patient")
def test_a_plain_vm_has_a_zone_and_no_hosts(ask):
    with metadata_server({"instance/zone": "projects/1/zones/us-central1-ai1a"}) as server:
        zone, found = ask(server.address)
    assert (zone, found.zone, found.hosts) == ("us-central1-ai1a", "us-central1-ai1a", ())


@pytest.mark.usefixtures("patient")
def test_on_gke_a_variable_lists_the_hosts(ask, monkeypatch):
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "w-0.svc,w-1.svc,w-2.svc,w-3.svc")
    with metadata_server() as server:
        _, found = ask(server.address)
        assert not any("attributes" in path for path in server.asked)
    assert (found.zone, found.hosts) == ("us-central2-b", ("w-0.svc", "w-1.svc", "w-2.svc", "w-3.svc"))


def test_where_nobody_listens_there_is_no_machine(ask):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert ask(f"127.0.0.1:{unused.getsockname()[1]}") == (None, None)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("flavor", ["", "Other"])
def test_a_server_that_is_not_googles_is_not_believed(ask, flavor):
    with metadata_server(flavor=flavor) as server:
        assert ask(server.address) == (None, None)


@pytest.mark.parametrize("slow", [{"delay_s": HOURS_S}, {"byte_delay_s": HOURS_S}], ids=["silent", "byte-by-byte"])
def test_a_server_that_does_not_finish_its_answer_is_abandoned(ask, slow):
    with metadata_server(**slow) as server:
        assert ask(server.address) == (None, None)


@pytest.mark.usefixtures("patient")
def test_a_server_of_half_a_second_is_waited_for(ask):
    with metadata_server(delay_s=0.5) as server:
        zone, found = ask(server.address)
    assert zone == found.zone == "us-central2-b"


@pytest.mark.parametrize("address", ["127.0.0.1:no", "no such host:1"])
def test_a_malformed_metadata_address_means_no_machine(ask, address):
    assert ask(address) == (None, None)


def test_no_server_is_asked_with_no_gce_check(monkeypatch):
    with metadata_server() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        assert (this_zone(), this_machine()) == (None, None)
        assert server.asked == []


@pytest.mark.parametrize(
    ("how", "zone"),
    [({}, "us-central2-b"), ({"flavor": ""}, None), ({"delay_s": HOURS_S}, None)],
    ids=["known", "not Google's", "silent"],
)
def test_the_zone_is_asked_for_once(monkeypatch, how, zone):
    if "delay_s" not in how:
        monkeypatch.setattr(placement, "DEADLINE_S", 100.0)
    with metadata_server(**how) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        assert {this_zone() for _ in range(5)} == {zone}
        assert server.asked == ["instance/zone"]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:1f:10.0.0.1,b:2f:10.0.0.2", ("10.0.0.1", "10.0.0.2")),
        ("10.0.0.1, 10.0.0.2", ("10.0.0.1", "10.0.0.2")),
        ("host-0,host-1,", ("host-0", "host-1")),
        ("", ()),
    ],
)
def test_both_forms_of_endpoints_are_understood(text, hosts):
    assert endpoints(text) == hosts
