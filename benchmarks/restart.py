"""CPU time of crops from JPEGs with and without restart markers, beside a full decode of the same images: one table.

python benchmarks/restart.py --corpus DIR --json restart.json

A loader reads WebDataset shards of both with one decoding thread; the decoders alone, and the full decode by
simplejpeg, get the bytes from memory. All take turns, some batches at a time, and every ratio is to the full decode of
the same round.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

sys.path.insert(0, str(Path(__file__).parents[1]))

from originals import DATAPREP, common_options, corpus_images, image_folder, machine_facts

from dataprep.builder.images import with_restarts
from loaders import open_loader
from loaders.decode.crop import train_views
from loaders.decode.decoders import open_decoder, without_lower_rows

BATCH = 128
AHEAD = 1
"""Batches that a loader makes ahead: it then rests, so that no contender works while another one is measured."""
SIZES = (224, 448)
INTERPOLATIONS = ("bicubic", "bilinear")
FULL, LOADER, EXTENSION, LIBRARY = "full decode", "loader", "decoder, extension", "decoder, libraries"
ROWS = "libraries, not scaled"
"""What the libraries take to decode the rows that are needed: no way of scaling makes them faster than that."""
ORIGINALS, RESTART = "originals", "restart markers"
MARKED = ("--jpeg", "restart")
TARGETS = {(LOADER, 224, "bicubic", RESTART): 1.15 / 1.88, (LOADER, 224, "bilinear", RESTART): 1 / 1.8}
"""Largest share of a full decode's CPU time that is wanted."""

Kind = tuple[str, int, str, str]
"""Contender, image size, interpolation, and which files."""
Contender = Callable[[], float]
"""Makes a batch, and returns the seconds of CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One contender with one kind of images."""

    contender: str
    image_size: int
    interpolation: str
    files: str
    cpu_ms: list[float]
    """CPU milliseconds an image, of each round."""
    ratio: float
    """CPU time divided by that of the full decode: median of the rounds."""
    low: float
    high: float
    """Smallest and largest ratio of a round."""
    target: float | None
    """Largest ratio that is wanted; None: there is none."""


class LoaderContender:
    """A loader with one decoding thread, whose CPU time is measured from rest to rest."""

    def __init__(self, dataset: Path, image_size: int, interpolation: str) -> None:
        self._loader = open_loader(
            str(dataset),
            batch_size=BATCH,
            image_size=image_size,
            interpolation=interpolation,
            threads=1,
            prefetch_batches=AHEAD,
        )
        self._batches = chain.from_iterable(repeat(self._loader))
        self._taken = 0
        self()

    def __call__(self) -> float:
        started_s = time.process_time()
        next(self._batches)
        self._taken += 1
        while self._loader.stats()["stages"]["decode"]["items"] < (self._taken + AHEAD) * BATCH:
            time.sleep(0.005)  # each look takes time that would count
        return time.process_time() - started_s


class DecoderContender:
    """Makes crops of images in memory, batch after batch, in the calling thread."""

    def __init__(self, images: list[bytes], image_size: int, interpolation: str, backend: str) -> None:
        self._decoder = open_decoder(interpolation, backend)
        heights, widths = zip(*map(self._decoder.image_size, images), strict=True)
        self._images, self._next = images, 0
        self._views = train_views(0, range(len(images)), heights, widths, size=image_size)
        self._out = np.zeros((BATCH, image_size, image_size, 3), np.uint8)

    def __call__(self) -> float:
        chosen = [(self._next + number) % len(self._images) for number in range(BATCH)]
        self._next += BATCH
        images, views = [self._images[each] for each in chosen], [self._views[each] for each in chosen]
        started_s = time.process_time()
        if any(self._decoder.decode_many(images, views, self._out, range(BATCH))):
            raise SystemExit("an image could not be decoded")
        return time.process_time() - started_s


class RowsContender:
    """Decodes the rows of images in memory that a crop needs, with simplejpeg."""

    def __init__(self, images: list[bytes], image_size: int) -> None:
        heights, widths = zip(*map(open_decoder(backend="library").image_size, images), strict=True)
        views = train_views(0, range(len(images)), heights, widths, size=image_size)
        self._images = repeat_each(list(zip(images, views, strict=True)))

    def __call__(self) -> float:
        batch = [next(self._images) for _ in range(BATCH)]
        started_s = time.process_time()
        for data, view in batch:
            simplejpeg.decode_jpeg(without_lower_rows(data, view.top + view.height), strict=False)
        return time.process_time() - started_s


class FullDecode:
    """Decodes whole images in memory with simplejpeg."""

    def __init__(self, images: list[bytes]) -> None:
        self._images = repeat_each(images)

    def __call__(self) -> float:
        batch = [next(self._images) for _ in range(BATCH)]
        started_s = time.process_time()
        for data in batch:
            simplejpeg.decode_jpeg(data)
        return time.process_time() - started_s


