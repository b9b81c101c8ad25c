"""Every way in which a host answers, and the one outcome that each row ends with."""

import asyncio
import contextlib
import gzip
import ipaddress
import itertools
import random
import re
import socket
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.web.addresses import Network
from dataprep.web.client import Body, CheckedResolver, Fetcher, Memory, checked_socket
from dataprep.web.politeness import Cache, Known
from dataprep.web.requests import Failed, Request, Status
from tests.support.fetching import fetch_many, fetch_mixture
from tests.support.markdown import ROOT
from tests.support.name_server import NameServer, name_server
from tests.support.web_pages import DOMAIN, KINDS, picture
from tests.support.web_server import web_server


def test_each_row_of_a_mixed_table_ends_with_the_right_status():
    mixed = fetch_mixture(500, 100)
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
        ("brotli", "'br', which was not requested", 200),
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
def test_each_failure_has_its_reason(web, fetch, kind, reason, code):
    known = Known()
    fetch([web.url("/image/1")], known)  # robots.txt, which comes however short the pause that a stall may have
    (outcome,) = fetch([web.url(f"/{kind}")], known, **({"read_s": 0.5} if kind == "stall" else {}))
    assert outcome.status is KINDS[kind.partition("/")[0]][1]
    assert reason in outcome.reason
    assert outcome.http_code == code


@pytest.mark.parametrize(
    "kind", ["image", "chunked", "gzip", "wrong-type", "redirect", "elsewhere", "busy", "other-robot"]
)
def test_a_success_has_the_whole_image_and_its_final_url(web, fetch, kind):
    (outcome,) = fetch([web.url(f"/{kind}/1.jpg#x")])
    assert outcome.body == picture()
    moved = {"redirect": web.url("/image/1.jpg"), "elsewhere": web.url("/image/1.jpg", f"other.{DOMAIN}")}
    assert outcome.final_url == moved.get(kind, web.url(f"/{kind}/1.jpg"))
    assert (outcome.http_code, outcome.reason) == (200, "")


@pytest.mark.parametrize("redirects", [0, 1, 5])
def test_at_most_the_allowed_number_of_redirects_is_followed(web, fetch, redirects):
    chain = [web.url("/image/1")]
    for hop in range(redirects + 1):
        chain.append(web.url(f"/to/{hop}?{quote(chain[-1], safe='')}"))
    allowed, beyond = fetch([chain[redirects], chain[redirects + 1]], redirects=redirects)
    assert (allowed.status, allowed.final_url) == (Status.SUCCESS, chain[0])
    assert (beyond.status, beyond.reason) == (Status.REDIRECT, f"more than {redirects} redirects")
    assert web.asked[f"host.{DOMAIN}", "/image/1"] == 1  # nothing behind the last redirect is asked for


def test_a_request_sends_the_user_agent_and_no_other_identity(web, fetch):
    fetch([web.url("/redirect/1"), web.url("/image/2")], agent="our-bot")
    assert len(web.heads) >= 3  # a redirect, its target, and another image
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


def stalled_and_quick(web):
    """Four hundred rows of a host that never answers, then fifty of another."""
    urls = [web.url(f"/stall/{row}", f"slow.{DOMAIN}") for row in range(400)]
    return urls + [web.url(f"/image/{row}", f"quick.{DOMAIN}") for row in range(50)]


def test_a_host_that_stalls_does_not_hold_the_others(web, limits):
    async def first_fifty():
        requests = itertools.starmap(Request, enumerate(stalled_and_quick(web)))
        hours = dict.fromkeys(("read_s", "answer_s", "row_s"), 36_000.0)
        async with contextlib.aclosing(fetch_many(requests, limits(in_flight=500, **hours))) as outcomes:
            return [await anext(outcomes) for _ in range(50)]

    first = asyncio.run(first_fifty())  # while the other host still holds its rows
    assert sorted(outcome.key for outcome in first) == list(range(400, 450))
    assert {outcome.status for outcome in first} == {Status.SUCCESS}


def test_rows_that_wait_for_a_host_that_stalls_end_without_being_asked_for(web, fetch):
    known = Known()
    fetch([web.url("/image/1", f"slow.{DOMAIN}")], known)
    outcomes = fetch(stalled_and_quick(web)[:400], known, in_flight=500, read_s=3.0, row_s=8.0, host_failures=1_000)
    ends = Counter(outcome.status for outcome in outcomes)
    assert ends[Status.HOST_BUSY] > 0
    assert ends.keys() <= {Status.TIMEOUT, Status.HOST_BUSY}
    assert sum(web.asked[f"slow.{DOMAIN}", f"/stall/{row}"] for row in range(400)) < 400


