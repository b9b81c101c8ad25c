"""The proxy in front of fake-gcs-server: what the binary gets wrong alone, and delays and faults on demand.

Downloads are streamed through untouched. Uploads are read whole, because one whose precondition or checksum
does not hold must leave nothing behind. Sessions of resumable uploads are kept here: the binary ignores their
preconditions, and takes a chunk that is sent again as more data.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import random
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

import google_crc32c

from tests.support.http_wire import (
    COPY_BYTES,
    STREAM_LIMIT_BYTES,
    Answer,
    Head,
    Request,
    Upstream,
    error_answer,
    parse_request,
    path_segments,
    read_body,
    read_exactly,
    read_head,
    reset,
    response_status,
)
from tests.support.waiting import LONGEST_S

MULTI_REGIONS = ("US", "EU", "ASIA")
DUAL_REGIONS = ("ASIA1", "EUR4", "EUR5", "EUR7", "EUR8", "NAM4")
KEPT = (
    "storageClass",
    "customPlacementConfig",
    "autoclass",
    "labels",
    "lifecycle",
    "iamConfiguration",
    "softDeletePolicy",
    "hierarchicalNamespace",
)
LAYOUT = ("location", "locationType", "customPlacementConfig", "hierarchicalNamespace")
GET_BUCKET, LIST_OBJECTS = "storage.buckets.get", "storage.objects.list"
GET_OBJECT = "storage.objects.get"
"""Permission for the requests of range reads, whose paths begin with the bucket."""
PERMISSIONS = {
    (): GET_BUCKET,
    ("storageLayout",): LIST_OBJECTS,
    ("o",): LIST_OBJECTS,
    ("anywhereCaches",): "storage.anywhereCaches.list",
}
"""Permissions of GET requests by what follows the bucket's name."""


class Buckets:
    """Descriptions by the name of the bucket, and a count of what was asked for."""

    def __init__(self) -> None:
        self.described: dict[str, dict[str, Any]] = {}
        self.caches: dict[str, list[dict[str, Any]]] = {}
        """Rapid Caches by bucket; a new one runs at once."""
        self.denied: dict[str, list[str]] = {}
        """Permissions that nobody has on a bucket."""
        self.classes: dict[str, str] = {}
        """Storage classes of single objects, by `bucket/name`; others have their bucket's."""
        self.reader_pays: set[str] = set()
        """Buckets whose requests must name the project that pays."""
        self.operations: Counter[str] = Counter()
        """Requests that succeeded: `A`, `B` or `free`."""
        self.bytes_served = 0
        """Bytes of objects that were sent."""

    def count(self, request: Request, status: int, body_bytes: int = 0) -> None:
        """Bill a request as Cloud Storage does: not if it failed."""
        if status < HTTPStatus.BAD_REQUEST:
            kind = billing_class(request)
            self.operations[kind] += 1
            if kind == "B" and not _is_metadata(request):
                self.bytes_served += body_bytes

    def stats(self) -> dict[str, Any]:
        """For the control path."""
        return {"operations": self.operations, "bytes_served": self.bytes_served}

    def set(self, settings: dict[str, Any]) -> None:
        """`deny`: permissions by bucket; `storage_class`: classes by `bucket/name`; `reader_pays`: a bucket."""
        self.reader_pays.update(settings.get("reader_pays", ()))
        self.denied.update(settings.get("deny", {}))
        self.classes.update(settings.get("storage_class", {}))

    async def answer(self, request: Request, body: bytes, upstream: Upstream) -> Answer | None:
        """What is asked about a described bucket; None for everything else."""
        segments = path_segments(request.path)
        if bucket_in(segments) in self.reader_pays and "x-goog-user-project" not in request.head.headers:
            return error_answer(400, "Bucket is a requester pays bucket but no user project provided.")
        if request.method == "GET" and GET_OBJECT in self.denied.get("".join(segments[:1]), ()):
            return error_answer(403, f"t@example.com does not have {GET_OBJECT} access to the object.")
        if segments[:3] != ["storage", "v1", "b"]:
            return None
        if request.method == "POST" and len(segments) == 3:
            return await self._create(json.loads(body), upstream)
        name, rest = (segments[3] if len(segments) > 3 else ""), segments[4:]
        if request.method == "POST" and rest == ["anywhereCaches"]:
            cache = {"bucket": name, "state": "running", **json.loads(body)}
            self.caches.setdefault(name, []).append(cache)
            return _json({"kind": "storage#operation", "done": False})
        if request.method != "GET" or name not in self.described:
            return None
        permission = PERMISSIONS.get(tuple(rest), "")
        if permission in self.denied.get(name, ()):
            return error_answer(
                403, f"t@example.com does not have {permission} access to the Google Cloud Storage bucket."
            )
        described = self.described[name]
        if not rest:
            return _json(described)
        if rest == ["storageLayout"]:
            return _json({"bucket": name, **{key: described[key] for key in LAYOUT if key in described}})
        if rest == ["anywhereCaches"]:
            return _json({"kind": "storage#anywhereCaches", "items": self.caches.get(name, [])})
        if rest == ["o"]:
            return await self._listed(name, request, upstream)
        return None

    async def _create(self, asked: dict[str, Any], upstream: Upstream) -> Answer | None:
        name = asked["name"]
        made = await upstream.fetch("POST", "/storage/v1/b", json.dumps({"name": name}).encode())
        if made.status == HTTPStatus.OK and "location" in asked:
            described = {"name": name, "storageClass": "STANDARD", **{key: asked[key] for key in KEPT if key in asked}}
            described |= {"location": asked["location"].upper(), "locationType": location_type(asked)}
            self.described[name] = described
            return _json(described)
        return made

    async def _listed(self, name: str, request: Request, upstream: Upstream) -> Answer:
        found = await upstream.fetch("GET", request.head.start_line.split(" ")[1])
        document = found.json()
        for item in document.get("items", []):
            default = self.described[name]["storageClass"]
            item["storageClass"] = self.classes.get(f"{name}/{item['name']}", default)
        return Answer(found.status, json.dumps(document).encode(), {})


