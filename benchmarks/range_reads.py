"""Cost of a range read of 110 kB from a bucket, with obstore and with google-cloud-storage; prints one table.

Command:   python benchmarks/range_reads.py
Takes:     half a minute; needs the `dev` extra, whose emulator replaces Cloud Storage.
Expected:  obstore makes more reads a second in less CPU time, in all three cases; docs/decisions/0001-range-reads.md
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dataprep.storage import gcs_client, open_storage
from tests.support.gcs_emulator import GCSEmulator

BUCKET, NAME = "range-reads", "object"
OBJECT_BYTES = 64 << 20
RANGE_BYTES = 110_000
READS = 600
REPEATS = 5
LATENCY_MS = 50


def main() -> None:
    """Print the medians of 5 runs of 600 reads each."""
    print(f"{'client':22}{'threads':>8}{'latency ms':>12}{'reads/s':>10}{'CPU ms/read':>13}")
    with GCSEmulator() as emulator:
        os.environ["STORAGE_EMULATOR_HOST"] = emulator.url
        emulator.create_bucket(BUCKET)
        storage = open_storage(f"gs://{BUCKET}")
        storage.create(NAME, os.urandom(OBJECT_BYTES))
        blob = gcs_client.client().bucket(BUCKET).blob(NAME)
        clients: dict[str, Callable[[int], bytes]] = {
            "obstore": lambda at: storage.read_range(NAME, at, RANGE_BYTES),
            "google-cloud-storage": lambda at: blob.download_as_bytes(
                start=at, end=at + RANGE_BYTES - 1, checksum=None
            ),
        }
        for latency_ms, threads in ((0, 1), (0, 16), (LATENCY_MS, 64)):
            emulator.set_latency(latency_ms)
            for label, read in clients.items():
                rate, cpu_ms = _measure(read, threads)
                print(f"{label:22}{threads:8}{latency_ms:12}{rate:10.0f}{cpu_ms:13.2f}")


def _measure(read: Callable[[int], bytes], threads: int) -> tuple[float, float]:
    """Return the reads per second, and the CPU milliseconds of this process for each read."""
    offsets = [number * 7919 % (OBJECT_BYTES - RANGE_BYTES) for number in range(READS)]
    rates, cpus_ms = [], []
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, offsets[:threads]))  # opens the connections
        for _ in range(REPEATS):
            started_s, cpu_started_s = time.perf_counter(), time.process_time()
            num_bytes = sum(map(len, pool.map(read, offsets)))
            rates.append(READS / (time.perf_counter() - started_s))
            cpus_ms.append((time.process_time() - cpu_started_s) * 1000 / READS)
            if num_bytes != READS * RANGE_BYTES:
                raise RuntimeError(f"got {num_bytes:,} bytes, expected {READS * RANGE_BYTES:,}")
    return statistics.median(rates), statistics.median(cpus_ms)


if __name__ == "__main__":
    main()