def test_a_row_waits_for_robots_txt_no_longer_than_for_its_turn(web, fetch):
    web.robots_location = web.url("/stall/1", f"slow.{DOMAIN}")
    (outcome,) = fetch([web.url("/image/1")], row_s=0.5, read_s=36_000.0, answer_s=36_000.0)
    assert (outcome.status, outcome.reason) == (Status.HOST_BUSY, "its host's robots.txt did not arrive in time")


def test_a_host_without_answers_is_abandoned(web, fetch):
    known, quickly = Known(), {"read_s": 0.2, "host_failures": 4, "host_connections": 2}
    fetch([web.url("/image/1")], known)
    outcomes = fetch([web.url(f"/stall/{row}") for row in range(60)], known, **quickly)
    assert Counter(outcome.status for outcome in outcomes)[Status.HOST_DOWN] >= 50
    assert sum(count for (_, path), count in web.asked.items() if path.startswith("/stall/")) <= 6


def test_closing_early_leaves_no_task_and_no_connection(web, limits):
    async def some():
        requests = (Request(row, web.url(f"/{'stall' if row % 2 else 'image'}/{row}")) for row in range(10_000))
        async with contextlib.aclosing(fetch_many(requests, limits(in_flight=64, read_s=0.5))) as outcomes:
            async for outcome in outcomes:
                if outcome.key > 20:
                    break
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return next(requests).key

    assert asyncio.run(some()) < 200


def test_no_request_is_sent_while_outcomes_are_not_taken(web, limits):
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


def test_two_concurrent_tables_share_the_limits(limits):
    async def one(web, fetcher, first):
        requests = (Request(row, web.url(f"/image/{row}", f"host{row % 3}.{DOMAIN}")) for row in range(first, 200, 2))
        async with contextlib.aclosing(fetcher.fetch_many(requests)) as outcomes:
            return [(outcome.key % 2, outcome.status) async for outcome in outcomes]

    async def both(web):
        async with Fetcher(limits(host_connections=3)) as fetcher:
            return await asyncio.gather(one(web, fetcher, 0), one(web, fetcher, 1))

    with web_server(latency_s=0.02, together=3) as web:
        assert asyncio.run(both(web)) == [[(0, Status.SUCCESS)] * 100, [(1, Status.SUCCESS)] * 100]
    assert set(web.most_at_once.values()) == {3}


def test_closing_one_table_early_releases_its_share_of_the_limits(web, limits):
    async def statuses(fetcher, kinds):
        requests = [Request(row, web.url(f"/{kind}/{row}", f"{kind}.{DOMAIN}")) for row, kind in enumerate(kinds)]
        async with contextlib.aclosing(fetcher.fetch_many(requests)) as outcomes:
            async for outcome in outcomes:
                yield outcome.status

    async def run():
        # Four rows at once; memory for one body whose length is not known, and for what others have taken.
        tight = limits(in_flight=4, body_bytes=1 << 20, memory_bytes=(1 << 20) + 3 * len(picture()))
        async with Fetcher(tight) as fetcher, asyncio.timeout(100):
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


@pytest.mark.parametrize("head", ["Transfer-Encoding: chunked", "Content-Length: 1048000", "Content-Encoding: gzip"])
def test_slow_bodies_take_memory_only_for_what_has_come(web, limits, monkeypatch, head):
    """However large they are or claim to be, so that other bodies can be fetched meanwhile."""

    async def trickle(exchange):
        chunked = head.startswith("Transfer")
        await exchange.raw(f"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\n{head}\r\n\r\n".encode())
        start = gzip.compress(picture())[:20] if "gzip" in head else picture()[:20]
        await exchange.raw(b"14\r\n" + start + b"\r\n" if chunked else start)
        await asyncio.sleep(3_600)

    monkeypatch.setitem(KINDS, "trickle", (trickle, Status.TIMEOUT))
    # Memory for two bodies of the largest size, and as many slow ones as may be in flight.
    hours = dict.fromkeys(("read_s", "answer_s", "row_s"), 36_000.0)
    tight = limits(body_bytes=1 << 20, memory_bytes=2 << 20, in_flight=40, **hours)

    async def run():
        slow = [Request(row, web.url(f"/trickle/{row}", f"slow{row}.{DOMAIN}")) for row in range(24)]
        quick = [Request(row, web.url(f"/image/{row}", f"quick.{DOMAIN}")) for row in range(24, 64)]
        async with contextlib.aclosing(fetch_many([*slow, *quick], tight)) as outcomes, asyncio.timeout(100):
            return [(await anext(outcomes)).status for _ in quick]

    assert asyncio.run(run()) == [Status.SUCCESS] * 40


