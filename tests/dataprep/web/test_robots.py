"""robots.txt and opt-outs as values, and what a client does about them."""

import asyncio
import contextlib
import gc
import threading
import time
import tracemalloc
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from protego import Protego
from yarl import URL

from dataprep.web import caches, client
from dataprep.web.caches import FAILURE_KEPT_S, Known
from dataprep.web.client import fetch_many
from dataprep.web.outcomes import Failed, Request, Status
from dataprep.web.robots import MAX_ROBOTS_BYTES, MAX_RULES, MAX_WILDCARDS, Rules, opt_out, rules_of
from tests.support.web_pages import DOMAIN

WORDS = "User-agent Disallow Allow Crawl-delay Request-rate Sitemap Host * / $ 1/5 1e999 0600-0845 %zz".split()
WORDS += [" ", ":", "\n", ": ", "http://[", "9" * 30, "dataprep", "#", "\u2028"]
IMAGE = URL("http://host.images.test/a/b.jpg?c=1")


def forbidden(text: str, url: URL = IMAGE, agent: str = "dataprep") -> bool:
    try:
        rules_of(agent, 200, text.encode("utf-8", "surrogatepass")).check(url)
    except Failed as failure:
        return failure.status is Status.ROBOTS
    return False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("User-agent: *\nDisallow:\n", False),
        ("User-agent: *\nDisallow: /\n", True),
        ("User-agent: *\nDisallow: /a/\n", True),
        ("User-agent: *\nDisallow: /b/\n", False),
        ("User-agent: *\nDisallow: /a/\nAllow: /a/b\n", False),
        ("User-agent: *\nDisallow: /*.jpg$\n", False),
        ("User-agent: *\nDisallow: /*.jpg\n", True),
        ("User-agent: otherbot\nDisallow: /\n", False),
        ("User-agent: DataPrep\nDisallow: /\n\nUser-agent: *\nAllow: /\n", True),
        ("User-agent: *\nDisallow: /\n\nUser-agent: dataprep\nAllow: /\n", False),
        ("User-agent: dataprep/0.2.0\nDisallow: /\n\nUser-agent: *\nAllow: /\n", True),
        ("User-agent: otherbot/1.0\nDisallow: /\n", False),
        ("\ufeffUser-agent: *\r\nDisallow: /\r\n", True),
        ("<!DOCTYPE html><title>Not here</title>", False),
        ("User-agent: *\nDisallow: /" + "*a" * 900 + "b$\n", False),  # patterns with many stars cost no time
    ],
)
def test_rules_say_what_the_standard_says(text, expected):
    assert forbidden(text) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [(204, False), (404, False), (403, False), (410, False), (429, True), (500, True), (503, True)],
)
def test_a_missing_robots_txt_allows_all_and_a_failing_one_nothing(code, expected):
    if expected:
        with pytest.raises(Failed, match=f"robots.txt answered {code}") as caught:
            rules_of("dataprep", code)
        assert (caught.value.status, caught.value.http_code) == (Status.ROBOTS_UNAVAILABLE, code)
    else:
        rules_of("dataprep", code).check(IMAGE)


@pytest.mark.parametrize(("said", "delay_s"), [("2.5", 2.5), ("9999", 30.0), ("-1", 0.0), ("soon", 0.0), ("nan", 0.0)])
def test_a_crawl_delay_is_bounded(said, delay_s):
    assert rules_of("dataprep", 200, f"User-agent: *\nCrawl-delay: {said}\n".encode()).crawl_delay_s == delay_s


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], None),
        (["all"], None),
        (["nofollow, noarchive"], None),
        (["noai"], "noai"),
        (["noai, noimageai"], "noai"),
        (["NoImageAI"], "noimageai"),
        (["nofollow", "max-snippet: 20, noindex"], "noindex"),
        (["none"], "none"),
        (["unavailable_after: 25 Jun 2010 15:00:00 PST, noimageindex"], "noimageindex"),
        (["otherbot: noindex, noai"], None),
        (["otherbot: noindex", "noai"], "noai"),
        (["dataprep: noindex"], "noindex"),
        (["otherbot: noai, DataPrep: nofollow, noimageai"], "noimageai"),
        (["noindexing, xnoai"], None),
    ],
)
def test_an_opt_out_for_all_or_for_this_robot_counts(lines, expected):
    assert opt_out(lines, None, "dataprep") == expected


