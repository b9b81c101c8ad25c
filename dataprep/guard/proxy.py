"""The guard's proxy on loopback: it answers in place of Cloud Storage, and asks the ledger before bytes flow.

CONNECT to a host of Cloud Storage   the guard ends the TLS, and passes each request on over TLS of its own
CONNECT to any other host            a tunnel whose bytes are counted
a request without CONNECT            for an emulator, if there is one

Bodies are streamed in both directions, never held. The guard has no credentials: clients send their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import ssl
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, cast
from xml.sax.saxutils import escape

from dataprep.guard.certificates import HTTP_2, Authority
from dataprep.guard.ledger import Account, Ledger, OverBudgetError, Reservation, described
from dataprep.guard.places import Places
from dataprep.guard.requests import Kind, StorageRequest, is_storage_host, parse_request
from dataprep.messages import one_line, printable

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, web

LOOPBACK = "127.0.0.1"
HTTPS_PORT = 443
MAX_HEAD_BYTES = 64 << 10
MAX_NAMES = 200
"""Maximum number of hosts, and of refusals, that are listed by name."""
MAX_JSON_BYTES = 64 << 20
"""Maximum size of an emulator's answer whose links are changed; longer ones pass as they are."""
READ_BYTES = 1 << 20
CONNECT_S = 30.0
CLOSE_S = 0.1
"""Time for answers that are under way when the command has ended."""
IDLE_S = 3600.0
"""Time for which a client's unused connection stays open; training runs pause for checkpoints and evaluations."""
OTHERS = "others"
_CONNECT = re.compile(rb"CONNECT ([a-z0-9_.-]{1,253}):([0-9]{1,5}) HTTP/1\.[01]\r\n", re.IGNORECASE)
_HOP_BY_HOP = {"connection", "expect", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
               "te", "trailer", "transfer-encoding", "upgrade"}  # fmt: skip
"""Headers for one connection; all others pass through."""
_STORAGE_CLASS = "x-goog-storage-class"