def repeat_each(images: list[Any]) -> Iterator[Any]:
    """Yield the images, one epoch after another."""
    return chain.from_iterable(repeat(images))


def contenders_of(datasets: dict[str, Path], images: dict[str, list[bytes]]) -> dict[Kind, Contender]:
    """Return all contenders; the full decode first."""
    found: dict[Kind, Contender] = {(FULL, 0, "", ORIGINALS): FullDecode(images[ORIGINALS])}
    for size in SIZES:
        found[ROWS, size, "", ORIGINALS] = RowsContender(images[ORIGINALS], size)
        for interpolation in INTERPOLATIONS:
            for files in (ORIGINALS, RESTART):
                found[LOADER, size, interpolation, files] = LoaderContender(datasets[files], size, interpolation)
                extension = DecoderContender(images[files], size, interpolation, "extension")
                found[EXTENSION, size, interpolation, files] = extension
            library = DecoderContender(images[ORIGINALS], size, interpolation, "library")
            found[LIBRARY, size, interpolation, ORIGINALS] = library
    return found


def measured(contenders: dict[Kind, Contender], rounds: int, batches: int) -> list[Row]:
    """Let the contenders take turns, some batches at a time."""
    ms: dict[Kind, list[float]] = {each: [] for each in contenders}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        spent = dict.fromkeys(contenders, 0.0)
        for kind, contender in contenders.items():
            for _ in range(batches):
                spent[kind] += contender()
        for kind, seconds in spent.items():
            ms[kind].append(1e3 * seconds / (batches * BATCH))
    full = ms[FULL, 0, "", ORIGINALS]
    rows = []
    for kind, found in ms.items():
        rows.append(row_of(kind, found, [mine / base for mine, base in zip(found, full, strict=True)]))
    return rows


def row_of(kind: Kind, cpu_ms: list[float], ratios: list[float]) -> Row:
    contender, image_size, interpolation, files = kind
    return Row(
        contender=contender,
        image_size=image_size,
        interpolation=interpolation,
        files=files,
        cpu_ms=[round(each, 5) for each in cpu_ms],
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        target=TARGETS.get(kind),
    )


def build(pictures: Path, output: Path, *options: str) -> Path:
    """Make WebDataset shards of the pictures with `dataprep build folder`."""
    words = ["build", "folder", "--source", pictures, "--output", output, "--format", "webdataset", *options]
    subprocess.run([DATAPREP, *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    return output


def transcoded(images: list[bytes]) -> tuple[list[bytes], float]:
    """Return the images with restart markers, and how many a second one core makes."""
    started_s = time.process_time()
    made = list(map(with_restarts, images))
    return made, len(images) / (time.process_time() - started_s)


def print_table(rows: list[Row]) -> None:
    """Print a line for each contender, and whether the targets are met."""
    print(f"{'':22}{'size':>6}  {'':10}{'files':17}{'CPU ms/image':>13}{'ratio':>8}{'lowest':>9}{'highest':>9}")
    for row in rows:
        ms, size = statistics.median(row.cpu_ms), row.image_size or ""
        verdict = ""
        if row.target is not None:
            verdict = f"  target {row.target:.3f}: {'PASS' if row.ratio <= row.target else 'above'}"
        print(
            f"{row.contender:22}{size:>6}  {row.interpolation:10}{row.files:17}{ms:13.3f}{row.ratio:8.3f}"
            f"{row.low:9.3f}{row.high:9.3f}{verdict}"
        )


def main() -> None:
    """Measure and print."""
    import torch

    torch.set_num_threads(1)
    parser = common_options(__doc__)
    parser.add_argument("--batches", type=int, default=4, help=f"batches of {BATCH} images in a turn; default 4")
    options = parser.parse_args()
    work = options.work.resolve() / f"restart-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        paths = corpus_images(options.corpus, work, options.images)
        pictures = image_folder(paths, work / "pictures")
        datasets = {ORIGINALS: build(pictures, work / "plain"), RESTART: build(pictures, work / "restart", *MARKED)}
        originals = [path.read_bytes() for path in paths]
        marked, images_per_s = transcoded(originals)
        measure = partial(measured, contenders_of(datasets, {ORIGINALS: originals, RESTART: marked}))
        if not options.no_warm_up:
            measure(1, 1)
        rows = measure(options.rounds, options.batches)
    finally:
        shutil.rmtree(work)
    facts = {
        "images": len(originals),
        "bytes": sum(map(len, originals)),
        "restart_bytes": sum(map(len, marked)),
        "transcoded_images_per_s": images_per_s,
        "rounds": options.rounds,
        "images_in_a_turn": options.batches * BATCH,
        **machine_facts(),
    }
    kilobytes, share = facts["bytes"] / len(originals) / 1e3, facts["restart_bytes"] / facts["bytes"]
    print(f"{len(originals):,} images of {kilobytes:.0f} kB; {options.rounds} rounds of {facts['images_in_a_turn']}")
    print(f"with restart markers {share:.3f} of the bytes, made at {images_per_s:.0f} images/s of one core")
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
