"""What a machine learns of itself from servers on loopback that answer as Google's metadata server does."""

from __future__ import annotations

import socket

import pytest

from dataprep.cloud.machine import endpoints, this_machine, this_zone, tpu_env
from tests.support.metadata_server import TPU, TPU_ENV, metadata_server

VARIABLES = (
    "NO_GCE_CHECK GCE_METADATA_HOST GCE_METADATA_ROOT GCE_METADATA_IP TPU_SKIP_MDS_QUERY TPU_ACCELERATOR_TYPE "
    "TPU_WORKER_ID TPU_WORKER_HOSTNAMES TPU_NAME TPU_TOPOLOGY"
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


def test_a_tpu_vm_reports_its_zone_machine_and_accelerator(ask):
    with metadata_server() as server:
        zone, machine = ask(server.address)
    assert zone == machine.zone == "us-central2-b"
    assert (machine.machine_type, machine.accelerator_type, machine.tpu_name) == ("ct4p-hightpu-4t", "v4-16", "my-tpu")
    assert (machine.worker, machine.hosts, machine.topology) == (1, ("10.128.0.2", "10.128.0.3"), "2x2x2")
    assert machine.tpu_env["CHIPS_PER_HOST_BOUNDS"] == "2,2,1"


def test_the_attribute_tpu_env_is_enough(ask):
    values = {name: TPU[name] for name in ("instance/zone", "instance/attributes/tpu-env")}
    with metadata_server(values) as server:
        _, machine = ask(server.address)
    assert (machine.accelerator_type, machine.tpu_name, machine.worker) == ("v4-16", "my-tpu", 1)


def test_a_plain_vm_has_a_zone_and_a_type(ask):
    values = {
        "instance/zone": "projects/1/zones/us-central1-ai1a",
        "instance/machine-type": "projects/1/machineTypes/n2-standard-8",
    }
    with metadata_server(values) as server:
        zone, machine = ask(server.address)
    assert (zone, machine.machine_type, machine.hosts, machine.worker) == (
        "us-central1-ai1a",
        "n2-standard-8",
        (),
        None,
    )


def test_on_gke_variables_say_what_the_tpu_is(ask, monkeypatch):
    variables = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-16",
        "TPU_WORKER_ID": "3",
        "TPU_WORKER_HOSTNAMES": "w-0.svc,w-1.svc,w-2.svc,w-3.svc",
        "TPU_NAME": "slice",
        "TPU_TOPOLOGY": "4x4",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with metadata_server() as server:
        _, machine = ask(server.address)
        assert not any("attributes" in path for path in server.asked)
    assert (machine.zone, machine.accelerator_type, machine.topology) == ("us-central2-b", "v5litepod-16", "4x4")
    assert (machine.tpu_name, machine.worker, len(machine.hosts)) == ("slice", 3, 4)


def test_where_nobody_listens_there_is_no_machine(ask):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert ask(f"127.0.0.1:{unused.getsockname()[1]}") == (None, None)


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


def test_a_server_of_half_a_second_is_waited_for(ask):
    with metadata_server(delay_s=0.5) as server:
        zone, machine = ask(server.address)
    assert zone == machine.zone == "us-central2-b"


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


def test_values_of_tpu_env_lose_their_quotes():
    assert tpu_env(TPU_ENV)["NODE_ID"] == "my-tpu"
    assert tpu_env("no line of it\n\nA: b: c\nMEGASCALE_COORDINATOR_ADDRESS: 'x:8080'\n") == {
        "A": "b: c",
        "MEGASCALE_COORDINATOR_ADDRESS": "x:8080",
    }
