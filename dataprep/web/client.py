"""Fetches thousands of URLs at the same time on one thread: checks addresses, is polite to hosts, limits bodies.

async with Fetcher(Limits(contact="https://example.org/our-crawler")) as fetcher:
    outcomes = fetcher.fetch_many(Request(row, url) for row, url in rows)
    async with contextlib.aclosing(outcomes):
        async for outcome in outcomes:
            ...

To fetch several tables at the same time within the same limits, call `fetch_many` for each.
"""

from __future__ import annotations

import asyncio
import heapq
import re
import resource
import socket
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urljoin

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from dataprep.errors import FormatError
from dataprep.messages import one_line
from dataprep.web import consent
from dataprep.web.addresses import Network, checked_url, refusal
from dataprep.web.politeness import Cache, Gate, Gates, Known, retry_after_s
from dataprep.web.requests import Consent, Failed, Limits, Outcome, Request, Status

V = TypeVar("V")
QUERY_S = 3.0
QUERIES = 2
# First bytes of JPEG, PNG, GIF, WebP, BMP, TIFF, JPEG 2000, JPEG XL, AVIF and HEIF; a decoder may accept fewer formats.
_IMAGE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|RIFF....WEBP|BM|II\*\0|MM\0\*|\0\0\0\x0cjP  |\xff\x4f\xff\x51"
    rb"|\xff\x0a|\0\0\0\x0cJXL |....ftyp(?:avi[fs]|mif1|msf1|hei[cxms]|hev[cmsx])",
    re.DOTALL,
)
_MAGIC_BYTES = 12
_PART_BYTES = 64 * 1024
"""Maximum number of bytes that are inflated at a time, because a kilobyte may inflate to a megabyte."""
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
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


