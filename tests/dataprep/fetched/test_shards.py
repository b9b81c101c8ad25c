"""Shards of one worker: the next one is begun while late rows are waited for, and nothing else changes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dataprep.builder.driver import run_build
from dataprep.fetched.plan import FetchRequest, TableRequest, build_options
from dataprep.fetched.shards import ShardFetcher
from dataprep.web.addresses import parse_networks
from dataprep.web.requests import Limits
from tests.support.builds import digests
from tests.support.fetched import Watcher
from tests.support.picture_web import picture_web

ROWS_PER_SHARD = 20
SHARDS = 3


class LateRows:
    """A server that keeps some pictures back until it is told."""

    def __init__(self, web, numbers):
        self.come = threading.Event()
        self._numbers, self._answer = numbers, web.answer
        web.answer = self.answer

    def answer(self, number):
        if number in self._numbers:
            self.come.wait(100)
        return self._answer(number)


@pytest.fixture
def web():
    with picture_web() as server:
        yield server


def build(web, folder, name, engine):
    table = folder / "laion.parquet"
    web.write_table(table, SHARDS * ROWS_PER_SHARD)
    limits = Limits(
        contact="https://example.org/tests",
        allow_networks=parse_networks(["127.0.0.0/8"]),
        host_connections=64,
        host_per_s=1e4,
        connect_s=600.0,
        read_s=600.0,
        answer_s=600.0,
        row_s=600.0,
    )
    request = FetchRequest(
        options=build_options("webdataset"),
        source_url=str(folder),
        output_url=str(folder / name),
        max_reject_ratio=1.0,
        tables=TableRequest(sources=(str(table),), rows_per_shard=ROWS_PER_SHARD, limits=limits),
    )
    run_build(request, engine, Watcher())
    return digests(folder / name)


def test_a_late_row_delays_its_own_shard_alone(web, tmp_path):
    late = LateRows(web, {7})

    def engine(job, indexes):
        fetcher = ShardFetcher(job)
        first, second = fetcher.begin(0), fetcher.begin(1)
        yield second.result(timeout=100)
        assert not first.done()
        late.come.set()
        yield first.result(timeout=100)
        yield fetcher.begin(2).result(timeout=100)

    found = build(web, tmp_path, "ahead", engine)
    assert found == build(web, tmp_path, "one-by-one", lambda job, indexes: map(ShardFetcher(job).build, indexes))


def test_a_third_shard_is_not_begun_while_two_wait_for_late_rows(web, tmp_path):
    late = LateRows(web, {7, ROWS_PER_SHARD + 7})

    def engine(job, indexes):
        fetcher = ShardFetcher(job)
        begun = [fetcher.begin(0), fetcher.begin(1)]
        with ThreadPoolExecutor(1) as thread:
            third = thread.submit(fetcher.begin, 2)
            threading.Event().wait(0.5)
            asked = max(web.asked)
            late.come.set()
            begun.append(third.result(timeout=100))
        assert asked < 2 * ROWS_PER_SHARD
        yield from (receipt.result(timeout=100) for receipt in begun)

    build(web, tmp_path, "out", engine)
    assert set(web.asked.values()) == {1}


def test_an_error_in_a_shard_is_raised_by_its_future(web, tmp_path, monkeypatch):
    def engine(job, indexes):
        fetcher = ShardFetcher(job)
        monkeypatch.setattr("dataprep.fetched.shards.make_shard", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fetcher.begin(0).result(timeout=100)
        monkeypatch.undo()
        yield from (fetcher.begin(index).result(timeout=100) for index in indexes)

    build(web, tmp_path, "out", engine)