@pytest.mark.parametrize(("value", "expected"), [("1", "tdm-reservation"), (" 1 ", "tdm-reservation"), ("0", None)])
def test_a_reservation_of_text_and_data_mining_is_an_opt_out(value, expected):
    assert opt_out([], value, "dataprep") == expected


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=60))
def test_any_bytes_are_parsed_as_rules(words):
    forbidden("User-agent: *\n" + "".join(words))
    assert 0 <= rules_of("dataprep", 200, "".join(words).encode("utf-8", "surrogatepass")).crawl_delay_s <= 30


AGENTS = ["dataprep", "DataPrep", "data", "d", "datapreparer", "our-bot", "our", "bot", "*", "d*", "*ap*", "**", ""]
FIELDS = ["User-agent", "user-agent", "Useragent", "User agent", "Disallow", "disalow", "Allow", "Crawl-delay", "x-own"]
FIELDS += ["Sitemap", "Host", "Request-rate", "Visit time", "crawl delay", "User", ""]
VALUES = ["/", "/a", "/a/", "/a/b.jpg", "/*.jpg$", "/a/*b", "/b$", "/a/index.html", "*", "/%61/b", "/a/b.jpg?c=1", "$"]
VALUES += ["", "1", "2.5", "nan", "http://host.images.test/a", "/a # all", "http:x", "1/5", "0600-0845"]
LINES = st.one_of(
    st.builds("User-agent{}{}".format, st.sampled_from([":", ": ", " ", " : "]), st.sampled_from(AGENTS)),
    st.builds("{}{}{}".format, st.sampled_from(["Disallow", "Allow"]), st.just(": "), st.sampled_from(VALUES)),
    st.builds(
        "{}{}{}".format,
        st.sampled_from(FIELDS),
        st.sampled_from([":", ": ", " ", "  ", " :", "", "\t"]),
        st.sampled_from([*VALUES, *AGENTS]),
    ),
    st.sampled_from(["", "# nothing", "  ", "<html>", "User agent dataprep", "user  agent: dataprep"]),
)
PATHS = ["/", "/a", "/a/", "/a/b.jpg", "/a/b.jpg?c=1", "/b", "/c/d.png", "/a/index.html", "/A", "/robots.txt", "/$"]


@settings(max_examples=400, deadline=None)
@given(st.lists(LINES, max_size=25), st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from(["dataprep", "our-bot"]))
@example(["User-agent: d", "Allow: /", "User-agent: *", "Disallow: /"], "\n", "dataprep")
@example(["User-agent: dataprep", "Sitemap: x", "User-agent: other", "Disallow: /"], "\n", "dataprep")
def test_picking_out_the_group_changes_no_verdict(lines, end, agent):
    text = end.join(lines)
    whole, ours = Protego.parse(text), rules_of(agent, 200, text.encode())
    for path in PATHS:
        url = URL(f"http://host.images.test{path}", encoded=True)
        with contextlib.suppress(Failed):
            ours.check(url)
            assert whole.can_fetch(str(url), agent), path
            continue
        assert not whole.can_fetch(str(url), agent), path
    assert ours.crawl_delay_s == min(whole.crawl_delay(agent) or 0.0, 30.0)


BOMBS = {
    "agents": "".join(f"User-agent:x{number:x}\n" for number in range(2_000)) + "Allow:/\n" * 1_500,
    "our agents": "".join(f"User-agent:{'dataprep'[: 1 + number % 8]}\n" for number in range(3_000))
    + "Allow:/\n" * 8_000,
    "groups": "User-agent:d\nAllow:/\n" * 9_000,
    "rules": "User-agent:*\n" + "".join(f"Allow:/{number:x}\n" for number in range(9_999)),
    "escapes": "User-agent:*\n" + "".join(f"Allow:/{number:x}%41\n" for number in range(9_999)),
    "wildcards": "User-agent:*\n" + "".join(f"Allow:/*{number:x}\n" for number in range(1_999)),
    "anchors": "User-agent:*\n" + "".join(f"Allow:/{number:x}$\n" for number in range(1_999)),
    "one rule": "User-agent:*\nAllow:/" + "%41" * 100_000,
    "sitemaps": "User-agent:*\n" + "".join(f"Sitemap:{number:x}\n" for number in range(20_000)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in ("escapes", "wildcards"))) for name in BOMBS]
)
def test_memory_that_rules_take_grows_with_the_text_and_is_weighed(name):
    body = BOMBS[name].encode()
    assert len(body) <= MAX_ROBOTS_BYTES
    rules_of("dataprep", 200, body)  # what the first call imports is not of the rules
    gc.collect()
    tracemalloc.start()
    try:
        rules = rules_of("dataprep", 200, body)
        with contextlib.suppress(Failed):
            rules.check(IMAGE)
        gc.collect()
        held_bytes, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes <= rules.weight_bytes + 10_000
    assert most_bytes <= 32 << 20


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("Disallow: /x\n" * (MAX_RULES + 1), "robots.txt has 10,001 rules; at most 10,000 are followed"),
        ("Allow: /**\n" * MAX_WILDCARDS, "robots.txt has 4,000 wildcards; at most 2,000 are followed"),
    ],
)
def test_a_site_with_more_rules_than_are_followed_is_left_alone(rules, reason):
    with pytest.raises(Failed) as caught:
        rules_of("dataprep", 200, f"User-agent: *\n{rules}".encode()).check(IMAGE)
    assert (caught.value.status, caught.value.reason) == (Status.ROBOTS, reason)
    assert not forbidden(f"User-agent: other\n{rules}")


