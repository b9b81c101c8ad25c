"""Images and rows for the tests of LAION's pieces; PNGs whose pixels are a formula, so that digests of them last."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dataprep.sources.laion import LaionTables, measure_tables
from dataprep.storage import open_storage
from dataprep.web.outcomes import Outcome, Request, Status


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """RGB: slopes with texture, other ones for each seed."""
    y, x = np.mgrid[:height, :width].astype(np.int64)
    planes = [(x * (3 + seed) + y * y // 7) % 256, (y * 2 + x // 3 + seed * 31) % 256, (x * y // 97 + seed) % 256]
    return Image.fromarray(np.stack(planes, axis=-1).astype(np.uint8))


def encoded(image: Image.Image, file_format: str, **options: Any) -> bytes:
    """The image as a file."""
    out = io.BytesIO()
    image.save(out, file_format, **options)
    return out.getvalue()


@cache
def png_cases() -> dict[str, bytes]:
    """By name, PNGs of the kinds and sizes at which resizing takes different ways."""
    sizes = [(500, 375), (375, 500), (256, 256), (300, 256), (257, 255), (100, 80), (1, 1), (701, 203)]
    cases = {f"rgb-{width}x{height}": encoded(photo(width, height), "PNG") for width, height in sizes}
    image = photo(400, 310)
    alpha = photo(400, 310, 5).convert("L")
    return cases | {
        "grey": encoded(image.convert("L"), "PNG"),
        "alpha": encoded(Image.merge("RGBA", (*image.split(), alpha)), "PNG"),
        "palette": encoded(image.quantize(64, dither=Image.Dither.NONE), "PNG"),
    }


def make_tables(folder: Path, rows: Sequence[dict[str, Any]], rows_per_shard: int = 10_000) -> LaionTables:
    """A parquet table of these rows, measured."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "table.parquet")
    return measure_tables(open_storage(str(folder)), ["table.parquet"], rows_per_shard=rows_per_shard)


def answers(bodies: Sequence[bytes | None], order: Sequence[int] | None = None):
    """A Fetch that answers from memory, in another order if need be; None is a 404."""

    def fetch(requests: Iterable[Request]) -> Iterator[Outcome]:
        waiting = {request.key: request for request in requests}
        for key in order if order is not None else list(waiting):
            if waiting.pop(key, None) is not None:
                body = bodies[key]
                if body is None:
                    yield Outcome(key, Status.HTTP, "404 Not Found", http_code=404)
                else:
                    yield Outcome(key, Status.SUCCESS, body=body)

    return fetch
