"""CPU time of several views of an image, by our loader, as separate decodes, and by torchvision: one table.

python benchmarks/views.py --corpus DIR --json views.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from originals import common_options, corpus_images, image_folder, machine_facts

from dataprep.adoption import AdoptRequest, adopt
from dataprep.commands.adopt import AdoptProgress
from loaders import Views, open_loader, open_views
from loaders.config import spans
from loaders.decode.crop import View, grouped_views
from loaders.decode.decoders import open_decoder

BATCH = 64
AHEAD = 1
"""Batches that a loader makes ahead: it then rests, so that no contender works while another one is measured."""
LOADER, DECODER, SEPARATE, TORCHVISION = "our loader", "our decoder", "separate decodes", "torchvision v2, one tensor"
DECODE = "1 x 224, area 0.2 to 1"
"""The crop of `open_loader` by default: its cost is called a decode."""
WHOLE = Views(size=224)
LARGE = Views(size=224, min_area=0.4)
KINDS = {
    DECODE: (WHOLE,),
    "2 x 224, area 0.2 to 1": (Views(count=2, size=224),),
    "1 x 224, area 0.4 to 1": (LARGE,),
    "2 x 224, area 0.4 to 1": (Views(count=2, size=224, min_area=0.4),),
    "2 x 224, area 0.4 to 1, and 6 x 96, 0.05 to 0.4": (
        Views(count=2, size=224, min_area=0.4),
        Views(count=6, size=96, min_area=0.05, max_area=0.4),
    ),
}
"""Groups of views: MoCo's, and DINO's without and with its small crops; the first of each kind alone, too."""
TARGETS = {2: 1.3, 8: 2.5}
"""Most decodes that so many views may cost our loader."""

Contender = Callable[[int], float]
"""Makes the views of some batches, and returns the seconds of CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One contender with one kind of views."""

    contender: str
    views: str
    num_views: int
    cpu_ms: list[float]
    """CPU milliseconds an image, of each round."""
    ratio: float
    """CPU time divided by that of one view of `DECODE` by the same contender: median of the rounds."""
    low: float
    high: float
    """Smallest and largest ratio of a round."""
    target: float | None
    """Largest ratio that is wanted of our loader; None: there is none."""


class LoaderContender:
    """A loader with one decoding thread, whose CPU time is measured from rest to rest."""

    def __init__(self, dataset: str, groups: tuple[Views, ...]) -> None:
        settings: dict[str, Any] = {"batch_size": BATCH, "threads": 1, "prefetch_batches": AHEAD}
        # `open_loader` itself where it can make the view.
        alone = groups == (WHOLE,)
        self._loader = open_loader(dataset, **settings) if alone else open_views(dataset, views=groups, **settings)
        self._batches = chain.from_iterable(repeat(self._loader))
        self._taken = 0
        self(1)

    def __call__(self, batches: int) -> float:
        started_s = time.process_time()
        for _ in range(batches):
            next(self._batches)
        self._taken += batches
        while self._loader.stats()["stages"]["decode"]["items"] < (self._taken + AHEAD) * BATCH:
            time.sleep(0.001)
        return time.process_time() - started_s


class MemoryContender:
    """Makes views from images in memory, batch after batch, in the calling thread."""

    def __init__(self, images: list[bytes], groups: tuple[Views, ...], make: Callable[..., None]) -> None:
        self._images, self._make, self._next = images, make, 0
        decoder = open_decoder()
        heights, widths = zip(*map(decoder.image_size, images), strict=True)
        self._views = grouped_views(0, range(len(images)), heights, widths, crop_groups(groups))
        self._outs = [np.zeros(each.shape, np.uint8) for each in spans(groups, BATCH)]

    def __call__(self, batches: int) -> float:
        started_s = time.process_time()
        for _ in range(batches):
            chosen = [(self._next + number) % len(self._images) for number in range(BATCH)]
            self._next += BATCH
            self._make([self._images[each] for each in chosen], [self._views[each] for each in chosen], self._outs)
        return time.process_time() - started_s


def crop_groups(groups: tuple[Views, ...]) -> Any:
    """Return how the loader draws the views of these groups."""
    from loaders import LoaderConfig

    return LoaderConfig(batch_size=1, view_groups=groups).crop_groups


def decode_once(images: Sequence[bytes], views: Sequence[Sequence[View]], outs: Sequence[Any]) -> None:
    """Make all views of an image of one decode."""
    if any(open_decoder().decode_views(images, views, outs, range(len(images)))):
        raise SystemExit("an image could not be decoded")


def decode_separately(images: Sequence[bytes], views: Sequence[Sequence[View]], outs: Sequence[Any]) -> None:
    """Decode an image once for each of its views."""
    decoder, number = open_decoder(), 0
    for out in outs:
        for place in range(out.shape[1]):
            one = [of_image[number] for of_image in views]
            made = np.empty((len(images), *out.shape[2:]), np.uint8)
            if any(decoder.decode_many(images, one, made, range(len(images)))):
                raise SystemExit("an image could not be decoded")
            out[:, place] = made
            number += 1


def by_torchvision(images: Sequence[bytes], views: Sequence[Sequence[View]], outs: Sequence[Any]) -> None:
    """Decode an image to a uint8 tensor, and crop, scale and flip each view from it with torchvision's v2 kernels."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    for data, of_image in zip(images, views, strict=True):
        image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)
        for view in of_image:
            box, size = (view.top, view.left, view.height, view.width), [view.resized_height, view.resized_width]
            made = functional.resized_crop(image, *box, size, InterpolationMode.BICUBIC, antialias=True)
            if view.flip:
                functional.horizontal_flip(made)


