"""Fetches thousands of URLs at the same time on one thread: checks addresses, is polite to hosts, limits bodies.

outcomes = fetch_many((Request(row, url) for row, url in rows), Limits(contact="https://example.org/our-crawler"))
async with contextlib.aclosing(outcomes):
    async for outcome in outcomes:
        ...

To fetch several tables at the same time within the same limits, use one `Fetcher`, and its `fetch_many` for each.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast
from urllib.parse import urljoin

import aiohttp
from yarl import URL

from dataprep.messages import one_line
from dataprep.web.addresses import checked_url
from dataprep.web.body import Body
from dataprep.web.caches import Known
from dataprep.web.limits import Limits
from dataprep.web.memory import Arriving, Memory
from dataprep.web.outcomes import Failed, Outcome, Request, Status
from dataprep.web.politeness import Gate, Gates, retry_after_s
from dataprep.web.resolver import CheckedResolver, checked_socket
from dataprep.web.robots import MAX_ROBOTS_BYTES, Rules, opt_out, rules_of

REDIRECTS = frozenset({301, 302, 303, 307, 308})
BUSY = frozenset({429, 503})
KEPT_ALIVE_S = 5.0
"""Time for which an idle connection is kept: enough between robots.txt and an image of the same host. With a longer
time, the idle sockets of ten thousand hosts would pile up."""
MAX_HEADER_BYTES = 32 * 1024
PARSED_HERE_BYTES = 8 * 1024
"""Size up to which a robots.txt is parsed on the event loop: this takes a few ms at worst, and usually less than
passing it to a thread."""
# The last three come from bugs in a library that parses hostile bytes; one row must not fail a shard.
_ERRORS = (aiohttp.ClientError, OSError, ValueError, AssertionError, LookupError, RuntimeError)


async def fetch_many(requests: Iterable[Request], limits: Limits, known: Known | None = None) -> AsyncIterator[Outcome]:
    """Fetch all requests, in any order, with exactly one outcome each; see `Fetcher.fetch_many`.

    Args:
        known: What earlier calls in this process learnt about hosts.
    """
    async with Fetcher(limits, known) as fetcher:
        outcomes = cast("AsyncGenerator[Outcome]", fetcher.fetch_many(requests))
        async with aclosing(outcomes):
            async for outcome in outcomes:
                yield outcome
                del outcome  # now only the caller holds the body


def _session(limits: Limits, known: Known) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        resolver=CheckedResolver(limits.allow_networks, limits.nameservers, known.names),
        use_dns_cache=False,
        socket_factory=partial(checked_socket, allow_networks=limits.allow_networks),
        ssl=limits.verify_tls,
        limit=0,  # `in_flight` and the gate of each host limit the connections
        keepalive_timeout=KEPT_ALIVE_S,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,  # no proxy, no .netrc
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s, sock_read=limits.read_s),
        headers={"User-Agent": limits.user_agent, "Accept": "image/*,*/*;q=0.1", "Accept-Encoding": "identity"},
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
    )


def _allow_sockets(in_flight: int) -> None:
    """Raise this process's limit of open files to the number that the sockets need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * in_flight + 256  # idle connections among them
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