class GuardProxy:
    """The proxy of one run.

    Args:
        ledger: Decides, and keeps the accounts.
        places: Finds where buckets are.
        emulator: URL of an emulator of Cloud Storage that takes its place; empty for the real one.
        on_spent: Called once when a read is refused because of its price.
    """

    def __init__(self, ledger: Ledger, places: Places, emulator: str, on_spent: Callable[[], None]) -> None:
        self.ledger = ledger
        self.places = places
        self.emulator = emulator.rstrip("/")
        self.authority = Authority()
        self.url = ""
        self.tunnelled: Counter[str] = Counter()
        """Bytes that flowed to and from hosts that are not Cloud Storage's."""
        self.unread: Counter[str] = Counter()
        """Connections to hosts of Cloud Storage that could not be read, and failed: gRPC, or no trust in the guard."""
        self.uncounted: Counter[str] = Counter()
        """Requests whose transfer is not priced: batches, and copies that the servers make."""
        self.refusals: dict[str, None] = {}
        self._on_spent = on_spent
        self._servers: dict[str, web.Server] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: ClientSession
        self._listener: asyncio.Server

    async def start(self) -> None:
        """Listen on a free port of loopback, and set the URL; every other call comes after this one."""
        import aiohttp

        self._session = aiohttp.ClientSession(
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=0, resolver=aiohttp.ThreadedResolver(), ttl_dns_cache=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            max_field_size=MAX_HEAD_BYTES,
            max_line_size=MAX_HEAD_BYTES,
            read_bufsize=READ_BYTES,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _FrontDoor(self), LOOPBACK, 0, backlog=512)
        self.url = f"http://{LOOPBACK}:{self._listener.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """End all connections."""
        self._listener.close()
        for server in self._servers.values():
            await server.shutdown(CLOSE_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Remember a connection's task until it ends."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def handler(self, host: str) -> asyncio.Protocol:
        """Return what serves the requests of one connection to a host; empty for the emulator."""
        from aiohttp import web

        if host not in self._servers:
            self._servers[host] = web.Server(
                functools.partial(self._answer, host),
                access_log=None,
                auto_decompress=False,
                handler_cancellation=True,
                keepalive_timeout=IDLE_S,
                max_field_size=MAX_HEAD_BYTES,
                max_line_size=MAX_HEAD_BYTES,
            )
        return self._servers[host]()

    async def _answer(self, host: str, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request: ask the ledger, send it on, and stream the answer back."""
        from aiohttp import ClientError

        asked = parse_request(request.method, host, request.raw_path)
        if not (host or self.emulator) or not request.raw_path.startswith("/"):
            return _error(request, asked, HTTPStatus.BAD_REQUEST, "the guard serves Cloud Storage only")
        if asked.bucket is None and asked.kind in (Kind.READ, Kind.WRITE):
            return _error(request, asked, HTTPStatus.BAD_REQUEST, "the request names no bucket")
        account = None
        if asked.bucket is not None:
            account = self.ledger.account(asked.bucket, await self.places.find(asked.bucket))
            if account is None:
                return _error(request, asked, HTTPStatus.FORBIDDEN, "the guard counts no more buckets")
            reason = self.ledger.refusal(asked, account)
            if reason:
                return await self._refused(request, asked, account, reason)
        try:
            async with await self._send(host, request) as answer:
                return await self._pass_on(request, asked, account, answer)
        except (ClientError, TimeoutError) as error:
            return _error(request, asked, HTTPStatus.BAD_GATEWAY, f"Cloud Storage did not answer: {one_line(error)}")

    async def _send(self, host: str, request: web.BaseRequest) -> ClientResponse:
        from multidict import CIMultiDict
        from yarl import URL

        dropped = _HOP_BY_HOP | ({"host"} if self.emulator else set())
        headers = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() not in dropped)
        target = request.raw_path
        found = host.removesuffix(".storage.googleapis.com")
        if self.emulator and found != host:
            target = f"/{found}{target}"  # an emulator has one host for all buckets
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return await self._session.request(
            request.method,
            URL(f"{self.emulator or f'https://{host}'}{target}", encoded=True),
            headers=headers,
            data=request.content if request.body_exists else None,
            allow_redirects=False,
        )

    async def _pass_on(
        self, request: web.BaseRequest, asked: StorageRequest, account: Account | None, answer: ClientResponse
    ) -> web.StreamResponse:
        from aiohttp import web

        is_billed = answer.status < HTTPStatus.BAD_REQUEST
        storage_class = answer.headers.get(_STORAGE_CLASS, "")
        if is_billed:
            self._count(asked, account, storage_class)
        headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP]
        if self.emulator:
            headers = [(name, self._relinked(value, request)) for name, value in headers]
            if asked.kind is not Kind.READ and _is_short_json(answer) and request.method != "HEAD":
                text = self._relinked((await answer.read()).decode(), request)
                kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
                return web.Response(status=answer.status, reason=answer.reason, headers=kept, body=text.encode())
        taken = None
        if is_billed and asked.kind is Kind.READ and account is not None and request.method == "GET":
            try:
                taken = self.ledger.reserve(account, answer.content_length or 0, storage_class)
            except OverBudgetError as error:
                answer.close()
                return await self._refused(request, asked, account, str(error))
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        await self._stream(request, response, answer, taken)
        return response

    async def _stream(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        answer: ClientResponse,
        taken: Reservation | None,
    ) -> None:
        """Pass the body of an answer on. Bytes of unknown number are reserved as they come."""
        sent = 0
        try:
            await response.prepare(request)
            async for data in answer.content.iter_any():
                sent += len(data)
                if taken is not None and sent > taken.num_bytes:
                    self._extend(taken, sent)
                await response.write(data)
            await response.write_eof()
        except OverBudgetError:
            self._spent()
            if request.transport is not None:
                request.transport.abort()  # the answer has begun: only a broken connection can say that it is not whole
        except ConnectionError:
            answer.close()  # the client went away in the middle, as clients do that need no more
        finally:
            if taken is not None:
                self.ledger.settle(taken, sent)

    def _extend(self, taken: Reservation, num_bytes: int) -> None:
        """Reserve more bytes for the same answer."""
        more = self.ledger.reserve(taken.account, num_bytes - taken.num_bytes)
        taken.num_bytes += more.num_bytes

    def _count(self, asked: StorageRequest, account: Account | None, storage_class: str) -> None:
        if account is not None:
            self.ledger.count(asked, account, storage_class)
        if asked.kind is Kind.COPY:
            count_name(self.uncounted, f"copy by the server from gs://{asked.bucket}", 1)
        elif account is None and asked.kind is Kind.OTHER:
            count_name(self.uncounted, "request that names no bucket", 1)

    async def _refused(
        self, request: web.BaseRequest, asked: StorageRequest, account: Account, reason: str
    ) -> web.StreamResponse:
        """Refuse a read, naming bucket, place, price, reason and the nearest copy."""
        shown = described(account.placement, asked.bucket or "")
        copy = ""
        with contextlib.suppress(TimeoutError):
            copy = await asyncio.wait_for(self.places.nearest_copy(account.placement, asked.name), CONNECT_S)
        message = printable(f"refused by dataprep guard: {shown}: {reason}; {copy}").rstrip("; ")
        if len(self.refusals) < MAX_NAMES:
            self.refusals[message] = None
        self._spent()
        return _error(request, asked, HTTPStatus.FORBIDDEN, message)

    def _spent(self) -> None:
        if self.ledger.is_spent:
            self._on_spent()

    def _relinked(self, text: str, request: web.BaseRequest) -> str:
        """Let an emulator's links to itself lead through the guard."""
        scheme = "http" if request.transport is None or _is_plain(request.transport) else "https"
        return text.replace(f"{self.emulator}/", f"{scheme}://{request.host}/")


