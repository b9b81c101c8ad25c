"""Every way in which a host answers, and the one outcome that each row ends with."""

import asyncio
import contextlib
import re
import time
from collections import Counter

import pytest

from dataprep.web.caches import Known
from dataprep.web.client import Fetcher, fetch_many
from dataprep.web.outcomes import Request, Status
from tests.support.fetching import fetch_mixture
from tests.support.markdown import ROOT
from tests.support.web_pages import DOMAIN, KINDS, picture
from tests.support.web_server import web_server


def test_each_row_of_a_mixed_table_ends_with_the_right_status():
    mixed = fetch_mixture(500, 100, answer_s=3.0)
    assert not mixed.wrong
    assert len({outcome.status for outcome in mixed.outcomes}) >= 15
    for outcome in mixed.outcomes:
        assert (outcome.body is not None) == (outcome.status is Status.SUCCESS) == (not outcome.reason)
        assert "\n" not in outcome.reason


@pytest.mark.parametrize(
    ("kind", "reason", "code"),
    [
        ("missing", "HTTP 404", 404),
        ("unavailable", "HTTP 503", 503),
        ("html", "begins with b'<!DOCTYPE html>", 200),
        ("empty", "an empty body", 200),
        ("huge", "1,099,511,627,776 bytes; at most 1,048,576", 200),
        ("endless", "over 1,048,576 bytes", 200),
        ("bomb", "over 1,048,576 bytes", 200),
        ("brotli", "'br', which was not asked for", 200),
        ("noai", "noai", 200),
        ("private/1", "robots.txt of host.images.test forbids it", None),
        ("loop", "a loop through http://host.images.test", None),
        ("many/0", "more than 5 redirects", None),
        ("nowhere", "without a Location", 302),
        ("to-file", "scheme 'file'", None),
        ("to-metadata", "169.254.169.254 is link-local or metadata", None),
        ("reset", "reset", None),
        ("stall", "", None),
    ],
)
def test_failures_say_why(web, fetch, kind, reason, code):
    (outcome,) = fetch([web.url(f"/{kind}")], read_s=0.5)
    assert outcome.status is KINDS[kind.partition("/")[0]][1]
    assert reason in outcome.reason
    assert outcome.http_code == code


@pytest.mark.parametrize(
    "kind", ["image", "chunked", "gzip", "wrong-type", "redirect", "elsewhere", "busy", "other-robot"]
)
def test_success_is_the_whole_image_and_where_it_was(web, fetch, kind):
    (outcome,) = fetch([web.url(f"/{kind}/1.jpg#x")])
    assert outcome.body == picture()
    moved = {"redirect": web.url("/image/1.jpg"), "elsewhere": web.url("/image/1.jpg", f"other.{DOMAIN}")}
    assert outcome.final_url == moved.get(kind, web.url(f"/{kind}/1.jpg"))
    assert (outcome.http_code, outcome.reason) == (200, "")


def test_a_request_says_who_asks_and_nothing_else(web, fetch):
    fetch([web.url("/redirect/1"), web.url("/image/2")], agent="our-bot")
    for head in web.heads:
        assert head.headers["user-agent"].startswith("our-bot/")
        assert head.headers["user-agent"].endswith("(+https://example.org/crawler)")
        assert head.headers["accept-encoding"] == "identity"
        assert set(head.headers) <= {"host", "user-agent", "accept", "accept-encoding", "connection"}


