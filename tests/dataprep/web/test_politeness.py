"""What a host sees of us: never more at once, or in a second, than was said."""

import asyncio
import contextlib
import threading
import time
import weakref
from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.web import consent, politeness
from dataprep.web.consent import Rules, rules_of
from dataprep.web.politeness import FAILURE_KEPT_S, Cache, Gate, Gates, Known, retry_after_s
from dataprep.web.requests import Failed, Limits, Request, Status
from tests.support.fetching import fetch_all, fetch_many
from tests.support.web_pages import DOMAIN
from tests.support.web_server import web_server

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_host_never_sees_more_requests_at_once_than_allowed(fetch):
    with web_server(latency_s=0.02, together=3) as web:
        urls = [web.url(f"/image/{row}", f"host{row % 3}.{DOMAIN}") for row in range(150)]
        outcomes = fetch(urls, host_connections=3)
    assert {outcome.status for outcome in outcomes} == {Status.SUCCESS}
    assert set(web.most_at_once.values()) == {3}


def test_names_of_one_address_share_its_limits(fetch):
    """A thousand names cost nothing, and one machine has all of their pictures."""
    with web_server(latency_s=0.02) as web:
        urls = [web.url(f"/image/{row}", f"host{row}.{DOMAIN}") for row in range(40)]
        fetch(urls, address_connections=5, address_per_s=400.0)
    assert len(web.begun_s) == 40
    assert web.connections <= 5 + len(urls)
    begun_s = sorted(each_s for times in web.begun_s.values() for each_s in times)
    assert begun_s[-1] - web.made_s >= (len(begun_s) - 1) / 400.0 - 0.05
    assert web.most_of_all <= 5


def test_a_host_never_sees_more_requests_a_second_than_allowed(web, fetch):
    fetch([web.url(f"/image/{row}") for row in range(20)], host_per_s=20.0)
    begun_s = web.begun_s[f"host.{DOMAIN}"]
    assert len(begun_s) == 21
    # Spaced when they leave: the last one cannot come earlier than 20 intervals after the first has left.
    assert begun_s[-1] - web.made_s >= 20 / 20.0 - 0.05


def test_a_crawl_delay_spaces_requests(web, fetch):
    web.robots[f"calm.{DOMAIN}"] = "User-agent: *\nCrawl-delay: 0.4\n"
    fetch([web.url(f"/image/{row}", f"calm.{DOMAIN}") for row in range(3)])
    _, *images = web.begun_s[f"calm.{DOMAIN}"]
    assert images[2] - web.made_s >= 2 * 0.4 - 0.1


def test_workers_keep_a_crawl_delay_together(web, limits):
    web.robots[f"calm.{DOMAIN}"] = "User-agent: *\nCrawl-delay: 0.2\n"
    urls = [web.url(f"/image/{row}", f"calm.{DOMAIN}") for row in range(3)]
    asyncio.run(fetch_all(urls, limits().divided(3)))
    _, *images = web.begun_s[f"calm.{DOMAIN}"]
    assert images[2] - web.made_s >= 2 * 3 * 0.2 - 0.1


def test_retry_after_pauses_the_whole_host(web, fetch):
    outcomes = fetch([web.url("/busy/1"), *(web.url(f"/image/{row}") for row in range(5))], host_connections=1)
    assert {outcome.status for outcome in outcomes} == {Status.SUCCESS}
    _, busy_s, *after_s = web.begun_s[f"host.{DOMAIN}"]
    assert min(after_s) - busy_s >= 0.9
    assert len(after_s) == 6


def test_a_host_that_asks_for_a_long_pause_is_given_no_more_requests(web, fetch):
    outcomes = fetch([web.url(f"/image/{row}", f"overloaded-1.{DOMAIN}") for row in range(20)], host_connections=1)
    assert sorted(outcome.status for outcome in outcomes) == [Status.HOST_BUSY] * 19 + [Status.HTTP]
    (failure,) = [outcome for outcome in outcomes if outcome.status is Status.HTTP]
    assert (failure.http_code, failure.reason) == (429, "HTTP 429, Retry-After 3600 s")
    assert len(web.heads) == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1e3", None),
        ("²", None),
        ("0", 0.0),
        (" 120 ", 120.0),
        ("9" * 400, 999_999_999.0),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW - timedelta(days=90), usegmt=True), 0.0),
        ("Fri, 02 Jan 2026 03:04:15 -0000", 10.0),
        ("Fri, 02 Jan 99999999999999999999 03:04:15 GMT", None),
        ("Fri, 99 Jan 2026 03:04:15 GMT", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value, expected):
    assert retry_after_s(value, NOW) == expected


