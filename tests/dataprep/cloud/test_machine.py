"""What a machine learns of itself from servers on loopback that answer as Google's metadata server does."""

from __future__ import annotations

import socket

import pytest

from dataprep.cloud import machine
from dataprep.cloud.machine import endpoints, this_machine, this_zone
from tests.support.metadata_server import metadata_server

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
    monkeypatch.setattr(machine, "DEADLINE_S", 100.0)


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


def test_a_server_that_sends_byte_by_byte_is_abandoned(ask):
    with metadata_server(byte_delay_s=0.5) as server:
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
        monkeypatch.setattr(machine, "DEADLINE_S", 100.0)
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