async def requests_have_ended(web):
    """Wait until no request comes: a machine that stands still lets one look in a row find none, and not ten."""
    before, quiet = 0, 0
    while quiet < 10:
        await asyncio.sleep(0.05)
        quiet = quiet + 1 if len(web.heads) == before else 0
        before = len(web.heads)


def test_time_spent_waiting_for_the_caller_is_no_timeout_of_the_host(web, limits):
    tight = limits(body_bytes=len(picture("png")), memory_bytes=len(picture("png")), row_s=36_000.0)

    async def slowly():
        loop = asyncio.get_running_loop()
        clock = loop.time
        requests = [Request(row, web.url(f"/png/{row}")) for row in range(12)]
        async with contextlib.aclosing(fetch_many(requests, tight)) as outcomes:
            first = await anext(outcomes)
            await requests_have_ended(web)
            loop.time = lambda: clock() + 1_000  # longer than a host has for an answer
            return [first.status, *[outcome.status async for outcome in outcomes]]

    assert asyncio.run(slowly()) == [Status.SUCCESS] * 12


def test_a_broken_answer_fails_its_own_row_alone(web, fetch):
    urls = [web.url(f"/mutated/{row}", f"host{row % 60}.{DOMAIN}") for row in range(300)]
    outcomes = fetch(urls, read_s=1.0, host_failures=1_000, retries=1, retry_after_s=1.0)
    assert len({outcome.status for outcome in outcomes}) >= 6


def test_an_error_while_reading_the_table_is_raised_to_the_caller(limits):
    def requests():
        yield Request(0, "ftp://example.org/")
        raise OSError("the table ends here")

    async def read():
        async with contextlib.aclosing(fetch_many(requests(), limits())) as outcomes:
            return [outcome async for outcome in outcomes]

    with pytest.raises(OSError, match="the table ends here"):
        asyncio.run(read())


def test_every_status_is_documented():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", (ROOT / "docs/fetching.md").read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == [status.value for status in Status]


def test_an_untrusted_certificate_is_refused_unless_allowed(tls_web, fetch):
    assert fetch([tls_web])[0].status is Status.TLS
    assert fetch([tls_web], verify_tls=False)[0].body == picture()


PACKED = {"gzip": gzip.compress, "deflate": zlib.compress, "": bytes, "identity": bytes, "X-GZIP ": gzip.compress}


def read(body: bytes, pieces: int, limit_bytes: int, encoding: str = "", *, image: bool = False) -> bytes:
    taken = Body(limit_bytes, image=image)
    taken.decode_from(encoding)
    for at in range(0, len(body), pieces):
        for part in taken.parts(body[at : at + pieces]):
            taken.feed(part)
    return taken.whole()


@given(st.binary(max_size=3_000), st.integers(1, 500), st.sampled_from(sorted(PACKED)))
def test_a_body_in_any_pieces_is_the_whole_body(body, pieces, encoding):
    assert read(PACKED[encoding](body), pieces, 4_000, encoding) == body


@given(st.integers(0, 2_000), st.integers(1, 2_000), st.integers(1, 300), st.sampled_from(["", "gzip", "deflate"]))
def test_a_body_is_too_large_from_one_byte_over_the_limit_on(num_bytes, limit_bytes, pieces, encoding):
    packed = PACKED[encoding](bytes(num_bytes))
    if max(num_bytes, len(packed)) <= limit_bytes:
        assert len(read(packed, pieces, limit_bytes, encoding)) == num_bytes
        return
    with pytest.raises(Failed) as failed:
        read(packed, pieces, limit_bytes, encoding)
    assert failed.value.status is Status.TOO_LARGE


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (gzip.compress(picture())[:-1], Status.INCOMPLETE),
        (gzip.compress(picture()) + b"more", Status.ENCODING),
        (picture(), Status.ENCODING),
        (b"", Status.INCOMPLETE),
        (gzip.compress(b"<html>"), Status.NOT_IMAGE),
    ],
    ids=[
        "cut",
        "followed",
        "plain",
        "empty",
        "html",
    ],  # gzip's head has the time: no name of a test that two processes share
)
def test_a_body_that_does_not_decompress_whole_is_refused(body, status):
    with pytest.raises(Failed) as failed:
        read(body, 1_000, 1 << 20, "gzip", image=True)
    assert failed.value.status is status


