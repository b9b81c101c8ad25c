"""Images/s, CPU time and memory of `dataprep build laion`, compared with img2dataset and encoding alone: one table.

    python benchmarks/laion.py --corpus DIR --json laion.json

The web is one process on loopback (image_server.py), which shares the cores with the program that fetches from it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from image_server import addresses
from originals import DATAPREP, ROOT, common_options, corpus_images, levelled_environment, machine_facts

from dataprep.host.measure import Measurement, measure

BENCHMARKS = Path(__file__).resolve().parent
IMG2DATASET = ROOT / ".bench-venv/img2dataset/bin/img2dataset"
OFFLINE = {"WANDB_MODE": "disabled", "NO_ALBUMENTATIONS_UPDATE": "1", "HF_HUB_OFFLINE": "1"}
"""Variables that keep img2dataset from calling other servers than the benchmark's."""
START_IMAGES = 8
IMG2DATASET_TARGET, ROOFLINE_TARGET = 1.5, 0.9
"""Factors on the images/s of img2dataset and of the roofline; the lower product is the target."""

HEADER = """\
Whole processes from exec to exit, {images:,} images of {kilobytes:.0f} kB at {hosts} addresses of one server that
answers after {latency_ms:g} ms, {rows_per_shard:,} rows a shard, webdataset; medians of {rounds} interleaved
rounds{warm_up}. All shrink the shorter side to 256 pixels and never enlarge (keep_ratio, area, JPEG of quality 95),
and keep the bytes of unchanged images. dataprep and img2dataset record the SHA-256 of downloads and write equal JPEGs.

dataprep  checks addresses, reads robots.txt of each host, at most 16 rows a second and host; writes the images,
          fields and captions, img2dataset's parquet and stats, an index with a CRC32C an image, digests, the manifest;
          fsynced, create-only, can be resumed
(a)       the roofline: our decoder, resizer and encoder in plain loops over the same files; no web, nothing written
(b)       img2dataset with that number of threads in each process
(c)       the lower bound: the same images fetched by the same HTTP library, digested, encoded, written to a file and
          synced in plain loops, without a check, robots.txt, a caption or an index

CPU ms/image: processor time of all processes beyond that of the start
server:       the web server's; all share the machine's cores with it
ratio:        dataprep's images/s to this row's
start s:      the same command on {start_images} images: imports, processes, all that does not grow with the table
after start:  images/s of what the full run took beyond that, and the same ratio of these
largest MB:   peak of the largest process; sum MB: of all its processes together"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """A table of URLs, and the files that answer them, in the same order."""

    table: Path
    files: Path
    images: int
    rows_per_shard: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One row of the table."""

    group: str
    """`ours`, `a`, `b` or `c`."""
    processes: int
    threads: int = 0
    """Threads of img2dataset in each process."""

    @property
    def title(self) -> str:
        how = f"{self.processes} process{'es' if self.processes > 1 else ''}"
        if self.group == "ours":
            return f"dataprep build laion, {how}"
        alone = {"a": f"(a) encoding alone, {how}", "c": f"(c) fetching and encoding in plain loops, {how}"}
        return alone.get(self.group, f"(b) img2dataset, {how} x {self.threads} threads")

    def command(self, given: Input, out: Path) -> list[str | Path]:
        """Return the command line to execute."""
        if self.group == "a":
            script = BENCHMARKS / "peers/encode_only.py"
            return [sys.executable, script, given.files, "--processes", str(self.processes)]
        if self.group == "c":
            script = BENCHMARKS / "peers/fetch_and_encode.py"
            return [sys.executable, script, given.table, "--out", out, "--processes", str(self.processes)]
        if self.group == "ours":
            build = [DATAPREP, "build", "laion", "--source", given.table, "--output", out, "--format", "webdataset"]
            build += ["--contact", "mailto:benchmark@example.org", "--allow-network", "127.0.0.0/8", "--json"]
            return [*build, "--rows-per-shard", str(given.rows_per_shard), "--workers", str(self.processes)]
        download = [IMG2DATASET, "--url_list", given.table, "--input_format", "parquet", "--output_folder", out]
        download += ["--url_col", "URL", "--caption_col", "TEXT", "--output_format", "webdataset"]
        download += ["--resize_mode", "keep_ratio", "--resize_only_if_bigger", "True", "--skip_reencode", "True"]
        download += ["--number_sample_per_shard", str(given.rows_per_shard), "--thread_count", str(self.threads)]
        return [*download, "--processes_count", str(self.processes)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Measurements of one run."""

    measured: Measurement
    server_cpu_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Medians of one contender's rounds."""

    name: str
    group: str
    images_per_s: float
    cpu_ms_per_image: float
    """CPU time after the start, like `after_start_images_per_s`."""
    server_cpu_ms_per_image: float
    largest_mb: float
    sum_mb: float
    start_s: float
    after_start_images_per_s: float
    wall_s: list[float]
    """Wall time of each round."""
    ratio: float | None = None
    """Our images/s divided by this row's."""
    after_start_ratio: float | None = None


class Bench:
    """The web server, and the measurements of every run."""

    def __init__(self, images: list[Path], options: argparse.Namespace, work: Path) -> None:
        self.images, self._options, self._work = images, options, work
        self._files = work / "files.txt"
        self._files.write_text("".join(f"{image.resolve()}\n" for image in images))
        self.rounds: dict[Contender, list[Found]] = defaultdict(list)
        self.starts: dict[Contender, list[Found]] = defaultdict(list)
        self._digests: dict[str, str] | None = None

    @contextmanager
    def web(self) -> Iterator[None]:
        """Run the server inside the context, and write tables with its port."""
        words = [sys.executable, BENCHMARKS / "image_server.py", self._files, "--hosts", str(self._options.hosts)]
        words += ["--latency-s", str(self._options.latency_ms / 1e3)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            if server.stdin is None or server.stdout is None:
                raise SystemExit("the server has no pipes")
            self._port = int(server.stdout.readline())
            spread = [len(self.images) * index // START_IMAGES for index in range(START_IMAGES)]
            self._full = self._input("full", list(range(len(self.images))), self._options.rows_per_shard)
            self._start = self._input("start", spread, START_IMAGES // 2)
            yield
            server.stdin.close()

    def round(self, contenders: list[Contender], *, keep: bool) -> None:
        """Run every contender once, one after the other."""
        for contender in contenders:
            full = self._once(contender, self._full)
            start = self._once(contender, self._start)
            if keep:
                self.rounds[contender].append(full)
                self.starts[contender].append(start)

    def row(self, contender: Contender) -> Row:
        """Return the medians of a contender's measurements."""
        found, count = self.rounds[contender], len(self.images)
        wall_s = statistics.median(each.measured.wall_s for each in found)
        cpu_s = statistics.median(each.measured.cpu_s for each in found)
        starts = [each.measured for each in self.starts[contender]]
        start_s = statistics.median(start.wall_s for start in starts)
        cpu_s -= statistics.median(start.cpu_s for start in starts)
        return Row(
            name=contender.title,
            group=contender.group,
            images_per_s=count / wall_s,
            cpu_ms_per_image=1e3 * cpu_s / (count - START_IMAGES),
            server_cpu_ms_per_image=1e3 * statistics.median(each.server_cpu_s for each in found) / count,
            largest_mb=statistics.median(each.measured.largest_bytes for each in found) / 1e6,
            sum_mb=statistics.median(each.measured.sum_bytes for each in found) / 1e6,
            start_s=start_s,
            after_start_images_per_s=(count - START_IMAGES) / max(wall_s - start_s, 1e-3),
            wall_s=[round(each.measured.wall_s, 3) for each in found],
        )

    def _input(self, name: str, numbers: list[int], rows_per_shard: int) -> Input:
        """Write a table in which neighbouring rows have different hosts."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        hosts = addresses(self._options.hosts)
        urls = [f"http://{hosts[number % len(hosts)]}:{self._port}/{number}" for number in numbers]
        table, files = self._work / f"{name}.parquet", self._work / f"{name}.txt"
        pq.write_table(pa.table({"URL": urls, "TEXT": [f"picture {number}" for number in numbers]}), table)
        files.write_text("".join(f"{self.images[number].resolve()}\n" for number in numbers))
        return Input(table=table, files=files, images=len(numbers), rows_per_shard=rows_per_shard)

    def _once(self, contender: Contender, given: Input) -> Found:
        out = self._work / "out"
        os.sync()  # no run has to wait for data that another one left to be written
        before_s = self._server_cpu_s()
        measured = measure(contender.command(given, out), levelled_environment(**OFFLINE))
        server_cpu_s = self._server_cpu_s() - before_s
        if contender.group in ("ours", "b"):
            self._compare(contender, given, out)
        if contender.group != "a":
            shutil.rmtree(out)
        return Found(measured=measured, server_cpu_s=server_cpu_s)

    def _server_cpu_s(self) -> float:
        with urllib.request.urlopen(f"http://{addresses(1)[0]}:{self._port}/cpu") as answer:
            return float(answer.read())

    def _compare(self, contender: Contender, given: Input, out: Path) -> None:
        """Refuse a contender that did not write every image, or not the same JPEGs by the same keys as the others."""
        digests = jpeg_digests(out)
        if len(digests) != given.images:
            raise SystemExit(f"{contender.title} wrote {len(digests)} images, expected {given.images}")
        if given is self._full:
            self._digests = self._digests or digests
            odd = [key for key, digest in digests.items() if self._digests.get(key) != digest]
            if odd:
                raise SystemExit(f"{contender.title} wrote {len(odd)} other images, first {odd[0]}")


def jpeg_digests(out: Path) -> dict[str, str]:
    """Return the SHA-256 of each .jpg in the tars of a folder, by the member's name."""
    digests = {}
    for path in sorted(out.rglob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                content = tar.extractfile(member)
                if member.name.endswith(".jpg") and content is not None:
                    digests[member.name] = hashlib.sha256(content.read()).hexdigest()
    return digests


def with_ratios(rows: list[Row]) -> list[Row]:
    """Return the rows with the ratio of our rate to theirs."""
    ours = rows[0]
    after_start = ours.after_start_images_per_s
    others = (
        replace(
            row,
            ratio=ours.images_per_s / row.images_per_s,
            after_start_ratio=after_start / row.after_start_images_per_s,
        )
        for row in rows[1:]
    )
    return [ours, *others]


def print_table(rows: list[Row]) -> None:
    print(
        f"\n{'':44}{'images/s':>9}{'CPU ms/image':>14}{'server':>8}{'largest MB':>12}{'sum MB':>8}{'ratio':>7}"
        f"{'start s':>9}{'after start':>13}{'ratio':>7}"
    )
    for row in rows:
        print(
            f"{row.name:44}{row.images_per_s:9,.0f}{row.cpu_ms_per_image:14.2f}{row.server_cpu_ms_per_image:8.2f}"
            f"{row.largest_mb:12,.0f}{row.sum_mb:8,.0f}{_number(row.ratio):>7}{row.start_s:9.1f}"
            f"{row.after_start_images_per_s:13,.0f}{_number(row.after_start_ratio):>7}"
        )


def verdicts(rows: list[Row]) -> list[str]:
    """Return a verdict on speed (after the start, as for a table of millions of rows), on processor time (without that
    of the web server) and on memory, compared with img2dataset's best setting; empty if img2dataset did not run."""
    ours, roofline, loops = (next(row for row in rows if row.group == group) for group in ("ours", "a", "c"))
    rivals = [row for row in rows if row.group == "b"]
    if not rivals:
        return []
    rate, floor = ours.after_start_images_per_s, roofline.after_start_images_per_s
    fastest = max(row.after_start_images_per_s for row in rivals)
    due = min(IMG2DATASET_TARGET * fastest, ROOFLINE_TARGET * floor)
    cpu_ms, floor_ms = ours.cpu_ms_per_image, roofline.cpu_ms_per_image
    thriftiest_ms = min(row.cpu_ms_per_image for row in rivals)
    due_ms = max(thriftiest_ms / IMG2DATASET_TARGET, floor_ms / ROOFLINE_TARGET)
    leanest = min(row.sum_mb for row in rivals)
    bound, bound_ms = loops.after_start_images_per_s, loops.cpu_ms_per_image
    return [
        f"speed:  {_verdict(rate >= due)}: {rate:,.0f} images/s after the start, {due:,.0f} are due: the lower of "
        f"{IMG2DATASET_TARGET:g} x {fastest:,.0f} and {ROOFLINE_TARGET:g} x {floor:,.0f}",
        f"CPU:    {_verdict(cpu_ms <= due_ms)}: {cpu_ms:.2f} ms an image, {due_ms:.2f} are due: the higher of "
        f"{thriftiest_ms:.2f} / {IMG2DATASET_TARGET:g} and {floor_ms:.2f} / {ROOFLINE_TARGET:g}",
        f"bound:  (c) makes {bound:,.0f} images/s, {bound / floor:.2f} x {floor:,.0f}, at {bound_ms:.2f} ms an image; "
        f"{rate / bound:.2f} of it reached",
        f"memory: {_verdict(ours.sum_mb < leanest)}: {ours.sum_mb:,.0f} MB compared with {leanest:,.0f}",
    ]


def _verdict(passed: bool) -> str:
    return "PASS" if passed else "short"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def main() -> None:
    """Measure and print."""
    options = parse_options()
    work = options.work.resolve() / f"laion-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        images = corpus_images(options.corpus, work, options.images)
        bench, contenders = Bench(images, options, work), contenders_of(options)
        with bench.web():
            if not options.no_warm_up:
                bench.round(contenders, keep=False)
            for number in range(options.rounds):
                print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
                bench.round(contenders, keep=True)
        image_bytes = sum(image.stat().st_size for image in images)
    finally:
        shutil.rmtree(work)
    rows = with_ratios([bench.row(contender) for contender in contenders])
    print(
        HEADER.format(
            images=len(images),
            kilobytes=image_bytes / len(images) / 1e3,
            hosts=options.hosts,
            latency_ms=options.latency_ms,
            rows_per_shard=options.rows_per_shard,
            rounds=options.rounds,
            warm_up="" if options.no_warm_up else " after a warm-up",
            start_images=START_IMAGES,
        )
    )
    print_table(rows)
    print("", *verdicts(rows), sep="\n")
    if options.json:
        options.json.write_text(json.dumps(document(options, len(images), image_bytes, rows), indent=1) + "\n")


def document(options: argparse.Namespace, images: int, image_bytes: int, rows: list[Row]) -> dict[str, Any]:
    """Return the table, and facts about the input and the machine, as JSON values."""
    return {
        "images": images,
        "bytes": image_bytes,
        "hosts": options.hosts,
        "latency_ms": options.latency_ms,
        "rows_per_shard": options.rows_per_shard,
        "rounds": options.rounds,
        **machine_facts(),
        "rows": [asdict(row) for row in rows],
        "verdicts": verdicts(rows),
    }


def contenders_of(options: argparse.Namespace) -> list[Contender]:
    """Return the contenders in the table's order; leave out img2dataset, with a message, if it is not installed."""
    contenders = [Contender(group=group, processes=options.processes) for group in ("ours", "a", "c")]
    if options.threads and not IMG2DATASET.exists():
        print("(b) is left out: it is not installed; run: make setup", file=sys.stderr)
        return contenders
    return contenders + [Contender(group="b", processes=options.processes, threads=count) for count in options.threads]


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = common_options(__doc__)
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--rows-per-shard", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, nargs="*", default=[32, 256], help="numbers of threads of img2dataset")
    return parser.parse_args()


if __name__ == "__main__":
    main()
