"""Mutants of pictures, and which decoders take them: ours, torchvision's, TensorFlow's and OpenCV's.

Each decoder has processes of its own, since those of others damage their memory at some pictures, and torch_xla cannot
be imported where TensorFlow was. `python -m tests.support.picture_verdicts FORMAT FIRST COUNT` prints a comparison.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import signal
import struct
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

from dataprep.builder import images
from dataprep.builder.images import CheckedImage, ImagePolicy, check_image
from dataprep.demo.images import encode, png_of
from dataprep.errors import ImageError
from loaders.decode.crop import View
from loaders.decode.decoders import open_decoder
from tests.support.jpeg_forms import picture

SIDES = (61, 83)


@cache
def originals(kind: str) -> tuple[bytes, ...]:
    """Return whole pictures of a format, in forms that encoders write and two of the other decoders read."""
    import cv2
    from skimage import data as photographs

    pixels_HWC = picture(np.random.default_rng(7), *SIDES)
    pixels = Image.fromarray(pixels_HWC)
    photo, second = (Image.fromarray(getattr(photographs, name)()).resize((160, 120)) for name in ("coffee", "chelsea"))
    alpha, photo_alpha = pixels.convert("RGBA"), photo.convert("RGBA")
    alpha.putalpha(pixels.convert("L"))
    photo_alpha.putalpha(second.convert("L"))
    grey, few, bits = pixels.convert("L"), pixels.quantize(16), pixels.convert("1")
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    forms: dict[str, list[tuple[Image.Image, dict[str, object]]]] = {
        "JPEG": [
            (pixels, {"quality": 90}),
            (pixels, {"quality": 60, "subsampling": 2, "optimize": True}),
            (pixels, {"quality": 80, "progressive": True}),
            (pixels, {"quality": 80, "restart_marker_blocks": 3}),
            (pixels, {"quality": 80, "progressive": True, "restart_marker_rows": 1}),
            (pixels, {"quality": 75, "keep_rgb": True}),
            (grey, {"quality": 85}),
            (grey, {"quality": 70, "progressive": True}),
            (pixels.convert("CMYK"), {"quality": 85}),
            (photo.convert("CMYK"), {"quality": 70, "progressive": True}),
            (photo, {"quality": 85, "exif": exif, "comment": b"a comment"}),
            (second, {"quality": 92, "subsampling": 0, "progressive": True}),
        ],
        "PNG": [
            *((image, {}) for image in (pixels, alpha, grey, few, bits, alpha.convert("LA"), photo, photo_alpha)),
            (few, {"transparency": 3}),
            (pixels.quantize(4), {"bits": 2}),
        ],
        "GIF": [
            (few, {"interlace": 0}),
            (few, {"interlace": 1}),
            (pixels.quantize(256), {}),
            (few, {"transparency": 3}),
            (photo.quantize(200), {}),
            (photo, {"save_all": True, "append_images": [photo, second], "duration": 40}),
        ],
        "BMP": [(image, {}) for image in (pixels, grey, alpha, few, photo)],
        "WEBP": [
            (pixels, {"quality": 80}),
            (pixels, {"lossless": True}),
            (alpha, {"quality": 70}),
            (alpha, {"lossless": True}),
            (photo, {"quality": 75, "exif": exif}),
            (few.convert("RGB"), {"lossless": True}),
        ],
    }
    found = [encode(image, kind, **options) for image, options in forms[kind]]
    if kind == "PNG":
        deep = pixels_HWC.astype(np.uint16) * 257
        found += [cv2.imencode(".png", samples)[1].tobytes() for samples in (deep, deep[..., 0])]
        found += [interlaced(pixels_HWC), interlaced(np.asarray(photo))]
    elif kind == "BMP":
        height = np.array(-SIDES[0], "<i4").tobytes()
        found += [found[0][:22] + height + found[0][26:]]
    return tuple(found)


FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")


def interlaced(pixels_HWC: np.ndarray) -> bytes:
    """An interlaced PNG, which Pillow and OpenCV do not write."""
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    parts = [pixels_HWC[top::down, left::right] for left, top, right, down in passes]
    lines = b"".join(b"\0" + row.tobytes() for part in parts for row in part if row.size)
    height, width, _ = pixels_HWC.shape
    return png_of(struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1), zlib.compress(lines))


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


def _span(rng: np.random.Generator, data: bytes, most: float) -> tuple[int, int]:
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


def _zero_tail(rng: np.random.Generator, data: bytes) -> bytes:
    return (whole := _cut(rng, data)) + bytes(len(data) - len(whole))


def _in_a_span(
    most: float, change: Callable[[np.random.Generator, bytes, int, int], bytes]
) -> Callable[[np.random.Generator, bytes], bytes]:
    """Return a mutation of a part of a picture, of at most this share."""
    return lambda rng, data: change(rng, data, *_span(rng, data, most))


def _noise_between(rng: np.random.Generator, data: bytes) -> bytes:
    at = int(rng.integers(len(data)))
    return data[:at] + rng.bytes(int(rng.integers(1, 64))) + data[at:]


def _cut_and_end(rng: np.random.Generator, data: bytes) -> bytes:
    """Cut, and closed as the format is."""
    ends = {b"\xff\xd8": b"\xff\xd9", b"\x89P": bytes.fromhex("0000000049454e44ae426082"), b"GI": b"\0;"}
    return _cut(rng, data) + ends.get(data[:2], b"")


MUTATIONS: dict[str, Callable[[np.random.Generator, bytes], bytes]] = {
    "bytes": _set_bytes,
    "bit": _flip_bit,
    "header": _header_byte,
    "cut": _cut,
    "tail cut": lambda rng, data: data[: -int(rng.integers(1, min(40, len(data))))],
    "zero tail": _zero_tail,
    "zeros": _in_a_span(0.3, lambda _, data, start, stop: data[:start] + bytes(stop - start) + data[stop:]),
    "span gone": _in_a_span(0.3, lambda _, data, start, stop: data[:start] + data[stop:]),
    "span twice": _in_a_span(0.3, lambda _, data, start, stop: data[:stop] + data[start:]),
    "noise": _in_a_span(0.1, lambda rng, data, start, stop: data[:start] + rng.bytes(stop - start) + data[stop:]),
    "noise between": _noise_between,
    "cut and end": _cut_and_end,
    "bytes behind": lambda rng, data: data + rng.bytes(int(rng.integers(1, 400))),
}


# Decoders: each returns why it does not take a picture, or an empty text


def by_build(data: bytes) -> str:
    checked = check_image("", data, ImagePolicy())
    return "" if isinstance(checked, CheckedImage) else f"{checked.reason}: {checked.detail}"


def by_loader(data: bytes) -> str:
    """Decode all of a picture, scaled to a square."""
    decoder = open_decoder()
    try:
        height, width = decoder.image_size(data)
    except ImageError as error:
        return str(error)
    side = min(height, width, 64)
    view = View(0, 0, height, width, side, side, 0, 0, False)
    return decoder.decode_many([data], [view], np.empty((1, side, side, 3), np.uint8), [0])[0] or ""


def by_torchvision(data: bytes) -> str:
    import torch
    import torchvision

    try:
        torchvision.io.decode_image(
            torch.frombuffer(bytearray(data), dtype=torch.uint8), torchvision.io.ImageReadMode.RGB
        )
    except RuntimeError as error:
        return str(error)
    return ""


def by_tensorflow(data: bytes) -> str:
    import tensorflow as tf

    channels = 0 if data[8:12] == b"WEBP" else 3  # a WebP with alpha is not made RGB
    try:
        tf.io.decode_image(data, channels, expand_animations=False)
    except tf.errors.OpError as error:
        return str(error)
    return ""


def by_opencv(data: bytes) -> str:
    import cv2

    try:
        return "" if cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) is not None else "not decoded"
    except cv2.error as error:
        return str(error)


OURS = {"build": by_build, "loader": by_loader}
OTHERS = {"torchvision": by_torchvision, "TensorFlow": by_tensorflow, "OpenCV": by_opencv}
MODULES = {"torchvision": "torchvision.io", "TensorFlow": "tensorflow", "OpenCV": "cv2"}
MOST_S, MOST_BYTES = 60, 4 * 2**30
"""Time of the processor for a picture and memory of a process; a picture that needs more is refused."""
ENDED = "ended its process"


def verdicts(name: str, pictures: Sequence[bytes]) -> list[str]:
    """Return what one decoder says of each picture."""
    words = [sys.executable, "-m", "tests.support.picture_verdicts", name]
    run = subprocess.run(words, input=pickle.dumps(pictures), capture_output=True, timeout=3600, check=False)
    assert run.returncode == 0, run.stderr[-2000:].decode()
    found: list[str] = json.loads(run.stdout.splitlines()[-1])
    return found


def judge(name: str, pictures: Sequence[bytes]) -> list[str]:
    """Decode each picture in a child; one that ends is followed by another.

    Only a child's first picture can have ended it, as memory that one damages may be used for another.
    """
    import_module(MODULES.get(name, "numpy"))  # once for all children
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    found: list[str] = []
    while len(found) < len(pictures):
        first = len(found)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with open(writing, "w") as lines:
                for data in pictures[first:]:
                    signal.setitimer(signal.ITIMER_PROF, MOST_S)
                    print(json.dumps({**OURS, **OTHERS}[name](data)), file=lines, flush=True)
            os._exit(0)
        os.close(writing)
        with open(reading) as lines:
            found += map(json.loads, lines)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code <= 0, f"{name} cannot judge"
        if len(found) == first:
            found.append(f"{ENDED}: signal {-code}")
    return found


def compare(kinds: Sequence[str], first: int, count: int) -> dict[str, dict[str, Any]]:
    """Compare the verdicts on some mutants of each format.

    Returns:
        For each format: `table`: how many are kept or refused by each of ours, by how many of the others refuse them,
        and how many end a process of another's; `kept`: those that one of ours keeps and two others refuse;
        `refused`: how many one of ours refuses and two others keep, by our reason; `examples`: one of each of these.
    """
    cases = [(kind, *case) for kind in kinds for case in mutants(kind, first, count)]
    pictures = list(dict.fromkeys(picture for _, _, data, whole in cases for picture in (whole, data)))
    names = (*OURS, *OTHERS)
    with ThreadPoolExecutor() as pool:
        columns = pool.map(partial(verdicts, pictures=pictures), names)
        said = {data: dict(zip(names, row, strict=True)) for data, *row in zip(pictures, *columns, strict=True)}
    return {kind: summarize([case for case in cases if case[0] == kind], said) for kind in kinds}


def compare_sound(first: int, count: int) -> dict[str, int]:
    """Hold that libjpeg alone gives the same as a build for the mutants of JPEGs that are sound to our reader.

    Returns:
        The numbers of mutants that are sound, and that libjpeg has to judge in any case.
    """
    found = {"sound": 0, "left to libjpeg": 0}
    for name, data, _ in mutants("JPEG", first, count):
        if images.read_sound(data) is None:
            found["left to libjpeg"] += 1
            continue
        found["sound"] += 1
        checked = check_image(name, data, ImagePolicy())
        assert checked == checked_by_libjpeg(name, data), (name, checked)
    return found


def checked_by_libjpeg(key: str, data: bytes) -> object:
    """Return what a build makes of an image without our reader."""
    with patch.object(images, "read_sound", return_value=None):
        return check_image(key, data, ImagePolicy())


def summarize(cases: Sequence[tuple[str, str, bytes, bytes]], said: dict[bytes, dict[str, str]]) -> dict[str, Any]:
    table: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    kept: list[tuple[str, str, dict[str, str]]] = []
    examples: dict[str, str] = {}
    for _, name, data, whole in cases:
        others = {each: said[data][each] for each in OTHERS if not said[whole][each]}
        refusals = sum(map(bool, others.values()))
        assert len(others) >= 2, said[whole]
        table.update(f"{each} {ENDED}" for each, reason in others.items() if reason.startswith(ENDED))
        for ours in OURS:
            reason = said[data][ours]
            assert not reason.startswith(ENDED), (ours, name, reason)
            table[f"{ours} {'refuses' if reason else 'keeps'}, {refusals} of {len(others)} others refuse"] += 1
            if not reason and refusals >= 2:
                kept.append((ours, name, others))
            if reason and len(others) - refusals >= 2:
                short = f"{ours}: {re.sub(r'[0-9][0-9,]*', 'N', reason)[:90]}"
                refused[short] += 1
                examples.setdefault(short, name)
    return {"table": dict(sorted(table.items())), "kept": kept, "refused": dict(refused), "examples": examples}


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(judge(sys.argv[1], pickle.load(sys.stdin.buffer))))
    else:
        print(json.dumps(compare([sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])), indent=1))