class CheckedResolver(AbstractResolver):
    """Resolver that refuses a name if any of its addresses is refused: a mixed answer is an attack or a mistake."""

    def __init__(
        self, allow_networks: tuple[Network, ...], nameservers: tuple[str, ...], cache: Cache[list[ResolveResult]]
    ) -> None:
        servers = nameservers or None  # the machine's own
        self._resolver = aiohttp.AsyncResolver(timeout=QUERY_S, tries=QUERIES, nameservers=servers)
        self._allow_networks, self._cache = allow_networks, cache

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Look up all addresses of a name, and check each of them.

        Raises:
            Failed: DNS or REFUSED_ADDRESS.
        """
        results = await self._cache.get(host, lambda: self._look_up(host, family))
        return [{**result, "hostname": host, "port": port} for result in results]

    async def close(self) -> None:
        await self._resolver.close()

    async def _look_up(self, host: str, family: socket.AddressFamily) -> list[ResolveResult]:
        try:
            # A final dot makes a name absolute, so that the machine's search domains are not tried.
            results = await self._resolver.resolve(host.rstrip(".") + ".", 0, family)
        except OSError as error:
            raise Failed(Status.DNS, str(error.strerror or error)) from None
        for result in results:
            if reason := refusal(result["host"], self._allow_networks):
                raise Failed(Status.REFUSED_ADDRESS, f"{host}: {reason}")
        return results


def checked_socket(
    address_info: tuple[int, int, int, str, tuple[Any, ...]], allow_networks: tuple[Network, ...]
) -> socket.socket:
    """Create a socket. Every connection is made by this function, so none can lead to a refused address. Raises
    PermissionError if the address may not be connected to."""
    family, kind, protocol, _, address = address_info
    if reason := refusal(str(address[0]), allow_networks):
        raise PermissionError(reason)
    return socket.socket(family, kind, protocol)


class Memory:
    """Divides a number of bytes among arriving bodies, so that neither a slow nor a large body stops the others.

    A body reserves memory for the bytes that have arrived, and not for those that may. To prevent a deadlock, the
    younger bodies together leave enough room for the complete oldest one. The oldest therefore waits only for complete
    bodies, which the caller will take. When it is complete, the next one is the oldest.

    Args:
        num_bytes: Memory for all bodies, both arriving and complete.
        body_bytes: Largest size of one body.
    """

    def __init__(self, num_bytes: int, body_bytes: int) -> None:
        self._free_bytes, self._younger_bytes = num_bytes, num_bytes - body_bytes
        self._ages = count()
        self._arriving: dict[int, Arriving] = {}  # the oldest is first
        self._arriving_bytes = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap: age, bytes, future that is waited for

    def arriving(self) -> Arriving:
        """Return a body that has not begun to arrive; when its `with` block ends it is complete or abandoned."""
        return Arriving(self, next(self._ages))

    def give(self, num_bytes: int) -> None:
        """Release the memory of a complete body."""
        self._free_bytes += num_bytes
        self._serve()

    def _has_room(self, age: int, num_bytes: int) -> bool:
        oldest = next(iter(self._arriving))
        younger_bytes = self._arriving_bytes - self._arriving[oldest].num_bytes
        return num_bytes <= self._free_bytes and (age == oldest or younger_bytes + num_bytes <= self._younger_bytes)

    def _grant(self, age: int, num_bytes: int) -> None:
        self._free_bytes -= num_bytes
        self._arriving_bytes += num_bytes
        self._arriving[age].num_bytes += num_bytes

    def _serve(self) -> None:
        """Grant memory to waiting bodies, the oldest first."""
        while self._waiting:
            age, num_bytes, granted = self._waiting[0]
            if not granted.cancelled():
                if not self._has_room(age, num_bytes):
                    return
                self._grant(age, num_bytes)
                granted.set_result(None)
            heapq.heappop(self._waiting)


class Arriving:
    """Memory of a body while it arrives."""

    def __init__(self, memory: Memory, age: int) -> None:
        self._memory, self._age = memory, age
        self._kept_bytes = 0
        self.num_bytes = 0
        """Number of bytes reserved so far."""

    def __enter__(self) -> Arriving:
        self._memory._arriving[self._age] = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        memory = self._memory
        del memory._arriving[self._age]
        memory._arriving_bytes -= self.num_bytes
        memory.give(self.num_bytes - self._kept_bytes)

    def take_now(self, num_bytes: int) -> bool:
        """Reserve more bytes if no wait is needed; return whether they were reserved."""
        memory = self._memory
        if (memory._waiting and memory._waiting[0][0] < self._age) or not memory._has_room(self._age, num_bytes):
            return False
        memory._grant(self._age, num_bytes)
        return True

    async def take(self, num_bytes: int) -> None:
        """Wait until more bytes can be reserved, and reserve them."""
        if not self.take_now(num_bytes):
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._memory._waiting, (self._age, num_bytes, granted))
            await granted

    def keep(self) -> None:
        """Keep the memory reserved after the body's end, until `Memory.give` releases it."""
        self._kept_bytes = self.num_bytes


