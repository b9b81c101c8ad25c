"""One contender, in a process of its own: takes batches as fast as they come and prints one JSON line.

The clock starts when the first batch is there: by then everything is imported and running, and every queue is as
empty as it is at the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import process_tree

from loaders.peers import PEERS, PeerConfig

DECODED_IMAGES = 4096
"""At most so many are held by the roofline, which reads nothing while it decodes."""
DECODED_AT_ONCE = 32


def our_batches(root: Path, interpolation: str, options: argparse.Namespace) -> Iterator[int]:
    """Sizes of our loader's batches."""
    from loaders import open_loader

    loader = open_loader(
        str(root),
        split="train",
        batch_size=options.batch_size,
        seed=0,
        image_size=options.image_size,
        interpolation=interpolation,
        threads=options.workers,
    )
    while True:
        for batch in loader:
            yield _checked(batch.images, batch.labels, options)


def peer_batches(name: str, root: Path, options: argparse.Namespace) -> Iterator[int]:
    """Sizes of a peer's batches."""
    config = PeerConfig(
        root=root, image_size=options.image_size, batch_size=options.batch_size, workers=options.workers
    )
    for images, labels in PEERS[name](config).iterate():
        yield _checked(images, labels, options)


def decoded(root: Path, options: argparse.Namespace) -> Iterator[int]:
    """The roofline: full JPEG decoding in plain threads, and nothing else."""
    import simplejpeg

    files = itertools.islice(sorted(root.glob("*/*")), DECODED_IMAGES)
    images = [path.read_bytes() for path in files]

    def decode(first: int) -> int:
        for number in range(first, first + DECODED_AT_ONCE):
            simplejpeg.decode_jpeg(images[number % len(images)], "RGB")
        return DECODED_AT_ONCE

    with ThreadPoolExecutor(options.workers) as pool:
        yield from pool.map(decode, range(0, options.images + DECODED_AT_ONCE, DECODED_AT_ONCE))


def _checked(images: object, labels: object, options: argparse.Namespace) -> int:
    expected = (options.batch_size, options.image_size, options.image_size, 3)
    found = (images.shape, str(images.dtype), labels.shape)
    if found != (expected, "uint8", expected[:1]):
        raise SystemExit(f"got images and labels {found}, expected uint8 images {expected} with one label each")
    return len(images)


def tree_cpu_s() -> float:
    """User and system time of this process, of its children, and of those that have ended."""
    ticks = 0
    for pid in process_tree(os.getpid()):
        try:
            # From field 3 on, after the name, which may hold blanks; 14 to 17 are times, of ended children too.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", help="`ours`, `decode` or one of loaders.peers.PEERS")
    parser.add_argument("root", type=Path)
    parser.add_argument("--interpolation", help="of `ours`")
    parser.add_argument("--images", type=int, required=True, help="at least so many after the first batch")
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--started-s", type=float, required=True, help="time.monotonic() of whoever started this")
    options = parser.parse_args()
    if options.name == "ours":
        batches = our_batches(options.root, options.interpolation, options)
    elif options.name == "decode":
        batches = decoded(options.root, options)
    else:
        batches = peer_batches(options.name, options.root, options)
    next(batches)
    first_batch_s = time.monotonic() - options.started_s
    started_s, cpu_started_s = time.perf_counter(), tree_cpu_s()
    images = 0
    while images < options.images:
        images += next(batches)
    elapsed_s, cpu_s = time.perf_counter() - started_s, tree_cpu_s() - cpu_started_s
    found = {"images": images, "elapsed_s": elapsed_s, "cpu_s": cpu_s, "first_batch_s": first_batch_s}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
