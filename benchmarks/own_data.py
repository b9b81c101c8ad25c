"""Images/s of `dataprep build folder`, beside what people pack their own pictures with, as whole processes.

    python benchmarks/own_data.py --corpus DIR --json own-data.json

The pictures are in class folders in the page cache, and every file is synced inside the timing.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import PEERS, PEERS_PYTHON, common_options, in_turns, report, work_folder
from benchmarks.originals import (
    build_command,
    bytes_of,
    corpus_images,
    default_shards,
    image_folder,
    measured_writer,
    write_order,
)
from dataprep.host.measure import Measurement


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """One way to pack a folder of pictures: our command, a script in peers/, or tar."""

    name: str
    lacks: str
    """What it leaves out of what `dataprep build folder` does."""
    format: str = ""
    """Format of our own build; empty for the others."""
    check: str = "none"
    script: str = ""
    python: str | Path = sys.executable

    @property
    def is_tar(self) -> bool:
        """Whether it is no Python, and one process."""
        return not self.format and not self.script


GIVEN = "shuffle (gets a shuffled list), digests"
WRITERS = (
    Writer(name="dataprep webdataset", format="webdataset", check="decode", lacks=""),
    Writer(name="dataprep tfrecord", format="tfrecord", check="decode", lacks=""),
    Writer(name="dataprep webdataset, no check", format="webdataset", lacks="check"),
    Writer(name="webdataset ShardWriter", lacks=f"check, {GIVEN}, index, resumption", script="with_webdataset.py"),
    Writer(
        name="litdata.optimize", lacks=f"check, {GIVEN}, class names", script="with_litdata.py", python=PEERS_PYTHON
    ),
    Writer(name="datasets, parquet", lacks="check, shuffle, digests, resumption", script="with_parquet.py"),
    Writer(name="tar cf", lacks="check, shuffle, digests, labels, shards, resumption"),
)


class Bench:
    """The pictures, as a folder and as a list."""

    def __init__(self, images: list[Path], work: Path) -> None:
        self.images, self.bytes, self.shards = len(images), bytes_of(images), default_shards(images)
        self._out, self._order = work / "out", work / "order.json"
        root = image_folder(images, work / "pictures")
        write_order(root, self._order, self.shards)
        self._source = root / "train"

    def run(self, writer: Writer, processes: int) -> Measurement:
        """Run a writer once, and refuse it if it leaves pictures out."""
        out, packed = self._out, self._out / "pictures.tar"
        if writer.format:
            more = ("--name", "pictures", "--check", writer.check, "--workers", processes)
            kind = {"dataset": "folder", "fmt": writer.format, "shards": self.shards}
            command = build_command(self._source, out, *more, **kind)  # type: ignore[arg-type]
        elif writer.is_tar:
            line = f'mkdir "{out}" && tar cf "{packed}" -C "{self._source}" . && sync "{packed}"'
            size = f'test "$(stat -c %s "{packed}")" -ge {self.bytes}'
            command = ["sh", "-c", f"{line} && {size} && echo '{{\"samples\": {self.images}}}'"]
        else:
            words = [writer.python, PEERS / writer.script, "--order", self._order, "--out", out, "--check", "none"]
            command = list(map(str, [*words, "--processes", processes]))
        found, samples = measured_writer(command, out)
        if samples != self.images:
            raise SystemExit(f"{writer.name} wrote {samples} pictures, expected {self.images}")
        return found


def rows_of(found: dict[tuple[Writer, int], list[Measurement]], images: int) -> Iterator[dict[str, Any]]:
    """Yield the rows, the fastest first for each number of processes, with the ratios of our rates to the others'."""
    rate = {run: images / statistics.median(each.wall_s for each in rounds) for run, rounds in found.items()}
    for writer, processes in sorted(found, key=lambda run: (run[1], -rate[run])):
        ours = (
            min(rate[own, n] for own, n in rate if own.format and (own.check, n) == (check, processes))
            for check in ("decode", "none")
        )
        rounds = found[writer, processes]
        ratio, unchecked = (None if writer.format else each / rate[writer, processes] for each in ours)
        yield {
            "writer": writer.name,
            "processes": processes,
            "images_per_s": rate[writer, processes],
            "cpu_ms_per_image": 1e3 * statistics.median(each.cpu_s for each in rounds) / images,
            "sum_mb": statistics.median(each.sum_bytes for each in rounds) / 1e6,
            "wall_s": [round(each.wall_s, 4) for each in rounds],
            "ratio": ratio,
            "unchecked_ratio": unchecked,
            "lacks": writer.lacks,
        }


def fastest_in_python(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the smallest ratio to a writer in Python, for each number of processes, with and without our check."""
    python = {writer.name for writer in WRITERS if not writer.is_tar}
    for processes in sorted({row["processes"] for row in rows}):
        for check, name in (("decode", "ratio"), ("none", "unchecked_ratio")):
            ratios = [row[name] for row in rows if row["processes"] == processes and row["writer"] in python]
            yield {"processes": processes, "check": check, "ratio": min(each for each in ratios if each)}


def main() -> None:
    """Measure and print."""
    parser = common_options(__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    with work_folder(options, "own-data") as work:
        bench = Bench(corpus_images(options.corpus, work, options.images), work)
        runs = {
            (writer, processes): partial(bench.run, writer, processes)
            for writer in WRITERS
            for processes in options.processes
            if processes == 1 or not writer.is_tar
        }
        found = in_turns(runs, options.rounds, warm_up=not options.no_warm_up)
    rows = list(rows_of(found, bench.images))
    facts = {"images": bench.images, "bytes": bench.bytes, "shards": bench.shards, "rounds": options.rounds}
    report("own-data", facts | {"rows": rows, "to_the_fastest_in_python": list(fastest_in_python(rows))}, options)


if __name__ == "__main__":
    main()
