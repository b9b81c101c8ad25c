"""Reads objects with the clients that people use, as a program of its own: the guard must see each of them.

    python -m tests.support.guarded CLIENT,... gs://BUCKET/NAME...

Prints the number of bytes that each client has read, or its error. The clients speak TLS to storage.googleapis.com, as
in production; after `+emulator` at the end of their names they speak to STORAGE_EMULATOR_HOST.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.gcs_emulator import GCSEmulator
from tests.support.waiting import wait_for

EMULATOR = "STORAGE_EMULATOR_HOST"
HERE = "us-central1-a"
"""Zone of the reader in all tests."""
LINES = b"a line of text that is 32 bytes\n" * 8192
"""Contents of each object: 256 KiB."""
NAME = "data/lines.txt"
PLACES: dict[str, dict[str, Any]] = {
    "guard-region": {"location": "US-CENTRAL1"},
    "guard-dual": {"location": "NAM4"},
    "guard-multi": {"location": "US"},
    "guard-near": {"location": "US-EAST1"},
    "guard-far": {"location": "EUROPE-WEST4"},
    "guard-hidden": {"location": "ASIA-EAST1", "deny": ["storage.buckets.get", "storage.objects.list"]},
}
"""Buckets of every kind of place. The place of the last one may not be seen."""
USD_PER_GIB = {"guard-region": 0.0, "guard-dual": 0.0, "guard-multi": 0.02, "guard-near": 0.02, "guard-far": 0.05}


def fill_bucket(emulator: GCSEmulator, name: str) -> None:
    """Create a bucket of PLACES with one object."""
    emulator.create_bucket(name, **PLACES[name])
    put_object(emulator, name, NAME, LINES)


def put_object(emulator: GCSEmulator, bucket: str, name: str, data: bytes) -> None:
    """Store an object."""
    connection = http.client.HTTPConnection(emulator.url.removeprefix("http://"))
    with contextlib.closing(connection):
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}"
        connection.request("POST", target, data, {"Content-Type": "application/octet-stream"})
        assert connection.getresponse().status == 200


def read_command(clients: str, *urls: str) -> list[str]:
    """The command line of this program."""
    return [sys.executable, "-m", "tests.support.guarded", clients, *urls]


def _parts(url: str) -> tuple[str, str]:
    bucket, _, name = url.removeprefix("gs://").partition("/")
    return bucket, name


def _google_cloud_storage(url: str) -> int:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    bucket, name = _parts(url)
    client = Client(project="p", credentials=AnonymousCredentials())
    return len(client.bucket(bucket).blob(name).download_as_bytes(checksum=None))


def _gcsfs(url: str) -> int:
    import gcsfs

    return len(gcsfs.GCSFileSystem(token="anon").cat_file(url))


def _obstore(url: str) -> int:
    import obstore
    from obstore.store import GCSStore

    bucket, name = _parts(url)
    return len(bytes(obstore.get(GCSStore(bucket, skip_signature=True), name).bytes()))


def _tensorstore(url: str) -> int:
    import tensorstore

    bucket, name = _parts(url)
    store = tensorstore.KvStore.open({"driver": "gcs", "bucket": bucket}).result()
    return len(store.read(name).result().value)


def _tensorflow(url: str) -> int:
    import tensorflow as tf

    return len(tf.io.read_file(url).numpy())


def _hugging_face(url: str) -> int:
    from datasets import load_dataset

    rows = load_dataset("text", data_files=url, split="train", streaming=True, storage_options={"token": "anon"})
    return sum(len(row["text"]) + 1 for row in rows)


def _torch(url: str) -> int:
    import fsspec
    from torch.utils.data import DataLoader

    with fsspec.open(url, token="anon", block_size=1 << 20) as file:
        size = file.size
    starts = range(0, size, 1 << 20)
    read = DataLoader(_Ranges(url, starts), batch_size=None, num_workers=2, multiprocessing_context="spawn")
    return sum(int(count) for count in read)


class _Ranges:
    """Ranges of one object, for worker processes."""

    def __init__(self, url: str, starts: range) -> None:
        self.url = url
        self.starts = starts

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> int:
        import gcsfs

        start = self.starts[index]
        return len(gcsfs.GCSFileSystem(token="anon").cat_file(self.url, start=start, end=start + self.starts.step))


def _pyarrow(url: str) -> int:
    from pyarrow.fs import GcsFileSystem

    with GcsFileSystem(anonymous=True).open_input_stream(url.removeprefix("gs://")) as stream:
        return len(stream.read())


def _gcloud(url: str) -> int:
    import subprocess

    return len(subprocess.run(["gcloud", "storage", "cat", url], stdout=subprocess.PIPE, check=True).stdout)


def _past_the_guard(url: str) -> int:
    """Read as a client that knows no proxy, and hold the connection until a test says that the guard has seen it."""
    connection = http.client.HTTPConnection(os.environ["GUARD_TEST_UPSTREAM"])
    bucket, name = _parts(url)
    connection.request("GET", f"/download/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media")
    num_bytes = len(connection.getresponse().read())
    seen = os.environ.get("GUARD_TEST_SEEN")
    wait_for(Path(seen).exists) if seen else time.sleep(2)
    connection.close()
    return num_bytes


CLIENTS: dict[str, Callable[[str], int]] = {
    "google-cloud-storage": _google_cloud_storage,
    "gcsfs": _gcsfs,
    "obstore": _obstore,
    "tensorstore": _tensorstore,
    "tf.io": _tensorflow,
    "hugging-face": _hugging_face,
    "torch": _torch,
    "gcloud": _gcloud,
    "pyarrow": _pyarrow,
    "past-the-guard": _past_the_guard,
}
ENVIRONMENT = {
    "GOOGLE_AUTH_TOKEN_FOR_TESTING": "t",  # tensorstore and TensorFlow ask for no credentials then
    "GCS_RETRY_CONFIG_MAX_RETRIES": "0",
    "NO_GCE_CHECK": "true",
    "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
}


def main() -> None:
    """Read every URL with one client, and print the sum of the bytes."""
    names, _, way = sys.argv[1].partition("+")
    if way != "emulator":
        os.environ.pop(EMULATOR, None)
    failed = 0
    for client, url in product(names.split(","), sys.argv[2:]):
        try:
            print(f"{client} {url} {CLIENTS[client](url)}", flush=True)
        except Exception as error:  # noqa: BLE001  each client has its own errors; the test reads their text
            print(f"{client} {url} failed: {' '.join(str(error).split())}", flush=True)
            failed = 1
    sys.exit(failed)


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    main()
