"""Mutants of pictures, and which decoders take them: ours, torchvision's, TensorFlow's and OpenCV's.

`python -m tests.support.picture_verdicts FORMAT FIRST COUNT` prints one JSON object, in a process of its own: torch_xla
cannot be imported where TensorFlow was.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from PIL import Image

from dataprep.builder.images import CheckedImage, ImagePolicy, check_image
from dataprep.errors import ImageError
from loaders.decode.crop import View
from loaders.decode.decoders import open_decoder
from tests.support.jpeg_forms import picture

SIDES = (61, 83)


@cache
def originals(kind: str) -> tuple[bytes, ...]:
    """Return whole pictures of a format, in the forms that all decoders know."""
    pixels = Image.fromarray(picture(np.random.default_rng(7), *SIDES))
    alpha = pixels.convert("RGBA")
    alpha.putalpha(pixels.convert("L"))
    grey, few = pixels.convert("L"), pixels.quantize(16)
    forms: dict[str, list[tuple[Image.Image, dict[str, object]]]] = {
        "JPEG": [
            (pixels, {"quality": 90}),
            (pixels, {"quality": 60, "subsampling": 2, "optimize": True}),
            (pixels, {"quality": 80, "progressive": True}),
            (pixels, {"quality": 80, "restart_marker_blocks": 3}),
            (grey, {"quality": 85}),
            (grey, {"quality": 70, "progressive": True}),
        ],
        "PNG": [(pixels, {}), (alpha, {}), (grey, {}), (few, {}), (pixels.convert("1"), {})],
        "GIF": [
            (few, {"interlace": 0}),
            (few, {"interlace": 1}),
            (pixels.quantize(256), {}),
            (few, {"transparency": 3}),
        ],
        "BMP": [(pixels, {}), (grey, {}), (alpha, {}), (few, {})],
        "WEBP": [
            (pixels, {"quality": 80}),
            (pixels, {"lossless": True}),
            (alpha, {"quality": 70}),
            (alpha, {"lossless": True}),
        ],
    }
    return tuple(encoded(image, kind, **options) for image, options in forms[kind])


FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def mutants(kind: str, first: int, count: int) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield name, bytes and original of each mutant; each follows from its number alone."""
    for number in range(first, first + count):
        rng = np.random.default_rng((FORMATS.index(kind), number))
        whole = originals(kind)[int(rng.integers(len(originals(kind))))]
        names = rng.choice(list(MUTATIONS), 1 + int(rng.random() < 0.2), replace=False)
        data = whole
        for name in names:
            data = MUTATIONS[name](rng, data) if len(data) > 8 else data
        yield f"{number} {'+'.join(names)}", data, whole


def _span(rng: np.random.Generator, data: bytes, most: float = 1.0) -> tuple[int, int]:
    start = int(rng.integers(len(data)))
    return start, min(len(data), start + 1 + int(rng.integers(max(1, int(most * len(data))))))


def _set_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    changed = bytearray(data)
    for at in rng.integers(0, len(data), int(rng.integers(1, 5))):
        changed[at] = int(rng.integers(256))
    return bytes(changed)


def _flip_bit(rng: np.random.Generator, data: bytes) -> bytes:
    at = int(rng.integers(len(data)))
    return data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]


def _header_byte(rng: np.random.Generator, data: bytes) -> bytes:
    at = int(rng.integers(min(len(data), 64)))
    return data[:at] + bytes([int(rng.choice([0, 1, 2, 127, 128, 254, 255]))]) + data[at + 1 :]


def _cut(rng: np.random.Generator, data: bytes) -> bytes:
    return data[: int(rng.integers(1, len(data)))]


def _cut_tail(rng: np.random.Generator, data: bytes) -> bytes:
    return data[: -int(rng.integers(1, min(40, len(data))))]


def _zero_tail(rng: np.random.Generator, data: bytes) -> bytes:
    at = int(rng.integers(1, len(data)))
    return data[:at] + bytes(len(data) - at)


def _zero_span(rng: np.random.Generator, data: bytes) -> bytes:
    start, stop = _span(rng, data, 0.3)
    return data[:start] + bytes(stop - start) + data[stop:]


def _without_span(rng: np.random.Generator, data: bytes) -> bytes:
    start, stop = _span(rng, data, 0.3)
    return data[:start] + data[stop:]


def _span_twice(rng: np.random.Generator, data: bytes) -> bytes:
    start, stop = _span(rng, data, 0.3)
    return data[:stop] + data[start:]


def _noise_span(rng: np.random.Generator, data: bytes) -> bytes:
    start, stop = _span(rng, data, 0.1)
    return data[:start] + rng.bytes(stop - start) + data[stop:]


