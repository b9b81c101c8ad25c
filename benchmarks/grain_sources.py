"""Grain over our tars and TFRecords beside Grain over ArrayRecord, on a disk and from a bucket 50 ms away: one table.

Command:   python benchmarks/grain_sources.py --corpus DIR --json grain_sources.json
Takes:     a minute a round for 1,000 images; needs the `dev` extra, whose emulator replaces Cloud Storage.
Prints:    the table that docs/decisions/0017-no-arrayrecord.md speaks of

Every row shuffles the same photographs with Grain, reads encoded images in Grain's threads, and decodes and crops them
with the same decoder, but for the rows of `open_batches`, where our loader does all that. ArrayRecord's own reader
opens only local paths, so from a bucket its records are read through a file of fsspec, as gcsfs makes them; the
places of the records are known to it beforehand.

The emulator has no cores of its own, as a bucket would. Its processor time is measured, and a second rate leaves it
out: images by the elapsed time less the emulator's share of the cores. Ratios to a disk are of that rate.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import grain
import numpy as np
import psutil
from fsspec.spec import AbstractBufferedFile
from originals import DATAPREP, corpus_images, image_folder, machine_facts
from peers.array_record_layout import Record, joined, records_of

from dataprep.storage import open_storage
from loaders import open_decoder
from loaders.decode.crop import evaluation_view
from loaders.grain import GrainSource, open_batches
from tests.support.gcs_emulator import GCSEmulator

ROOT = Path(__file__).resolve().parents[1]
BUCKET = "dataprep-benchmark"
BATCH = 64
SHARDS = 4
READ_THREADS = {"bucket": 64, "disk": 16}
"""Grain's threads: its default on a disk; of a bucket as many as hide its latency."""
BUFFERED = 256
"""Samples that Grain reads ahead."""
MEASURED_S = 20
"""Longest measurement of a row: fsspec's default cache reads 5 MiB for each image of 100 kB, a minute a round."""
TARGETS = {"ArrayRecord through fsspec": 5.0, "itself on the disk": 0.8, "ArrayRecord on the disk": 1.0}


@dataclass(frozen=True, slots=True)
class Contender:
    """One row of the table."""

    name: str
    place: str
    threads: int
    open: Callable[[], Any]
    """Returns a source of Grain whose elements have an `image`, or a dataset of batches."""


class Decode:
    """Crops the middle of an image and decodes it, with our decoder."""

    def __init__(self, size: int) -> None:
        self._size, self._decoder = size, open_decoder()

    def __call__(self, sample: Any) -> np.ndarray:
        data = sample if isinstance(sample, bytes) else sample["image"]
        height, width = self._decoder.image_size(data)
        image_1HWC = np.empty((1, self._size, self._size, 3), np.uint8)
        view = evaluation_view(height, width, size=self._size, resize=round(self._size / 0.875))
        (fault,) = self._decoder.decode_many([data], [view], image_1HWC, [0])
        if fault is not None:
            raise SystemExit(fault)
        return image_1HWC[0]


class FsspecRecords:
    """Records of ArrayRecord files in a bucket, through a file object of fsspec for every thread."""

    def __init__(self, url: str, files: list[tuple[str, int, list[Record]]], cache_type: str) -> None:
        self._storage, self._cache_type = open_storage(url), cache_type
        self._records = [(name, size, record) for name, size, records in files for record in records]
        self._open = threading.local()

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> bytes:
        name, size, record = self._records[index]
        files = self._open.__dict__
        if name not in files:
            files[name] = _BucketFile(self._storage, name, size, self._cache_type)
        files[name].seek(record.first)
        return joined(files[name].read(record.stop - record.first), record)


class _BucketFile(AbstractBufferedFile):
    """A file of fsspec in a bucket: every range that its cache lacks is one request, as in gcsfs."""

    def __init__(self, storage: Any, name: str, size: int, cache_type: str) -> None:
        self._storage, self._name = storage, name
        super().__init__(None, name, mode="rb", cache_type=cache_type, size=size)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._storage.read_range(self._name, start, end - start)


