"""Images that mean harm to the decoder, to the check of a build, or to the images decoded after them."""

from __future__ import annotations

import io
import os
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dataprep.builder.images import ImagePolicy, check_image
from dataprep.dataset.records import Event
from loaders import open_loader
from loaders.decode.crop import View
from loaders.decode.decoders import open_decoder
from tests.attacks import Attack
from tests.support.adoption import adopt_here
from tests.support.fuzz_jpeg import run_sanitised
from tests.support.jpeg_parts import HUFFMAN_TABLES, many_scans, without


def _frames_among_photographs(folder: Path) -> str:
    """Motion-JPEG frames beside images with tables of their own: the same pixels whatever decodes them."""
    rng = np.random.default_rng(0)
    for number in range(48):
        coarse = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        image, data = coarse.resize((int(rng.integers(90, 160)), 100)), io.BytesIO()
        image.save(data, "JPEG", quality=85, optimize=bool(number % 4))
        stored = data.getvalue() if number % 4 else without(data.getvalue(), HUFFMAN_TABLES)
        path = folder / "data" / "train" / "ab"[number % 2] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stored)
    adopt_here(folder / "data")
    ways = {"1 thread": {"threads": 1}, "16 threads": {"threads": 16}, "library": {"threads": 2, "decoder": "library"}}
    images = {name: _images(folder / "data", **settings) for name, settings in ways.items()}
    for key, expected in images["library"].items():
        for name in ("1 thread", "16 threads"):
            # Resized by another library: a grey level in the mean, where wrong tables make noise of 20 and more.
            differs = np.abs(images[name][key].astype(int) - expected).mean()
            assert differs < 2, f"{key} by {name} differs by {differs:.1f} grey levels"
        assert np.array_equal(images["1 thread"][key], images["16 threads"][key]), key
    return f"{len(images['library'])} images, the same with 1 and 16 threads and by the library"


def _images(url: Path, **settings: object) -> dict[str, NDArray[np.uint8]]:
    evaluation = {"shuffle": False, "augment": False, "image_size": 64, "resize": 64}
    with open_loader(str(url), split="train", batch_size=16, **evaluation, **settings) as loader:
        return {
            key: image.copy()
            for batch in loader
            for key, image, real in zip(batch.keys, batch.images, batch.mask, strict=True)
            if real
        }


def _progressive_bomb(folder: Path, scans: int, side: int) -> str:
    """A file of some kilobytes that asks for scans over all its pixels: refused, not decoded."""
    data = many_scans(scans, side)
    checked = check_image("bomb", data, ImagePolicy())
    assert isinstance(checked, Event), "the check of a build accepts it"
    out = np.zeros((1, 32, 32, 3), np.uint8)
    (reason,) = open_decoder().decode_many([data], [View(0, 0, side, side, 32, 32, 0, 0, 0)], out, [0])
    assert reason is not None, "the decoder makes a picture of it"
    return f"{len(data):,} bytes: {checked.detail[:60]}"


def _sanitised(folder: Path, *, seed: int, optimisation: str) -> str:
    images = int(os.environ.get("IMAGES", "30000"))
    return run_sanitised(folder, images=images, seed=seed, optimisation=optimisation)


ATTACKS = [
    Attack("motion-JPEG frames among photographs", _frames_among_photographs, sampled=True),
    Attack("progressive image of 900 scans", partial(_progressive_bomb, scans=900, side=2_000), sampled=True),
    Attack("progressive image of 9,000 scans", partial(_progressive_bomb, scans=9_000, side=9_000)),
    *(
        Attack(f"mutated images, {flag}, seed {seed}", partial(_sanitised, seed=seed, optimisation=flag))
        for seed, flag in enumerate(("-O1", "-O2", "-O3"))
    ),
]
