"""Samples of a run's images: small local datasets on which stages are measured and changes tried."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dataprep.adoption import AdoptRequest, adopt
from dataprep.builder.images import CheckedImage, ImagePolicy, check_image
from dataprep.errors import ImageError, StorageError
from dataprep.formats.ustar import BLOCK_BYTES, members_around
from dataprep.host.cpu import available_cores
from dataprep.host.heartbeat import STALL_S
from loaders.dataset import open_dataset
from loaders.decode.decoders import open_decoder
from loaders.fetch.index import DEADLINE_S

SAMPLE_IMAGES = 512
"""Images of a sample: their mean cost is within some percent of the whole dataset's."""
SAMPLE_QUALITY = 90
MIN_SHRUNK, MAX_SHRUNK = 64, 256
"""Images of a sample that is shrunk, at least and at most."""
SHRINKING_S = 3.0
"""Time to shrink a sample, unless it has fewer than MIN_SHRUNK images by then."""
SPLIT = "train"


def write_sample(images: Sequence[bytes], folder: Path, short_side: int | None = None, *, is_built: bool = True) -> str:
    """Write a local dataset of some images, a shard as a build writes, and return the URL to load it from.

    A loader of it takes as much CPU time for an image as one of the dataset itself; a file for each image and an index
    without sizes would cost some 10 us an image, a tenth of decoding a small one.

    Args:
        images: Encoded images.
        folder: Folder of the dataset; it must not exist yet.
        short_side: Short side to which the images are shrunk as a build would; by default they stay as they are.
        is_built: Whether the index knows sizes and checksums of the images, as that of a build does, or neither, as
            that of most adopted data.

    Raises:
        StorageError: None of the images can be shrunk.
    """
    shard, index = folder / "shards" / SPLIT / "sample.tar", folder / "index"
    shard.parent.mkdir(parents=True)
    written = 0
    with shard.open("wb") as stream:
        for image in images if short_side is None else _shrunk(images, short_side):
            fields = {b".json": _sides(image)} if is_built else {}
            head, tail = members_around(b"%06d" % written, _suffix(image), len(image), fields)
            stream.writelines((head, image, tail))
            written += 1
        stream.write(bytes(2 * BLOCK_BYTES))
    if not written:
        raise StorageError(f"{folder}: none of the images could be kept as a sample; run `dataprep verify --deep`")
    request = AdoptRequest(url=str(folder / "shards"), index_url=str(index), labels="none", digest=is_built)
    adopt(request, _Quiet())
    return str(index)


def pixels_left(images: Sequence[bytes], short_side: int) -> float:
    """Return the share of the images' pixels that is left if they are stored with a short side; 1 if none is shrunk.

    Args:
        images: Encoded images, of which only the headers are read; those that cannot be read do not count.
        short_side: Short side to which larger images are shrunk, pixels.
    """
    sizes = [size for image in images if (size := _size(image)) is not None]
    left = [height * width * min(1.0, short_side / min(height, width)) ** 2 for height, width in sizes]
    return sum(left) / sum(height * width for height, width in sizes) if sizes else 1.0


def _size(image: bytes) -> tuple[int, int] | None:
    """Return height and width in pixels; None if the image cannot be read."""
    try:
        return open_decoder().image_size(image)
    except ImageError:
        return None


def _sides(image: bytes) -> bytes:
    """Return height and width as JSON; an empty object if the image cannot be read."""
    if (size := _size(image)) is None:
        return b"{}"
    height, width = size
    return json.dumps({"height": height, "width": width}).encode()


def sample_streams(num_streams: int, *, samples: int, of_sample: int) -> int:
    """Return the number of streams with which a sample is planned: as many images in each as in those of the split.

    Planning a stream costs as much time as a few images, whatever it holds. With all streams of the split, planning an
    image of a small sample would take several times as long.

    Args:
        num_streams: Number of streams of the split.
        samples: Images of the split.
        of_sample: Images of the sample.
    """
    return max(1, min(num_streams, round(num_streams * of_sample / samples)))


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


def _suffix(data: bytes) -> bytes:
    return b".png" if data.startswith(b"\x89PNG") else b".webp" if data[8:12] == b"WEBP" else b".jpg"


def mean_image_bytes(sample_url: str) -> float:
    """Return the mean size of a sample's images."""
    return open_dataset(sample_url, SPLIT).open_index(DEADLINE_S).mean_image_bytes()


class _Quiet:
    """Progress of indexing a sample, which is not shown."""

    stall_s = STALL_S

    def step(self, what: str) -> None: ...

    def started(self, shards: int, num_bytes: int) -> None: ...

    def shard_done(self, samples: int, num_bytes: int) -> None: ...

    def log(self, line: str) -> None: ...

    def warn(self, line: str) -> None: ...