def sample_batches(contender: Contender, size: int) -> Iterator[int]:
    """Yield the number of images in every batch, without end."""
    found = contender.open()
    if isinstance(found, grain.IterDataset):
        yield from (len(batch["images"]) for batch in found)
        return
    dataset = grain.MapDataset.source(found)
    if len(found) < sys.maxsize:  # ours has its own order
        dataset = dataset.seed(0).shuffle().repeat()
    options = grain.ReadOptions(num_threads=contender.threads, prefetch_buffer_size=BUFFERED)
    yield from (len(batch) for batch in dataset.map(Decode(size)).to_iter_dataset(options).batch(BATCH))


@dataclass(frozen=True, slots=True)
class Rates:
    """Images a second."""

    measured: float
    without_server: float
    """By the time without the emulator's share of the cores."""


def processor_s(pid: int) -> float:
    """Return the processor time of a process and its children, seconds."""
    root = psutil.Process(pid)
    times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def measure(contender: Contender, images: int, size: int, server: int) -> Rates:
    """Return the rates of all images, or of those that come in MEASURED_S, once the buffer has been emptied once.

    What was read ahead while the first batch was waited for came in no measured time. `server` is the emulator's
    process.
    """
    batches = sample_batches(contender, size)
    for _ in range(1 + BUFFERED // BATCH):
        next(batches)
    started_s, taken, server_s = time.monotonic(), 0, processor_s(server)
    for rows in batches:
        taken += rows
        if taken >= images or time.monotonic() - started_s > MEASURED_S:
            break
    elapsed_s, server_s = time.monotonic() - started_s, processor_s(server) - server_s
    batches.close()
    return Rates(taken / elapsed_s, taken / (elapsed_s - server_s / (os.cpu_count() or 1)))


def write_array_records(images: list[Path], folder: Path) -> list[tuple[str, int, list[Record]]]:
    """Write the photographs, one a record, uncompressed; return name, size and places of the records of each file."""
    from array_record.python.array_record_module import ArrayRecordWriter

    folder.mkdir()
    for shard in range(SHARDS):
        writer = ArrayRecordWriter(str(folder / f"{shard}.array_record"), "group_size:1,uncompressed")
        for image in images[shard::SHARDS]:
            writer.write(image.read_bytes())
        writer.close()
    files = sorted(folder.iterdir())
    return [(file.name, file.stat().st_size, records_of(file.read_bytes())) for file in files]


def build(source: Path, output: str, fmt: str) -> None:
    """Build a dataset as a user would."""
    command = [DATAPREP, "build", "imagenet", "--source", source, "--output", output, "--format", fmt]
    command += ["--split", "train", "--num-shards", SHARDS, "--allow-partial", "--max-reject-ratio", "1", "--json"]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)


def contenders(work: Path, files: list[tuple[str, int, list[Record]]], size: int) -> list[Contender]:
    """Return all rows."""
    disk, bucket = str(work), f"gs://{BUCKET}"
    rows = []
    for place, root in (("disk", disk), ("bucket", bucket)):
        for fmt in ("webdataset", "tfrecord"):

            def source(url: str = f"{root}/{fmt}") -> GrainSource:
                return GrainSource.open(url, images="encoded")

            rows.append(Contender(f"ours, {fmt}", place, READ_THREADS[place], source))

        def batches(url: str = f"{root}/webdataset") -> Any:
            return open_batches(url, batch_size=BATCH, image_size=size)

        rows.append(Contender("ours, open_batches", place, 0, batches))
    paths = [str(work / "array_record" / name) for name, _, _ in files]
    rows.append(Contender("ArrayRecord", "disk", 16, lambda: grain.sources.ArrayRecordDataSource(paths)))
    for cache, threads in (("readahead", 16), ("none", 16), ("none", 64)):

        def through_fsspec(cache: str = cache) -> FsspecRecords:
            return FsspecRecords(f"{bucket}/array_record", files, cache)

        rows.append(Contender(f"ArrayRecord, fsspec, cache {cache}", "bucket", threads, through_fsspec))
    return rows


