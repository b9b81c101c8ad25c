"""CPU time of several views of an image, by our loader, as separate decodes, and by torchvision: one table.

    python benchmarks/views.py --corpus DIR --json views.json

Images are in the page cache or in memory, one thread decodes, bicubic and antialiased; contenders take turns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.decoding import AHEAD, Contender, FromMemory, RestingLoader, ratios, turns
from benchmarks.harness import common_options, in_turns, report, work_folder
from benchmarks.originals import corpus_images, image_folder
from dataprep.adoption import AdoptRequest, adopt
from dataprep.commands.adopt import AdoptProgress
from loaders import LoaderConfig, Views, open_loader, open_views
from loaders.config import spans
from loaders.decode.crop import View, as_views, grouped_views
from loaders.decode.decoders import open_decoder

BATCH = 64
LOADER, DECODER, SEPARATE, TORCHVISION = "our loader", "our decoder", "separate decodes", "torchvision v2, one tensor"
DECODE = "1 x 224, area 0.2 to 1"
"""The crop of `open_loader` by default: its cost is called a decode."""
WHOLE, LARGE = Views(size=224), Views(size=224, min_area=0.4)
TWO_LARGE = Views(count=2, size=224, min_area=0.4)
KINDS = {
    DECODE: (WHOLE,),
    "2 x 224, area 0.2 to 1": (Views(count=2, size=224),),
    "1 x 224, area 0.4 to 1": (LARGE,),
    "2 x 224, area 0.4 to 1": (TWO_LARGE,),
    "2 x 224, area 0.4 to 1, and 6 x 96, 0.05 to 0.4": (
        TWO_LARGE,
        Views(count=6, size=96, min_area=0.05, max_area=0.4),
    ),
}
"""Groups of views: MoCo's, and DINO's without and with its small crops; the first of each kind alone, too."""
TARGETS = {2: 1.3, 8: 2.5}
"""Most decodes that so many views may cost our loader."""
Images, Crops, Outs = Sequence[bytes], Sequence[Sequence[View]], Sequence[Any]


def loader_of(dataset: str, groups: tuple[Views, ...]) -> Contender:
    """Return a loader of the views; `open_loader` itself where it can make them."""
    settings: dict[str, Any] = {"batch_size": BATCH, "threads": 1, "prefetch_batches": AHEAD}
    alone = groups == (WHOLE,)
    loader = open_loader(dataset, **settings) if alone else open_views(dataset, views=groups, **settings)
    return RestingLoader(loader, BATCH)


def from_memory(
    images: list[bytes], groups: tuple[Views, ...], make: Callable[[Images, Crops, Outs], Any]
) -> Contender:
    """Return a contender that makes views of images in memory."""
    outs = [np.zeros(each.shape, np.uint8) for each in spans(groups, BATCH)]

    def batch(items: list[tuple[bytes, Sequence[View]]]) -> Any:
        data, views = zip(*items, strict=True)
        return make(data, views, outs)

    return FromMemory(list(zip(images, views_of(images, groups), strict=True)), BATCH, batch)


def views_of(images: list[bytes], groups: tuple[Views, ...]) -> Crops:
    """Draw the views of every image as the loader does."""
    heights, widths = zip(*map(open_decoder().image_size, images), strict=True)
    crops = LoaderConfig(batch_size=1, view_groups=groups).crop_groups
    return list(map(as_views, grouped_views(0, range(len(images)), heights, widths, crops)))


def decode_once(images: Images, views: Crops, outs: Outs) -> bool:
    """Make all views of an image of one decode."""
    return any(open_decoder().decode_views(images, views, outs, range(len(images))))


def decode_separately(images: Images, views: Crops, outs: Outs) -> bool:
    """Decode an image once for each of its views."""
    decoder, number, failed = open_decoder(), 0, False
    for out in outs:
        for place in range(out.shape[1]):
            made = np.empty((len(images), *out.shape[2:]), np.uint8)
            one = [of_image[number] for of_image in views]
            failed |= any(decoder.decode_many(images, one, made, range(len(images))))
            out[:, place] = made
            number += 1
    return failed


def by_torchvision(images: Images, views: Crops, outs: Outs) -> None:
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


def reducible_share(images: list[bytes], groups: tuple[Views, ...]) -> float:
    """Return the share of images whose crops all have the size of their views even if they are decoded at half size."""
    enough = [
        all(min(view.height, view.width) >= 2 * view.resized_height for view in of_image)
        for of_image in views_of(images, groups)
    ]
    return sum(enough) / len(enough)


def main() -> None:
    """Measure and print."""
    import torch

    torch.set_num_threads(1)
    parser = common_options(__doc__)
    parser.add_argument("--batches", type=int, default=6, help=f"batches of {BATCH} images in a round; default 6")
    options = parser.parse_args()
    with work_folder(options, "views") as work:
        paths = corpus_images(options.corpus, work, options.images)
        folder = str(image_folder(paths, work / "pictures"))
        adopt(AdoptRequest(url=folder), AdoptProgress(quiet=True))
        images = [path.read_bytes() for path in paths]
        makers = {LOADER: partial(loader_of, folder)}
        makers |= {name: partial(from_memory, images, make=make) for name, make in IN_MEMORY.items()}
        contenders = {(name, kind): make(KINDS[kind]) for name, make in makers.items() for kind in KINDS}
        once = turns(contenders, options.batches, BATCH)
        rounds = in_turns({"all": once}, options.rounds, warm_up=not options.no_warm_up)["all"]
    rows = []
    for name, kind in contenders:
        count = sum(each.count for each in KINDS[kind])
        found = ratios([each[name, kind] for each in rounds], [each[name, DECODE] for each in rounds])
        target = TARGETS.get(count) if name == LOADER else None
        rows.append({"contender": name, "views": kind, "num_views": count, "target": target} | found)
    facts = {
        "images": len(images),
        "bytes": sum(map(len, images)),
        "rounds": options.rounds,
        "images_in_a_round": options.batches * BATCH,
        "reducible": {kind: reducible_share(images, groups) for kind, groups in KINDS.items()},
    }
    report("views", facts | {"rows": rows}, options)


if __name__ == "__main__":
    main()
