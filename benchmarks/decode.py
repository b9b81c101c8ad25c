"""CPU time to make one 224x224 training image from a JPEG's bytes, by this toolkit and by what others use, and to check
it in a build; one table.

Command:   python benchmarks/decode.py --corpus DIR
Takes:     two minutes; needs the `torch` and `tf` extras.
Expected:  docs/decisions/0004-decoding-in-c.md

Every contender gets the same images and the same boxes (random-resized-crop, area 0.2 to 1, flipped or not) in one
thread, from memory. They take turns, 20 images at a time, so that other programs on the machine slow all of them alike;
the median of the rounds is printed.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from dataprep.builder.images import ImagePolicy, check_image
from loaders.decode.crop import View, train_views
from loaders.decode.decoders import extension_available, open_decoder

SIZE = 224
AT_ONCE = 20
COMPARED = 500

Contender = Callable[[list[bytes], list[View]], Any]


def main() -> None:
    """Print the table, and how far our pixels are from torchvision's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder of JPEGs, at any depth")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tensorflow", action="store_true", help="serve TensorFlow's turns; started by this program")
    options = parser.parse_args()
    images, views = _load(options.corpus, options.images)
    if options.tensorflow:
        _serve_tensorflow(images, views)
        return
    mean_kb = sum(map(len, images)) / len(images) / 1e3
    print(f"{len(images)} images of {mean_kb:.0f} kB from {options.corpus}; CPU ms an image, one thread")
    times = _measure(images, views, options)
    reference_ms = times["tf.io.decode_and_crop_jpeg, bilinear"]
    print(f"{'':48}{'ms':>8}{'of tf':>8}")
    for label, spent_ms in times.items():
        print(f"{label:48}{spent_ms:8.3f}{reference_ms / spent_ms:8.2f}")
    _compare(options.corpus)