def ratios(rates: dict[tuple[str, str, int], Rates]) -> list[tuple[str, str, float, float]]:
    """Return contender, what it is compared with, ratio and target, for our rows from the bucket."""
    on_disk = next(rate for (name, _, _), rate in rates.items() if name == "ArrayRecord")
    as_documented = next(rate for (name, _, _), rate in rates.items() if "cache readahead" in name)
    found = []
    for (name, place, _), rate in rates.items():
        if name.startswith("ours") and place == "bucket":
            itself = next(other for (also, where, _), other in rates.items() if also == name and where == "disk")
            through = rate.measured / as_documented.measured
            disks = (rate.without_server / other.without_server for other in (itself, on_disk))
            found += [
                (name, what, ratio, target)
                for (what, target), ratio in zip(TARGETS.items(), (through, *disks), strict=True)
            ]
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="folder of <wnid>/<wnid>_<n>.JPEG; default: demo data")
    parser.add_argument("--images", type=int, default=1000, help="number of images of the corpus")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5, help="number of measured rounds, after a warm-up")
    parser.add_argument("--latency-ms", type=float, default=50)
    parser.add_argument("--work", type=Path, default=ROOT / "build/benchmarks")
    parser.add_argument("--json", type=Path, help="file to which the figures of all rounds are written as JSON")
    options = parser.parse_args()
    work = options.work.resolve() / f"grain-sources-{os.getpid()}"
    work.mkdir(parents=True)
    found: dict[tuple[str, str, int], list[Rates]] = {}
    try:
        with GCSEmulator() as emulator:
            os.environ["STORAGE_EMULATOR_HOST"] = emulator.url
            emulator.create_bucket(BUCKET)
            images = corpus_images(options.corpus, work, options.images)
            folder = image_folder(images, work / "folder")
            for fmt in ("webdataset", "tfrecord"):
                build(folder, str(work / fmt), fmt)
                build(folder, f"gs://{BUCKET}/{fmt}", fmt)
            files = write_array_records(images, work / "array_record")
            storage = open_storage(f"gs://{BUCKET}/array_record")
            for name, _, _ in files:
                storage.create(name, (work / "array_record" / name).read_bytes())
            emulator.set_latency(options.latency_ms)
            for number in range(options.rounds + 1):
                print(f"round {number} of {options.rounds}" if number else "warm-up", file=sys.stderr)
                for row in contenders(work, files, options.image_size):
                    rate = measure(row, len(images), options.image_size, emulator.pid)
                    print(line((row.name, row.place, row.threads), rate), file=sys.stderr)
                    if number:
                        found.setdefault((row.name, row.place, row.threads), []).append(rate)
    finally:
        shutil.rmtree(work)
    records = [record for _, _, of_file in files for record in of_file]
    contiguous = sum(len(record.parts) == 1 for record in records)
    report(found, {"images": len(images), "records": len(records), "contiguous": contiguous, **facts(options)}, options)


def facts(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the run."""
    names = ("image_size", "rounds", "latency_ms")
    return {name: getattr(options, name) for name in names} | machine_facts()


def line(row: tuple[str, str, int], rates: Rates) -> str:
    """Return a line of the table."""
    name, place, threads = row
    return f"{name:36}{place:>8}{threads or '-':>9}{rates.measured:>10,.0f}{rates.without_server:>16,.0f}"


def report(found: dict[tuple[str, str, int], list[Rates]], document: dict[str, Any], options: Any) -> None:
    """Print the tables, and write them as JSON."""
    rates = {
        key: Rates(*(statistics.median(values) for values in zip(*map(astuple, rounds), strict=True)))
        for key, rounds in found.items()
    }
    print(f"{document['images']:,} photographs, {document['image_size']} pixels, batches of {BATCH}, medians of")
    print(f"{document['rounds']} interleaved rounds after a warm-up; {document['latency_ms']:g} ms a request.")
    print(f"Contiguous in its ArrayRecord file: {document['contiguous']} of {document['records']} images.\n")
    print(f"{'':36}{'place':>8}{'threads':>9}{'images/s':>10}{'without server':>16}")
    for row, rate in rates.items():
        print(line(row, rate))
    print(f"\n{'from the bucket':36}{'relative to':>28}{'ratio':>8}{'target':>8}  verdict")
    compared = ratios(rates)
    for name, what, ratio, target in compared:
        print(f"{name:36}{what:>28}{ratio:>8.2f}{target:>8g}  {'PASS' if ratio >= target else 'short'}")
    if options.json:
        rows = [
            {
                **{"name": name, "place": place, "threads": threads},
                "rounds_images_per_s": [each.measured for each in rounds],
                "rounds_without_server": [each.without_server for each in rounds],
            }
            for (name, place, threads), rounds in found.items()
        ]
        names = ("name", "relative_to", "ratio", "target")
        document |= {"rows": rows, "ratios": [dict(zip(names, each, strict=True)) for each in compared]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
