"""Samples of a run's images: small local datasets on which stages are measured and changes tried."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dataprep.adopt import AdoptRequest, adopt
from dataprep.build.images import CheckedImage, ImagePolicy, check_image
from dataprep.errors import StorageError
from dataprep.host.cpu import available_cores
from dataprep.host.heartbeat import STALL_S

SAMPLE_IMAGES = 512
"""Images of a sample: their mean cost is within some percent of the whole dataset's."""
SAMPLE_QUALITY = 90
MIN_SHRUNK, MAX_SHRUNK = 64, 256
"""Images of a sample that is shrunk, at least and at most."""
SHRINKING_S = 3.0
"""Time to shrink a sample, unless it has fewer than MIN_SHRUNK images by then."""
SPLIT = "train"


def write_sample(images: Sequence[bytes], folder: Path, short_side: int | None = None) -> str:
    """Write a local dataset of some images, and return the URL to load it from.

    Args:
        images: Encoded images.
        folder: Folder of the dataset; it must not exist yet.
        short_side: Short side to which the images are shrunk as a build would; by default they stay as they are.

    Raises:
        StorageError: None of the images can be shrunk.
    """
    classes = folder / "images" / SPLIT / "sample"
    classes.mkdir(parents=True)
    written = 0
    for data in images if short_side is None else _shrunk(images, short_side):
        (classes / f"{written:06d}{_suffix(data)}").write_bytes(data)
        written += 1
    if not written:
        raise StorageError(f"{folder}: none of the images could be kept as a sample; run `dataprep verify --deep`")
    index = folder / "index"
    adopt(AdoptRequest(url=str(folder / "images"), index_url=str(index)), _Quiet())
    return str(index)


def _shrunk(images: Sequence[bytes], short_side: int) -> Iterator[bytes]:
    """Yield as many shrunk images as there is time for; images that cannot be decoded are left out."""
    policy = ImagePolicy(short_side=short_side, quality=SAMPLE_QUALITY)
    until_s = time.perf_counter() + SHRINKING_S
    threads = available_cores()
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, min(len(images), MAX_SHRUNK), threads):
            if first >= MIN_SHRUNK and time.perf_counter() > until_s:
                return
            for found in pool.map(lambda image: check_image("", image, policy), images[first : first + threads]):
                if isinstance(found, CheckedImage):
                    yield found.image


def _suffix(data: bytes) -> str:
    return ".png" if data.startswith(b"\x89PNG") else ".webp" if data[8:12] == b"WEBP" else ".jpg"


def mean_image_bytes(sample_url: str) -> float:
    """Return the mean size of a sample's images."""
    folder = Path(sample_url).parent / "images"
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return sum(sizes) / len(sizes)


class _Quiet:
    """Progress of indexing a sample, which is not shown."""

    stall_s = STALL_S

    def step(self, what: str) -> None: ...

    def started(self, shards: int, num_bytes: int) -> None: ...

    def shard_done(self, samples: int, num_bytes: int) -> None: ...

    def log(self, line: str) -> None: ...

    def warn(self, line: str) -> None: ...
