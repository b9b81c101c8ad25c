"""Grain over our tars and TFRecords beside Grain over ArrayRecord, on a disk and from a bucket 50 ms away: one table.

    python benchmarks/grain_sources.py --corpus DIR --images 1000 --json grain.json

Every row shuffles the same photographs with Grain, reads encoded images in Grain's threads, and decodes and crops them
with the same decoder, but for the rows of `open_batches`, where our loader does all that. ArrayRecord's own reader
opens only local paths, so from a bucket its records are read through a file of fsspec, as gcsfs makes them; the
places of the records are known to it beforehand.

The emulator has no cores of its own, as a bucket would. Its processor time is measured, and a second rate leaves it
out: images by the elapsed time less the emulator's share of the cores. Ratios to a disk are of that rate.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import grain
import numpy as np
import psutil
from fsspec.spec import AbstractBufferedFile

from benchmarks.harness import common_options, in_turns, report, work_folder
from benchmarks.originals import build, corpus_images, image_folder
from benchmarks.peers.array_record_layout import Record, joined, records_of
from dataprep.storage import open_storage
from loaders import open_decoder
from loaders.decode.crop import evaluation_view
from loaders.grain import GrainSource, open_batches
from tests.support.gcs_emulator import GCSEmulator

BUCKET = "dataprep-benchmark"
BATCH = 64
SIZE = 224
SHARDS = 4
READ_THREADS = {"bucket": 64, "disk": 16}
"""Grain's threads: its default on a disk; of a bucket as many as hide its latency."""
BUFFERED = 256
"""Samples that Grain reads ahead."""
MEASURED_S = 20
"""Longest measurement of a row: fsspec's default cache reads 5 MiB for each image of 100 kB, a minute a round."""
TARGETS = {"ArrayRecord through fsspec": 5.0, "itself on the disk": 0.8, "ArrayRecord on the disk": 1.0}
FILES = list[tuple[str, int, list[Record]]]
"""Name, size and places of the records of each file of ArrayRecord."""


class Row(NamedTuple):
    """One row of the table."""

    name: str
    place: str
    threads: int


class Rates(NamedTuple):
    """Images a second."""

    measured: float
    without_server: float
    """By the time without the emulator's share of the cores."""


class Decode:
    """Crops the middle of an image and decodes it, with our decoder."""

    def __init__(self) -> None:
        self._decoder = open_decoder()

    def __call__(self, sample: Any) -> np.ndarray:
        data = sample if isinstance(sample, bytes) else sample["image"]
        height, width = self._decoder.image_size(data)
        image_1HWC = np.empty((1, SIZE, SIZE, 3), np.uint8)
        view = evaluation_view(height, width, size=SIZE, resize=round(SIZE / 0.875))
        (fault,) = self._decoder.decode_many([data], [view], image_1HWC, [0])
        if fault is not None:
            raise SystemExit(fault)
        return image_1HWC[0]


class FsspecRecords:
    """Records of ArrayRecord files in a bucket, through a file object of fsspec for every thread."""

    def __init__(self, url: str, files: FILES, cache_type: str) -> None:
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


def sample_batches(opened: Any, threads: int) -> Iterator[int]:
    """Yield the number of images in every batch, without end, of a source of Grain or a dataset of batches."""
    if isinstance(opened, grain.IterDataset):
        yield from (len(batch["images"]) for batch in opened)
        return
    dataset = grain.MapDataset.source(opened)
    if len(opened) < sys.maxsize:  # ours has its own order
        dataset = dataset.seed(0).shuffle().repeat()
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=BUFFERED)
    yield from (len(batch) for batch in dataset.map(Decode()).to_iter_dataset(options).batch(BATCH))


def processor_s(pid: int) -> float:
    """Return the processor time of a process and its children, seconds."""
    root = psutil.Process(pid)
    times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def measure(row: Row, opened: Callable[[], Any], images: int, server: int) -> Rates:
    """Return the rates of all images, or of those that come in MEASURED_S, once the buffer has been emptied once.

    What was read ahead while the first batch was waited for came in no measured time. `server` is the emulator's
    process.
    """
    batches = sample_batches(opened(), row.threads)
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