@given(st.text(alphabet="0123456789:- +,JanFriGMT") | st.text())
def test_any_retry_after_is_a_pause_or_none(value):
    pause_s = retry_after_s(value, NOW)
    assert pause_s is None or 0 <= pause_s < 1e12


def test_workers_share_a_hosts_limits():
    limits = Limits(contact="mailto:us@example.org").divided(4)
    assert (limits.host_connections, limits.host_per_s, limits.memory_bytes) == (2, 4.0, 1 << 28)
    assert limits.divided(100).host_connections == 1
    assert limits.divided(1_000).memory_bytes == limits.body_bytes


def test_a_host_without_answers_gets_another_chance_later(monkeypatch):
    monkeypatch.setattr(politeness, "DOWN_S", 1_000.0)

    async def ask():
        loop = asyncio.get_running_loop()
        clock = loop.time
        gate = Gate(connections=8, per_s=1e3, failures=2)

        async def turn():
            await gate.enter(loop.time() + 36_000)
            gate.leave()
            gate.note(answered=False)

        for _ in range(2):
            await turn()
        with pytest.raises(Failed, match="2 requests without an answer"):
            await turn()
        loop.time = lambda: clock() + 1_001
        await turn()
        with pytest.raises(Failed, match="3 requests without an answer"):
            await turn()

    asyncio.run(ask())


def test_old_hosts_are_forgotten_but_not_one_that_a_row_waits_for(monkeypatch):
    monkeypatch.setattr(politeness, "HOSTS_KEPT", 10)
    gates = Gates(Limits(contact="mailto:us@example.org"))
    held, other = gates.of("held.test"), weakref.ref(gates.of("other.test"))
    for number in range(9):
        gates.of(f"host{number}.test")
    assert gates.of("other.test.") is other()
    for number in range(9, 20):
        gates.of(f"host{number}.test")
    assert other() is None
    assert gates.of("held.test") is held


def test_a_large_robots_txt_is_parsed_outside_the_event_loop(web, limits, monkeypatch):
    parsing, ticked = threading.Event(), threading.Event()

    def slowly(agent: str, code: int, body: bytes = b"", others: tuple[str, ...] = ()) -> Rules:
        if len(body) > 100_000:
            parsing.set()
            assert ticked.wait(60), "the event loop stands still while robots.txt is parsed"
        return rules_of(agent, code, body, others)

    async def run():
        async def tick():
            while not parsing.is_set():
                await asyncio.sleep(0.01)
            ticked.set()

        ticking = asyncio.create_task(tick())
        requests = [Request(0, web.url("/image/1", f"large.{DOMAIN}"))]
        async with contextlib.aclosing(fetch_many(requests, limits())) as outcomes:
            found = [outcome.status async for outcome in outcomes]
        await ticking
        return found

    monkeypatch.setattr(consent, "rules_of", slowly)
    web.robots[f"large.{DOMAIN}"] = "User-agent: *\nDisallow: /b/\n" + "# more\n" * 20_000
    assert asyncio.run(run()) == [Status.SUCCESS]


def test_robots_txt_is_requested_once_per_host_and_before_anything_else(web, fetch):
    fetch([web.url(f"/image/{row}", f"host{row % 3}.{DOMAIN}") for row in range(60)])
    for number in range(3):
        assert web.asked[f"host{number}.{DOMAIN}", "/robots.txt"] == 1
    first = {}
    for head in web.heads:
        first.setdefault(head.headers["host"], head.start_line)
    assert set(first.values()) == {"GET /robots.txt HTTP/1.1"}