def bucket_in(segments: Sequence[str]) -> str:
    """The name of the bucket in the parts of a path; empty for none."""
    after = segments[segments.index("b") + 1 :] if "b" in segments[:4] else segments
    return "".join(after[:1])


def billing_class(request: Request) -> str:
    """`A` inserts, lists and copies, `B` reads, the rest is free; a resumable upload is one insert."""
    segments = path_segments(request.path)
    if request.method in ("POST", "PUT"):
        return "free" if "upload_id" in request.query else "A"
    if request.method == "DELETE":
        return "free"
    is_list = segments[:3] == ["storage", "v1", "b"] and (len(segments) == 3 or segments[4:] == ["o"])
    return "A" if is_list else "B"


def location_type(asked: dict[str, Any]) -> str:
    """What Cloud Storage would say of a new bucket."""
    stated = asked.get("customPlacementConfig", {}).get("dataLocations", [])
    if asked.get("storageClass") == "RAPID":
        return "zone"
    if len(stated) == 2 or asked["location"].upper() in DUAL_REGIONS:
        return "dual-region"
    return "multi-region" if asked["location"].upper() in MULTI_REGIONS else "region"


def _is_metadata(request: Request) -> bool:
    return path_segments(request.path)[0] == "storage" and request.query.get("alt") != "media"


def _json(document: dict[str, Any]) -> Answer:
    return Answer(HTTPStatus.OK, json.dumps(document).encode(), {})


CONTROL_PATH = "/_emulator"
RESET_BEFORE = "reset_before"
"""The connection breaks before the request is served."""
RESET_AFTER = "reset_after"
"""The request is served, then the connection breaks: the response is lost."""
RESET_BODY = "reset_body"
"""The connection breaks half-way through the response."""
HALF_CHUNK = "half_chunk"
"""Half of a chunk of a resumable upload is kept, and the answer says so; other requests are served."""
FAULTS = ("429", "503", RESET_BEFORE, RESET_AFTER, RESET_BODY, HALF_CHUNK)
TURN_S = 0.002
"""Time for one piece of a response when the bandwidth is limited."""
OVERSLEPT_S = 0.02
"""By so much a sleep may be late and the next one makes up for it."""

BUCKET_MISSING = "The specified bucket does not exist."
PRECONDITION_FAILED = "At least one of the pre-conditions you specified did not hold."
CHECKSUM_WRONG = "Provided CRC32C doesn't match calculated CRC32C."


