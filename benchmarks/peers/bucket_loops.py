"""Roofline of builds from a bucket: read ranges, decode, digest and upload, each as far ahead as possible.

No listing, no plan, no format, no index, no receipts, no repair; the requests are those of dataprep's own storage. Two
shards are in progress at a time. `dataprep build` reads and writes at most 48 MiB of the next ones meanwhile, so that
little more than one shard has to be built again when a worker dies.

    python bucket_loops.py RANGES SOURCE_URL OUTPUT_URL {decode,none}

RANGES is a JSON file of shards, each a list of [file, offset, bytes].
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path

from dataprep.storage import open_storage
from dataprep.storage.checksums import crc32c_of

READS_IN_FLIGHT = 128
UPLOADS_IN_FLIGHT = 2

Range = tuple[str, int, int]


def main() -> None:
    ranges, source_url, output_url, check = sys.argv[1:]
    shards: list[list[Range]] = json.loads(Path(ranges).read_text())
    images = _read_ahead(source_url, list(chain.from_iterable(shards)))
    output = open_storage(output_url)
    with ThreadPoolExecutor(UPLOADS_IN_FLIGHT) as uploads:
        sent: list[Future[bool]] = []
        for number, shard in enumerate(shards):
            data = _shard_bytes(islice(images, len(shard)), decode=check == "decode")
            sent.append(uploads.submit(output.create, f"{number:05d}.bin", data))
            if number:
                sent[number - 1].result()  # no more than two shards in memory
        for upload in sent:
            upload.result()
    print(json.dumps({"samples": sum(len(shard) for shard in shards)}))


def _read_ahead(source_url: str, ranges: list[Range]) -> Iterator[bytes]:
    source = open_storage(source_url)
    with ThreadPoolExecutor(READS_IN_FLIGHT) as reads:
        waiting = iter(ranges)
        ahead = deque(reads.submit(source.read_range, *each) for each in islice(waiting, 2 * READS_IN_FLIGHT))
        while ahead:
            yield ahead.popleft().result()
            ahead.extend(reads.submit(source.read_range, *each) for each in islice(waiting, 1))


def _shard_bytes(images: Iterator[bytes], *, decode: bool) -> bytes:
    if decode:
        import simplejpeg

        from dataprep.builder.images import read_sound
    sha256, image_crc32cs, pieces = hashlib.sha256(), [], []
    for data in images:
        if decode and read_sound(data) is None:
            # The same calls as in dataprep/builder/images.py; a build also repairs what is not a plain JPEG.
            with contextlib.suppress(ValueError):
                simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, min_factor=1, strict=True)
        image_crc32cs.append(crc32c_of(data))
        sha256.update(data)
        pieces.append(data)
    return b"".join(pieces)


if __name__ == "__main__":
    main()