def test_no_proxy_is_taken_from_the_environment(web, fetch, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    (outcome,) = fetch([web.url("/image/1")])
    assert outcome.status is Status.SUCCESS


def test_a_host_that_stalls_does_not_hold_the_others(web, fetch):
    urls = [web.url(f"/stall/{row}", f"slow.{DOMAIN}") for row in range(400)]
    urls += [web.url(f"/image/{row}", f"quick.{DOMAIN}") for row in range(50)]
    began_s = time.monotonic()
    outcomes = fetch(urls, in_flight=500, read_s=0.3, row_s=1.5, host_failures=1_000)
    # row_s and one answer, with room for a busy machine; eight at a time they would take 15 s.
    assert time.monotonic() - began_s < 7
    assert {outcome.status for outcome in outcomes[:400]} == {Status.TIMEOUT, Status.HOST_BUSY}
    assert {outcome.status for outcome in outcomes[400:]} == {Status.SUCCESS}


def test_a_host_without_answers_is_given_up(web, fetch):
    outcomes = fetch([web.url(f"/stall/{row}") for row in range(60)], read_s=0.2, host_failures=4, host_connections=2)
    assert Counter(outcome.status for outcome in outcomes)[Status.HOST_DOWN] >= 50
    assert sum(count for (_, path), count in web.asked.items() if path != "/robots.txt") <= 6


def test_closing_early_leaves_no_task_and_no_connection(web, limits):
    async def some():
        requests = (Request(row, web.url(f"/{'stall' if row % 2 else 'image'}/{row}")) for row in range(10_000))
        async with contextlib.aclosing(fetch_many(requests, limits(in_flight=64))) as outcomes:
            async for outcome in outcomes:
                if outcome.key > 20:
                    break
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return next(requests).key

    assert asyncio.run(some()) < 200


def test_nothing_is_begun_while_nobody_takes(web, limits):
    drawn = []

    def requests():
        for row in range(1_000):
            drawn.append(row)
            yield Request(row, web.url(f"/image/{row}"))

    async def slowly():
        async with contextlib.aclosing(fetch_many(requests(), limits(in_flight=10))) as outcomes:
            await anext(outcomes)
            await asyncio.sleep(0.5)
            return len(drawn)

    assert asyncio.run(slowly()) <= 11


def test_two_tables_at_once_share_what_is_allowed(limits):
    async def one(web, fetcher, first):
        requests = (Request(row, web.url(f"/image/{row}", f"host{row % 3}.{DOMAIN}")) for row in range(first, 200, 2))
        async with contextlib.aclosing(fetcher.fetch_many(requests)) as outcomes:
            return [(outcome.key % 2, outcome.status) async for outcome in outcomes]

    async def both(web):
        async with Fetcher(limits(host_connections=3)) as fetcher:
            return await asyncio.gather(one(web, fetcher, 0), one(web, fetcher, 1))

    with web_server(latency_s=0.02) as web:
        assert asyncio.run(both(web)) == [[(0, Status.SUCCESS)] * 100, [(1, Status.SUCCESS)] * 100]
    assert set(web.most_at_once.values()) == {3}


def test_closing_one_table_early_gives_back_what_it_held(web, limits):
    async def statuses(fetcher, kinds):
        requests = [Request(row, web.url(f"/{kind}/{row}", f"{kind}.{DOMAIN}")) for row, kind in enumerate(kinds)]
        async with contextlib.aclosing(fetcher.fetch_many(requests)) as outcomes:
            async for outcome in outcomes:
                yield outcome.status

    async def run():
        # Four rows at once; memory for one body whose length is not known, and for what others have taken.
        tight = limits(in_flight=4, body_bytes=1 << 20, memory_bytes=(1 << 20) + 3 * len(picture()))
        async with Fetcher(tight) as fetcher, asyncio.timeout(10):
            for _ in range(4):
                async with contextlib.aclosing(statuses(fetcher, ["image", "image", "image", "stall"])) as begun:
                    await anext(begun)
                    await asyncio.sleep(0.1)  # two more end, and nobody takes them
            async with contextlib.aclosing(statuses(fetcher, ["stall", "stall", "stall", "chunked"])) as others:
                return await anext(others)  # the last of four, and as much memory as there is

    assert asyncio.run(run()) is Status.SUCCESS


def test_bodies_stay_within_the_memory_they_are_given(web, fetch):
    kinds = ["image", "chunked", "endless", "huge", "bomb", "gzip"]
    urls = [web.url(f"/{kinds[row % 6]}/{row}", f"host{row % 7}.{DOMAIN}") for row in range(60)]
    outcomes = fetch(urls, body_bytes=1 << 20, memory_bytes=1 << 20)
    assert [outcome.status for outcome in outcomes] == [KINDS[kinds[row % 6]][1] for row in range(60)]


def test_waiting_for_the_caller_is_no_hosts_fault(web, limits):
    tight = limits(body_bytes=1 << 20, memory_bytes=1 << 20, answer_s=1.0)

    async def slowly():
        requests = [Request(row, web.url(f"/chunked/{row}")) for row in range(4)]  # each may be a megabyte
        async with contextlib.aclosing(fetch_many(requests, tight)) as outcomes:
            first = await anext(outcomes)
            await asyncio.sleep(2)
            return [first.status, *[outcome.status async for outcome in outcomes]]

    assert asyncio.run(slowly()) == [Status.SUCCESS] * 4


def test_no_answer_however_broken_is_more_than_one_rows_failure(web, fetch):
    urls = [web.url(f"/mutated/{row}", f"host{row % 60}.{DOMAIN}") for row in range(300)]
    outcomes = fetch(urls, read_s=0.3, host_failures=1_000, retries=1, retry_after_s=1.0)
    assert len({outcome.status for outcome in outcomes}) >= 6


def test_an_error_in_the_table_is_the_callers(limits):
    def requests():
        yield Request(0, "ftp://example.org/")
        raise OSError("the table ends here")

    async def read():
        async with contextlib.aclosing(fetch_many(requests(), limits())) as outcomes:
            return [outcome async for outcome in outcomes]

    with pytest.raises(OSError, match="the table ends here"):
        asyncio.run(read())


def test_what_is_known_of_hosts_is_not_asked_again(web, names, fetch):
    known = Known()
    for row in range(3):
        assert fetch([web.url(f"/image/{row}")], known)[0].status is Status.SUCCESS
    assert web.asked["host.images.test", "/robots.txt"] == 1
    assert max(names.asked.values()) == 1


def test_every_status_is_documented():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", (ROOT / "docs/fetching.md").read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == [status.value for status in Status]


def test_a_certificate_of_nobody_is_refused_unless_that_is_allowed(tls_web, fetch):
    assert fetch([tls_web])[0].status is Status.TLS
    assert fetch([tls_web], verify_tls=False)[0].body == picture()
