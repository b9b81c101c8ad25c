"""The requests that a bucket gets, of which a new one serves only some: said with and without a known rate."""

from __future__ import annotations

import json

import pytest

from dataprep.commands.plan_input import command
from dataprep.commands.plan_places import PACK
from dataprep.commands.plan_requests import BucketLoad
from dataprep.errors import UndecidedError

V5E = ("--accelerator", "v5e-64", "--model", "vit_large")
PLACES = ("--bucket-location", "us-central1", "--zone", "us-central1-a")
LOOSE = ("--dataset-bytes", "1.3 TB", "--objects", 14_000_000)
SHARDS = ("--dataset-bytes", "1.3 TB", "--bytes-per-image", "100kB")
SLOW = ("--images-per-s", 1000)
BEYOND = "beyond the 5,000 of a bucket that has not grown yet"


@pytest.fixture
def undecided(capsys):
    """Run the command without the accelerator's rate and return what it printed."""

    def run(*arguments: object) -> str:
        with pytest.raises(UndecidedError, match="the images/s of the accelerator are missing"):
            command.main([str(argument) for argument in (*V5E, *PLACES, *arguments)], standalone_mode=False)
        return capsys.readouterr().out

    return run


def planned(capsys, *arguments: object) -> str:
    command.main([str(argument) for argument in (*V5E, *PLACES, *arguments)], standalone_mode=False)
    return capsys.readouterr().out


def load_of(out: str, name: str) -> str:
    (line,) = [line.strip() for line in out.splitlines() if line.strip().startswith(name)]
    return line.removeprefix(name).strip().removeprefix("at that rate ")


@pytest.mark.parametrize("data", [LOOSE, SHARDS])
def test_without_the_accelerators_rate_the_requests_are_those_of_the_deliverable_one(undecided, capsys, data):
    document = json.loads(undecided(*data, "--json"))["deliverable"]
    rate = ("--images-per-s", document["images_per_s"])
    out, same = undecided(*data), planned(capsys, *data, *rate)
    assert f" requests/s of {'92.9 kB' if data is LOOSE else '2 MiB'}, {BEYOND}" in out
    assert load_of(out, "bucket  ") == load_of(same, "bucket  ")
    assert document["bucket"] == pytest.approx(json.loads(planned(capsys, *data, *rate, "--json"))["bucket"])


def test_without_the_rate_loose_pictures_are_told_to_be_packed(undecided):
    lines = undecided(*LOOSE).splitlines()
    assert lines[-2].startswith("But objects of 92.9 kB take ")
    assert "of which a bucket serves about 5,000 at first, and more only as the load grows: pack them" in lines[-2]
    assert lines[-1] == f"pack: {PACK}"
    assert "pack them" not in undecided(*SHARDS)


def test_pictures_whose_requests_cost_most_are_told_once_to_be_packed(undecided, capsys):
    more = ("--epochs", 90, *LOOSE)
    for out in (undecided(*more), planned(capsys, *more, "--images-per-s", 50_000), planned(capsys, *more, *SLOW)):
        saved, command_line = out.splitlines()[-2:]
        assert saved.startswith("Packed into shards in the bucket's region first, the data cost $")
        assert command_line == f"pack: {PACK}"
        assert out.count("pack: ") == 1
    command.main([str(each) for each in (*PLACES, *more)], standalone_mode=False)
    assert capsys.readouterr().out.splitlines()[-1] == f"pack: {PACK}"


def test_a_rate_that_a_new_bucket_serves_needs_no_growth(undecided):
    slow = ("--host-gbps", 0.1)
    assert " requests/s of 2 MiB\n" in undecided(*SHARDS, *slow)
    assert "pack them" not in undecided(*LOOSE, "--host-gbps", 0.01)
    document = json.loads(undecided(*LOOSE, "--host-gbps", 0.01, "--json"))["deliverable"]
    assert document["bucket"]["command"] is None
    assert document["bucket"]["requests_per_s"] < document["bucket"]["first_requests_per_s"] == 5000


def test_a_hierarchical_namespace_serves_more_at_first():
    flat = BucketLoad(images_per_s=20_000, bytes_per_image=100_000, num_bytes=1e12, objects=10**7, hns=False)
    deep = BucketLoad(images_per_s=20_000, bytes_per_image=100_000, num_bytes=1e12, objects=10**7, hns=True)
    assert flat.requests_per_s == deep.requests_per_s == pytest.approx(20_000)
    assert flat.line.endswith(BEYOND)
    assert (deep.line, deep.loose) == ("16.00 Gbit/s in 20,000 requests/s of 100.0 kB", "")