@pytest.mark.parametrize("num_bytes", [1, 65_535, 65_536, 65_537, 131_072, 1 << 20])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_shrank_a_thousandfold_is_whole_and_comes_in_small_parts(num_bytes, encoding):
    packed = PACKED[encoding](bytes(num_bytes))
    body = Body(max(num_bytes, len(packed)), image=False)
    body.decode_from(encoding)
    parts = []
    for at in range(0, len(packed), 7):
        for part in body.parts(packed[at : at + 7]):
            body.feed(part)
            parts.append(len(part))
    assert body.whole() == bytes(num_bytes)
    assert max(parts) <= 65_536


def test_a_body_in_single_bytes_takes_no_more_memory_than_in_one_piece():
    tracemalloc.start()
    try:
        body = Body(1 << 20, image=False)
        for byte in range(1 << 17):
            body.feed(b"%c%c" % (byte % 256, byte // 256 % 256) if byte % 2 else b"")
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 1.5 * (1 << 17)


@pytest.mark.parametrize("kind", ["jpeg", "png", "animated", "exif", "corrupt"])
def test_images_are_recognised_by_their_first_bytes_in_any_pieces(kind):
    assert read(picture(kind), 5, 1 << 20, image=True) == picture(kind)


def test_a_body_that_is_no_image_is_refused_from_its_first_bytes():
    body = Body(1 << 20)
    with pytest.raises(Failed, match="begins with b'<html><body>'"):
        body.feed(b"<html><body>")


BODY_BYTES = 100


class Held:
    """What is taken now, and the most that ever was."""

    def __init__(self) -> None:
        self.num_bytes = self.most_bytes = 0

    def take(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self.most_bytes = max(self.most_bytes, self.num_bytes)


async def arrive(memory, held, draw, whole):
    """One body of random pieces, which ends whole, broken off or cancelled, and whose bytes the caller takes later."""
    size, taken = draw.randint(0, BODY_BYTES), 0
    try:
        with memory.arriving() as arriving:
            while taken < size:
                piece = min(draw.randint(1, 40), size - taken)
                await arriving.take(piece)
                taken += piece
                held.take(piece)
                if draw.random() < 0.7:
                    await asyncio.sleep(0)
                if draw.random() < 0.02:
                    raise ConnectionError
            arriving.keep()
            whole.put_nowait(taken)
    except (ConnectionError, asyncio.CancelledError):
        held.take(-taken)


async def everything(seed, num_bytes, bodies):
    draw, held, whole = random.Random(seed), Held(), asyncio.Queue()
    memory = Memory(num_bytes, BODY_BYTES)
    tasks = [asyncio.create_task(arrive(memory, held, draw, whole)) for _ in range(bodies)]
    while not all(task.done() for task in tasks) or not whole.empty():
        # The caller takes what is whole, sometimes late; some rows are cancelled meanwhile.
        if draw.random() < 0.05:
            draw.choice(tasks).cancel()
        if not whole.empty() and draw.random() < 0.5:
            taken = whole.get_nowait()
            held.take(-taken)
            memory.give(taken)
        await asyncio.sleep(0)
    return memory, held


@given(st.integers(0, 2**32), st.integers(BODY_BYTES, 5 * BODY_BYTES), st.integers(1, 40))
def test_every_body_arrives_within_the_budget(seed, num_bytes, bodies):
    async def run():
        async with asyncio.timeout(60):  # what waits for ever fails here
            return await everything(seed, num_bytes, bodies)

    memory, held = asyncio.run(run())
    assert held.num_bytes == 0
    assert held.most_bytes <= num_bytes
    with memory.arriving() as last:
        assert last.take_now(num_bytes), "all of it is free again"


def test_a_body_counts_with_the_bytes_received_and_not_with_its_declared_size():
    memory = Memory(3 * BODY_BYTES, BODY_BYTES)
    arriving = [memory.arriving().__enter__() for _ in range(100)]
    assert all(each.take_now(2) for each in arriving)


def test_younger_bodies_leave_room_for_all_of_the_oldest():
    memory = Memory(2 * BODY_BYTES, BODY_BYTES)
    with memory.arriving() as oldest, memory.arriving() as second, memory.arriving() as third:
        assert second.take_now(60)
        assert not third.take_now(41)
        assert third.take_now(40)
        assert oldest.take_now(BODY_BYTES)


def test_the_next_oldest_body_continues_once_the_caller_takes_the_first():
    memory = Memory(2 * BODY_BYTES, BODY_BYTES)

    async def run():
        with memory.arriving() as first:
            assert first.take_now(BODY_BYTES)
            first.keep()
        with memory.arriving() as second:
            assert second.take_now(50)
            waiting = asyncio.create_task(second.take(51))
            await asyncio.sleep(0)
            assert not waiting.done()
            memory.give(BODY_BYTES)
            await asyncio.wait_for(waiting, 60)

    asyncio.run(run())


@pytest.mark.parametrize("granted", [False, True])
def test_a_body_cancelled_while_it_waits_holds_no_memory(granted):
    memory = Memory(BODY_BYTES, BODY_BYTES)

    async def wait():
        with memory.arriving() as younger:
            await younger.take(10)

    async def run():
        with memory.arriving() as oldest:
            assert oldest.take_now(BODY_BYTES)
            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0)
            if not granted:
                waiting.cancel()
        if granted:
            waiting.cancel()  # it was granted, and has not run since
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        with memory.arriving() as last:
            assert last.take_now(BODY_BYTES)

    asyncio.run(run())


LOOPBACK: tuple[Network, ...] = (ipaddress.ip_network("127.0.0.0/8"),)
ANSWERS: dict[str, Sequence[str]] = {
    "public.test": ["8.8.8.8", "2606:4700::1111"],
    "mixed.test": ["8.8.8.8", "10.0.0.1"],
    "loopback.test": ["127.0.0.7"],
}


def cache() -> Cache:
    return Cache(100, 60.0)


def resolve(
    server: NameServer, *names: str, allow_networks: tuple[Network, ...] = ()
) -> list[set[str] | tuple[Status, str]]:
    """Look names up one after the other; their addresses, or how each failed."""

    async def run() -> list[set[str] | tuple[Status, str]]:
        resolver = CheckedResolver(allow_networks, (server.address,), cache())
        found: list[set[str] | tuple[Status, str]] = []
        for name in names:
            try:
                results = await resolver.resolve(name, 443)
            except Failed as failed:
                found.append((failed.status, failed.reason))
            else:
                assert {(result["hostname"], result["port"]) for result in results} == {(name, 443)}
                found.append({result["host"] for result in results})
        await resolver.close()
        return found

    return asyncio.run(run())


@pytest.fixture
def server():
    with name_server(lambda name, _: ANSWERS.get(name, [])) as running:
        yield running


REFUSED = Status.REFUSED_ADDRESS


@pytest.mark.parametrize(
    ("name", "allow_networks", "found"),
    [
        ("public.test", (), {"8.8.8.8", "2606:4700::1111"}),
        ("mixed.test", (), (REFUSED, "mixed.test: 10.0.0.1 is private")),
        ("loopback.test", (), (REFUSED, "loopback.test: 127.0.0.7 is loopback")),
        ("loopback.test", LOOPBACK, {"127.0.0.7"}),
    ],
)
def test_a_name_has_its_addresses_or_is_refused_whole_where_one_is(server, name, allow_networks, found):
    assert resolve(server, name, allow_networks=allow_networks) == [found]


def test_a_name_without_an_address_is_a_failure_of_dns(server: NameServer):
    ((status, _),) = resolve(server, "nothing.test")
    assert status is Status.DNS


def test_a_name_is_looked_up_once_and_whole(server: NameServer):
    assert resolve(server, *["public.test"] * 3) == [{"8.8.8.8", "2606:4700::1111"}] * 3
    assert max(server.asked.values()) < 3, "a busy machine may answer so late that it is asked once more"
    assert {name for name, _ in server.asked} == {"public.test"}


@pytest.mark.parametrize(
    ("address", "allow_networks", "refused"),
    [
        ("8.8.8.8", (), False),
        ("127.0.0.1", (), True),
        ("127.0.0.1", LOOPBACK, False),
        ("169.254.169.254", LOOPBACK, True),
    ],
)
def test_a_socket_is_made_for_allowed_addresses_alone(address: str, allow_networks: tuple[Network, ...], refused: bool):
    info = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, 80))
    if refused:
        with pytest.raises(PermissionError, match=address.replace(".", r"\.")):
            checked_socket(info, allow_networks)
    else:
        checked_socket(info, allow_networks).close()
