"""What a machine learns of itself from servers on loopback, and of a TPU from a `gcloud` on the PATH."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import pytest

from dataprep.errors import UndecidedError, UsageError
from dataprep.machine import endpoints, this_machine, this_zone, tpu_env, tpu_machine
from tests.support.metadata_server import TPU, TPU_ENV, metadata_server

VARIABLES = (
    "NO_GCE_CHECK GCE_METADATA_HOST GCE_METADATA_ROOT GCE_METADATA_IP TPU_SKIP_MDS_QUERY TPU_ACCELERATOR_TYPE "
    "TPU_WORKER_ID TPU_WORKER_HOSTNAMES TPU_NAME TPU_TOPOLOGY"
).split()


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ask(monkeypatch):
    """The zone and everything, and that it took less than two seconds."""

    def asked(address: str):
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        started_s = time.monotonic()
        zone = this_zone()
        assert time.monotonic() - started_s < 2
        started_s = time.monotonic()
        machine = this_machine()
        assert time.monotonic() - started_s < 2
        started_s = time.monotonic()
        assert this_zone() == zone
        assert time.monotonic() - started_s < 0.1
        return zone, machine

    return asked


def test_a_tpu_vm_says_all_of_itself(ask):
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


@pytest.mark.parametrize("slow", [{"delay_s": 5.0}, {"byte_delay_s": 0.5}], ids=["silent", "byte-by-byte"])
def test_a_slow_server_is_given_up(ask, slow):
    with metadata_server(**slow) as server:
        assert ask(server.address) == (None, None)


def test_a_server_of_half_a_second_is_waited_for(ask):
    with metadata_server(delay_s=0.5) as server:
        zone, machine = ask(server.address)
    assert zone == machine.zone == "us-central2-b"


@pytest.mark.parametrize("address", ["127.0.0.1:no", "no such host:1"])
def test_an_address_that_is_none_is_no_machine(ask, address):
    assert ask(address) == (None, None)


def test_nobody_is_asked_where_that_is_forbidden(monkeypatch):
    with metadata_server() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        assert (this_zone(), this_machine()) == (None, None)
        assert server.asked == []


def test_the_zone_is_asked_for_once(monkeypatch):
    with metadata_server() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        assert {this_zone() for _ in range(5)} == {"us-central2-b"}
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


# gcloud

NODES = [
    {"name": "projects/p/locations/us-central2-b/nodes/my-tpu", "acceleratorType": "v4-16"},
    {"name": "projects/p/locations/us-east1-d/nodes/twice", "acceleratorType": "v6e-8"},
    {"name": "projects/p/locations/europe-west4-a/nodes/twice", "acceleratorType": "v6e-8"},
]
VMS = [{"name": "new-tpu", "zone": "https://x/zones/us-central1-ai1a", "machineType": "https://x/tpu7x-standard-4t"}]
PROGRAM = """\
#!{python}
import json, pathlib, sys
folder = pathlib.Path({folder!r})
with open(folder / "calls", "a") as calls:
    print(json.dumps(sys.argv[1:]), file=calls)
if (folder / "says").exists():
    sys.exit((folder / "says").read_text())
zones = [argument.partition("=")[2] for argument in sys.argv if argument.startswith("--zone")]
listed = {vms!r} if "instances" in sys.argv else {nodes!r}
is_everywhere = zones in ([], ["-"])
chosen = [entry for entry in listed if is_everywhere or "/" + zones[0] in str(entry)]
print(json.dumps(chosen))
"""


@pytest.fixture
def gcloud(tmp_path: Path, monkeypatch) -> Path:
    """A stand-in on the PATH that keeps what it was called with."""
    program = tmp_path / "gcloud"
    program.write_text(PROGRAM.format(python=sys.executable, folder=str(tmp_path), nodes=NODES, vms=VMS))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def test_a_tpu_is_found_in_all_zones(gcloud):
    machine = tpu_machine("my-tpu")
    assert (machine.zone, machine.accelerator_type) == ("us-central2-b", "v4-16")
    assert calls(gcloud) == [["compute", "tpus", "tpu-vm", "list", "--zone=-", "--format=json", "--quiet"]]


def test_a_tpu_of_compute_engine_is_found_among_the_vms(gcloud):
    machine = tpu_machine("new-tpu")
    assert (machine.zone, machine.machine_type) == ("us-central1-ai1a", "tpu7x-standard-4t")
    assert calls(gcloud)[1][:4] == ["compute", "instances", "list", "--filter=name=new-tpu"]


def test_a_name_in_two_zones_needs_the_zone(gcloud):
    with pytest.raises(UsageError, match="there is one in us-east1-d, europe-west4-a; add --zone"):
        tpu_machine("twice")
    assert tpu_machine("twice", "europe-west4-a").zone == "europe-west4-a"


def test_no_such_tpu_lists_those_there_are(gcloud):
    with pytest.raises(UsageError, match="no such TPU, gcloud lists my-tpu, twice"):
        tpu_machine("other")


@pytest.mark.parametrize("name", ["--help", "a b", "", "x=y", "A"])
def test_what_is_no_name_never_reaches_gcloud(gcloud, name):
    with pytest.raises(UsageError, match="not a name of a TPU"):
        tpu_machine(name)
    assert not (gcloud / "calls").exists()


def test_without_gcloud_the_next_step_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="needs gcloud, which is not on the PATH; install it, or give --zone"):
        tpu_machine("my-tpu")


def test_what_gcloud_says_of_a_failure_is_passed_on(gcloud):
    (gcloud / "says").write_text("ERROR: not logged in\nmore")
    with pytest.raises(UndecidedError, match="ERROR: not logged in; mend that, or give --zone"):
        tpu_machine("my-tpu")