class _FrontDoor(asyncio.Protocol):
    """Reads the beginning of a connection, and hands the connection over to what serves it."""

    def __init__(self, proxy: GuardProxy) -> None:
        self._proxy = proxy
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        transport = self._transport
        if transport is None:
            return  # a connection that is just being handed over
        if not b"CONNECT ".startswith(self._received[:8]):
            self._hand_over(transport, self._proxy.handler(""))
        elif b"\r\n\r\n" in self._received:
            head, _, rest = bytes(self._received).partition(b"\r\n\r\n")
            self._received = bytearray(rest)
            found = _CONNECT.match(head + b"\r\n")
            self._transport = None
            transport.pause_reading()
            if found is None or rest:
                transport.abort()
                return
            connect = self._connect(transport, found[1].decode().lower(), int(found[2]))
            self._proxy.keep(asyncio.get_running_loop().create_task(connect))
        elif len(self._received) > MAX_HEAD_BYTES:
            transport.abort()

    async def _connect(self, transport: asyncio.Transport, host: str, port: int) -> None:
        if is_storage_host(host) and port == HTTPS_PORT:
            await self._end_tls(transport, host)
        else:
            await _tunnel(transport, host, port, self._proxy.tunnelled)

    async def _end_tls(self, transport: asyncio.Transport, host: str) -> None:
        """Answer as a host of Cloud Storage."""
        context = self._proxy.authority.context(host)
        if context is None:
            count_name(self._proxy.unread, host, 1)
            transport.abort()
            return
        transport.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            secure = await asyncio.get_running_loop().start_tls(transport, self, context, server_side=True)
        except (OSError, ssl.SSLError):
            count_name(self._proxy.unread, host, 1)
            transport.abort()
            return
        if secure is None:
            return
        if secure.get_extra_info("ssl_object").selected_alpn_protocol() == HTTP_2:
            count_name(self._proxy.unread, host, 1)
            secure.abort()
        else:
            self._hand_over(secure, self._proxy.handler(host))

    def _hand_over(self, transport: asyncio.Transport, handler: asyncio.Protocol) -> None:
        self._transport = None
        transport.set_protocol(handler)
        handler.connection_made(transport)
        if self._received:
            handler.data_received(bytes(self._received))


def count_name(counter: Counter[str], name: str, amount: int) -> None:
    """Count something by its name, or as one of the others if there are MAX_NAMES names."""
    counter[name if name in counter or len(counter) < MAX_NAMES else OTHERS] += amount


async def _tunnel(transport: asyncio.Transport, host: str, port: int, counter: Counter[str]) -> None:
    """Pass a connection through to its host, untouched."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    try:
        async with asyncio.timeout(CONNECT_S):
            far_reader, far_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        return
    try:
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        transport.resume_reading()
        count = functools.partial(count_name, counter, host)
        await asyncio.gather(_pump(reader, far_writer, count), _pump(far_reader, writer, count))
    finally:
        writer.close()
        far_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(READ_BYTES):
            count(len(data))
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


def _is_plain(transport: asyncio.Transport) -> bool:
    return transport.get_extra_info("ssl_object") is None


def _is_short_json(answer: ClientResponse) -> bool:
    return answer.content_type == "application/json" and (answer.content_length or 0) <= MAX_JSON_BYTES


def _error(request: web.BaseRequest, asked: StorageRequest, status: HTTPStatus, message: str) -> web.Response:
    """Return an error as the API words it that the request uses: JSON or XML."""
    from aiohttp import web

    if request.method == "HEAD":
        return web.Response(status=status)
    if "storage/v1" in request.raw_path[:40]:
        detail = {"message": message, "domain": "dataprep.guard", "reason": "forbidden"}
        document = {"error": {"code": int(status), "message": message, "errors": [detail]}}
        return web.Response(status=status, text=json.dumps(document), content_type="application/json")
    text = f"<Error><Code>AccessDenied</Code><Message>{escape(message)}</Message></Error>"
    head = "<?xml version='1.0' encoding='UTF-8'?>"
    return web.Response(status=status, text=head + text, content_type="application/xml")