class Fetcher:
    """Asynchronous context manager of all fetches on one event loop: HTTP session, gates of hosts, memory for bodies.

    Args:
        limits: Limits for everything that is fetched at the same time.
        known: What was learnt about hosts before. One fetcher at a time may use it.
    """

    def __init__(self, limits: Limits, known: Known | None = None) -> None:
        self._limits, self._known = limits, known or Known()
        self._gates = Gates(limits)
        one_bytes = max(limits.body_bytes, MAX_ROBOTS_BYTES)
        self._memory = Memory(max(limits.memory_bytes, one_bytes), one_bytes)
        self._slots = asyncio.Semaphore(limits.in_flight)
        # One thread, so that the event loop gets half of the time even if many hosts send a robots.txt of 500 KiB.
        self._parser = ThreadPoolExecutor(1, "dataprep-robots")

    async def __aenter__(self) -> Fetcher:
        _allow_sockets(self._limits.in_flight)
        self._session = _session(self._limits, self._known)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._known.stop()
        self._parser.shutdown(wait=False, cancel_futures=True)
        await self._session.close()

    async def fetch_many(self, requests: Iterable[Request]) -> AsyncIterator[Outcome]:
        """Fetch all requests, in any order, with exactly one outcome each.

        A request is taken from the iterable when it begins, at most `limits.in_flight` ahead of the outcomes that the
        caller has taken; while the caller takes none, none begins. The caller must not block this thread, because
        deadlines keep running. Closing the generator early (`contextlib.aclosing`) cancels the requests in flight.
        """
        ended: asyncio.Queue[asyncio.Task[Outcome | None]] = asyncio.Queue()
        tasks: set[asyncio.Task[Outcome | None]] = set()

        def start(coroutine: Coroutine[Any, Any, Outcome | None]) -> asyncio.Task[Outcome | None]:
            task = asyncio.create_task(coroutine)
            tasks.add(task)
            task.add_done_callback(ended.put_nowait)
            return task

        async def feed() -> None:
            for request in requests:
                await self._slots.acquire()
                start(self._fetch(request))

        feeding = start(feed())
        try:
            while tasks:
                task = await ended.get()
                tasks.discard(task)
                if outcome := task.result():
                    num_bytes = len(outcome.body or b"")
                    try:
                        yield outcome
                    finally:
                        del outcome, task  # now only the caller holds the body
                        self._give_back(num_bytes)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in tasks - {feeding}:
                taken = None if task.cancelled() or task.exception() else task.result()
                self._give_back(len(taken.body or b"") if taken else 0)

    def _give_back(self, num_bytes: int) -> None:
        """Release the memory and the slot of a row whose outcome was taken, or will never be taken."""
        self._memory.give(num_bytes)
        self._slots.release()

    async def _fetch(self, request: Request) -> Outcome:
        """Fetch one row; the memory of its body stays reserved."""
        try:
            body, url = await self._follow(request.url, image=True)
        except Failed as failure:
            return Outcome(request.key, failure.status, failure.reason, http_code=failure.http_code)
        return Outcome(request.key, Status.SUCCESS, body=body, final_url=str(url), http_code=200)

    async def _follow(self, text: str, *, image: bool) -> tuple[bytes, URL]:
        """Follow redirects, and return the final body: an image, or a robots.txt, for which robots.txt is not
        consulted."""
        until_s = asyncio.get_running_loop().time() + self._limits.row_s
        seen = set()
        for _ in range(self._limits.redirects + 1):
            url = checked_url(text, self._limits.allow_networks)
            if url in seen:
                raise Failed(Status.REDIRECT, f"a loop through {url}"[:200])
            seen.add(url)
            gate = self._gates.of(url.raw_host or "")
            if image:
                rules = await self._rules(url, until_s)
                rules.check(url)
                gate.slow_down(rules.crawl_delay_s * self._limits.workers)
            answer = await self._ask(url, gate, until_s, image=image)
            if isinstance(answer, bytes):
                return answer, url
            text = _joined(url, answer)
        raise Failed(Status.REDIRECT, f"more than {self._limits.redirects} redirects")

    async def _rules(self, url: URL, until_s: float) -> Rules:
        """Return the rules of the site's robots.txt, which all its rows share; a row waits for it until `until_s`."""
        site = f"{url.scheme}://{url.raw_authority}"
        try:
            async with asyncio.timeout_at(until_s):
                return await self._known.robots.get(site, partial(self._ask_rules, url))
        except TimeoutError:
            raise Failed(Status.HOST_BUSY, "no robots.txt of its host in time") from None

    async def _ask_rules(self, url: URL) -> Rules:
        """Fetch a robots.txt; for a host that does not send one, RFC 9309, 2.3.1, decides."""
        agent = self._limits.agent
        try:
            body, _ = await self._follow(str(url.origin().with_path("/robots.txt")), image=False)
        except Failed as failure:
            if failure.status is Status.REDIRECT:
                return rules_of(agent, 404)
            if failure.status is Status.HTTP and failure.http_code:
                return rules_of(agent, failure.http_code)
            raise failure.again("robots.txt: ") from None
        if len(body) <= PARSED_HERE_BYTES:
            return rules_of(agent, 200, body)
        return await asyncio.get_running_loop().run_in_executor(self._parser, rules_of, agent, 200, body)

    async def _ask(self, url: URL, gate: Gate, until_s: float, *, image: bool) -> bytes | str:
        """Return the body, or the Location of a redirect; a request to a busy host is repeated."""
        for attempt in range(self._limits.retries + 1):
            await gate.enter(until_s)
            try:
                answer = await self._get(url, gate, image=image)
            finally:
                gate.leave()
            if isinstance(answer, bytes | str):
                return answer
            code, asked_s = answer
            pause_s = 2.0**attempt if asked_s is None else asked_s
            gate.pause(pause_s)
            if attempt == self._limits.retries or pause_s > self._limits.retry_after_s:
                break
        raise Failed(Status.HTTP, f"HTTP {code}, Retry-After {pause_s:.0f} s", code)

    async def _get(self, url: URL, gate: Gate, *, image: bool) -> bytes | str | tuple[int, float | None]:
        """Send one request, and return a body, a Location, or the code and Retry-After of a busy host.

        A 503 without Retry-After is an error.
        """
        code = None
        try:
            async with asyncio.timeout(self._limits.answer_s) as deadline:
                async with self._session.get(url, allow_redirects=False) as response:
                    code = response.status
                    gate.note(answered=True)
                    if code in BUSY:
                        pause_s = retry_after_s(response.headers.get("Retry-After"), datetime.now(UTC))
                        if code == 429 or pause_s is not None:
                            return code, pause_s
                    if code in REDIRECTS:
                        return _location(response)
                    if code != 200:
                        raise Failed(Status.HTTP, f"HTTP {code}", code)
                    return await self._body(response, deadline, image=image)
        except _ERRORS as error:
            if code is None:
                gate.note(answered=False)
            raise _failure(error, code) from None

    async def _body(self, response: aiohttp.ClientResponse, deadline: asyncio.Timeout, *, image: bool) -> bytes:
        """Return the body, of a robots.txt at most its first MAX_ROBOTS_BYTES; the memory of an image stays
        reserved."""
        headers, agent = response.headers, self._limits.agent
        if image and (said := opt_out(headers.getall("X-Robots-Tag", ()), headers.get("TDM-Reservation"), agent)):
            raise Failed(Status.OPT_OUT, f"the answer's headers say {said}", response.status)
        limit_bytes = self._limits.body_bytes if image else MAX_ROBOTS_BYTES
        length = response.content_length
        if image and length is not None and length > limit_bytes:
            raise Failed(Status.TOO_LARGE, f"{length:,} bytes; at most {limit_bytes:,}", response.status)
        with self._memory.arriving() as arriving:
            whole = await _read(response, Body(limit_bytes, image=image), arriving, deadline)
            if image:
                arriving.keep()
        return whole


