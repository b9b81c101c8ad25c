"""The demo table, fetched from a real server on loopback, from the table to a shard."""

from __future__ import annotations

import functools
import ipaddress
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dataprep.demo.web_table import TABLE, write_demo_laion
from dataprep.fetched.collect import RowOptions, collect
from dataprep.fetched.encode import RowFilter
from dataprep.fetched.fetching import web_fetch
from dataprep.sources.laion import measure_tables, read_shard_rows
from dataprep.storage import open_storage
from dataprep.web.requests import Limits


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        expected = write_demo_laion(folder, f"http://127.0.0.1:{server.server_port}/", 48)
        storage = open_storage(str(folder))
        tables = measure_tables(storage, [TABLE], rows_per_shard=1000)
        yield read_shard_rows(storage, tables, 0), expected
        server.shutdown()


def _limits() -> Limits:
    loopback = ipaddress.ip_network("127.0.0.0/8")
    patient = {"connect_s": 100.0, "read_s": 100.0, "answer_s": 200.0, "row_s": 600.0}
    return Limits(contact="mailto:tests@example.org", allow_networks=(loopback,), host_per_s=1000.0, **patient)


def test_every_row_ends_as_the_demo_says(demo):
    rows, expected = demo
    with tempfile.TemporaryFile() as spool:
        results = collect(rows, web_fetch(_limits()), RowOptions(), spool)
    assert [(result.status, result.reason) for result in results] == [(end.status, end.reason) for end in expected]
    assert len({(end.status, end.reason) for end in expected}) >= 7


def test_each_option_changes_the_status_of_its_rows(demo):
    rows, expected = demo
    options = RowOptions(row_filter=RowFilter(max_punsafe=0.9, nsfw=("UNLIKELY",)), verify_hash="md5")
    with tempfile.TemporaryFile() as spool:
        results = collect(rows, web_fetch(_limits()), options, spool)
    changed = [
        (result.status, result.reason)
        for result, end in zip(results, expected, strict=True)
        if (result.status, result.reason) != (end.status, end.reason)
    ]
    # No score; unsafe; another md5; what is cut does not have the md5 of the whole either.
    assert sorted(changed) == [
        ("failed_to_download", "hash mismatch"),
        ("failed_to_download", "hash mismatch"),
        ("filtered", "punsafe"),
        ("filtered", "punsafe"),
    ]


def test_a_consumer_that_stops_ends_the_thread(demo):
    rows, _ = demo
    from dataprep.web.requests import Request

    outcomes = web_fetch(_limits())([Request(0, rows[0].roles["url"]), Request(1, rows[1].roles["url"])])
    next(outcomes)
    outcomes.close()
    assert "dataprep-web" not in {thread.name for thread in threading.enumerate()}


def test_an_error_while_fetching_is_raised_here(demo):
    def broken():
        raise RuntimeError("the table broke")
        yield

    with pytest.raises(RuntimeError, match="the table broke"):
        list(web_fetch(_limits())(broken()))
