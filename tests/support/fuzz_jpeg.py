"""Feeds mutated JPEGs to the extension; exits with 0 if it lived, took at most 20 s an image and little memory.

Command:   python tests/support/fuzz_jpeg.py --images 3000
Sanitised: gcc -shared -fPIC -O1 -g -fsanitize=address,undefined -I$INCLUDE loaders/_jpeg.c -ljpeg -o $FOLDER/_jpeg.so
           LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \\
           ASAN_OPTIONS=detect_leaks=0 python tests/support/fuzz_jpeg.py --images 30000 --module $FOLDER/_jpeg.so
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import resource
import time

import numpy as np
from PIL import Image

SIZE = 32
MOST_S = 20
"""One image of 100 Mpixel in many scans takes some seconds."""
MOST_BYTES = 2 << 30
"""A progressive one of that size has 600 MB of coefficients."""


def main() -> None:
    """Mutate, decode, look at the clock."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", help="an extension to load in place of loaders._jpeg")
    options = parser.parse_args()
    module = _load(options.module)
    rng = np.random.default_rng(options.seed)
    originals = _originals(rng)
    decoded, slowest_s = 0, 0.0
    for _ in range(options.images):
        data = _mutated(rng, originals)
        started_s = time.monotonic()
        decoded += _decode(module, rng, data)
        slowest_s = max(slowest_s, time.monotonic() - started_s)
        if slowest_s > MOST_S:
            raise SystemExit(f"one image took {slowest_s:.1f} s, at most {MOST_S}")
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if peak_bytes > MOST_BYTES and not options.module:
        raise SystemExit(f"it took {peak_bytes >> 20} MiB, at most {MOST_BYTES >> 20}")
    print(f"{options.images} images, {decoded} decoded; slowest {slowest_s:.2f} s; peak {peak_bytes >> 20} MiB")


def _load(path: str | None):
    if path is None:
        from loaders import _jpeg

        return _jpeg
    spec = importlib.util.spec_from_file_location("_jpeg", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _originals(rng: np.random.Generator) -> list[bytes]:
    originals = []
    for height, width in ((1, 1), (17, 40), (64, 64), (70, 33), (128, 200)):
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        for options in (
            {"subsampling": 0},
            {"subsampling": 1},
            {"subsampling": 2},
            {"subsampling": 2, "restart_marker_blocks": 2},
            {"progressive": True},
            {"optimize": True, "quality": 98},
        ):
            data = io.BytesIO()
            image.save(data, "JPEG", **options)
            originals.append(data.getvalue())
        data = io.BytesIO()
        image.convert("L").save(data, "JPEG", progressive=bool(height % 2))
        originals.append(data.getvalue())
    return originals


def _mutated(rng: np.random.Generator, originals: list[bytes]) -> bytes:
    """Changed bytes, mostly among the headers; or cut, repeated, or joined with another file."""
    data = bytearray(originals[rng.integers(len(originals))])
    kind = rng.integers(10)
    if kind < 6:
        most = len(data) if kind < 3 else min(len(data), 650)
        for at in rng.integers(0, most, rng.integers(1, 6)):
            data[at] = rng.choice([0, 1, 0xFF, 0xD9, 0xDA, int(rng.integers(256))])
    elif kind == 6:
        del data[rng.integers(len(data)) :]
    elif kind == 7:
        first, stop = sorted(rng.integers(0, len(data), 2))
        data[first:first] = data[first:stop] * int(rng.integers(1, 4))
    elif kind == 8:
        other = originals[rng.integers(len(originals))]
        data = data[: rng.integers(len(data))] + other[rng.integers(len(other)) :]
    else:
        first, stop = sorted(rng.integers(0, len(data), 2))
        del data[first : min(stop, first + 20)]
    return bytes(data)


def _decode(module, rng: np.random.Generator, data: bytes) -> bool:
    try:
        height, width = module.image_size(data)
    except ValueError:
        height, width = 64, 64
    box_height, box_width = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
    top, left = int(rng.integers(0, height - box_height + 1)), int(rng.integers(0, width - box_width + 1))
    resized = [int(side) for side in rng.integers(SIZE, 2 * SIZE, 2)]
    window = [int(rng.integers(0, side - SIZE + 1)) for side in resized]
    views = np.array([[top, left, box_height, box_width, *resized, *window, rng.integers(2)]], np.int32)
    if rng.integers(50) == 0:
        views = rng.integers(-(2**31), 2**31, (1, 9)).astype(np.int32)
    out = np.zeros((1, SIZE, SIZE, 3), np.uint8)
    (reason,) = module.decode_many([data], views, np.zeros(1, np.int32), out, int(rng.integers(3)))
    if reason is not None and out.any():
        raise SystemExit("a row that was not decoded is not 0")
    return reason is None


if __name__ == "__main__":
    main()
