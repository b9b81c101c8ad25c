"""Every way in which a web page answers, well or badly, on asyncio streams."""

from __future__ import annotations

import asyncio
import functools
import gzip
import io
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

from dataprep.web.requests import Status
from tests.support.http_wire import reset

if TYPE_CHECKING:
    from tests.support.web_server import WebServer

DOMAIN = "images.test"
JPEG_TYPE = "Content-Type: image/jpeg"


@functools.cache
def picture(kind: str = "jpeg", size: int = 256) -> bytes:
    """One image as `PIL` writes it: jpeg, exif, png, animated; or a jpeg that ends early: corrupt."""
    import numpy as np
    from PIL import Image

    rows = np.linspace(0, 255, size * size * 3).reshape(size, size, 3) + np.random.default_rng(0).integers(
        0, 40, (size, size, 3)
    )
    image = Image.fromarray(rows.clip(0, 255).astype(np.uint8))
    out = io.BytesIO()
    if kind == "png":
        image.save(out, "PNG")
    elif kind == "animated":
        image = image.resize((64, 64))
        image.save(out, "GIF", save_all=True, append_images=[image.rotate(90)])
    elif kind == "exif":
        exif = Image.Exif()
        exif[0x0112] = 6
        image.save(out, "JPEG", exif=exif)
    else:
        image.save(out, "JPEG", quality=90)
    return out.getvalue()[:-2000] if kind == "corrupt" else out.getvalue()


@dataclass(slots=True)
class Exchange:
    """One request, and what its answer may need."""

    server: WebServer
    host: str
    path: str
    writer: asyncio.StreamWriter
    method: str = "GET"

    async def send(self, body: bytes, *headers: str, code: int = 200) -> None:
        """A whole answer, after the server's latency."""
        await asyncio.sleep(self.server.latency_s + self.server.draw.uniform(0, self.server.jitter_s))
        head = _head(code, *headers, f"Content-Length: {len(body)}")
        await self.raw(head if self.method == "HEAD" else head + body)

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        """In good order, whatever was promised."""
        self.writer.close()

    def reset(self) -> None:
        """As a crashed machine does."""
        reset(self.writer)

    def url(self, path: str, host: str | None = None) -> str:
        return self.server.url(path, host or self.host)


def _head(code: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code} {HTTPStatus(code).phrase}", *headers, "", ""]).encode()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def _stall(exchange: Exchange) -> None:
    await asyncio.sleep(3_600)