def _noise_between(rng: np.random.Generator, data: bytes) -> bytes:
    at = int(rng.integers(len(data)))
    return data[:at] + rng.bytes(int(rng.integers(1, 64))) + data[at:]


def _cut_and_end(rng: np.random.Generator, data: bytes) -> bytes:
    """Cut, and closed as the format is."""
    ends = {b"\xff\xd8": b"\xff\xd9", b"\x89P": bytes.fromhex("0000000049454e44ae426082"), b"GI": b"\0;"}
    return _cut(rng, data) + ends.get(data[:2], b"")


def _tail(rng: np.random.Generator, data: bytes) -> bytes:
    return data + rng.bytes(int(rng.integers(1, 400)))


MUTATIONS: dict[str, Callable[[np.random.Generator, bytes], bytes]] = {
    "bytes": _set_bytes,
    "bit": _flip_bit,
    "header": _header_byte,
    "cut": _cut,
    "tail cut": _cut_tail,
    "zero tail": _zero_tail,
    "zeros": _zero_span,
    "span gone": _without_span,
    "span twice": _span_twice,
    "noise": _noise_span,
    "noise between": _noise_between,
    "cut and end": _cut_and_end,
    "bytes behind": _tail,
}


# Decoders: each returns why it does not take a picture, or an empty text


def by_build(data: bytes) -> str:
    checked = check_image("", data, ImagePolicy())
    return "" if isinstance(checked, CheckedImage) else f"{checked.reason}: {checked.detail}"


def by_loader(data: bytes) -> str:
    """Decode all of a picture, at a size of its own."""
    decoder = open_decoder()
    try:
        height, width = decoder.image_size(data)
    except ImageError as error:
        return str(error)
    view = View(0, 0, height, width, height, width, 0, 0, False)
    if height * width > 10**6:
        return "too large for this comparison"
    side = min(height, width)
    view = View(0, 0, height, width, side, side, 0, 0, False)
    return decoder.decode_many([data], [view], np.empty((1, side, side, 3), np.uint8), [0])[0] or ""


def by_torchvision(data: bytes) -> str:
    import torch
    from torchvision.io import ImageReadMode, decode_image

    try:
        decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)
    except RuntimeError as error:
        return str(error)
    return ""


def by_tensorflow(data: bytes) -> str:
    import tensorflow as tf

    try:
        tf.io.decode_image(data, channels=3, expand_animations=False)
    except tf.errors.InvalidArgumentError as error:
        return str(error)
    return ""


def by_opencv(data: bytes) -> str:
    import cv2

    cv2.utils.logging.setLogLevel(0)
    try:
        return "" if cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) is not None else "not decoded"
    except cv2.error as error:
        return str(error)


OTHERS = {"torchvision": by_torchvision, "TensorFlow": by_tensorflow, "OpenCV": by_opencv}
OURS = {"build": by_build, "loader": by_loader}


@cache
def readers(whole: bytes) -> tuple[str, ...]:
    """Return the other decoders that read an original."""
    # torchvision 0.24 damages its heap at some damaged GIFs, and ends the process.
    names = [name for name in OTHERS if name != "torchvision" or not whole.startswith(b"GIF")]
    return tuple(name for name in names if not OTHERS[name](whole))


def compare(kind: str, first: int, count: int) -> dict[str, object]:
    """Compare the verdicts on some mutants of a format.

    Returns:
        `table`: how many are kept or refused by each of ours, by how many of the others refuse them;
        `kept`: those that a build keeps and two others refuse; `refused`: how many are refused by one of ours and
        kept by two others, by our reason; `examples`: one of each of these.
    """
    table: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    kept: list[tuple[str, str, dict[str, str]]] = []
    examples: dict[str, str] = {}
    for name, data, whole in mutants(kind, first, count):
        others = readers(whole)
        verdicts = {each: OTHERS[each](data) for each in others}
        refusals = sum(map(bool, verdicts.values()))
        for ours, read in OURS.items():
            reason = read(data)
            table[f"{ours} {'refuses' if reason else 'keeps'}, {refusals} of {len(others)} others refuse"] += 1
            if ours == "build" and not reason and refusals >= 2:
                kept.append((ours, name, verdicts))
            if reason and len(others) - refusals >= 2:
                short = f"{ours}: {re.sub(r'[0-9][0-9,]*', 'N', reason)[:90]}"
                refused[short] += 1
                examples.setdefault(short, name)
    return {"table": dict(table), "kept": kept, "refused": dict(refused), "examples": examples}


def compared(kind: str, first: int, count: int) -> dict[str, object]:
    """Call `compare` in a process of its own."""
    words = [sys.executable, "-m", "tests.support.picture_verdicts", kind, str(first), str(count)]
    run = subprocess.run(words, capture_output=True, text=True, timeout=1800, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, object] = json.loads(run.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
