"""LitData over plain pictures in a bucket, as its documentation of StreamingRawDataset shows it.

    python raw_litdata.py URL SECONDS CACHE SIDE BATCH WORKERS

Prints the seconds until the first batch, and the images/s after it.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time

started_s = time.perf_counter()

import numpy as np  # noqa: E402  the start counts imports
from litdata import StreamingRawDataset  # noqa: E402
from litdata.streaming import downloader  # noqa: E402
from PIL import Image  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the bucket is on loopback

URL, SECONDS, CACHE, SIDE, BATCH, WORKERS = sys.argv[1:]


def decoded(data: bytes) -> np.ndarray:
    """Return a picture as our loader delivers it: pixels of a square."""
    image = Image.open(io.BytesIO(data))
    image.draft("RGB", (int(SIDE), int(SIDE)))
    return np.asarray(image.convert("RGB").resize((int(SIDE), int(SIDE)), Image.Resampling.BILINEAR))


def main() -> None:
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    dataset = StreamingRawDataset(URL, cache_dir=CACHE, transform=decoded, storage_options=options)
    loader = DataLoader(dataset, batch_size=int(BATCH), shuffle=True, num_workers=int(WORKERS))
    images, first_s = 0, 0.0
    for batch in loader:
        if not images:
            first_s = time.perf_counter()
        images += len(batch)
        if time.perf_counter() - first_s > float(SECONDS):
            break
    rate = (images - int(BATCH)) / (time.perf_counter() - first_s)
    print(json.dumps([first_s - started_s, rate]), flush=True)


if __name__ == "__main__":
    main()
