"""Random crops of random pictures in random forms of JPEG, each compared with the same crop of a full decode."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from loaders.decode.crop import View
from loaders.decode.decoders import open_decoder
from tests.support.jpeg_forms import jpegs

CROPS_OF_A_FILE = 25


def compare_crops(seed: int, pictures: int, most_pixels: int) -> int:
    """Compare the crops of all forms of some pictures, whose sides are up to `most_pixels`; return how many there were.

    A view that is not scaled shows the decoded samples themselves. Each is decoded twice in a call, because the
    extension reads over the blocks of a second image with tables that it does not make for the first.
    """
    rng = np.random.default_rng(seed)
    decoder, compared = open_decoder(backend="extension"), 0
    for _ in range(pictures):
        height, width = (int(side) for side in rng.integers(1, most_pixels, 2))
        for kind, data in jpegs(rng, height, width):
            full = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
            for _ in range(CROPS_OF_A_FILE):
                side = int(rng.integers(1, min(height, width) + 1))
                top, left = int(rng.integers(0, height - side + 1)), int(rng.integers(0, width - side + 1))
                found = np.full((2, side, side, 3), 7, np.uint8)
                view = View(top, left, side, side, side, side, 0, 0, False)
                reasons = decoder.decode_many([data] * 2, [view] * 2, found, [0, 1])
                assert reasons == [None] * 2, (kind, reasons)
                for each in found:
                    assert np.array_equal(each, full[top : top + side, left : left + side]), (kind, height, width, view)
                compared += 1
    return compared