def test_a_failing_robots_txt_refuses_a_host_for_a_minute_only(web, fetch, monkeypatch):
    """Not for a day, as one that was read: the outage of the server may end at once."""
    known, host = Known(), f"brokenrobots-1.{DOMAIN}"
    urls = [web.url(f"/image/{row}", host) for row in range(3)]
    for _ in range(2):
        assert {outcome.status for outcome in fetch(urls, known)} == {Status.ROBOTS_UNAVAILABLE}
    assert web.asked[host, "/robots.txt"] == 1
    later_s = time.monotonic() + FAILURE_KEPT_S
    monkeypatch.setattr(politeness, "time", SimpleNamespace(monotonic=lambda: later_s))
    assert {outcome.status for outcome in fetch(urls, known)} == {Status.ROBOTS_UNAVAILABLE}
    assert web.asked[host, "/robots.txt"] == 2
    assert not any(web.asked[host, f"/image/{row}"] for row in range(3))


def test_forbidden_urls_are_not_requested(web, fetch):
    web.robots[f"picky.{DOMAIN}"] = "User-agent: our-bot\nDisallow: /image/\n\nUser-agent: *\nDisallow: /\n"
    urls = [web.url("/image/1", f"picky.{DOMAIN}"), web.url("/png/1", f"picky.{DOMAIN}")]
    assert [outcome.status for outcome in fetch(urls, agent="our-bot")] == [Status.ROBOTS, Status.SUCCESS]
    assert [outcome.status for outcome in fetch(urls)] == [Status.ROBOTS, Status.ROBOTS]
    assert web.asked[f"picky.{DOMAIN}", "/image/1"] == 0


@pytest.mark.parametrize(
    ("path", "host", "rules"), [("/elsewhere/1", "other", "Disallow: /"), ("/redirect/1", "host", "Disallow: /image/")]
)
def test_the_target_of_a_redirect_is_checked_by_the_robots_txt_of_its_host(web, fetch, path, host, rules):
    there = f"{host}.{DOMAIN}"
    web.robots[there] = f"User-agent: *\n{rules}\n"
    (outcome,) = fetch([web.url(path)])
    assert (outcome.status, outcome.reason) == (Status.ROBOTS, f"robots.txt of {there} forbids it")
    assert web.asked[there, "/robots.txt"] == web.asked[f"host.{DOMAIN}", path] == 1
    assert web.asked[there, "/image/1.jpg"] == 0


def test_a_robots_txt_without_end_is_read_as_far_as_its_limit(web, fetch):
    web.robots[f"long.{DOMAIN}"] = "User-agent: *\nDisallow: /image/\n" + "# more\n" * 200_000
    urls = [web.url("/image/1", f"long.{DOMAIN}"), web.url("/png/1", f"long.{DOMAIN}")]
    assert [outcome.status for outcome in fetch(urls)] == [Status.ROBOTS, Status.SUCCESS]


def test_concurrent_requests_share_one_look_up():
    asked = Counter()

    async def make():
        asked["key"] += 1
        await asyncio.sleep(0.01)
        return "value"

    async def ask():
        cache = Cache(10, 60.0)
        return await asyncio.gather(*(cache.get("key", make) for _ in range(50)))

    assert asyncio.run(ask()) == ["value"] * 50
    assert asked["key"] == 1


def test_a_cancelled_request_does_not_cancel_the_shared_look_up():
    async def make():
        await asyncio.sleep(0.05)
        return "value"

    async def ask():
        cache = Cache(10, 60.0)
        first, second = (asyncio.create_task(cache.get("key", make)) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        return await second

    assert asyncio.run(ask()) == "value"


def test_failures_are_cached_and_old_values_expire():
    made = []

    async def fail():
        made.append("failure")
        raise Failed(Status.DNS, "no such name")

    async def succeed():
        made.append("value")
        return len(made)

    async def ask():
        cache = Cache(10, 0.0)
        for _ in range(3):
            with pytest.raises(Failed, match="no such name"):
                await cache.get("dead", fail)
        return [await cache.get("old", succeed) for _ in range(2)]

    assert asyncio.run(ask()) == [2, 3]
    assert made == ["failure", "value", "value"]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), max_size=60))
def test_the_weight_of_a_cache_is_bounded_and_the_oldest_entries_go_first(asked):
    held: dict[str, int] = {}

    async def run():
        cache = Cache(100, 60.0, lambda value: value)
        for key, weight in asked:

            async def make(weight=weight):
                return weight

            assert await cache.get(str(key), make) == held.get(str(key), weight)
            held.setdefault(str(key), weight)
            while sum(held.values()) > 100:
                held.pop(next(iter(held)))

    asyncio.run(run())
