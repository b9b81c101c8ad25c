"""(c) The lower bound of laion.py: fetch, digest, encode, write and fsync in plain loops, in as many processes.

The HTTP library is that of a build, and does nothing but send requests and receive bodies: no check of an address, no
robots.txt, no limit of a host, no retry, no caption, no index.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import google_crc32c
import pyarrow.parquet as pq
from contest import print_samples, spawn_each

from dataprep.fetched.collect import EncodeOptions, RowFilter, encode_image

IN_FLIGHT = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="parquet file with a column URL")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    urls = pq.read_table(options.table, columns=["URL"]).column("URL").to_pylist()
    options.out.mkdir(parents=True)
    numbers = range(options.processes)
    spawn_each(run_part, [(urls[index :: options.processes], options.out / f"{index:05d}.bin") for index in numbers])
    print_samples(len(urls))


def run_part(urls: list[str], target: Path) -> None:
    """Fetch and write the images of one process."""
    asyncio.run(write_part(urls, target))


async def write_part(urls: list[str], target: Path) -> None:
    """Write images in the order in which they arrive."""
    options, row_filter, whole = EncodeOptions(), RowFilter(), hashlib.sha256()
    with open(target, "wb", buffering=1 << 18) as out:
        async for body in bodies(urls):
            hashlib.sha256(body).digest()
            encoded = encode_image(body, options, row_filter).data
            google_crc32c.value(encoded)
            whole.update(encoded)
            out.write(encoded)
        out.flush()
        os.fsync(out.fileno())


async def bodies(urls: list[str]) -> AsyncIterator[bytes]:
    """Yield what the URLs send, IN_FLIGHT at a time."""
    arrived: asyncio.Queue[bytes] = asyncio.Queue(IN_FLIGHT)
    waiting = iter(urls)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    ) as session:

        async def fetch() -> None:
            for url in waiting:
                async with session.get(url) as response:
                    await arrived.put(await response.read())

        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(fetch())
            for _ in urls:
                yield await arrived.get()


if __name__ == "__main__":
    main()