class Body:
    """Collects the pieces of one body.

    Args:
        limit_bytes: Largest size of the body, both as it arrives and decompressed.
        image: Whether the body must begin as an image does.
    """

    def __init__(self, limit_bytes: int, *, image: bool = True) -> None:
        self._inflate: zlib._Decompress | None = None
        self._limit_bytes, self._unrecognised = limit_bytes, image
        self.image = image
        self._wire_bytes = 0
        self._data = bytearray()  # not a list, which takes 50 bytes for each piece: a hostile piece has one byte

    @property
    def room_bytes(self) -> int:
        """Number of bytes that the body may still have."""
        return self._limit_bytes - len(self._data)

    def decode_from(self, encoding: str) -> None:
        """Set the Content-Encoding: gzip, deflate, or none.

        Raises:
            Failed: ENCODING.
        """
        encoding = encoding.strip().lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        elif encoding not in ("", "identity"):
            raise Failed(Status.ENCODING, f"Content-Encoding {encoding[:64]!r}, which was not requested")

    def parts(self, piece: bytes) -> Iterator[bytes]:
        """Decompress the next bytes from the wire, in parts for `feed`.

        Raises:
            Failed: TOO_LARGE or ENCODING.
        """
        if self._inflate is None:
            yield piece
            return
        self._wire_bytes += len(piece)
        if self._wire_bytes > self._limit_bytes:
            raise self._too_large()
        part = bytes(_PART_BYTES)
        while piece or len(part) == _PART_BYTES:  # after a full part more output may wait, even without input
            try:
                part = self._inflate.decompress(piece, _PART_BYTES)
            except zlib.error as error:
                raise Failed(Status.ENCODING, f"does not decompress: {error}") from None
            piece = self._inflate.unconsumed_tail
            yield part
        if self._inflate.unused_data:
            raise Failed(Status.ENCODING, "bytes after the end of the compressed body")

    def feed(self, part: bytes) -> None:
        """Add the next part.

        Raises:
            Failed: TOO_LARGE or NOT_IMAGE, as soon as it is known.
        """
        room_bytes = self.room_bytes
        self._data += part[:room_bytes]
        if len(part) > room_bytes:
            raise self._too_large()
        if self._unrecognised and len(self._data) >= _MAGIC_BYTES:
            self._recognise()

    def whole(self) -> bytes:
        """Return the complete body, after its last part.

        Raises:
            Failed: INCOMPLETE or NOT_IMAGE.
        """
        if self._inflate and not self._inflate.eof:
            raise Failed(Status.INCOMPLETE, "the compressed body ends early")
        if self._unrecognised:
            self._recognise()
        return self.start()

    def start(self) -> bytes:
        """Return the bytes that have arrived so far, for callers that need only a part."""
        return bytes(self._data)

    def _too_large(self) -> Failed:
        return Failed(Status.TOO_LARGE, f"over {self._limit_bytes:,} bytes")

    def _recognise(self) -> None:
        start = bytes(self._data[:64])
        if not _IMAGE.match(start):
            raise Failed(Status.NOT_IMAGE, f"begins with {start[:24]!r}" if start else "an empty body")
        self._unrecognised = False


