"""Images/s of `dataprep build`, beside plain loops and three other writers, as whole processes.

    python benchmarks/build.py --corpus DIR --json build.json

All write the same samples in the same shuffled order from the page cache, with the same MALLOC_* settings, and sync
every file inside the timing. With the check, all run the same one, but (a) keeps what it rejects.

dataprep  build imagenet from train/<wnid>/: list, plan, read, check, digest; writes image, label, key, class name,
          height, width, orientation, an index with a CRC32C an image, the manifest; create-only, can be resumed
(a)       the same reads, decodes, SHA-256, CRC32C (of image and shard), writes and syncs in plain loops in as many
          spawned processes
(b)       webdataset's ShardWriter: image, label and key; no digests
(c)       a TFDS GeneratorBasedBuilder: the features of our TFRecords
(d)       MosaicML's MDSWriter with its defaults: image, label and key; no digests

(a) to (d) are given the list of files. 1 process: as their documents show it. Spread: each worker a part and a folder,
forked, joined as their documents say.
"""

from __future__ import annotations

import argparse
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
class Contender:
    """Program that writes the dataset."""

    group: str
    """`ours`, or the letter of its row."""
    title: str
    format: str = ""
    """Format of our own build; empty for a peer."""
    script: str = ""
    python: str | Path = sys.executable

    @property
    def is_roofline(self) -> bool:
        """Whether it runs with as many processes as our build only, and rejects no image."""
        return self.group == "a"


OURS = tuple(Contender(group="ours", title=f"dataprep {fmt}", format=fmt) for fmt in ("webdataset", "tfrecord"))
RIVALS = {
    "roofline": Contender(group="a", title="plain loops", script="roofline.py"),
    "webdataset": Contender(group="b", title="webdataset ShardWriter", script="with_webdataset.py"),
    "tfds": Contender(group="c", title="TFDS builder", script="with_tfds.py"),
    "mds": Contender(group="d", title="MosaicML MDSWriter", script="with_mds.py", python=PEERS_PYTHON),
}
ROOFLINE_TARGET = 0.85
ONE_PROCESS_TARGETS = {"b": 1.5, "c": 2.0, "d": 2.0}
"""Targets for the ratio of our rate with two or more workers to another writer's in one process, by its row."""
SPREAD_TARGET = 1.0
Run = tuple[Contender, str, int]
"""Who writes, with which check, in how many processes."""


class Bench:
    """The images, as originals and as a list, and the runs."""

    def __init__(self, images: list[Path], shards: int, work: Path) -> None:
        self.images, self.shards = len(images), shards
        self._work, self._order = work, work / "order.json"
        self._source = image_folder(images, work / "originals")
        write_order(self._source, self._order, shards)
        self._samples: dict[str, int | None] = {}

    def run(self, run: Run) -> Measurement:
        """Run a contender once, and refuse it if it writes another number of samples than the others."""
        contender, check, processes = run
        out = self._work / "out"
        if contender.format:
            more = ("--check", check, "--workers", processes)
            command = build_command(self._source, out, *more, fmt=contender.format, shards=self.shards)
        else:
            words = [contender.python, PEERS / contender.script, "--order", self._order, "--out", out]
            command = list(map(str, [*words, "--check", check, "--processes", processes]))
        found, samples = measured_writer(command, out)
        due = self.images if contender.is_roofline else self._samples.setdefault(check, samples)
        if samples != due:
            raise SystemExit(f"{contender.title} wrote {samples} samples, expected {due}")
        return found


def runs_of(rivals: list[str], workers: list[int], checks: list[str]) -> Iterator[Run]:
    """Yield the runs of a round; a peer in one process is measured once for all numbers of workers."""
    for check in checks:
        for count in workers:
            for each in (*OURS, *(RIVALS[name] for name in rivals if RIVALS[name].is_roofline)):
                yield each, check, count
        for name in rivals:
            if not RIVALS[name].is_roofline:
                yield from ((RIVALS[name], check, count) for count in sorted({1, *workers}))


def figures_of(found: list[Measurement], images: int) -> dict[str, Any]:
    """Return the medians of a run."""
    return {
        "images_per_s": images / statistics.median(each.wall_s for each in found),
        "cpu_ms_per_image": 1e3 * statistics.median(each.cpu_s for each in found) / images,
        "largest_mb": statistics.median(each.largest_bytes for each in found) / 1e6,
        "sum_mb": statistics.median(each.sum_bytes for each in found) / 1e6,
        "wall_s": [round(each.wall_s, 4) for each in found],
    }


def rows_of(
    results: dict[Run, dict[str, Any]], rivals: list[str], check: str, workers: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one check and number of workers."""
    rates = {run: result["images_per_s"] for run, result in results.items()}
    loops = RIVALS["roofline"], check, workers

    def row(name: str, run: Run, ratio: float | None, target: float | None) -> dict[str, Any]:
        return {"check": check, "workers": workers, "name": name, "result": results[run]} | {
            "ratio": ratio,
            "target": target,
        }

    for each in OURS:
        run = each, check, workers
        yield row(each.title, run, rates[run] / rates[loops], ROOFLINE_TARGET)
    yield row(f"(a) plain loops, {_processes(workers)}", loops, None, None)
    for rival in [RIVALS[name] for name in rivals if name != "roofline"]:
        like = {"b": OURS[:1], "c": OURS[1:]}.get(rival.group, OURS)
        for count in [workers] if rival.is_roofline else sorted({1, workers}):
            spread = workers > 1 and count == workers and not rival.is_roofline
            target = SPREAD_TARGET if spread else ONE_PROCESS_TARGETS.get(rival.group) if workers > 1 else None
            run = rival, check, count
            ratio = min(rates[each, check, workers] for each in like) / rates[run]
            how = f"{'spread over ' if spread else ''}{_processes(count)}"
            yield row(f"({rival.group}) {rival.title}, {how}", run, ratio, target)


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def main() -> None:
    """Measure and print."""
    options = parse_options()
    with work_folder(options, "build") as work:
        images = corpus_images(options.corpus, work, options.images)
        size = bytes_of(images)
        bench = Bench(images, options.shards or default_shards(images), work)
        runs = {run: partial(bench.run, run) for run in runs_of(options.rivals, options.workers, options.checks)}
        found = in_turns(runs, options.rounds, warm_up=not options.no_warm_up)
    results = {run: figures_of(each, bench.images) for run, each in found.items()}
    sections = [(check, workers) for check in options.checks for workers in options.workers]
    rows = [row for section in sections for row in rows_of(results, options.rivals, *section)]
    facts = {"images": bench.images, "bytes": size, "shards": bench.shards, "rounds": options.rounds}
    report("build", facts | {"rows": rows}, options)


def parse_options() -> argparse.Namespace:
    """Parse the command line; leave out peers that are not installed, with a message."""
    parser = common_options(__doc__)
    parser.add_argument("--shards", type=int, help="number of shards; default: as `dataprep build` cuts, at least 2")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--checks", nargs="+", choices=["decode", "none"], default=["decode", "none"])
    parser.add_argument("--rivals", nargs="+", choices=list(RIVALS), default=list(RIVALS))
    options = parser.parse_args()
    options.rivals = ["roofline", *(name for name in options.rivals if name != "roofline")]
    if "mds" in options.rivals and not PEERS_PYTHON.exists():
        print("(d) is left out: it is not installed; run: make setup", file=sys.stderr)
        options.rivals.remove("mds")
    return options


if __name__ == "__main__":
    main()
