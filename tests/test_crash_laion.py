"""Builds and retries of a table of URLs, killed anywhere: nothing is fetched twice, and what stands is whole."""

from __future__ import annotations

import json
import random
import shutil
import subprocess

import pytest

from tests.support.builds import command, dataprep, digests
from tests.support.crashes import stop_everywhere
from tests.support.crashes_laion import (
    kill_fetching,
    kill_retries,
    newest_rows,
    stop_retries_of,
)
from tests.support.picture_web import WEB, laion_arguments, picture_web

ROWS = 60


@pytest.fixture
def web():
    with picture_web() as server:
        yield server


@pytest.mark.long
def test_a_build_killed_at_random_while_answers_change_is_finished_by_a_rerun(web, tmp_path):
    """Two kills; the soak has fifty of each format."""
    web.changing, web.latency_s = True, 0.05
    table = web.write_table(tmp_path / "laion.parquet", ROWS)
    kill_fetching(random.Random(7), web, table, tmp_path / "out", "webdataset", kills=2)


def test_a_build_killed_at_a_commit_boundary_is_finished_by_a_rerun(web, tmp_path):
    """Some boundaries of 118; the soak has all."""
    web.faults = {3: 404}
    arguments = laion_arguments(web.write_table(tmp_path / "laion.parquet", 25), tmp_path / "out", "tfrecord")
    assert dataprep(*arguments).returncode == 0
    expected = digests(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    assert stop_everywhere(arguments, tmp_path / "out", expected, every=100) >= 4


def test_a_retry_killed_at_a_commit_boundary_is_finished_by_a_rerun(tmp_path):
    """Some boundaries of 50; a reader finds a whole dataset each time."""
    assert stop_retries_of("tfrecord", tmp_path, every=40) >= 2


@pytest.mark.long
def test_two_concurrent_builds_make_one_dataset(web, tmp_path):
    """The builds get different answers; of every shard one of the two is used, whole."""
    web.changing, web.latency_s = True, 0.02
    table = web.write_table(tmp_path / "laion.parquet", ROWS)
    slowly = ("--workers", 2, "--host-per-second", 10)  # for seconds, so that neither ends before the other begins
    arguments = command(*laion_arguments(table, tmp_path / "out", "webdataset", *slowly))
    both = [subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=800) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    first, second = (json.loads(out) for out, _ in said)
    for summary in (first, second):
        del summary["elapsed_s"], summary["shards_built"]
    assert first == second
    assert web.asked.total() > ROWS
    assert sum(first["splits"][0]["statuses"].values()) == ROWS
    verified = dataprep("verify", tmp_path / "out")
    assert verified.returncode == 0, verified.stdout
    assert verified.stdout.startswith(str(tmp_path))


@pytest.mark.long
def test_a_retry_killed_at_random_is_finished_by_a_rerun(web, tmp_path):
    output = tmp_path / "out"
    web.faults = dict.fromkeys(range(0, ROWS, 2), 503)
    assert dataprep(*laion_arguments(web.write_table(tmp_path / "t.parquet", ROWS), output, "tfrecord")).returncode == 0
    web.faults, web.latency_s = {}, 0.05
    arguments = ["retry-failed", output, *WEB, "--workers", 2, "--json"]
    kill_retries(random.Random(3), web, arguments, output, kills=2)
    assert {row["status"] for row in newest_rows(output)} == {"success"}
    verified = dataprep("verify", output)
    assert verified.returncode == 0, verified.stdout
    assert verified.stdout.startswith(str(output))  # and no leftover