def _load(corpus: Path, count: int) -> tuple[list[bytes], list[View]]:
    """Return plain JPEGs, spread over the corpus, and a view of each."""
    decoder = open_decoder()
    files = sorted(path for path in corpus.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))
    images = [path.read_bytes() for path in files[:: max(1, len(files) // (count + count // 20))]]
    images = [data for data in images if _is_plain(data)][:count]
    if not images:
        raise SystemExit(f"{corpus}: no JPEG; expected .jpg or .jpeg files at any depth")
    sizes = [decoder.image_size(data) for data in images]
    return images, train_views(0, range(len(images)), [h for h, _ in sizes], [w for _, w in sizes], size=SIZE)


def _is_plain(data: bytes) -> bool:
    """Return whether an image is a JPEG that TensorFlow and simplejpeg can decode."""
    import simplejpeg

    try:
        return simplejpeg.decode_jpeg_header(data)[2] in ("YCbCr", "Gray") and bool(simplejpeg.decode_jpeg(data).size)
    except ValueError:
        return False


def _measure(images: list[bytes], views: list[View], options: argparse.Namespace) -> dict[str, float]:
    """Return the median CPU milliseconds an image of each contender."""
    contenders = _contenders()
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, __file__, "--tensorflow", "--corpus", options.corpus, "--images", options.images]
    rounds: dict[str, list[float]] = {}
    with subprocess.Popen(
        [str(word) for word in command], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tensorflow:
        for number in range(options.rounds + 1):
            spent_s: dict[str, float] = {}
            for first in range(0, len(images), AT_ONCE):
                some = slice(first, first + AT_ONCE)
                for label, contender in contenders.items():
                    started_s = time.thread_time()
                    contender(images[some], views[some])
                    spent_s[label] = spent_s.get(label, 0) + time.thread_time() - started_s
                label = "tf.io.decode_and_crop_jpeg, bilinear"
                spent_s[label] = spent_s.get(label, 0) + _turn(tensorflow, first)
            if number:  # the first one warms everything up
                for label, seconds in spent_s.items():
                    rounds.setdefault(label, []).append(1e3 * seconds / len(images))
        tensorflow.communicate()
    return {label: statistics.median(found) for label, found in rounds.items()}


def _turn(tensorflow: subprocess.Popen[str], first: int) -> float:
    tensorflow.stdin.write(f"{first}\n")
    tensorflow.stdin.flush()
    for line in tensorflow.stdout:
        if line.startswith("spent "):
            return float(line.removeprefix("spent "))
    raise SystemExit("TensorFlow ended; run it with --tensorflow to see why")


def _contenders() -> dict[str, Contender]:
    import torch

    torch.set_num_threads(1)
    found: dict[str, Contender] = {
        "full decode, simplejpeg": _decode_fully,
        "check of a build": _check,
        "check of a build, by libjpeg alone": _check_by_libjpeg,
    }
    backends = ["extension", "library"] if extension_available() else ["library"]
    for backend in backends:
        for interpolation in ("bicubic", "bilinear", "bilinear-no-antialias"):
            found[f"ours, {backend}, {interpolation}"] = _ours(interpolation, backend)
    found["torchvision, PIL, bicubic"] = _torchvision("bicubic")
    found["torchvision, PIL, bilinear"] = _torchvision("bilinear")
    found["torchvision, uint8 tensor, bicubic"] = _torchvision_tensor
    return found


def _decode_fully(images: list[bytes], views: list[View]) -> None:
    import simplejpeg

    for data in images:
        simplejpeg.decode_jpeg(data)


def _check(images: list[bytes], views: list[View]) -> None:
    for data in images:
        check_image("", data, ImagePolicy())


def _check_by_libjpeg(images: list[bytes], views: list[View]) -> None:
    """Check as a build does with images that its own reader leaves to libjpeg."""
    import simplejpeg

    for data in images:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, min_factor=1, strict=True)


def _ours(interpolation: str, backend: str) -> Contender:
    decoder = open_decoder(interpolation, backend)
    out = np.zeros((AT_ONCE, SIZE, SIZE, 3), np.uint8)

    def decode(images: list[bytes], views: list[View]) -> None:
        if any(decoder.decode_many(images, views, out, range(len(images)))):
            raise SystemExit("an image could not be decoded")

    return decode


def _torchvision(interpolation: str) -> Contender:
    def transform(images: list[bytes], views: list[View]) -> None:
        for data, view in zip(images, views, strict=True):
            torchvision_result(data, view, interpolation)

    return transform


def torchvision_result(data: bytes, view: View, interpolation: str) -> np.ndarray[Any, Any]:
    """Return the result of RandomResizedCrop and RandomHorizontalFlip on a PIL image, with the view's box."""
    from PIL import Image
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    image = Image.open(io.BytesIO(data)).convert("RGB")
    box = (view.top, view.left, view.height, view.width)
    image = functional.resized_crop(image, *box, [SIZE, SIZE], InterpolationMode(interpolation))
    return np.asarray(functional.horizontal_flip(image) if view.flip else image)


def _torchvision_tensor(images: Sequence[bytes], views: Sequence[View]) -> None:
    """Decode images with torchvision.io; crop and scale them as uint8 tensors, channels last."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    for data, view in zip(images, views, strict=True):
        image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)
        box = (view.top, view.left, view.height, view.width)
        image = functional.resized_crop(image, *box, [SIZE, SIZE], InterpolationMode.BICUBIC, antialias=True)
        if view.flip:
            functional.horizontal_flip(image)


def _serve_tensorflow(images: list[bytes], views: list[View]) -> None:
    """Decode a few images from each number on that is read from stdin, and print the seconds of CPU that they took."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    @tf.function
    def decode(data: Any, view: Any) -> Any:
        image = tf.io.decode_and_crop_jpeg(data, view[:4], channels=3)
        image = tf.cast(tf.image.resize(image, (SIZE, SIZE)), tf.uint8)
        return tf.cond(view[8] > 0, lambda: tf.reverse(image, [1]), lambda: image)

    @tf.function
    def decode_all(data: Any, some_views: Any) -> Any:
        return tf.map_fn(lambda both: decode(*both), (data, some_views), fn_output_signature=tf.uint8)

    for line in sys.stdin:
        some = slice(int(line), int(line) + AT_ONCE)
        data, some_views = tf.constant(images[some]), tf.constant(np.asarray(views[some], np.int32))
        started_s = time.process_time()
        decode_all(data, some_views)
        print(f"spent {time.process_time() - started_s}", flush=True)


def _compare(corpus: Path) -> None:
    """Print the difference, in grey levels, between our pixels and torchvision's from PIL images."""
    images, views = _load(corpus, COMPARED)
    out = np.zeros((len(images), SIZE, SIZE, 3), np.uint8)
    for backend in ["extension", "library"] if extension_available() else ["library"]:
        for interpolation in ("bicubic", "bilinear"):
            open_decoder(interpolation, backend).decode_many(images, views, out, range(len(images)))
            total, worst = 0.0, 0
            for data, view, found in zip(images, views, out, strict=True):
                difference = np.abs(torchvision_result(data, view, interpolation).astype(np.int64) - found)
                total, worst = total + float(difference.mean()), max(worst, int(difference.max()))
            print(
                f"{backend}, {interpolation}: {len(images)} crops differ from torchvision's (PIL) by "
                f"{total / len(images):.4f} grey levels in the mean, {worst} at worst"
            )


if __name__ == "__main__":
    main()
