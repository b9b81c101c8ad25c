"""robots.txt and opt-outs as values, and what a client does about them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from dataprep.web.outcomes import Failed, Status
from dataprep.web.robots import opt_out, rules_of
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
        ("\ufeffUser-agent: *\r\nDisallow: /\r\n", True),
        ("<!DOCTYPE html><title>Not here</title>", False),
        ("User-agent: *\nDisallow: /" + "*a" * 2_000 + "b$\n", False),  # patterns with many stars cost no time
    ],
)
def test_rules_say_what_the_standard_says(text, expected):
    assert forbidden(text) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [(204, False), (404, False), (403, False), (410, False), (429, True), (500, True), (503, True)],
)
def test_a_missing_file_allows_all_and_a_failing_one_nothing(code, expected):
    rules = rules_of("dataprep", code)
    if expected:
        with pytest.raises(Failed, match=f"robots.txt answered {code}"):
            rules.check(IMAGE)
    else:
        rules.check(IMAGE)


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
def test_reserved_text_and_data_mining_counts(value, expected):
    assert opt_out([], value, "dataprep") == expected


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=60))
def test_any_file_is_rules(words):
    forbidden("User-agent: *\n" + "".join(words))
    assert 0 <= rules_of("dataprep", 200, "".join(words).encode("utf-8", "surrogatepass")).crawl_delay_s <= 30


def test_robots_txt_is_asked_for_once_a_host_and_before_anything_else(web, fetch):
    fetch([web.url(f"/image/{row}", f"host{row % 3}.{DOMAIN}") for row in range(60)])
    for number in range(3):
        assert web.asked[f"host{number}.{DOMAIN}", "/robots.txt"] == 1
    first = {}
    for head in web.heads:
        first.setdefault(head.headers["host"], head.start_line)
    assert set(first.values()) == {"GET /robots.txt HTTP/1.1"}


def test_what_is_forbidden_is_not_asked_for(web, fetch):
    web.robots[f"picky.{DOMAIN}"] = "User-agent: our-bot\nDisallow: /image/\n\nUser-agent: *\nDisallow: /\n"
    urls = [web.url("/image/1", f"picky.{DOMAIN}"), web.url("/png/1", f"picky.{DOMAIN}")]
    assert [outcome.status for outcome in fetch(urls, agent="our-bot")] == [Status.ROBOTS, Status.SUCCESS]
    assert [outcome.status for outcome in fetch(urls)] == [Status.ROBOTS, Status.ROBOTS]
    assert web.asked[f"picky.{DOMAIN}", "/image/1"] == 0


def test_where_a_redirect_leads_has_its_own_robots_txt(web, fetch):
    web.robots[f"other.{DOMAIN}"] = "User-agent: *\nDisallow: /\n"
    (outcome,) = fetch([web.url("/elsewhere/1")])
    assert (outcome.status, outcome.reason) == (Status.ROBOTS, f"robots.txt of other.{DOMAIN} forbids it")


def test_a_robots_txt_without_end_is_read_as_far_as_its_limit(web, fetch):
    web.robots[f"long.{DOMAIN}"] = "User-agent: *\nDisallow: /image/\n" + "# more\n" * 200_000
    urls = [web.url("/image/1", f"long.{DOMAIN}"), web.url("/png/1", f"long.{DOMAIN}")]
    assert [outcome.status for outcome in fetch(urls)] == [Status.ROBOTS, Status.SUCCESS]
