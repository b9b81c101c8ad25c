"""`dataprep recheck`: what sites and headers say now of images that a dataset has."""

import json
import os
import random
import signal
import subprocess
import time

import pytest

import dataprep
from dataprep.errors import UsageError
from tests.support.builds import command, succeeds
from tests.support.rechecked import check_minds, fetched_sites

ROWS, SHARD_ROWS = 120, 20


@pytest.fixture
def sites(tmp_path):
    with fetched_sites(tmp_path, ROWS, SHARD_ROWS) as found:
        yield found


def words(sites, output):
    given = {**sites.polite, "output": output, "workers": 1}
    options = (word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value))
    return ["recheck", sites.url, *options]


def test_images_whose_site_has_changed_its_mind_are_found_and_no_others(tmp_path):
    check_minds(tmp_path, 300, 100, share=0.04)


def test_a_killed_check_goes_on_where_it_was(sites, tmp_path):
    sites.change_minds(0.05, random.Random(0))
    expected = dataprep.recheck(sites.url, output=str(tmp_path / "whole"), **sites.polite)
    output, sites.web.latency_s = tmp_path / "check", 0.1
    process = subprocess.Popen(
        command(*words(sites, output), "--in-flight", 4), stderr=subprocess.DEVNULL, start_new_session=True
    )
    while process.poll() is None and len(list(output.glob("answers/*.json"))) < 2:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    known = [json.loads(path.read_text()) for path in output.glob("answers/*.json")]
    assert not (output / "takedown.txt").exists()
    sites.web.heads.clear()
    sites.web.latency_s = 0.0
    found = json.loads(succeeds(*words(sites, output), "--json").stdout)
    assert found["asked"] == ROWS - SHARD_ROWS * len(known)
    assert len(sites.requests) <= found["asked"]
    assert (found["refused"], found["allowed"]) == (expected.refused, expected.allowed)


def test_what_is_not_reached_is_no_refusal_and_asked_for_again(sites, tmp_path):
    output, gone = str(tmp_path / "check"), [(sites.host(row), sites.path(row)) for row in (3, 60)]
    sites.web.faults = {gone[0]: 404, (gone[1][0], "/robots.txt"): 500}
    found = dataprep.recheck(sites.url, output=output, **sites.polite)
    assert (found.refused, found.unreached) == ({}, {"robots unavailable": 50, "http 404": 1})
    assert "not reached, robots unavailable: 50" in str(found)
    sites.web.faults.clear()
    sites.web.heads.clear()
    again = dataprep.recheck(sites.url, output=output, **sites.polite)
    assert (again.asked, again.allowed, again.unreached) == (51, ROWS, {})
    assert len(sites.requests) == 51
    sites.web.robots[gone[0][0]] = f"User-agent: CCBot\nDisallow: {gone[0][1]}$\n"
    other = dataprep.recheck(sites.url, output=output, consent="strict", **sites.polite)
    assert (other.asked, other.refused) == (ROWS, {"robots.txt": 1}), "another policy asks for all"


def test_a_dry_run_asks_nothing_and_a_view_of_the_user_stays(sites, tmp_path):
    output = str(tmp_path / "check")
    assert dataprep.recheck(sites.url, output=output, dry_run=True, **sites.polite).asked == ROWS
    dataprep.select(sites.url, name="consent", sample=0.5)
    with pytest.raises(UsageError, match="a different view consent exists"):
        dataprep.recheck(sites.url, output=output, **sites.polite)
    assert sites.web.heads == []
    assert not (tmp_path / "check").exists()
