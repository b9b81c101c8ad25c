"""Many small pictures in a bucket without preparation: seconds until the first batch, and images/s, beside LitData.

    python benchmarks/many_objects.py --json many-objects.json

A process serves the bucket on loopback with S3's protocol: listings by pages of a thousand, objects and ranges. The
peer is LitData's StreamingRawDataset, shuffled in a DataLoader with a worker a core, over the same bucket in the same
round. A first start has no index, a second one the index of a start that was let finish.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import bisect
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import PEERS, PEERS_PYTHON, ROOT, common_options, in_turns, report
from benchmarks.scale import SIDE, pictures

BUCKET = "many"
BATCH = 64
PAGE = 1000
WRITTEN = "2026-01-01T00:00:00.000Z"

OURS = f"""
import json, sys, time
started_s = time.perf_counter()
from loaders import open_loader
with open_loader(sys.argv[1], batch_size={BATCH}, image_size={SIDE}, region_policy="off") as loader:
    if sys.argv[3] == "whole":
        len(loader)
    images = 0
    while not images or time.perf_counter() - first_s < float(sys.argv[2]):
        for batch in loader:
            if not images:
                first_s = time.perf_counter()
            images += len(batch.keys)
            if time.perf_counter() - first_s > float(sys.argv[2]):
                break
print(json.dumps([first_s - started_s, (images - {BATCH}) / (time.perf_counter() - first_s)]))
"""
"""Program that prints the seconds until its first batch, and the images/s after it."""


class Bucket:
    """Names and contents of the objects: `pics/class0000/0000000.jpg` and so on, in order."""

    def __init__(self, objects: int, classes: int) -> None:
        self.pictures = pictures()
        each = objects // classes
        self.names = [f"pics/class{label:04d}/{number:07d}.jpg" for label in range(classes) for number in range(each)]

    def picture(self, name: str) -> bytes | None:
        at = bisect.bisect_left(self.names, name)
        return self.pictures[at % len(self.pictures)] if self.names[at : at + 1] == [name] else None

    def listing(self, query: dict[str, str]) -> str:
        """Answer a ListObjectsV2."""
        prefix, delimiter, most = query.get("prefix", ""), query.get("delimiter", ""), int(query.get("max-keys", PAGE))
        token = query.get("continuation-token", "")
        after = base64.b64decode(token).decode() if token else query.get("start-after", "")
        at = max(bisect.bisect_left(self.names, prefix), bisect.bisect_right(self.names, after))
        contents, folders, last = [], [], ""
        while at < len(self.names) and self.names[at].startswith(prefix) and len(contents) + len(folders) < most:
            name = self.names[at]
            cut = name.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                number = at % len(self.pictures)
                contents.append(
                    f"<Contents><Key>{name}</Key><LastModified>{WRITTEN}</LastModified><ETag>&quot;{number}&quot;</ETag>"
                    f"<Size>{len(self.pictures[number])}</Size><StorageClass>STANDARD</StorageClass></Contents>"
                )
                at, last = at + 1, name
            else:
                folders.append(f"<CommonPrefixes><Prefix>{name[: cut + 1]}</Prefix></CommonPrefixes>")
                last = name[: cut + 1] + "\U0010ffff"
                at = bisect.bisect_left(self.names, last)
        is_cut = at < len(self.names) and self.names[at].startswith(prefix)
        next_token = f"<NextContinuationToken>{base64.b64encode(last.encode()).decode()}</NextContinuationToken>"
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{quote(prefix)}</Prefix><KeyCount>{len(contents) + len(folders)}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(is_cut).lower()}</IsTruncated>{next_token if is_cut else ''}"
            f"{''.join(contents)}{''.join(folders)}</ListBucketResult>"
        )


class Connection(asyncio.Protocol):
    """Answers GET and HEAD."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._received = bucket, b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            self._answer(head.decode("latin-1"))

    def _answer(self, head: str) -> None:
        request, *lines = head.split("\r\n")
        method, target, _ = request.split()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        url = urlsplit(target)
        name = unquote(url.path).removeprefix(f"/{BUCKET}").lstrip("/")
        if not name:
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            self._send("200 OK", self._bucket.listing(query).encode(), "Content-Type: application/xml\r\n")
            return
        body = self._bucket.picture(name)
        if body is None:
            self._send("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>")
            return
        tag = len(body)
        about = f'ETag: "{tag}"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Type: image/jpeg\r\n'
        status, whole = "200 OK", len(body)
        if "range" in headers and method == "GET":
            first, _, last = headers["range"].removeprefix("bytes=").partition("-")
            stop = min(int(last) + 1 if last else whole, whole)
            about += f"Content-Range: bytes {first}-{stop - 1}/{whole}\r\n"
            status, body = "206 Partial Content", body[int(first) : stop]
        self._send(status, body, about, method == "HEAD")

    def _send(self, status: str, body: bytes, about: str = "", is_head: bool = False) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{about}\r\n"
        self._transport.write(head.encode() + (b"" if is_head else body))


async def serve(objects: int, classes: int) -> None:
    """Serve the bucket, and print its URL."""
    bucket = Bucket(objects, classes)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(bucket), "127.0.0.1", 0, backlog=512)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextmanager
def served(objects: int, classes: int) -> Iterator[dict[str, str]]:
    """Serve the bucket in a process; yield the environment of its readers."""
    words = [sys.executable, __file__, "--serve", "--objects", str(objects), "--classes", str(classes)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
            yield {**os.environ, **keys, "AWS_ENDPOINT_URL": url, "PYTHONPATH": str(ROOT)}
        finally:
            server.terminate()


def ours(environment: dict[str, str], cache: Path, seconds: float, known: str) -> list[float]:
    """Return the seconds until our first batch, and the images/s after it."""
    words = [sys.executable, "-P", "-c", OURS, f"s3://{BUCKET}/pics", str(seconds), known]
    return printed(words, environment | {"XDG_CACHE_HOME": str(cache), "XDG_STATE_HOME": str(cache)})


def peers(environment: dict[str, str], cache: Path, seconds: float) -> list[float]:
    """Return the same of LitData."""
    words = [str(PEERS_PYTHON), str(PEERS / "raw_litdata.py"), f"s3://{BUCKET}/pics", str(seconds), str(cache)]
    return printed([*words, str(SIDE), str(BATCH), str(os.cpu_count())], environment)


def printed(words: list[str], environment: dict[str, str]) -> list[float]:
    """Return the numbers in the last line that a program prints."""
    run = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: list[float] = json.loads(run.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Measure and print."""
    parser = common_options(__doc__, rounds=3)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of loading after the first batch")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.objects, options.classes))
        return
    with served(options.objects, options.classes) as environment, tempfile.TemporaryDirectory() as folder:
        caches = {side: Path(folder, side) for side in ("ours", "litdata")}

        def run(side: str, start: str) -> list[float]:
            if start == "first":
                shutil.rmtree(caches[side], ignore_errors=True)
            elif side == "ours":
                ours(environment, caches[side], 0.0, "whole")
            if side == "litdata":
                return peers(environment, caches[side], options.seconds)
            return ours(environment, caches[side], options.seconds, "")

        names = {f"{side}, {start} start": (side, start) for start in ("first", "second") for side in caches}
        runs = in_turns({name: partial(run, *each) for name, each in names.items()}, options.rounds, warm_up=False)
    facts = {"objects": options.objects, "classes": options.classes, "seconds": options.seconds}
    report("many-objects", facts | {"runs": runs}, options)


if __name__ == "__main__":
    main()
