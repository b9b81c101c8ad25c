from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LIBRARY_VERSION: str

def decode_views(
    images: Sequence[bytes | memoryview],
    views: NDArray[np.int32],
    rows: NDArray[np.int32],
    outs: Sequence[NDArray[np.uint8]],
    filter: int,
    /,
) -> list[str | None]: ...
def decode_patches(
    images: Sequence[bytes | memoryview],
    views: NDArray[np.int32],
    starts: NDArray[np.int32],
    out: NDArray[np.uint8],
    filter: int,
    patch: int,
    /,
) -> list[str | None]: ...
def scale_view(
    pixels: bytes,
    height: int,
    width: int,
    view: tuple[int, int, int, int, int, int, int, int, bool],
    out: NDArray[np.uint8],
    filter: int,
    /,
) -> None: ...
def image_size(data: bytes | memoryview, /) -> tuple[int, int]: ...
