"""Feeds sequences of mutated JPEGs to the extension, and compares each image with the same one decoded alone.

Exits with 0 if it lived, took at most 60 s of the processor an image and little memory, and no image changed another.
Command:   PYTHONPATH=. python tests/support/fuzz_jpeg.py --images 3000
Sanitised: `run_sanitised`.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.jpeg_parts import (
    ADOBE,
    HUFFMAN_TABLES,
    QUANTISATION_TABLES,
    RESTART_INTERVAL,
    with_empty_huffman_tables,
    with_huffman_tables,
    without,
)
from tests.support.memory_growth import MemoryGrowth

SIZE = 32
MOST_TOGETHER = 6
"""Images of one sequence."""
MOST_VIEWS = 3
"""Views of one image."""
MOST_S = 60
"""One image of 100 Mpixel in many scans takes some seconds."""
MOST_BYTES = 1 << 30
"""A progressive one of that size has 600 MB of coefficients."""


def main() -> None:
    """Mutate, decode, look at the clock."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", help="an extension to load in place of loaders.decode._jpeg")
    options = parser.parse_args()
    module = _load(options.module)
    rng = np.random.default_rng(options.seed)
    originals = _originals(rng)
    decoded = done = 0
    growth = MemoryGrowth()
    slowest_s = 0.0
    while done < options.images:
        images = [_mutated(rng, originals) for _ in range(min(rng.integers(1, MOST_TOGETHER), options.images - done))]
        decoded_here, seconds = _decode(module, rng, images)
        done, decoded, slowest_s = done + len(images), decoded + decoded_here, max(slowest_s, seconds)
        if slowest_s > MOST_S:
            raise SystemExit(f"one image took {slowest_s:.1f} s, at most {MOST_S}")
    peak_bytes = growth.bytes()
    if peak_bytes > MOST_BYTES and not options.module:
        raise SystemExit(f"it took {peak_bytes >> 20} MiB, at most {MOST_BYTES >> 20}")
    measured = f"slowest {slowest_s:.2f} s; peak {peak_bytes >> 20} MiB"
    print(f"{options.images} images, {decoded} decoded, all as alone; {measured}")


def _load(path: str | None):
    if path is None:
        from loaders.decode import _jpeg

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
    return [*originals, *(_altered(rng, data) for data in originals for _ in range(3))]


def _altered(rng: np.random.Generator, data: bytes) -> bytes:
    """The file without segments of one kind, or with Huffman tables that have no codes, few, or any."""
    kind = rng.integers(6)
    if kind < 4:
        return without(data, (HUFFMAN_TABLES, QUANTISATION_TABLES, RESTART_INTERVAL, ADOBE)[kind])
    if kind == 4:
        return with_empty_huffman_tables(data)
    tables = []
    for number in (0x00, 0x01, 0x10, 0x11):
        counts = rng.integers(0, 2, 16, dtype=np.uint8)  # one code a length at most: always a prefix code
        symbols = rng.integers(0, 12 if number < 0x10 else 256, int(counts.sum()), dtype=np.uint8)
        tables.append((number, counts.tobytes(), symbols.tobytes()))
    return with_huffman_tables(data, *tables)


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


def _decode(module, rng: np.random.Generator, images: list[bytes]) -> tuple[int, float]:
    """Decode the images one after the other and each view alone; how many could be, and the longest time of one.

    Where one view cannot be decoded, none is: for the reason that this one has alone.
    """
    count = int(rng.integers(1, MOST_VIEWS + 1))
    views = np.array([[_view(module, rng, data) for _ in range(count)] for data in images], np.int32)
    rows = np.arange(len(images), dtype=np.int32)
    together = np.full((len(images), count, SIZE, SIZE, 3), 7, np.uint8)
    number = int(rng.integers(3))
    reasons = module.decode_views(images, views, rows, [together], number)
    slowest_s = 0.0
    for row, data in enumerate(images):
        started_s = time.thread_time()
        alone = np.full((count, 1, 1, SIZE, SIZE, 3), 7, np.uint8)
        found = [
            module.decode_views([data], views[row, view][None].copy(), rows[:1], [alone[view]], number)[0]
            for view in range(count)
        ]
        slowest_s = max(slowest_s, (time.thread_time() - started_s) / count)
        if reasons[row] is not None and together[row].any():
            raise SystemExit("a row that was not decoded is not 0")
        same = reasons[row] in found and (reasons[row] is not None or np.array_equal(alone[:, 0, 0], together[row]))
        if not same or (reasons[row] is None and any(found)):
            before = ", ".join(each.hex() for each in images[: row + 1])
            raise SystemExit(
                f"image {row} of a sequence differs from the same alone: {reasons[row]}, {found}: {before}"
            )
    return reasons.count(None), slowest_s


def _view(module, rng: np.random.Generator, data: bytes) -> list[int]:
    if rng.integers(50) == 0:
        return rng.integers(-(2**31), 2**31, 9).tolist()
    try:
        height, width = module.image_size(data)
    except ValueError:
        height, width = 64, 64
    box_height, box_width = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
    top, left = int(rng.integers(0, height - box_height + 1)), int(rng.integers(0, width - box_width + 1))
    resized = [int(side) for side in rng.integers(SIZE, 2 * SIZE, 2)]
    window = [int(rng.integers(0, side - SIZE + 1)) for side in resized]
    return [top, left, box_height, box_width, *resized, *window, int(rng.integers(2))]


REPOSITORY = Path(__file__).parents[2]
FLAGS = ["-g", "-shared", "-fPIC", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build_sanitised(folder: Path, optimisation: str) -> Path:
    """The extension's file. It can only be loaded where the sanitizers are preloaded."""
    target = folder / f"_jpeg{optimisation}{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    source = REPOSITORY / "loaders/decode/_jpeg.c"
    subprocess.run(["gcc", optimisation, *FLAGS, f"-I{include}", str(source), "-ljpeg", "-o", str(target)], check=True)
    return target


def run_sanitised(folder: Path, *, images: int, seed: int, optimisation: str = "-O1") -> str:
    """Decode that many mutated images in sequences; what the fuzzer says at its end.

    Raises:
        AssertionError: With a sanitizer's report, or what differed from the same image alone.
    """
    module = build_sanitised(folder, optimisation)
    libraries = [_library(name) for name in ("libasan.so", "libubsan.so")]
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONMALLOC": "malloc",
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    command = [sys.executable, __file__, "--images", str(images), "--seed", str(seed), "--module", str(module)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()


def _library(name: str) -> str:
    return subprocess.run(
        ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
