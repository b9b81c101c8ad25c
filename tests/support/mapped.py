"""Functions for columns, some of which are at fault; workers import them by their names."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.column_functions import Columns, Samples
from dataprep.dataset.column_files import ColumnType

SLOW_S = "MAPPED_SLOW_S"
"""Variable with the seconds that a call of `sizes` takes."""


@Columns(images="bytes", returns=ColumnType("array", "int64"), batch=4)
def sizes(samples: Samples) -> list[int]:
    """Return the size of each image's file."""
    time.sleep(float(os.environ.get(SLOW_S, "0")))
    return [len(image) for image in samples.images]


@Columns(size=4, batch=3)
def small(samples: Samples) -> Any:
    """Return each image as 4 x 4 pixels between 0 and 1."""
    return samples.images.astype(np.float32) / 255


def rows(samples: Samples) -> list[Any]:
    """Return the first row of each image, which has the image's width."""
    return [image[0] for image in samples.images]


@Columns(returns=ColumnType("array", "uint8", (None, 3)))
def free_rows(samples: Samples) -> list[Any]:
    return rows(samples)


@Columns(images="none", returns=ColumnType("text"))
def keys(samples: Samples) -> tuple[str, ...]:
    return samples.keys


@Columns(images="none", fields=("size", "caption"))
def described(samples: Samples) -> list[str]:
    """Return text of another column and a stored field."""
    pairs = zip(samples.fields["size"], samples.fields["caption"], strict=True)
    return [f"{size} {caption}" for size, caption in pairs]


@Columns(images="none", fields=("captoin",))
def misspelt(samples: Samples) -> Any:
    return samples.fields["captoin"]


@Columns(images="none", batch=2)
class Numbered:
    """Numbers the calls of a process."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, samples: Samples) -> Any:
        self.calls += 1
        return np.full(len(samples), self.calls, np.int32)


@Columns(images="none", returns=ColumnType("text"))
def device(samples: Samples) -> list[str]:
    """Return the accelerator that the process sees."""
    time.sleep(0.5)
    return [os.environ["CUDA_VISIBLE_DEVICES"]] * len(samples)


@Columns(images="bytes")
def raising(samples: Samples) -> list[int]:
    """Raise for the images whose size is a multiple of three."""
    if any(len(image) % 3 == 0 for image in samples.images):
        raise ZeroDivisionError("a multiple of three")
    return [1] * len(samples)


@Columns(images="none")
def too_few(samples: Samples) -> list[int]:
    return [1] * (len(samples) - 1)


@Columns(images="none")
def one(samples: Samples) -> int:
    return len(samples)


@Columns(images="none", returns=ColumnType("array", "float32", (2,)))
def other_shape(samples: Samples) -> Any:
    return np.zeros((len(samples), 3), np.float32)


@Columns(images="none", returns=ColumnType("array", "int8"))
def other_dtype(samples: Samples) -> Any:
    return np.zeros(len(samples), np.float64)


@Columns(images="none")
def not_a_number(samples: Samples) -> Any:
    return np.where(np.arange(len(samples)) == 1, np.nan, 1.0)


@Columns(images="none")
def no_type(samples: Samples) -> list[object]:
    return [{}] * len(samples)


@Columns(images="none")
def lacking(samples: Samples) -> Any:
    import no_such_package  # type: ignore[import-not-found]

    return no_such_package.encode(samples)


@Columns(images="none")
def dying(samples: Samples) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@Columns(images="none")
def hanging(samples: Samples) -> Any:
    time.sleep(600)


@Columns(images="none", returns=ColumnType("bytes"))
def never_the_same(samples: Samples) -> list[bytes]:
    return [os.urandom(8) for _ in samples.keys]


NOT_A_FUNCTION = Path("x")