IN_MEMORY = {DECODER: decode_once, SEPARATE: decode_separately, TORCHVISION: by_torchvision}


def measured(contenders: dict[tuple[str, str], Contender], rounds: int, batches: int) -> list[Row]:
    """Let the contenders take turns, a batch at a time."""
    ms: dict[tuple[str, str], list[float]] = {each: [] for each in contenders}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        spent = dict.fromkeys(contenders, 0.0)
        for _ in range(batches):
            for name, contender in contenders.items():
                spent[name] += contender(1)
        for name, seconds in spent.items():
            ms[name].append(1e3 * seconds / (batches * BATCH))
    rows = []
    for (contender, kind), found in ms.items():
        count = sum(each.count for each in KINDS[kind])
        ratios = [mine / base for mine, base in zip(found, ms[contender, DECODE], strict=True)]
        rows.append(
            Row(
                contender=contender,
                views=kind,
                num_views=count,
                cpu_ms=[round(each, 5) for each in found],
                ratio=statistics.median(ratios),
                low=min(ratios),
                high=max(ratios),
                target=TARGETS.get(count) if contender == LOADER else None,
            )
        )
    return rows


def reducible_share(images: list[bytes], groups: tuple[Views, ...]) -> float:
    """Return the share of images whose crops all have the size of their views even if they are decoded at half size."""
    decoder = open_decoder()
    heights, widths = zip(*map(decoder.image_size, images), strict=True)
    views = grouped_views(0, range(len(images)), heights, widths, crop_groups(groups))
    enough = [all(min(view.height, view.width) >= 2 * view.resized_height for view in of_image) for of_image in views]
    return sum(enough) / len(enough)


def print_table(rows: list[Row], reducible: dict[str, float]) -> None:
    """Print a line for each contender and kind of views, and whether the targets are met."""
    print(f"\n{'':28}{'views':50}{'CPU ms/image':>13}{'ratio':>8}{'lowest':>9}{'highest':>9}")
    for row in rows:
        ms = statistics.median(row.cpu_ms)
        print(f"{row.contender:28}{row.views:50}{ms:13.3f}{row.ratio:8.2f}{row.low:9.2f}{row.high:9.2f}")
    for row in rows:
        if row.target is not None:
            verdict = "PASS" if row.ratio <= row.target else "above"
            print(f"{row.views}: {row.ratio:.2f} decodes, target {row.target}: {verdict}")
    for kind, share in reducible.items():
        print(f"{kind}: decoding at half size would leave every view its pixels in {100 * share:.1f} % of the images")


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = common_options(__doc__)
    parser.add_argument("--batches", type=int, default=6, help=f"batches of {BATCH} images in a round; default 6")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    import torch

    torch.set_num_threads(1)
    options = parse_options()
    work = options.work.resolve() / f"views-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        paths = corpus_images(options.corpus, work, options.images)
        folder = image_folder(paths, work / "pictures")
        adopt(AdoptRequest(url=str(folder)), AdoptProgress(quiet=True))
        images = [path.read_bytes() for path in paths]
        contenders: dict[tuple[str, str], Contender] = {}
        for kind, groups in KINDS.items():
            contenders[LOADER, kind] = LoaderContender(str(folder), groups)
        for name, make in IN_MEMORY.items():
            for kind, groups in KINDS.items():
                contenders[name, kind] = MemoryContender(images, groups, make)
        if not options.no_warm_up:
            measured(contenders, 1, 1)
        rows = measured(contenders, options.rounds, options.batches)
    finally:
        shutil.rmtree(work)
    reducible = {kind: reducible_share(images, groups) for kind, groups in KINDS.items()}
    kilobytes = sum(map(len, images)) / len(images) / 1e3
    print(f"{len(images):,} images of {kilobytes:.0f} kB in the page cache; one decoding thread; bicubic, antialiased;")
    print(
        f"{options.rounds} rounds of {options.batches * BATCH:,} images; the contenders take turns after each {BATCH}"
    )
    print_table(rows, reducible)
    if options.json:
        document = {
            "images": len(images),
            "bytes": sum(map(len, images)),
            "rounds": options.rounds,
            "images_in_a_round": options.batches * BATCH,
            **machine_facts(),
            "rows": [asdict(row) for row in rows],
            "reducible": reducible,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
