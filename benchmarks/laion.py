"""Images/s, CPU time and memory of `dataprep build laion`, beside img2dataset, encoding alone and plain loops.

    python benchmarks/laion.py --corpus DIR --json laion.json
    python benchmarks/laion.py --also ../before     with another checkout of this project, whose extensions are built

The web is one process on loopback (image_server.py), which shares the cores with the program that fetches from it. All
shrink the shorter side to 256 pixels and never enlarge (keep_ratio, area, JPEG of quality 95), and keep the bytes of
unchanged images. dataprep and img2dataset record the SHA-256 of downloads, and must write equal JPEGs.

dataprep  checks addresses, reads robots.txt of each host, at most 16 rows a second and host; writes the images,
          fields and captions, img2dataset's parquet and stats, an index with a CRC32C an image, digests, the manifest;
          synced, create-only, can be resumed
(a)       our decoder, resizer and encoder in plain loops over the same files; no web, nothing written
(b)       img2dataset with that number of threads in each process
(c)       the same images fetched by the same HTTP library, digested, encoded, written to a file and synced in plain
          loops, without a check, robots.txt, a caption or an index
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import statistics
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import (
    DATAPREP,
    PEERS,
    ROOT,
    common_options,
    in_turns,
    levelled_environment,
    report,
    work_folder,
)
from benchmarks.image_server import addresses
from benchmarks.originals import bytes_of, corpus_images
from dataprep.host.measure import Measurement, measure

IMG2DATASET = ROOT / ".bench-venv/img2dataset/bin/img2dataset"
OFFLINE = {"WANDB_MODE": "disabled", "NO_ALBUMENTATIONS_UPDATE": "1", "HF_HUB_OFFLINE": "1"}
"""Variables that keep img2dataset from calling other servers than the benchmark's."""
START_IMAGES = 8
OURS = ("ours", "also")


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """A table of URLs, and the files that answer them, in the same order."""

    table: Path
    files: Path
    images: int
    rows_per_shard: int


class Contender(NamedTuple):
    """One row of the table."""

    group: str
    """`ours`, `also`, `a`, `b` or `c`."""
    processes: int
    threads: int = 0
    """Threads of img2dataset in each process."""
    folder: Path = ROOT
    """Checkout whose build runs."""

    @property
    def title(self) -> str:
        how = f"{self.processes} process{'es' if self.processes > 1 else ''}"
        if self.group in OURS:
            return f"dataprep build laion, {how}" + (f", {self.folder.name}" if self.group == "also" else "")
        alone = {"a": f"(a) encoding alone, {how}", "c": f"(c) fetching and encoding in plain loops, {how}"}
        return alone.get(self.group, f"(b) img2dataset, {how} x {self.threads} threads")

    def command(self, given: Input, out: Path) -> list[str]:
        """Return the command line to execute."""
        words: list[object] = []
        if self.group == "a":
            words = [sys.executable, PEERS / "encode_only.py", given.files, "--processes", self.processes]
        elif self.group == "c":
            words = [sys.executable, PEERS / "fetch_and_encode.py", given.table, "--out", out]
            words += ["--processes", self.processes]
        elif self.group in OURS:
            words = [DATAPREP, "build", "laion", "--source", given.table, "--output", out, "--format", "webdataset"]
            words += ["--contact", "mailto:benchmark@example.org", "--allow-network", "127.0.0.0/8", "--json"]
            words += ["--rows-per-shard", given.rows_per_shard, "--workers", self.processes]
        else:
            words = [IMG2DATASET, "--url_list", given.table, "--input_format", "parquet", "--output_folder", out]
            words += ["--url_col", "URL", "--caption_col", "TEXT", "--output_format", "webdataset"]
            words += ["--resize_mode", "keep_ratio", "--resize_only_if_bigger", "True", "--skip_reencode", "True"]
            words += ["--number_sample_per_shard", given.rows_per_shard, "--thread_count", self.threads]
            words += ["--processes_count", self.processes]
        return list(map(str, words))


class Found(NamedTuple):
    """Figures of one round."""

    full: Measurement
    start: Measurement
    """The same command on a few images: imports, processes, all that does not grow with the table."""
    server_cpu_s: float
    """CPU time of the web server during the full run."""