def test_wildcards_are_compared_with_a_url_only_where_that_is_quick():
    text = "User-agent: *\n" + "".join(f"Disallow: /{'a' * number}*b\n" for number in range(400))
    assert not forbidden(text, URL("http://host.images.test/" + "a" * 400))
    with pytest.raises(Failed, match="400 wildcards, too many for so long a URL"):
        rules_of("dataprep", 200, text.encode()).check(URL("http://host.images.test/" + "a" * 4_000))


def test_a_large_robots_txt_is_parsed_outside_the_event_loop(web, limits, monkeypatch):
    parsing, ticked = threading.Event(), threading.Event()

    def slowly(agent: str, code: int, body: bytes = b"") -> Rules:
        if len(body) > 100_000:
            parsing.set()
            assert ticked.wait(60), "the event loop stands still while robots.txt is parsed"
        return rules_of(agent, code, body)

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

    monkeypatch.setattr(client, "rules_of", slowly)
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
    monkeypatch.setattr(caches, "time", SimpleNamespace(monotonic=lambda: later_s))
    assert {outcome.status for outcome in fetch(urls, known)} == {Status.ROBOTS_UNAVAILABLE}
    assert web.asked[host, "/robots.txt"] == 2
    assert not any(web.asked[host, f"/image/{row}"] for row in range(3))


def test_forbidden_urls_are_not_requested(web, fetch):
    web.robots[f"picky.{DOMAIN}"] = "User-agent: our-bot\nDisallow: /image/\n\nUser-agent: *\nDisallow: /\n"
    urls = [web.url("/image/1", f"picky.{DOMAIN}"), web.url("/png/1", f"picky.{DOMAIN}")]
    assert [outcome.status for outcome in fetch(urls, agent="our-bot")] == [Status.ROBOTS, Status.SUCCESS]
    assert [outcome.status for outcome in fetch(urls)] == [Status.ROBOTS, Status.ROBOTS]
    assert web.asked[f"picky.{DOMAIN}", "/image/1"] == 0


def test_the_target_of_a_redirect_is_checked_by_its_own_robots_txt(web, fetch):
    web.robots[f"other.{DOMAIN}"] = "User-agent: *\nDisallow: /\n"
    (outcome,) = fetch([web.url("/elsewhere/1")])
    assert (outcome.status, outcome.reason) == (Status.ROBOTS, f"robots.txt of other.{DOMAIN} forbids it")
    assert web.asked[f"other.{DOMAIN}", "/robots.txt"] == 1
    assert web.asked[f"other.{DOMAIN}", "/image/1.jpg"] == 0


def test_the_target_of_a_redirect_on_the_same_host_is_checked_too(web, fetch):
    web.robots[f"host.{DOMAIN}"] = "User-agent: *\nDisallow: /image/\n"
    (outcome,) = fetch([web.url("/redirect/1")])
    assert (outcome.status, outcome.reason) == (Status.ROBOTS, f"robots.txt of host.{DOMAIN} forbids it")
    assert web.asked[f"host.{DOMAIN}", "/redirect/1"] == 1
    assert web.asked[f"host.{DOMAIN}", "/image/1.jpg"] == 0


def test_a_robots_txt_without_end_is_read_as_far_as_its_limit(web, fetch):
    web.robots[f"long.{DOMAIN}"] = "User-agent: *\nDisallow: /image/\n" + "# more\n" * 200_000
    urls = [web.url("/image/1", f"long.{DOMAIN}"), web.url("/png/1", f"long.{DOMAIN}")]
    assert [outcome.status for outcome in fetch(urls)] == [Status.ROBOTS, Status.SUCCESS]