class Fetcher:
    """Asynchronous context manager of all fetches on one event loop: HTTP session, gates of hosts, memory for bodies.

    Args:
        known: Knowledge about hosts from before. One fetcher at a time may use it.
    """

    def __init__(self, limits: Limits, known: Known | None = None) -> None:
        self._limits, self._known = limits, known or Known()
        self._gates = Gates(limits)
        one_bytes = max(limits.body_bytes, consent.MAX_ROBOTS_BYTES)
        self._memory = Memory(max(limits.memory_bytes, one_bytes), one_bytes)
        self._slots = asyncio.Semaphore(limits.in_flight)
        # One thread, so that the event loop gets half of the time even if many hosts send a robots.txt of 500 KiB.
        self._parser = ThreadPoolExecutor(1, "dataprep-robots")

    async def __aenter__(self) -> Fetcher:
        _allow_sockets(self._limits.in_flight)
        self._resolver = CheckedResolver(self._limits.allow_networks, self._limits.nameservers, self._known.names)
        self._session = _session(self._limits, self._resolver)
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
            body, url = await self._follow(request.url, "HEAD" if request.head else "GET", is_image=True)
        except Failed as failure:
            return Outcome(
                request.key, failure.status, failure.reason, http_code=failure.http_code, evidence=failure.evidence
            )
        return Outcome(request.key, Status.SUCCESS, body=body, final_url=str(url), http_code=200)

    async def _follow(self, text: str, method: str = "GET", *, is_image: bool) -> tuple[bytes, URL]:
        """Follow redirects, and return the final body, empty after HEAD: an image, or a file of the site such as
        robots.txt, for which robots.txt is not consulted."""
        until_s = asyncio.get_running_loop().time() + self._limits.row_s
        seen = set()
        for _ in range(self._limits.redirects + 1):
            url = checked_url(text, self._limits.allow_networks)
            if url in seen:
                raise Failed(Status.REDIRECT, f"a loop through {url}"[:200])
            seen.add(url)
            gate = self._gates.of(url.raw_host or "")
            said = None
            if is_image:
                site = await self._site(url, until_s)
                said = site.check(url, self._limits.consent)
                gate.slow_down(site.robots.crawl_delay_s * self._limits.workers)
            answer = await self._ask(url, gate, until_s, said, method)
            if isinstance(answer, bytes):
                return answer, url
            text = _joined(url, answer)
        raise Failed(Status.REDIRECT, f"more than {self._limits.redirects} redirects")

    async def _site(self, url: URL, until_s: float) -> consent.Site:
        """Return what a site says, which all its rows share; a row waits for it until `until_s`."""
        site = f"{url.scheme}://{url.raw_authority}"
        try:
            async with asyncio.timeout_at(until_s):
                return await self._known.sites.get(site, partial(self._ask_site, url.origin()))
        except TimeoutError:
            raise Failed(Status.HOST_BUSY, "its host's robots.txt did not arrive in time") from None

    async def _ask_site(self, origin: URL) -> consent.Site:
        """Fetch the files in which a site says how its images may be used; the others only where robots.txt came."""
        robots = await self._robots(origin)
        if self._limits.consent is Consent.ROBOTS:
            return consent.Site(robots)
        agent = self._limits.agent
        addresses = [_joined(origin, text) for text in robots.licences[: consent.MAX_LICENCES]]
        ai, reservations, licences = await asyncio.gather(
            self._file(str(origin.with_path("/ai.txt")), partial(consent.rules_of, agent, 200)),
            self._file(str(origin.with_path("/.well-known/tdmrep.json")), consent.reservations_of),
            asyncio.gather(*(self._file(address, consent.licences_of) for address in addresses)),
        )
        return consent.Site(robots, ai, reservations, dict(zip(addresses, licences, strict=True)))

    async def _robots(self, origin: URL) -> consent.Rules:
        """Fetch a robots.txt; for a host that does not send one, RFC 9309, 2.3.1, decides."""
        agent = self._limits.agent
        try:
            body, _ = await self._follow(str(origin.with_path("/robots.txt")), is_image=False)
        except Failed as failure:
            if failure.status is Status.REDIRECT:
                return consent.rules_of(agent, 404)
            if failure.status is Status.HTTP and failure.http_code:
                return consent.rules_of(agent, failure.http_code)
            raise failure.again("robots.txt: ") from None
        others = (*self._limits.agents, *(consent.AI_AGENTS if self._limits.consent is Consent.STRICT else ()))
        return await self._parsed(partial(consent.rules_of, agent, 200, others=others), body)

    async def _file(self, url: str, read: Callable[[bytes], V]) -> V | consent.Unread | None:
        """Fetch and read a file in which a site may say more; None if it has none."""
        try:
            body, _ = await self._follow(url, is_image=False)
        except Failed as failure:
            code = failure.http_code
            is_absent = failure.status is Status.REDIRECT or (code is not None and 400 <= code < 500 and code != 429)
            return None if is_absent else consent.Unread(url, f"not answered: {failure.reason}")
        if read is not consent.licences_of and body.lstrip()[:1] == b"<":
            return None  # a page that says "not found" with the code of success
        try:
            return await self._parsed(read, body)
        except FormatError as error:
            return consent.Unread(url, str(error))

    async def _parsed(self, read: Callable[[bytes], V], body: bytes) -> V:
        if len(body) <= PARSED_HERE_BYTES:
            return read(body)
        return await asyncio.get_running_loop().run_in_executor(self._parser, read, body)

    async def _ask(
        self, url: URL, gate: Gate, until_s: float, said: list[consent.Statement] | None, method: str
    ) -> bytes | str:
        """Return the body, or the Location of a redirect; a request to a busy host is repeated.

        Args:
            said: What was said of an image so far; None for a file of the site.
        """
        shared = self._gates.of_address(await self._address(url))
        for attempt in range(self._limits.retries + 1):
            async with AsyncExitStack() as entered:
                for each in (gate, shared):
                    await each.enter(until_s)
                    entered.callback(each.leave)
                answer = await self._send(method, url, gate, said)
            if isinstance(answer, bytes | str):
                return answer
            code, asked_s = answer
            pause_s = 2.0**attempt if asked_s is None else asked_s
            gate.pause(pause_s)
            if attempt == self._limits.retries or pause_s > self._limits.retry_after_s:
                break
        raise Failed(Status.HTTP, f"HTTP {code}, Retry-After {pause_s:.0f} s", code)

    async def _address(self, url: URL) -> str:
        """Return one of the addresses of a URL's host, the same for all names that share them."""
        host = url.raw_host or ""
        if url.host_subcomponent != host or re.fullmatch(r"[0-9.]+", host):
            return host
        return min(found["host"] for found in await self._resolver.resolve(host))

    async def _send(
        self, method: str, url: URL, gate: Gate, said: list[consent.Statement] | None
    ) -> bytes | str | tuple[int, float | None]:
        """Send one request, and return a body, a Location, or the code and Retry-After of a busy host.

        A 503 without Retry-After is an error.
        """
        code = None
        try:
            async with asyncio.timeout(self._limits.answer_s) as deadline:
                async with self._session.request(method, url, allow_redirects=False) as response:
                    code = response.status
                    gate.note(answered=True)
                    if code in BUSY:
                        pause_s = retry_after_s(response.headers.get("Retry-After"), datetime.now(UTC))
                        if code == 429 or pause_s is not None:
                            return code, pause_s
                    if code in REDIRECTS:
                        if location := response.headers.get("Location"):
                            return location
                        raise Failed(Status.REDIRECT, f"HTTP {code} without a Location", code)
                    if code != 200:
                        raise Failed(Status.HTTP, f"HTTP {code}", code)
                    return await self._body(response, deadline, said)
        except _ERRORS as error:
            if code is None:
                gate.note(answered=False)
            raise _failure(error, code) from None

    async def _body(
        self, response: aiohttp.ClientResponse, deadline: asyncio.Timeout, said: list[consent.Statement] | None
    ) -> bytes:
        """Return the body, for a file of the site at most its first MAX_ROBOTS_BYTES; the memory of an image stays
        reserved."""
        policy, is_image = self._limits.consent, said is not None
        if said is not None:
            said = [*said, *consent.headers(response.headers, self._limits.agent, str(response.url))]
            consent.obey(said, policy, response.status)
        if response.method == "HEAD":
            return b""
        limit_bytes = self._limits.body_bytes if is_image else consent.MAX_ROBOTS_BYTES
        length = response.content_length
        if is_image and length is not None and length > limit_bytes:
            raise Failed(Status.TOO_LARGE, f"{length:,} bytes; at most {limit_bytes:,}", response.status)
        with self._memory.arriving() as arriving:
            whole = await _read(response, Body(limit_bytes, image=is_image), arriving, deadline)
            if said is not None:
                if policy is not Consent.ROBOTS and (found := consent.metadata_of(whole)):
                    read = partial(consent.in_file, found=found, url=str(response.url))
                    said += await asyncio.get_running_loop().run_in_executor(self._parser, read, whole)
                    consent.obey(said, policy, response.status)
                arriving.keep()
        return whole


def _session(limits: Limits, resolver: AbstractResolver) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        resolver=resolver,
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


def _joined(url: URL, location: str) -> str:
    try:
        return urljoin(str(url), location)
    except ValueError as error:
        raise Failed(Status.BAD_URL, f"redirected to an invalid URL: {error}"[:200]) from None


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