class Bench:
    """The web server, and the tables of URLs."""

    def __init__(self, images: list[Path], options: argparse.Namespace, work: Path) -> None:
        self._images, self._options, self._work = images, options, work
        self._digests: dict[str, str] | None = None

    @contextmanager
    def web(self) -> Iterator[None]:
        """Run the server inside the context, and write tables with its port."""
        files = self._work / "files.txt"
        files.write_text("".join(f"{image.resolve()}\n" for image in self._images))
        words = [sys.executable, ROOT / "benchmarks/image_server.py", files, "--hosts", str(self._options.hosts)]
        words += ["--latency-s", str(self._options.latency_ms / 1e3)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            if server.stdin is None or server.stdout is None:
                raise SystemExit("the server has no pipes")
            self._port, count = int(server.stdout.readline()), len(self._images)
            self._full = self._input("full", list(range(count)), self._options.rows_per_shard)
            spread = [count * index // START_IMAGES for index in range(START_IMAGES)]
            self._start = self._input("start", spread, START_IMAGES // 2)
            yield
            server.stdin.close()

    def _input(self, name: str, numbers: list[int], rows_per_shard: int) -> Input:
        """Write a table in which neighbouring rows have different hosts."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        hosts = addresses(self._options.hosts)
        urls = [f"http://{hosts[number % len(hosts)]}:{self._port}/{number}" for number in numbers]
        table, files = self._work / f"{name}.parquet", self._work / f"{name}.txt"
        pq.write_table(pa.table({"URL": urls, "TEXT": [f"picture {number}" for number in numbers]}), table)
        files.write_text("".join(f"{self._images[number].resolve()}\n" for number in numbers))
        return Input(table=table, files=files, images=len(numbers), rows_per_shard=rows_per_shard)

    def run(self, contender: Contender) -> Found:
        """Run a contender once on all images and once on a few."""
        before_s = self._server_cpu_s()
        full = self._once(contender, self._full)
        server_cpu_s = self._server_cpu_s() - before_s
        return Found(full, self._once(contender, self._start), server_cpu_s)

    def _once(self, contender: Contender, given: Input) -> Measurement:
        out = self._work / "out"
        environment = levelled_environment(**OFFLINE)
        if contender.group == "also":
            environment["PYTHONPATH"] = str(contender.folder)
        measured = measure(contender.command(given, out), environment)
        if contender.group in (*OURS, "b"):
            self._compare(contender, given, out)
        if contender.group != "a":
            shutil.rmtree(out)
        return measured

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


def row_of(contender: Contender, rounds: list[Found], images: int) -> dict[str, Any]:
    """Return the medians of a contender."""

    def middle(which: str, figure: str) -> float:
        return statistics.median(getattr(getattr(each, which), figure) for each in rounds)

    wall_s, start_s = middle("full", "wall_s"), middle("start", "wall_s")
    cpu_s = middle("full", "cpu_s") - middle("start", "cpu_s")
    return {
        "name": contender.title,
        "group": contender.group,
        "images_per_s": images / wall_s,
        "cpu_ms_per_image": 1e3 * cpu_s / (images - START_IMAGES),
        "server_cpu_ms_per_image": 1e3 * statistics.median(each.server_cpu_s for each in rounds) / images,
        "largest_mb": middle("full", "largest_bytes") / 1e6,
        "sum_mb": middle("full", "sum_bytes") / 1e6,
        "start_s": start_s,
        "after_start_images_per_s": (images - START_IMAGES) / max(wall_s - start_s, 1e-3),
        "wall_s": [round(each.full.wall_s, 3) for each in rounds],
    }


def main() -> None:
    """Measure and print."""
    parser = common_options(__doc__)
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--rows-per-shard", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, nargs="*", default=[32, 64], help="numbers of threads of img2dataset")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="other checkouts of this project")
    options = parser.parse_args()
    contenders = [Contender(group, options.processes) for group in ("ours", "a", "c")]
    contenders += [Contender("also", options.processes, folder=folder.resolve()) for folder in options.also]
    if IMG2DATASET.exists():
        contenders += [Contender("b", options.processes, count) for count in options.threads]
    elif options.threads:
        print("(b) is left out: it is not installed; run: make setup", file=sys.stderr)
    with work_folder(options, "laion") as work:
        images = corpus_images(options.corpus, work, options.images)
        size, bench = bytes_of(images), Bench(images, options, work)
        with bench.web():
            runs = {contender: partial(bench.run, contender) for contender in contenders}
            found = in_turns(runs, options.rounds, warm_up=not options.no_warm_up)
    rows = [row_of(contender, rounds, len(images)) for contender, rounds in found.items()]
    settings = {name: getattr(options, name) for name in ("hosts", "latency_ms", "rows_per_shard", "rounds")}
    report("laion", {"images": len(images), "bytes": size, **settings, "rows": rows}, options)


if __name__ == "__main__":
    main()
