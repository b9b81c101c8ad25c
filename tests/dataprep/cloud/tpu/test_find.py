"""TPUs are found by their names in any zone, through a stand-in for `gcloud`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dataprep.cloud.tpu.find import find_zone
from dataprep.errors import UndecidedError, UsageError

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
    assert find_zone("my-tpu") == "us-central2-b"
    assert calls(gcloud) == [["compute", "tpus", "tpu-vm", "list", "--zone=-", "--format=json", "--quiet"]]


def test_a_tpu_of_compute_engine_is_found_among_the_vms(gcloud):
    assert find_zone("new-tpu") == "us-central1-ai1a"
    assert calls(gcloud)[1][:4] == ["compute", "instances", "list", "--filter=name=new-tpu"]


def test_a_name_in_two_zones_needs_the_zone(gcloud):
    with pytest.raises(UsageError, match="TPUs of this name are in us-east1-d, europe-west4-a; add --zone"):
        find_zone("twice")
    assert find_zone("twice", "europe-west4-a") == "europe-west4-a"


def test_a_missing_tpu_is_refused_with_the_existing_ones(gcloud):
    with pytest.raises(UsageError, match="no such TPU, gcloud lists my-tpu, twice"):
        find_zone("other")


@pytest.mark.parametrize("name", ["--help", "a b", "", "x=y", "A"])
def test_a_malformed_name_is_refused_before_gcloud_runs(gcloud, name):
    with pytest.raises(UsageError, match="not a name of a TPU"):
        find_zone(name)
    assert not (gcloud / "calls").exists()


def test_a_missing_gcloud_is_an_error_with_the_next_step(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UsageError, match="--tpu: gcloud is not on the PATH; install the Google Cloud CLI, or give --zone"
    ):
        find_zone("my-tpu")


def test_errors_of_gcloud_are_passed_on(gcloud):
    (gcloud / "says").write_text("ERROR: not logged in\nmore")
    with pytest.raises(
        UndecidedError,
        match="tpu-vm list: ERROR: not logged in; fix that, and run the same command again, or give --zone",
    ):
        find_zone("my-tpu")


@pytest.mark.parametrize("answer", ["not JSON", '{"an": "object"}'])
def test_a_malformed_answer_of_gcloud_is_undecided(gcloud, answer):
    (gcloud / "gcloud").write_text(f"#!/bin/sh\necho '{answer}'\n")
    with pytest.raises(UndecidedError, match=r"tpu-vm list: its answer is no .*; run it by hand, or give --zone"):
        find_zone("my-tpu")