async def _read(response: aiohttp.ClientResponse, body: Body, arriving: Arriving, deadline: asyncio.Timeout) -> bytes:
    try:
        body.decode_from(response.headers.get("Content-Encoding", ""))
        async for piece in response.content.iter_any():
            for part in body.parts(piece):
                await _take(arriving, min(len(part), body.room_bytes), deadline)
                body.feed(part)
        return body.whole()
    except Failed as failure:
        if not body.image and failure.status is Status.TOO_LARGE:
            return body.start()
        raise Failed(failure.status, failure.reason, response.status) from None


async def _take(arriving: Arriving, num_bytes: int, deadline: asyncio.Timeout) -> None:
    """Reserve memory. The deadline is suspended meanwhile, because the caller causes the wait and not the host."""
    if arriving.take_now(num_bytes):
        return
    loop = asyncio.get_running_loop()
    left_s = (deadline.when() or 0.0) - loop.time()
    deadline.reschedule(None)
    await arriving.take(num_bytes)
    deadline.reschedule(loop.time() + left_s)


def _location(response: aiohttp.ClientResponse) -> str:
    location = response.headers.get("Location")
    if not location:
        raise Failed(Status.REDIRECT, f"HTTP {response.status} without a Location", response.status)
    return location


def _joined(url: URL, location: str) -> str:
    try:
        return urljoin(str(url), location)
    except ValueError as error:
        raise Failed(Status.BAD_URL, f"redirected to no URL: {error}"[:200]) from None


def _failure(error: Exception, code: int | None) -> Failed:
    """Translate an exception of the client library; `code` is the status if the answer's headers had arrived."""
    text = one_line(error)
    match error:
        case TimeoutError():
            return Failed(
                Status.TIMEOUT, text if isinstance(error, aiohttp.ClientError) else "the answer took too long"
            )
        case aiohttp.ClientSSLError():
            return Failed(Status.TLS, text)
        case aiohttp.ClientConnectorError() if isinstance(error.os_error, PermissionError):
            return Failed(Status.REFUSED_ADDRESS, str(error.os_error))
        case aiohttp.ClientPayloadError():
            return Failed(Status.INCOMPLETE, text, code)
        case aiohttp.ClientConnectionError() | OSError():
            return Failed(Status.INCOMPLETE if code else Status.CONNECT, text, code)
        case aiohttp.InvalidURL():
            return Failed(Status.BAD_URL, text)
    return Failed(Status.PROTOCOL, text, code)