async def _half(exchange: Exchange) -> None:
    body = picture()
    await exchange.raw(_head(200, JPEG_TYPE, f"Content-Length: {len(body)}") + body[: len(body) // 2])


async def _stall_midway(exchange: Exchange) -> None:
    await _half(exchange)
    await asyncio.sleep(3_600)


async def _cut(exchange: Exchange) -> None:
    await _half(exchange)
    exchange.close()


async def _cut_chunked(exchange: Exchange) -> None:
    await exchange.raw(_head(200, JPEG_TYPE, "Transfer-Encoding: chunked") + _chunk(picture()))
    exchange.close()


async def _drip(exchange: Exchange) -> None:
    body = picture()
    await exchange.raw(_head(200, JPEG_TYPE, f"Content-Length: {len(body)}"))
    for index in range(len(body)):
        await exchange.raw(body[index : index + 1])
        await asyncio.sleep(0.1)


async def _reset(exchange: Exchange) -> None:
    exchange.reset()


async def _garbage(exchange: Exchange) -> None:
    await exchange.raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    exchange.close()


async def _chunked(exchange: Exchange) -> None:
    body = picture()
    pieces = [_chunk(body[at : at + 1000]) for at in range(0, len(body), 1000)]
    await exchange.raw(_head(200, JPEG_TYPE, "Transfer-Encoding: chunked") + b"".join(pieces) + b"0\r\n\r\n")


async def _endless(exchange: Exchange) -> None:
    await exchange.raw(_head(200, JPEG_TYPE, "Transfer-Encoding: chunked") + _chunk(picture()))
    while True:
        await exchange.raw(_chunk(bytes(65_536)))


async def _huge(exchange: Exchange) -> None:
    await exchange.raw(_head(200, JPEG_TYPE, f"Content-Length: {1 << 40}") + picture())


@functools.cache
def _bomb() -> bytes:
    return gzip.compress(picture() + bytes(32 << 20), 1)


async def _many(exchange: Exchange) -> None:
    turn = int(exchange.path.rpartition("/")[2])
    await exchange.send(b"", f"Location: {turn + 1}", code=302)


async def redirect_anywhere(exchange: Exchange) -> None:
    await exchange.send(b"", f"Location: {unquote(exchange.path.partition('?')[2])}", code=302)


async def _busy(exchange: Exchange) -> None:
    if exchange.server.asked[exchange.host, exchange.path] == 1:
        await exchange.send(b"later", "Retry-After: 1", code=429)
    else:
        await exchange.send(picture(), JPEG_TYPE)


async def _own(exchange: Exchange) -> None:
    await exchange.send(own_picture(exchange.path), JPEG_TYPE)


async def _elsewhere(exchange: Exchange) -> None:
    target = exchange.url("/image/1.jpg", f"other.{DOMAIN}")
    await exchange.send(b"<html>", f"Location: {target}", code=301)


def _fixed(body: bytes | Callable[[], bytes], *headers: str, code: int = 200) -> Callable[[Exchange], Awaitable[None]]:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(body if isinstance(body, bytes) else body(), *headers, code=code)

    return answer


def own_picture(path: str) -> bytes:
    """An image that no other path has: the path is a comment in it."""
    start, comment = picture()[:2], path.encode()
    return start + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + picture()[2:]


KINDS: dict[str, tuple[Callable[[Exchange], Awaitable[None]], Status]] = {
    "image": (_fixed(picture, JPEG_TYPE), Status.SUCCESS),
    "own": (_own, Status.SUCCESS),
    "exif": (_fixed(lambda: picture("exif"), JPEG_TYPE), Status.SUCCESS),
    "png": (_fixed(lambda: picture("png"), "Content-Type: image/png"), Status.SUCCESS),
    "animated": (_fixed(lambda: picture("animated"), "Content-Type: image/gif"), Status.SUCCESS),
    "corrupt": (_fixed(lambda: picture("corrupt"), JPEG_TYPE), Status.SUCCESS),
    "wrong-type": (_fixed(picture, "Content-Type: text/html"), Status.SUCCESS),
    "chunked": (_chunked, Status.SUCCESS),
    "gzip": (_fixed(lambda: gzip.compress(picture()), JPEG_TYPE, "Content-Encoding: gzip"), Status.SUCCESS),
    "redirect": (_fixed(b"", "Location: /image/1.jpg", code=302), Status.SUCCESS),
    "elsewhere": (_elsewhere, Status.SUCCESS),
    "busy": (_busy, Status.SUCCESS),
    "other-robot": (_fixed(picture, JPEG_TYPE, "X-Robots-Tag: otherbot: noindex, noai"), Status.SUCCESS),
    "missing": (_fixed(b"no", code=404), Status.HTTP),
    "broken": (_fixed(b"no", code=500), Status.HTTP),
    "unavailable": (_fixed(b"no", code=503), Status.HTTP),
    "loop": (_fixed(b"", "Location: ?again", code=302), Status.REDIRECT),
    "nowhere": (_fixed(b"", code=302), Status.REDIRECT),
    "many": (_many, Status.REDIRECT),
    "to-file": (_fixed(b"", "Location: file:///etc/passwd", code=302), Status.BAD_URL),
    "to-metadata": (_fixed(b"", "Location: http://169.254.169.254/", code=302), Status.REFUSED_ADDRESS),
    "html": (_fixed(b"<!DOCTYPE html><title>Sold</title>", JPEG_TYPE), Status.NOT_IMAGE),
    "empty": (_fixed(b"", JPEG_TYPE), Status.NOT_IMAGE),
    "huge": (_huge, Status.TOO_LARGE),
    "endless": (_endless, Status.TOO_LARGE),
    "bomb": (_fixed(_bomb, JPEG_TYPE, "Content-Encoding: gzip"), Status.TOO_LARGE),
    "brotli": (_fixed(b"\x0b\x02\x80", JPEG_TYPE, "Content-Encoding: br"), Status.ENCODING),
    "no-gzip": (_fixed(picture, JPEG_TYPE, "Content-Encoding: gzip"), Status.ENCODING),
    "noai": (_fixed(picture, JPEG_TYPE, "X-Robots-Tag: noai, noimageai"), Status.OPT_OUT),
    "noindex": (_fixed(picture, JPEG_TYPE, "X-Robots-Tag: dataprep: noindex"), Status.OPT_OUT),
    "private": (_fixed(picture, JPEG_TYPE), Status.ROBOTS),
    "cut": (_cut, Status.INCOMPLETE),
    "cut-chunked": (_cut_chunked, Status.INCOMPLETE),
    "cut-gzip": (_fixed(lambda: gzip.compress(picture())[:-900], "Content-Encoding: gzip"), Status.INCOMPLETE),
    "reset": (_reset, Status.CONNECT),
    "garbage": (_garbage, Status.PROTOCOL),
    "stall": (_stall, Status.TIMEOUT),
    "stall-midway": (_stall_midway, Status.TIMEOUT),
    "drip": (_drip, Status.TIMEOUT),
}
"""What a path's first part brings, and how a polite client ends with it; /to/?URL leads to any URL."""
SLOW = frozenset({"busy", "stall", "stall-midway", "drip", "endless", "bomb"})


_TWISTS = [
    b"\r\n",
    b"\0",
    b":",
    b"-1",
    b"9" * 30,
    b"\xff\xfe",
    b"\t",
    b"chunked",
    b"Content-Length: 5\r\n",
    b"http://[::1",
    b"\r\n\r\n",
]


async def mutated(exchange: Exchange) -> None:
    """An answer in which some bytes of the head are others, drawn by the path; then the end."""
    draw = random.Random(exchange.path)
    heads = [
        _head(200, JPEG_TYPE, "Content-Length: 9000", "X-Robots-Tag: max-snippet: 3, all"),
        _head(200, JPEG_TYPE, "Transfer-Encoding: chunked") + b"2328\r\n",
        _head(200, JPEG_TYPE, "Content-Encoding: gzip"),
        _head(302, "Location: http://host.images.test/x", "Content-Length: 0"),
        _head(429, "Retry-After: Fri, 02 Jan 2026 03:04:15 GMT", "Content-Length: 0"),
    ]
    answer = bytearray(draw.choice(heads))
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(answer))
        answer[at : at + draw.choice([0, 1, 20])] = draw.choice([*_TWISTS, draw.randbytes(1)])
    await exchange.raw(bytes(answer) + picture()[:9000])
    exchange.close()


def prepare() -> None:
    """Makes what takes long, not while somebody waits for it."""
    for kind in ("jpeg", "exif", "png", "animated", "corrupt"):
        picture(kind)
    picture()
    _bomb()
