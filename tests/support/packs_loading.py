"""Batches of packs in a form that can be compared: every image with its grid and the digest of its patches."""

from __future__ import annotations

import hashlib
from typing import Any

from loaders import PackBatch, open_packs

PackedImage = tuple[str, tuple[int, ...], int, str]
"""Key, grid, label, and digest of the patches; the last one of a row is its padding."""


def packed_rows(batch: PackBatch) -> list[list[PackedImage]]:
    """The rows of a batch."""
    found = []
    for row, labels in enumerate(batch.labels.tolist()):
        keys = batch.keys[row * len(labels) :][: len(labels)]
        images = [
            (key, tuple(batch.grids[row, image].tolist()), label, _digest(batch, row, image + 1))
            for image, (key, label) in enumerate(zip(keys, labels, strict=True))
        ]
        found.append([*images, ("", (), -1, _digest(batch, row, 0))])
    return found


def _digest(batch: PackBatch, row: int, segment: int) -> str:
    tokens = batch.segments[row] == segment
    parts = (batch.images[row][tokens], batch.positions[row][tokens])
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:16]


def load_rows(url: object, count: int, **settings: Any) -> list[list[list[PackedImage]]]:
    """The rows of the first batches."""
    found: list[list[list[PackedImage]]] = []
    with open_packs(str(url), **settings) as loader:
        while True:
            for batch in loader:
                found.append(packed_rows(batch))
                if len(found) == count:
                    return found
