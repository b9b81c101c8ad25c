"""As much of HTTP/1.1 as a loopback proxy needs: heads, bodies and answers on asyncio streams."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote

# A stream pauses its socket above twice this: a 110 kB range fits, so that reading one never stalls.
STREAM_LIMIT_BYTES = 1 << 20
COPY_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """Everything before the body of a request or of a response."""

    raw: bytes
    start_line: str
    headers: Mapping[str, str]
    """Names in lower case."""

    @property
    def body_bytes(self) -> int:
        return int(self.headers.get("content-length", "0"))


@dataclass(frozen=True, slots=True)
class Request:
    """A request's head, taken apart."""

    head: Head
    method: str
    path: str
    """Still percent-encoded."""
    query: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response, ready to be written."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    def encoded(self) -> bytes:
        """The bytes on the wire; a body of JSON unless the headers say otherwise."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.status != HTTPStatus.NO_CONTENT:
            lines += ["Content-Type: application/json", f"Content-Length: {len(self.body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + self.body

    def json(self) -> Any:
        """The body as JSON; an empty object where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return {}


def error_answer(status: int, message: str) -> Answer:
    """An error as the JSON API words it."""
    error = {"code": status, "message": message, "errors": [{"message": message}]}
    return Answer(status, json.dumps({"error": error}).encode(), {})


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next head, or None where the other side has closed the connection between two messages."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    start_line, *lines = raw[:-4].decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Head(raw, start_line, {name.lower(): value.strip() for name, _, value in pairs})


def parse_request(head: Head) -> Request:
    """Method, path and query of a request."""
    method, target, _ = head.start_line.split(" ", 2)
    path, _, query = target.partition("?")
    return Request(head, method, path, dict(parse_qsl(query, keep_blank_values=True)))


def path_segments(path: str) -> list[str]:
    """A path's segments, each decoded."""
    return [unquote(segment) for segment in path.strip("/").split("/")]


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with a reset instead of an orderly close."""
    raw = writer.transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Upstream:
    """One kept-alive connection to the server behind the proxy, opened on first use."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def send(self, *parts: bytes) -> asyncio.StreamReader:
        """Write one request; the reader that will bring its response."""
        if self.reader is None or self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=STREAM_LIMIT_BYTES)
        for part in parts:
            for start in range(0, len(part), COPY_BYTES):
                self.writer.write(memoryview(part)[start : start + COPY_BYTES])
                await self.writer.drain()
        return self.reader

    async def fetch(self, method: str, target: str, *body: bytes, content_type: str = "") -> Answer:
        """Send one request of our own and read its whole response."""
        lines = [f"{method} {target} HTTP/1.1", "Host: upstream", f"Content-Length: {sum(map(len, body))}"]
        if content_type:
            lines.append(f"Content-Type: {content_type}")
        reader = await self.send("\r\n".join([*lines, "", ""]).encode(), *body)
        head = await self.response_head(reader)
        return Answer(response_status(head), await read_body(reader, head), {})

    async def response_head(self, reader: asyncio.StreamReader) -> Head:
        """The head of the response to what was sent last."""
        head = await read_head(reader)
        if head is None:
            raise ConnectionResetError("the server behind the proxy closed the connection")
        return head

    def close(self) -> None:
        """Drop the connection; the next request opens another. What was received can still be read."""
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


def response_status(head: Head) -> int:
    """The status of a response."""
    return int(head.start_line.split(" ", 2)[1])


async def read_exactly(reader: asyncio.StreamReader, num_bytes: int) -> bytes:
    """As the reader's own, which collects a large body in one buffer that it moves each time that it grows."""
    blocks, left = [], num_bytes
    while left:
        block = await reader.read(left)
        if not block:
            raise asyncio.IncompleteReadError(b"".join(blocks), num_bytes)
        blocks.append(block)
        left -= len(block)
    return b"".join(blocks)


async def read_body(reader: asyncio.StreamReader, head: Head) -> bytes:
    """The whole body of a response to a request that was not HEAD."""
    if response_status(head) in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        return b""
    if head.headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(head.body_bytes)
    chunks = []
    while chunk_bytes := int(await reader.readuntil(b"\r\n"), 16):
        chunks.append(await reader.readexactly(chunk_bytes))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(chunks)
