"""`gcloud` is run once for each command, and its errors become one line with the next step; a stand-in plays it."""

import json
import os
import sys
from pathlib import Path

import pytest

from dataprep.cloud.gcloud import SAID_CHARACTERS, Gcloud, Sent, find_zone, meaning
from dataprep.errors import AccessError, StorageError, UndecidedError, UsageError


@pytest.fixture
def plays(tmp_path: Path, monkeypatch):
    """Put a program called gcloud on the PATH; returns a function that sets its shell script."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def play(script: str) -> Gcloud:
        (tmp_path / "gcloud").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "gcloud").chmod(0o755)
        return Gcloud(lambda _line: None)

    return play


def test_a_command_gets_its_standard_input_and_any_exit_code_is_returned(plays):
    ran = plays("cat; exit 3").run(["gcloud", "x"], sent=Sent(text="a secret", shown="…"))
    assert (ran.stdout, ran.returncode) == ("a secret", 3)


def test_a_dry_run_shows_commands_as_a_shell_takes_them_and_runs_nothing(monkeypatch):
    monkeypatch.setenv("PATH", "")
    lines: list[str] = []
    gcloud = Gcloud(lines.append, dry_run=True)
    assert (
        gcloud.run(["gcloud", "ssh", "--command=df -h"], sent=Sent(text="a secret", shown="hidden it is")).stdout == ""
    )
    assert gcloud.read(["gcloud", "list"]) is None
    assert lines == ["gcloud ssh '--command=df -h' <<< 'hidden it is'", "gcloud list"]


def test_a_command_that_does_not_end_is_undecided(plays):
    with pytest.raises(UndecidedError, match="gcloud compute list: no response in 0 s; run the same command again"):
        plays("exec sleep 60").run(["gcloud", "compute", "list", "--quiet"], timeout_s=0.2)


def test_a_missing_resource_reads_as_none_and_need_not_be_deleted(plays):
    gcloud = plays("echo 'ERROR: (gcloud.x) NOT_FOUND: no such node' >&2; exit 1")
    assert gcloud.read(["gcloud", "describe"]) is None
    gcloud.require(["gcloud", "delete"], missing_ok=True)
    with pytest.raises(StorageError, match="gcloud delete: NOT_FOUND: no such node; fix that"):
        gcloud.require(["gcloud", "delete"])


def test_entries_are_the_objects_of_a_json_list(plays):
    assert plays("""echo '[{"a": 1}, 2]'""").entries(["gcloud", "list"]) == [{"a": 1}]
    assert plays("true").entries(["gcloud", "list"]) == []
    with pytest.raises(UndecidedError, match="gcloud list: its output is not a JSON list; run it by hand"):
        plays("echo '{}'").entries(["gcloud", "list"])
    with pytest.raises(UndecidedError, match="gcloud list: its output is not JSON; run it by hand"):
        plays("echo nothing").read(["gcloud", "list"])


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("ERROR: (gcloud.x) You do not currently have an active account selected.", AccessError, "gcloud auth login"),
        ("ERROR: (gcloud.x) The required attribute [project] is not set", UsageError, "add `project`"),
        ("ERROR: (gcloud.x) RESOURCE_EXHAUSTED: Quota limit 'TPUS' exceeded", AccessError, "quota for this type"),
        ("ERROR: (gcloud.x) There is no more capacity in the zone", StorageError, "try `queued`, `spot`"),
        ("PERMISSION_DENIED: Permission 'tpu.nodes.create' denied", AccessError, "ask for the role TPU Admin"),
        ("INVALID_ARGUMENT: Location us-moon1-a is not found or access is unauthorized.", UsageError, "locations list"),
        ("Invalid value for field 'zone': Unknown zone us-moon1-a", UsageError, "gcloud compute tpus locations list"),
        ("Cloud TPU API has not been used in project 1 before or it is disabled.", AccessError, "services enable"),
        ("INVALID_ARGUMENT: accelerator type v4-32 not found in zone", UsageError, "accelerator-types list"),
        ("ERROR: (gcloud.x) ALREADY_EXISTS", UsageError, "choose a different name"),
        ("ERROR: (gcloud.x) unrecognized arguments: --queued", UsageError, "gcloud components update"),
        ("ERROR: (gcloud.x) something new", StorageError, "something new; fix that"),
        ("", StorageError, "no output; fix that"),
    ],
)
def test_an_error_means_one_line_with_the_next_step(said, kind, words):
    error = meaning(["gcloud", "compute", "tpus", "--zone=z"], said)
    assert type(error) is kind
    assert str(error).startswith("gcloud compute tpus: ")
    assert words in str(error)
    assert "\n" not in str(error)


def test_a_message_quotes_no_more_than_the_beginning():
    assert len(str(meaning(["gcloud"], "ERROR: " + "x" * 5000))) < SAID_CHARACTERS + 100


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
    with pytest.raises(UsageError, match="TPUs of this name are in us-east1-d, europe-west4-a; add `zone`"):
        find_zone("twice")
    assert find_zone("twice", "europe-west4-a") == "europe-west4-a"


def test_a_missing_tpu_is_refused_with_the_existing_ones(gcloud):
    with pytest.raises(UsageError, match="no such TPU; gcloud lists my-tpu, twice"):
        find_zone("other")


@pytest.mark.parametrize("name", ["--help", "a b", "", "x=y", "A"])
def test_a_malformed_name_is_refused_before_gcloud_runs(gcloud, name):
    with pytest.raises(UsageError, match="not a name of a TPU"):
        find_zone(name)
    assert not (gcloud / "calls").exists()


def test_a_missing_gcloud_is_an_error_with_the_next_step(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UsageError, match="`tpu`: gcloud is not on the PATH; install the Google Cloud CLI, or give `zone`"
    ):
        find_zone("my-tpu")


def test_errors_of_gcloud_are_passed_on(gcloud):
    (gcloud / "says").write_text("ERROR: not logged in\nmore")
    with pytest.raises(
        UndecidedError,
        match="tpu-vm list: ERROR: not logged in; fix that, and run the same command again, or give `zone`",
    ):
        find_zone("my-tpu")
