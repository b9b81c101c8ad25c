"""The web on a thread of its own, on uvloop: several shards at once, the same ends, the same refusals."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dataprep.errors import BuildError
from dataprep.fetched.fetching import OUTCOMES_AHEAD, web_fetch
from dataprep.web.client import Fetcher
from dataprep.web.requests import Limits, Request, Status
from tests.support.fetching import loopback_limits
from tests.support.name_server import name_server
from tests.support.waiting import wait_for
from tests.support.web_pages import DOMAIN
from tests.support.web_server import addresses_of, web_server


def ended(fetch, urls):
    """Statuses in the order of the URLs."""
    outcomes = sorted(fetch([Request(row, url) for row, url in enumerate(urls)]), key=lambda outcome: outcome.key)
    assert [outcome.key for outcome in outcomes] == list(range(len(urls)))
    return [outcome.status for outcome in outcomes]


def all_web_threads():
    return {thread for thread in threading.enumerate() if thread.name == "dataprep-web"}


@pytest.fixture(autouse=True)
def kept_before():
    """Threads that builds of other tests keep in this process."""
    KEPT.clear()
    KEPT.update(all_web_threads())


KEPT: set[threading.Thread] = set()


def web_threads():
    return list(all_web_threads() - KEPT)


def test_threads_share_the_limits_and_caches_of_a_host():
    with (
        web_server(latency_s=0.02, together=3) as web,
        name_server(addresses_of) as names,
        ThreadPoolExecutor(3) as threads,
    ):
        fetch = web_fetch(loopback_limits(names.address, host_connections=3))
        tables = [
            [web.url(f"/image/{table}-{row}", f"host{row % 2}.{DOMAIN}") for row in range(90)] for table in range(3)
        ]
        found = list(threads.map(lambda urls: ended(fetch, urls), tables))
        assert found == [[Status.SUCCESS] * 90] * 3
        assert set(web.most_at_once.values()) == {3}
        assert [web.asked[f"host{number}.{DOMAIN}", "/robots.txt"] for number in range(2)] == [1, 1]
    assert web_threads() == []


def test_kept_thread_and_its_connections_last_as_long_as_the_fetch():
    with web_server() as web, name_server(addresses_of) as names:
        fetch = web_fetch(loopback_limits(names.address, host_connections=2), kept=True)
        for table in range(3):
            assert ended(fetch, [web.url(f"/image/{table}-{row}") for row in range(9)]) == [Status.SUCCESS] * 9
            assert len(web_threads()) == 1
        assert max(web.most_at_once.values()) <= 2
        assert next(count for (_, path), count in web.asked.items() if path == "/robots.txt") == 1
        del fetch
        assert web_threads() == []


def test_caller_that_stops_early_leaves_the_others_alone():
    with web_server() as web, name_server(addresses_of) as names:
        fetch = web_fetch(loopback_limits(names.address, in_flight=500))
        stalling = (
            Request(row, web.url(f"/{'stall' if row else 'image'}/{row}", f"slow.{DOMAIN}")) for row in range(99)
        )
        stopped, going_on = fetch(stalling), fetch([Request(row, web.url(f"/image/{row}")) for row in range(99)])
        assert next(stopped).status is next(going_on).status is Status.SUCCESS
        stopped.close()
        assert len(web_threads()) == 1
        assert {outcome.status for outcome in going_on} == {Status.SUCCESS}
        assert web_threads() == []


def test_no_request_is_sent_while_outcomes_are_not_taken():
    drawn = []

    def requests(web):
        for row in range(1_000):
            drawn.append(row)
            yield Request(row, web.url(f"/image/{row}"))

    with web_server() as web, name_server(addresses_of) as names:
        outcomes = web_fetch(loopback_limits(names.address, in_flight=10))(requests(web))
        next(outcomes)
        wait_for(lambda: len(drawn) > OUTCOMES_AHEAD)
        threading.Event().wait(0.5)  # to find more than is allowed
        begun = len(drawn)
        outcomes.close()
    assert OUTCOMES_AHEAD < begun <= OUTCOMES_AHEAD + 12


def test_an_error_at_the_start_is_raised_in_the_calling_thread():
    limits = Limits(contact="https://example.org/", nameservers=("no address",))
    with pytest.raises(Exception, match="Misformatted"):
        next(web_fetch(limits)([Request(0, "http://example.org/a.jpg")]))
    assert web_threads() == []


@pytest.mark.parametrize("closing_s", [0.0, 0.5])
def test_a_thread_that_ends_early_is_an_error_and_no_failed_rows(monkeypatch, closing_s):
    """Also where closing the connections takes long enough for the requests on them to fail."""
    close = Fetcher.__aexit__

    async def slowly(fetcher, *error):
        await close(fetcher, *error)
        await asyncio.sleep(closing_s)

    monkeypatch.setattr(Fetcher, "__aexit__", slowly)
    with web_server() as web, name_server(addresses_of) as names:
        fetch = web_fetch(loopback_limits(names.address, read_s=36_000.0, answer_s=36_000.0))  # no stall ends by itself
        urls = [web.url(f"/{'stall' if row else 'image'}/{row}") for row in range(9)]
        outcomes = fetch([Request(row, url) for row, url in enumerate(urls)])
        assert next(outcomes).status is Status.SUCCESS
        running = fetch.__self__._running
        running.loop.call_soon_threadsafe(running.stop.set)
        with pytest.raises(BuildError, match="ended early"):
            list(outcomes)
