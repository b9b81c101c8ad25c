"""Our loader from an emulated bucket, with and without a delay of every request: one table.

    python benchmarks/loaders_bucket.py --corpus DIR --json loaders_bucket.json

Rank 0 of a world of 1 and of 4 takes whole epochs of the same dataset; the emulator shares the cores with it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from originals import DATAPREP, corpus_images, image_folder, machine_facts

from loaders import open_loader
from tests.support.gcs_emulator import GCSEmulator

ROOT = Path(__file__).resolve().parents[1]
BUCKET = "dataprep-benchmark"
RATE_TARGET = 0.85
HELD_TARGET_MB = 1024
BATCH = 128

HEADER = """\
{images:,} images of {kilobytes:.0f} kB, webdataset in an emulated bucket; {size} pixels, bicubic,
batches of {batch} over all ranks; medians of {rounds} interleaved rounds after a warm-up.
of 0 ms:  images/s relative to the same without delay (target 0.85)
held MB:  peak of the bytes that the fetch stage held or had in flight (target: below 1,024 MB / world size)"""


def load(url: str, world_size: int, size: int, images: int) -> dict[str, float]:
    """Load at least this number of images after the first batch."""
    rows = BATCH // world_size
    with open_loader(url, batch_size=BATCH, image_size=size, world_size=world_size) as loader:
        next(iter(loader))
        started_s, taken = time.monotonic(), 0
        while taken < images:
            for _ in loader:
                taken += rows
                if taken >= images:
                    break
        elapsed_s = time.monotonic() - started_s
        fetch = loader.stats()["fetch"]
    return {"images_per_s": taken / elapsed_s, "held_mb": fetch["most_held_bytes"] / 2**20, "hedges": fetch["hedges"]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="folder of <wnid>/<wnid>_<n>.JPEG; default: demo data")
    parser.add_argument("--images", type=int, help="number of images of the corpus; default: all")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latencies-ms", type=float, nargs="+", default=[0, 50])
    parser.add_argument("--work", type=Path, default=ROOT / "build/benchmarks")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    work = options.work.resolve() / f"loaders-bucket-{os.getpid()}"
    work.mkdir(parents=True)
    found: dict[tuple[int, float], list[dict[str, float]]] = defaultdict(list)
    try:
        with GCSEmulator() as emulator:
            os.environ["STORAGE_EMULATOR_HOST"] = emulator.url
            emulator.create_bucket(BUCKET)
            images = corpus_images(options.corpus, work, options.images)
            url = f"gs://{BUCKET}/dataset"
            command = [DATAPREP, "build", "imagenet", "--source", image_folder(images, work / "folder")]
            command += ["--output", url, "--format", "webdataset", "--split", "train", "--num-shards", "8"]
            command += ["--allow-partial", "--max-reject-ratio", "1", "--json"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            for number in range(options.rounds + 1):
                print(f"round {number} of {options.rounds}" if number else "warm-up", file=sys.stderr)
                for world_size in (1, 4):
                    for latency_ms in options.latencies_ms:
                        emulator.set_latency(latency_ms)
                        result = load(url, world_size, options.image_size, len(images) // 2)
                        if number:
                            found[world_size, latency_ms].append(result)
            kilobytes = statistics.mean(image.stat().st_size for image in images) / 1e3
    finally:
        shutil.rmtree(work)
    facts = {"images": len(images), "size": options.image_size, "batch": BATCH, "rounds": options.rounds}
    print(HEADER.format(kilobytes=kilobytes, **facts))
    rows = print_table(found)
    if options.json:
        options.json.write_text(json.dumps(machine_facts() | facts | {"rows": rows}, indent=1) + "\n")


def print_table(found: dict[tuple[int, float], list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Print the medians by world size and latency; return them as JSON values."""
    rows: list[dict[str, Any]] = []
    print(f"\n{'world':>6}{'ms':>5}{'images/s':>10}{'of 0 ms':>9}{'held MB':>9}{'hedges':>8}  verdict")
    for (world_size, latency_ms), results in found.items():
        rate, held_mb, hedges = (statistics.median(each[name] for each in results) for name in results[0])
        undelayed = statistics.median(each["images_per_s"] for each in found[world_size, min(ms for _, ms in found)])
        short = [
            what
            for what, falls in (
                ("rate short", rate < RATE_TARGET * undelayed),
                ("memory short", held_mb >= HELD_TARGET_MB / world_size),
            )
            if falls
        ]
        verdict = ", ".join(short) or "PASS"
        line = f"{world_size:>6}{latency_ms:>5.0f}{rate:>10,.0f}{rate / undelayed:>9.2f}{held_mb:>9.0f}{hedges:>8.0f}"
        print(f"{line}  {verdict}")
        rows.append(
            {
                "world_size": world_size,
                "latency_ms": latency_ms,
                "images_per_s": rate,
                "held_mb": held_mb,
                "verdict": verdict,
            }
        )
    return rows


if __name__ == "__main__":
    main()
