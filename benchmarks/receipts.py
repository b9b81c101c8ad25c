"""What a driver's processor does while it waits for the receipts of shards that other machines build.

    python benchmarks/receipts.py --json receipts.json

All shards but those of the last seconds have a receipt, and some more appear every second, as on a large cluster. The
driver watches them on a disk or in a bucket of the emulator, whose own processor time is left out; the larger number of
shards only on a disk.

share:    processor time of the driver, over the time
before:   the same where every look lists all receipts, twice a second, and reads each new one whole
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

BUILD = "_build/benchmark"
SHARD_ROWS = 10_000
BUCKET = "receipts"
SHARDS = (41_408, 585_000)


def receipt_bytes(index: int) -> bytes:
    """Return the receipt of a shard of 10,000 rows from the web, as a build writes it."""
    import numpy as np
    import pyarrow as pa

    from dataprep.builder.receipts import receipt_file, write_receipt
    from dataprep.dataset.index import index_schema
    from dataprep.dataset.records import Fetched, ShardReceipt, SidecarEntry
    from dataprep.storage import open_storage

    names = [f"train/{index:05d}.{end}" for end in ("tar", "parquet", "_stats.json")]
    files = tuple(SidecarEntry(file=name, bytes=10**8, sha256="0" * 64, crc32c="AAAAAA==") for name in names)
    reasons = {"success": SHARD_ROWS - 50, "http 404": 30, "timeout": 20}
    what = Fetched(attempt="tmp/x", files=files, statuses={"success": SHARD_ROWS - 50}, reasons=reasons)
    receipt = ShardReceipt(
        index=index,
        split="train",
        split_index=index,
        file=names[0],
        samples=SHARD_ROWS,
        num_bytes=10**8,
        sha256="0" * 64,
        crc32c="AAAAAA==",
        fetched=what,
    )
    draw = np.random.default_rng(index)
    columns = [
        pa.array([f"{key:09d}" for key in range(SHARD_ROWS)])
        if field.type == pa.string()
        else pa.array(draw.integers(0, 2**31 - 1, SHARD_ROWS)).cast(field.type)
        for field in index_schema()
    ]
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(folder)
        write_receipt(storage, receipt, pa.table(columns, schema=index_schema()), BUILD)
        return storage.read(receipt_file(index, BUILD))


@contextmanager
def disk(work: Path) -> Iterator[str]:
    """An empty folder."""
    yield str(work / "disk")


@contextmanager
def bucket(work: Path) -> Iterator[str]:
    """An empty bucket of the emulator."""
    from tests.support.gcs_emulator import GCSEmulator

    with GCSEmulator() as emulator:
        emulator.create_bucket(BUCKET)
        os.environ["STORAGE_EMULATOR_HOST"] = emulator.url
        yield f"gs://{BUCKET}"


PLACES = {"disk": disk, "bucket": bucket}


def put_first(url: str, shards: int) -> None:
    """Put empty objects at the names of the first receipts, which nobody reads."""
    from dataprep.builder.receipts import receipt_file
    from dataprep.storage import open_storage

    if url.startswith("gs://"):
        storage = open_storage(url)
        with ThreadPoolExecutor(16) as threads:
            for _ in threads.map(lambda index: storage.create(receipt_file(index, BUILD), b""), range(shards)):
                pass
        return
    Path(url, BUILD, "receipts").mkdir(parents=True)
    for index in range(shards):
        Path(url, receipt_file(index, BUILD)).touch()


def add_receipts(url: str, indexes: range, per_s: float, ready: Event) -> None:
    """Put one receipt after another, in a process of its own."""
    from dataprep.builder.receipts import receipt_file
    from dataprep.storage import open_storage

    storage, data = open_storage(url), receipt_bytes(0)
    storage.create(receipt_file(indexes[0], BUILD), data)
    ready.set()
    started_s = time.monotonic()
    for number, index in enumerate(indexes[1:], 1):
        time.sleep(max(0.0, started_s + number / per_s - time.monotonic()))
        storage.create(receipt_file(index, BUILD), data)


def watched(url: str, indexes: range) -> Callable[[], list[int]]:
    """Return a look at the receipts as drivers do it."""
    from dataprep.builder.receipts import ReceiptWatch
    from dataprep.storage import open_storage

    watch = ReceiptWatch(open_storage(url), BUILD, indexes)
    return lambda: [receipt.index for receipt in watch.receipts()]


def listed(url: str, indexes: range) -> Callable[[], list[int]]:
    """Return a look that lists everything, and reads new receipts whole."""
    from dataprep.builder.receipts import finished_shards, read_receipts
    from dataprep.storage import open_storage

    storage, waiting = open_storage(url), set(indexes)

    def look() -> list[int]:
        new = sorted(finished_shards(storage, BUILD) & waiting)
        waiting.difference_update(new)
        return [found[0].index for found in read_receipts(storage, new, BUILD) if found is not None]

    return look


LOOKS = {"now": watched, "before": listed}


def measure(url: str, look_of: str, indexes: range, per_s: float, seconds: float) -> dict[str, float]:
    """Watch while receipts appear, and return the driver's share of a processor."""
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    writer = spawn.Process(target=add_receipts, args=(url, indexes, per_s, ready))
    look = LOOKS[look_of](url, indexes)
    look()
    writer.start()
    ready.wait()
    seen: list[int] = []
    started_s, cpu_s, looks = time.monotonic(), processor_s(), 0
    while time.monotonic() - started_s < seconds:
        time.sleep(0.5)
        seen += look()
        looks += 1
    elapsed_s, used_s = time.monotonic() - started_s, processor_s() - cpu_s
    writer.terminate()
    writer.join()
    return {"share": used_s / elapsed_s, "receipts": len(seen), "looks": looks, "seconds": elapsed_s}


def processor_s() -> float:
    """Return the processor time of this process, in all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure each place and number of shards, and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, nargs="+", default=SHARDS)
    parser.add_argument("--places", nargs="+", choices=("disk", "bucket"), default=("disk", "bucket"))
    parser.add_argument("--looks", nargs="+", choices=tuple(LOOKS), default=tuple(LOOKS))
    parser.add_argument("--per-s", type=float, default=4.0, help="receipts that appear every second")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from benchmarks.originals import machine_facts

    rows: list[dict[str, Any]] = []
    for place in options.places:
        for shards in options.shards if place == "disk" else [min(options.shards)]:
            with (
                tempfile.TemporaryDirectory(prefix="dataprep-receipts-", dir=options.work) as work,
                ExitStack() as stack,
            ):
                url = stack.enter_context(PLACES[place](Path(work)))
                first = int(shards * 0.98)
                put_first(url, first)
                for look in options.looks:
                    found = measure(url, look, range(first, shards), options.per_s, options.seconds)
                    rows.append({"place": place, "shards": shards, "look": look, **found})
                    print(json.dumps(rows[-1]), flush=True)
                    first += int(found["seconds"] * options.per_s) + 1
    if options.json is not None:
        document = machine_facts() | {"per_s": options.per_s, "rows": rows}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