def write_array_records(images: list[Path], folder: Path) -> FILES:
    """Write the photographs, one a record, uncompressed."""
    from array_record.python.array_record_module import ArrayRecordWriter

    folder.mkdir()
    for shard in range(SHARDS):
        writer = ArrayRecordWriter(str(folder / f"{shard}.array_record"), "group_size:1,uncompressed")
        for image in images[shard::SHARDS]:
            writer.write(image.read_bytes())
        writer.close()
    return [(file.name, file.stat().st_size, records_of(file.read_bytes())) for file in sorted(folder.iterdir())]


def contenders(work: Path, files: FILES) -> Iterator[tuple[Row, Callable[[], Any]]]:
    """Yield all rows, each with a function that opens a source of Grain or a dataset of batches."""
    bucket = f"gs://{BUCKET}"
    for place, root in (("disk", str(work)), ("bucket", bucket)):
        for fmt in ("webdataset", "tfrecord"):
            source = partial(GrainSource.open, f"{root}/{fmt}", images="encoded")
            yield Row(f"ours, {fmt}", place, READ_THREADS[place]), source
        batches = partial(open_batches, f"{root}/webdataset", batch_size=BATCH, image_size=SIZE)
        yield Row("ours, open_batches", place, 0), batches
    paths = [str(work / "array_record" / name) for name, _, _ in files]
    yield Row("ArrayRecord", "disk", 16), partial(grain.sources.ArrayRecordDataSource, paths)
    for cache, threads in (("readahead", 16), ("none", 16), ("none", 64)):
        records = partial(FsspecRecords, f"{bucket}/array_record", files, cache)
        yield Row(f"ArrayRecord, fsspec, cache {cache}", "bucket", threads), records


def ratios(found: dict[Row, list[Rates]]) -> Iterator[dict[str, Any]]:
    """Yield the ratios that the targets are set for, of our rows from the bucket."""
    rates = {
        row: Rates(*(statistics.median(values) for values in zip(*rounds, strict=True)))
        for row, rounds in found.items()
    }
    on_disk = next(rate for row, rate in rates.items() if row.name == "ArrayRecord")
    as_documented = next(rate for row, rate in rates.items() if "cache readahead" in row.name)
    for row, rate in rates.items():
        if row.name.startswith("ours") and row.place == "bucket":
            itself = next(other for also, other in rates.items() if (also.name, also.place) == (row.name, "disk"))
            disks = (rate.without_server / other.without_server for other in (itself, on_disk))
            compared = (rate.measured / as_documented.measured, *disks)
            for (what, target), ratio in zip(TARGETS.items(), compared, strict=True):
                yield {"name": row.name, "relative_to": what, "ratio": ratio, "target": target}


def main() -> None:
    """Measure and print."""
    parser = common_options(__doc__)
    parser.add_argument("--latency-ms", type=float, default=50)
    options = parser.parse_args()
    with work_folder(options, "grain-sources") as work, GCSEmulator() as emulator:
        os.environ["STORAGE_EMULATOR_HOST"] = emulator.url
        emulator.create_bucket(BUCKET)
        images = corpus_images(options.corpus, work, options.images)
        folder = image_folder(images, work / "folder")
        for fmt in ("webdataset", "tfrecord"):
            for root in (work, f"gs://{BUCKET}"):
                build(folder, f"{root}/{fmt}", fmt=fmt, shards=SHARDS)
        files = write_array_records(images, work / "array_record")
        storage = open_storage(f"gs://{BUCKET}/array_record")
        for name, _, _ in files:
            storage.create(name, (work / "array_record" / name).read_bytes())
        emulator.set_latency(options.latency_ms)
        runs = {
            row: partial(measure, row, opened, len(images), emulator.pid) for row, opened in contenders(work, files)
        }
        found = in_turns(runs, options.rounds, warm_up=not options.no_warm_up)
    records = [record for _, _, of_file in files for record in of_file]
    rows = [
        row._asdict()
        | {
            "rounds_images_per_s": [each.measured for each in rounds],
            "rounds_without_server": [each.without_server for each in rounds],
        }
        for row, rounds in found.items()
    ]
    document = {
        "images": len(images),
        "records": len(records),
        "contiguous": sum(len(record.parts) == 1 for record in records),
        "image_size": SIZE,
        "rounds": options.rounds,
        "latency_ms": options.latency_ms,
    }
    report("grain", document | {"rows": rows, "ratios": list(ratios(found))}, options)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of Grain still read ahead, and would try the emulator, which has ended, for five minutes
