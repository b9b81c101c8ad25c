"""What a host sees of us: never more at once, or in a second, than was said."""

import asyncio
import weakref
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import UsageError
from dataprep.web import politeness
from dataprep.web.limits import Limits
from dataprep.web.outcomes import Failed, Status
from dataprep.web.politeness import Gate, Gates, retry_after_s
from tests.support.fetching import fetch_all
from tests.support.web_pages import DOMAIN
from tests.support.web_server import web_server

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_host_never_sees_more_requests_at_once_than_allowed(fetch):
    with web_server(latency_s=0.02, together=3) as web:
        urls = [web.url(f"/image/{row}", f"host{row % 3}.{DOMAIN}") for row in range(150)]
        outcomes = fetch(urls, host_connections=3)
    assert {outcome.status for outcome in outcomes} == {Status.SUCCESS}
    assert set(web.most_at_once.values()) == {3}


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


@settings(deadline=None)
@given(st.text(alphabet="0123456789:- +,JanFriGMT") | st.text())
def test_any_retry_after_is_a_pause_or_none(value):
    pause_s = retry_after_s(value, NOW)
    assert pause_s is None or 0 <= pause_s < 1e12


def test_workers_share_a_hosts_limits():
    limits = Limits(contact="mailto:us@example.org").divided(4)
    assert (limits.host_connections, limits.host_per_s, limits.memory_bytes) == (2, 4.0, 1 << 28)
    assert limits.divided(100).host_connections == 1
    assert limits.divided(1_000).memory_bytes == limits.body_bytes


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"contact": ""}, "sites must be able to reach the person who fetches"),
        ({"contact": "https://a b"}, "is no address"),
        ({"contact": "https://a\r\nX: y"}, "is no address"),
        ({"agent": "our bot"}, "choose another name"),
        ({"agent": "bot\r\nX:"}, "choose another name"),
        ({"in_flight": 0}, "in_flight is 0; it must be positive"),
        ({"read_s": -1.0}, "read_s is -1.0"),
        ({"memory_bytes": 5}, "less than one body"),
    ],
)
def test_limits_out_of_range_are_refused(changed, text):
    with pytest.raises(UsageError, match=text):
        Limits(**{"contact": "https://example.org/", **changed})


def test_a_host_without_answers_gets_another_chance_later(monkeypatch):
    monkeypatch.setattr(politeness, "DOWN_S", 1_000.0)

    async def ask():
        loop = asyncio.get_running_loop()
        clock = loop.time
        gate = Gate(Limits(contact="mailto:us@example.org", host_failures=2, host_per_s=1e3))

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