@dataclass
class Faults:
    """Which requests fail, and how; drawn in the order of arrival."""

    rate: float = 0.0
    kinds: tuple[str, ...] = FAULTS
    """Names in FAULTS, or any HTTP status."""
    seed: int = 0
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def draw(self) -> str:
        """The fault of the next request; empty for none."""
        return self.rng.choice(self.kinds) if self.rng.random() < self.rate else ""


@dataclass
class Session:
    """One upload: resumable ones come in chunks."""

    bucket: str
    metadata: dict[str, Any]
    query: Mapping[str, str]
    chunks: list[bytes] = field(default_factory=list)
    num_bytes: int = 0
    checksum: google_crc32c.Checksum = field(default_factory=google_crc32c.Checksum)
    answer: Answer | None = None
    """Answer to the finished upload, which a client that lost it asks for again."""

    def add(self, data: bytes) -> None:
        """What was received is what will be stored."""
        self.chunks.append(data)
        self.num_bytes += len(data)
        self.checksum.update(data)


@dataclass(frozen=True, slots=True)
class Client:
    """Whoever asks."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def is_gone(self) -> bool:
        return self.reader.at_eof() or self.writer.is_closing()


class Bandwidth:
    """Bandwidth of all responses together: they are sent in pieces, in turn, as connections share a link.

    Args:
        bytes_per_s: bytes a second of all responses.
        turn_bytes: size of a piece; None: small ones, so that none of many responses pauses for long. A slow link
            with a long queue is less even: each connection waits until a whole window of every other one is through.
    """

    def __init__(self, bytes_per_s: float = math.inf, turn_bytes: int | None = None) -> None:
        self._bytes_per_s, self._turn_bytes = bytes_per_s, turn_bytes
        self._turn = asyncio.Lock()
        self._free_s = 0.0
        """When the last byte that was let in is through."""

    async def send(self, data: bytes, client: Client) -> None:
        """Write to a client, and return when all of it is through.

        Raises:
            ConnectionError: The client is gone; what it was to get takes nobody's time.
        """
        if self._bytes_per_s == math.inf:
            piece_bytes = max(1, len(data))
        else:
            piece_bytes = self._turn_bytes or math.ceil(TURN_S * self._bytes_per_s)
        for start in range(0, len(data), piece_bytes):
            piece = data[start : start + piece_bytes]
            async with self._turn:
                if client.is_gone:
                    raise ConnectionError
                now_s = time.monotonic()
                self._free_s = max(self._free_s, now_s - OVERSLEPT_S) + len(piece) / self._bytes_per_s
                if self._free_s > now_s:
                    await asyncio.sleep(self._free_s - now_s)
            client.writer.write(piece)
            await client.writer.drain()


class Proxy:
    """Serves the clients of one fake-gcs-server, which listens on the loopback port `upstream_port`.

    Args:
        latency_ms: wait before every request is served; requests wait side by side.
    """

    def __init__(self, latency_ms: float) -> None:
        self.upstream_port = 0
        self.latency_s = latency_ms / 1000
        self.bandwidth = Bandwidth()
        self.url = ""
        self.faults = Faults()
        self.buckets = Buckets()
        self.known_buckets: set[str] = set()
        self.sessions: dict[str, Session] = {}
        self.rewrites: dict[str, int] = {}
        """Bytes that the calls so far have copied, by their tokens."""
        self.rewrite_bytes = math.inf
        """Most bytes that one rewrite call copies."""
        self.locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self.requests = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.injected: Counter[str] = Counter()
        self.together = 0
        """Requests that wait for each other, until so many have been in flight at once."""
        self.records = False
        """Whether `served` is kept."""
        self.served: list[tuple[float, float, str]] = []
        """Begin and end of each request, in seconds of the monotonic clock, with its method and path, until they are
        read."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client until it closes its connection."""
        upstream = Upstream(self.upstream_port)
        # A reset must come after the bytes that were written before it, not instead of them.
        writer.transport.set_write_buffer_limits(0)
        try:
            client = Client(reader, writer)
            while head := await read_head(reader):
                request = parse_request(head)
                if request.path.startswith(CONTROL_PATH):
                    body = await reader.readexactly(head.body_bytes)
                    writer.write(self._control(body).encoded())
                    continue
                if not await self._serve_storage(request, client, upstream):
                    reset(writer)
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The client went away; or the proxy ends, and asyncio would report the cancelled task as an error.
            pass
        finally:
            upstream.close()
            writer.close()

    async def _serve_storage(self, request: Request, client: Client, upstream: Upstream) -> bool:
        """Serve one request; False when the client's connection is to be reset."""
        fault = self.faults.draw()
        self.injected.update([fault] if fault else [])
        self.requests += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        begun_s = time.monotonic()
        try:
            until_s = begun_s + LONGEST_S
            while self.most_in_flight < self.together and time.monotonic() < until_s:
                await asyncio.sleep(0.01)
            if self.latency_s:
                await asyncio.sleep(self.latency_s)
            if fault == RESET_BEFORE:
                return False
            body = await read_exactly(client.reader, request.head.body_bytes)
            if fault == HALF_CHUNK and "upload_id" in request.query:
                body = body[: len(body) // 2]
            if fault.isdigit():
                answer: Answer | None = error_answer(int(fault), "a fault that was asked for")
            else:
                answer = await self._answer(request, body, upstream)
            if answer is None:
                return await self._stream(request, body, upstream, client, fault)
            self.buckets.count(request, answer.status)
            return await self._write(client, answer.encoded(), fault)
        finally:
            self.in_flight -= 1
            if self.records:
                path = request.head.start_line.split(" ")[1]
                self.served.append((begun_s, time.monotonic(), f"{request.method} {path}"))

    async def _stream(self, request: Request, body: bytes, upstream: Upstream, client: Client, fault: str) -> bool:
        """Pass a request on and its response back, without holding the body."""
        reader = await upstream.send(request.head.raw, body)
        head = await upstream.response_head(reader)
        self.buckets.count(request, response_status(head), 0 if request.method == "HEAD" else head.body_bytes)
        if response_status(head) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            upstream.close()  # as the binary itself does, without saying so in the response
        if request.method == "HEAD":
            return await self._write(client, head.raw, fault)
        if response_status(head) == HTTPStatus.NOT_FOUND or "content-length" not in head.headers:
            answer = Answer(response_status(head), await read_body(reader, head), {})
            if answer.status == HTTPStatus.NOT_FOUND:
                answer = await self._not_found(request, upstream)
            return await self._write(client, answer.encoded(), fault)
        if fault == RESET_AFTER:
            await read_body(reader, head)
            return False
        return await self._copy(reader, client, head, fault)

    async def _write(self, client: Client, response: bytes, fault: str) -> bool:
        if fault == RESET_AFTER:
            return False
        await self.bandwidth.send(response[: len(response) // 2] if fault == RESET_BODY else response, client)
        return fault != RESET_BODY

    async def _copy(self, reader: asyncio.StreamReader, client: Client, head: Head, fault: str) -> bool:
        client.writer.write(head.raw)
        left = head.body_bytes // 2 if fault == RESET_BODY else head.body_bytes
        while left:
            block = await reader.read(min(left, COPY_BYTES))
            if not block:
                return False
            left -= len(block)
            await self.bandwidth.send(block, client)
        return fault != RESET_BODY

    async def _not_found(self, request: Request, upstream: Upstream) -> Answer:
        """The binary says "Not Found" of everything; Cloud Storage tells buckets from objects."""
        segments = path_segments(request.path)
        bucket = bucket_in(segments)
        is_there = await self._has_bucket(bucket, upstream)
        return error_answer(404, f"No such object: {bucket}/{segments[-1]}" if is_there else BUCKET_MISSING)

    async def _has_bucket(self, bucket: str, upstream: Upstream) -> bool:
        """Ask the binary until it has it: nobody removes one."""
        if bucket not in self.known_buckets:
            found = await upstream.fetch("GET", bucket_path(bucket))
            self.known_buckets.update([bucket] if found.status == HTTPStatus.OK else [])
        return bucket in self.known_buckets

    async def _answer(self, request: Request, body: bytes, upstream: Upstream) -> Answer | None:
        """What is answered here because the binary gets it wrong; None for everything else."""
        described = await self.buckets.answer(request, body, upstream)
        if described is not None:
            return described
        segments = path_segments(request.path)
        if request.method == "DELETE" and len(segments) == 6:
            return await self._delete(request, segments[3], segments[5], upstream)
        if request.method == "POST" and segments[6:7] == ["rewriteTo"]:
            return await self._rewrite(request, body, upstream)
        if request.method == "POST" and segments[6:] == ["compose"]:
            return await self._compose(segments[3], segments[5], json.loads(body), request.query, upstream)
        if segments[0] != "upload":
            return None
        if "upload_id" in request.query:
            return await self._continue_upload(request, body, upstream)
        bucket = segments[4]
        if request.query.get("uploadType") == "resumable":
            return await self._start_upload(request, bucket, json.loads(body), upstream)
        if request.query.get("uploadType") == "multipart":
            metadata, data = split_multipart(request.head.headers["content-type"], body)
            session = Session(bucket, metadata, request.query)
            session.add(data)
            return await self._commit(session, upstream)
        return None

    async def _delete(self, request: Request, bucket: str, name: str, upstream: Upstream) -> Answer:
        async with self._lock(bucket, name):
            if not await self._generation_matches(bucket, name, request.query, upstream):
                return error_answer(412, PRECONDITION_FAILED)
            answer = await upstream.fetch("DELETE", request.path)
        if answer.status == HTTPStatus.OK:
            return Answer(HTTPStatus.NO_CONTENT, b"", {})
        return await self._not_found(request, upstream)

    async def _rewrite(self, request: Request, body: bytes, upstream: Upstream) -> Answer:
        """Copy an object if the precondition on its target holds; with `rewrite_bytes` over several calls."""
        _, _, _, source, _, name, _, _, bucket, _, target = path_segments(request.path)
        if not await self._has_bucket(bucket, upstream):
            return error_answer(404, BUCKET_MISSING)
        found = await upstream.fetch("GET", f"{bucket_path(source)}/o/{quote(name, safe='')}")
        if found.status != HTTPStatus.OK:
            return await self._not_found(request, upstream)
        async with self._lock(bucket, target):
            if not await self._generation_matches(bucket, target, request.query, upstream):
                return error_answer(412, PRECONDITION_FAILED)
            size = int(found.json()["size"])
            so_far = self.rewrites.get(request.query.get("rewriteToken", ""), 0) + self.rewrite_bytes
            if so_far < size:
                token = uuid.uuid4().hex
                self.rewrites[token] = int(so_far)
                progress = {"totalBytesRewritten": str(int(so_far)), "objectSize": str(size)}
                document = {**progress, "done": False, "rewriteToken": token}
                return Answer(HTTPStatus.OK, json.dumps(document).encode(), {})
            path = request.head.start_line.split(" ")[1]
            return await upstream.fetch("POST", path, body, content_type="application/json")

    async def _compose(
        self, bucket: str, name: str, asked: dict[str, Any], query: Mapping[str, str], upstream: Upstream
    ) -> Answer:
        """Store what several objects hold as one upload: the binary keeps generations and looks at no precondition."""
        joined = Session(bucket, {"contentType": "", **asked["destination"], "name": name}, query)
        for source in asked["sourceObjects"]:
            found = await upstream.fetch("GET", f"{bucket_path(bucket)}/o/{quote(source['name'], safe='')}?alt=media")
            if found.status != HTTPStatus.OK:
                return error_answer(404, f"No such object: {bucket}/{source['name']}")
            joined.add(found.body)
        return await self._commit(joined, upstream)

    async def _start_upload(
        self, request: Request, bucket: str, metadata: dict[str, Any], upstream: Upstream
    ) -> Answer:
        if not await self._has_bucket(bucket, upstream):
            return error_answer(404, BUCKET_MISSING)
        headers = request.head.headers
        defaults = {"name": request.query.get("name"), "contentType": headers.get("x-upload-content-type")}
        metadata = defaults | metadata
        if not await self._generation_matches(bucket, metadata["name"], request.query, upstream):
            return error_answer(412, PRECONDITION_FAILED)
        upload_id = uuid.uuid4().hex
        self.sessions[upload_id] = Session(bucket, metadata, request.query)
        query = urlencode({"uploadType": "resumable", "upload_id": upload_id})
        return Answer(HTTPStatus.OK, b"", {"Location": f"{self.url}{request.path}?{query}"})

    async def _continue_upload(self, request: Request, body: bytes, upstream: Upstream) -> Answer:
        session = self.sessions.get(request.query["upload_id"])
        if session is None:
            return error_answer(404, "No such upload session.")
        if session.answer is not None:
            return session.answer
        span, _, total = request.head.headers["content-range"].removeprefix("bytes ").partition("/")
        start = session.num_bytes if span == "*" else int(span.partition("-")[0])
        if start > session.num_bytes:
            return error_answer(503, "The chunk starts after the bytes that were received.")
        session.add(body[session.num_bytes - start :])
        if total == "*" or session.num_bytes < int(total):
            received = {"Range": f"bytes=0-{session.num_bytes - 1}"} if session.num_bytes else {}
            return Answer(HTTPStatus.PERMANENT_REDIRECT, b"", received)
        session.answer = await self._commit(session, upstream)
        session.chunks.clear()
        return session.answer

    async def _commit(self, upload: Session, upstream: Upstream) -> Answer:
        """Store a whole object if its precondition and its checksum hold, and nothing otherwise."""
        bucket, metadata = upload.bucket, upload.metadata
        checksum = base64.b64encode(upload.checksum.digest()).decode()
        if metadata.get("crc32c", checksum) != checksum:
            return error_answer(400, CHECKSUM_WRONG)
        async with self._lock(bucket, metadata["name"]):
            if not await self._generation_matches(bucket, metadata["name"], upload.query, upstream):
                return error_answer(412, PRECONDITION_FAILED)
            boundary, kind = uuid.uuid4().hex, f"Content-Type: {metadata['contentType']}"
            answer = await upstream.fetch(
                "POST",
                f"/upload{bucket_path(bucket)}/o?uploadType=multipart",
                f"--{boundary}\r\n\r\n{json.dumps(metadata)}\r\n--{boundary}\r\n{kind}\r\n\r\n".encode(),
                *upload.chunks,
                f"\r\n--{boundary}--".encode(),
                content_type=f"multipart/related; boundary={boundary}",
            )
        return error_answer(404, BUCKET_MISSING) if answer.status == HTTPStatus.NOT_FOUND else answer

    async def _generation_matches(self, bucket: str, name: str, query: Mapping[str, str], upstream: Upstream) -> bool:
        if "ifGenerationMatch" not in query:
            return True
        found = await upstream.fetch("GET", f"{bucket_path(bucket)}/o/{quote(name, safe='')}")
        return bool(found.json().get("generation", "0") == query["ifGenerationMatch"])

    def _lock(self, bucket: str, name: str) -> asyncio.Lock:
        return self.locks.setdefault(f"{bucket}/{name}", asyncio.Lock())

    def _control(self, body: bytes) -> Answer:
        """Settings and counters, for the emulator's own class."""
        settings = json.loads(body or b"{}")
        if "faults" in settings:
            self.faults = Faults(**settings["faults"])
        if "latency_ms" in settings:
            self.latency_s = settings["latency_ms"] / 1000
        self.together = settings.get("together", self.together)
        if "bandwidth_bytes_per_s" in settings:
            self.bandwidth = Bandwidth(settings["bandwidth_bytes_per_s"] or math.inf, settings.get("turn_bytes"))
        if "rewrite_bytes" in settings:
            self.rewrite_bytes = settings["rewrite_bytes"] or math.inf
        self.buckets.set(settings)
        self.records = settings.get("records", self.records)
        served, self.served = self.served, []
        stats = {"requests": self.requests, "most_in_flight": self.most_in_flight, "faults": self.injected}
        stats |= self.buckets.stats() | {"served": served}
        return Answer(HTTPStatus.OK, json.dumps(stats).encode(), {})


async def start_proxy(proxy: Proxy, port: int) -> asyncio.Server:
    """Listen on 127.0.0.1; port 0 takes a free one. Sets the proxy's URL."""
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", port, limit=STREAM_LIMIT_BYTES, backlog=512)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    return server


def bucket_path(bucket: str) -> str:
    """A bucket's path in the JSON API."""
    return f"/storage/v1/b/{quote(bucket, safe='')}"


def split_multipart(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Metadata and data of a `multipart/related` upload."""
    boundary = content_type.partition("boundary=")[2].strip('"').encode()
    _, metadata, media = body.split(b"--" + boundary, 2)
    media = media[: media.rindex(b"\r\n--" + boundary + b"--")]
    kind, _, data = media.partition(b"\r\n\r\n")
    document = json.loads(metadata.partition(b"\r\n\r\n")[2])
    return {"contentType": kind.rpartition(b" ")[2].decode(), **document}, data
