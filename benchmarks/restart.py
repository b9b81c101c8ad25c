"""CPU time of crops from JPEGs with and without restart markers, beside a full decode of the same images: one table.

    python benchmarks/restart.py --corpus DIR --json restart.json

A loader reads WebDataset shards of both with one decoding thread; the decoders alone, and the full decode by
simplejpeg, get the bytes from memory. All take turns, a batch at a time, and every ratio is to the full decode of the
same round.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.decoding import AHEAD, Contender, FromMemory, RestingLoader, ratios, turns
from benchmarks.harness import common_options, in_turns, report, work_folder
from benchmarks.originals import build, corpus_images, image_folder
from dataprep.builder.images import ImagePolicy, check_image, with_restarts
from dataprep.dataset.records import Event
from loaders import open_loader
from loaders.decode.crop import View, train_views
from loaders.decode.decoders import open_decoder, without_lower_rows

BATCH = 128
FULL, LOADER, EXTENSION, LIBRARY = "full decode", "loader", "decoder, extension", "decoder, libraries"
ROWS = "libraries, not scaled"
"""What the libraries take to decode the rows that are needed: no way of scaling makes them faster than that."""
ORIGINALS, RESTART = "originals", "restart markers"
TARGETS = {(LOADER, 224, "bicubic", RESTART): 1.15 / 1.88, (LOADER, 224, "bilinear", RESTART): 1 / 1.8}
"""Largest share of a full decode's CPU time that is wanted."""

Kind = tuple[str, int, str, str]
"""Contender, image size, interpolation, and which files."""


def cropper(images: list[bytes], size: int, interpolation: str, backend: str) -> Contender:
    """Return a decoder that makes crops of images in memory."""
    decoder, out = open_decoder(interpolation, backend), np.zeros((BATCH, size, size, 3), np.uint8)

    def make(batch: list[tuple[bytes, View]]) -> bool:
        return any(decoder.decode_many(*zip(*batch, strict=True), out, range(BATCH)))

    return FromMemory(viewed(images, size), BATCH, make)


def viewed(images: list[bytes], size: int) -> list[tuple[bytes, View]]:
    """Return the images, each with a random crop."""
    heights, widths = zip(*map(open_decoder(backend="library").image_size, images), strict=True)
    return list(zip(images, train_views(0, range(len(images)), heights, widths, size=size), strict=True))


def needed_rows(batch: list[tuple[bytes, View]]) -> None:
    """Decode the rows that crops need, with simplejpeg."""
    for data, view in batch:
        simplejpeg.decode_jpeg(without_lower_rows(data, view.top + view.height), strict=False)


def whole(batch: list[bytes]) -> None:
    """Decode whole images with simplejpeg."""
    for data in batch:
        simplejpeg.decode_jpeg(data)


def checked(batch: list[bytes]) -> bool:
    """Check images as a build does."""
    return any(isinstance(check_image("", data, ImagePolicy()), Event) for data in batch)


def checked_by_libjpeg(batch: list[bytes]) -> None:
    """Check images as a build checks those that its own reader leaves to libjpeg."""
    for data in batch:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, min_factor=1, strict=True)


def contenders_of(urls: dict[str, str], images: dict[str, list[bytes]]) -> Iterator[tuple[Kind, Contender]]:
    """Yield all contenders; the full decode first."""
    alone = {FULL: whole, "check of a build": checked, "check, libjpeg alone": checked_by_libjpeg}
    for name, make in alone.items():
        yield (name, 0, "", ORIGINALS), FromMemory(images[ORIGINALS], BATCH, make)
    for size in (224, 448):
        yield (ROWS, size, "", ORIGINALS), FromMemory(viewed(images[ORIGINALS], size), BATCH, needed_rows)
        for interpolation in ("bicubic", "bilinear"):
            settings: dict[str, Any] = {"batch_size": BATCH, "threads": 1, "prefetch_batches": AHEAD}
            settings |= {"image_size": size, "interpolation": interpolation}
            for files in (ORIGINALS, RESTART):
                loader = RestingLoader(open_loader(urls[files], **settings), BATCH)
                yield (LOADER, size, interpolation, files), loader
                yield (EXTENSION, size, interpolation, files), cropper(images[files], size, interpolation, "extension")
            library = cropper(images[ORIGINALS], size, interpolation, "library")
            yield (LIBRARY, size, interpolation, ORIGINALS), library


def main() -> None:
    """Measure and print."""
    import torch

    torch.set_num_threads(1)
    parser = common_options(__doc__)
    parser.add_argument("--batches", type=int, default=4, help=f"batches of {BATCH} images in a turn; default 4")
    options = parser.parse_args()
    with work_folder(options, "restart") as work:
        paths = corpus_images(options.corpus, work, options.images)
        source = image_folder(paths, work / "pictures")
        urls = {ORIGINALS: build(source, work / "plain")}
        urls[RESTART] = build(source, work / "restart", "--jpeg", "restart")
        originals = [path.read_bytes() for path in paths]
        started_s = time.process_time()
        marked = list(map(with_restarts, originals))
        images_per_s = len(originals) / (time.process_time() - started_s)
        contenders = dict(contenders_of(urls, {ORIGINALS: originals, RESTART: marked}))
        once = turns(contenders, options.batches, BATCH)
        rounds = in_turns({"all": once}, options.rounds, warm_up=not options.no_warm_up)["all"]
    full_ms = [each[FULL, 0, "", ORIGINALS] for each in rounds]
    rows = [
        dict(zip(("contender", "image_size", "interpolation", "files"), kind, strict=True))
        | ratios([each[kind] for each in rounds], full_ms)
        | {"target": TARGETS.get(kind)}
        for kind in contenders
    ]
    facts = {
        "images": len(originals),
        "bytes": sum(map(len, originals)),
        "restart_bytes": sum(map(len, marked)),
        "transcoded_images_per_s": images_per_s,
        "rounds": options.rounds,
        "images_in_a_turn": options.batches * BATCH,
    }
    report("restart", facts | {"rows": rows}, options)


if __name__ == "__main__":
    main()
