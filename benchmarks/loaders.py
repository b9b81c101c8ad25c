"""Images/s, CPU time and memory of our loader, compared with five others on the same images: one table.

python benchmarks/loaders.py --corpus DIR --json loaders.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from originals import DATAPREP, corpus_images, image_folder

from dataprep.host.versions import codec_versions

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # before this folder, in which `loaders` is this file
from loaders.bench.compare import PEERS_PYTHON  # noqa: E402
from loaders.bench.contestant import ROOFLINE  # noqa: E402
from loaders.bench.peers import PEERS  # noqa: E402
from loaders.bench.runs import BenchSettings, Contender, Run, module_command, row_of, run_once, warm_up  # noqa: E402
from loaders.bench.table import OURS, BenchRow  # noqa: E402

SHARDS = 8
"""Number of shards of every layout; each of a few workers gets some of its own."""
OUR_FORMATS = ("webdataset", "tfrecord", "imagefolder")
OUR_FILTERS = {"bicubic": "bicubic", "bilinear": "bilinear-no-antialias"}
"""Interpolations of our loader by the names of the column `resize`: tf.data's bilinear does not antialias."""
IN_OWN_ENVIRONMENT = ("mosaic", "grain")

HEADER = """\
{images:,} images of {kilobytes:.0f} kB in the page cache, {workers} workers (processes or threads) on {cores} cores;
batches of {batch_size}, uint8; random-resized crop (area 0.2-1, aspect 3/4-4/3), flip, shuffled. Every run is a process
that takes {taken:,} images after its first batches; medians of {rounds} interleaved rounds{warm_up}.

(a) full decode  simplejpeg on whole images in as many plain threads: no reading, no crop, no resize
{recipes}
images/s:     after the first batches; slowest and fastest: of the rounds. CPU: of all processes, in that time
of (a):       rate as a share of that of full decoding alone
first batch:  seconds from exec to the first batch, imports included
largest MB:   peak of the largest process; sum MB: of all its processes together"""

BILINEAR_TARGET = 1.3
"""Target for the ratio of our slowest format to tf.data, both bilinear without antialiasing."""
TORCHVISION_TARGET = 2.2
"""Target for the ratio of our slowest format to torchvision on PIL, both bicubic with antialiasing."""
FORMATS_TARGET = 0.95
"""Target for the ratio of our slowest format to our fastest."""


def _contenders() -> dict[str, tuple[str, str, str]]:
    """Return loader, layout and interpolation by the names of the rows."""
    found = {"decode": (ROOFLINE, "imagefolder", "")}
    for interpolation, suffix in (("bicubic", ""), ("bilinear", "-bilinear")):
        found |= {f"ours-{layout}{suffix}": (OURS, layout, interpolation) for layout in OUR_FORMATS}
    return found | {name: (name, peer.layout, peer.interpolation) for name, peer in PEERS.items()}


CONTENDERS = _contenders()


def contender(name: str, roots: dict[str, Path]) -> Contender:
    """Return the contender of a row."""
    loader, layout, interpolation = CONTENDERS[name]
    root = roots[layout]
    if loader != OURS and (root / "train").is_dir():
        root /= "train"
    return Contender(
        loader=loader,
        layout=layout,
        root=str(root),
        interpolation=OUR_FILTERS.get(interpolation, ""),
        python=PEERS_PYTHON if loader in IN_OWN_ENVIRONMENT else sys.executable,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table."""

    image_size: int
    name: str
    interpolation: str
    result: BenchRow
    of_decode: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A ratio of two rates, and its target."""

    image_size: int
    title: str
    ratio: float
    target: float

    @property
    def verdict(self) -> str:
        return "PASS" if self.ratio >= self.target else "short"


class Bench:
    """The images in every layout that is needed, and the measurements of the rounds."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self._options = options
        images = corpus_images(options.corpus, work, options.images)
        self.num_images = len(images)
        self.num_bytes = sum(image.stat().st_size for image in images)
        self.taken = -(-round(options.epochs * self.num_images) // options.batch_size) * options.batch_size
        layouts = {CONTENDERS[name][1] for name in options.contenders}
        roots = write_layouts(images, layouts, work, options.workers)
        self._contenders = {name: contender(name, roots) for name in options.contenders}
        self._runs: dict[tuple[str, int], list[Run]] = defaultdict(list)

    def warm_up(self) -> None:
        """Run every contender once for a few batches."""
        for each in self._contenders.values():
            warm_up(each, self._settings(self._options.image_sizes[0]))

    def round(self) -> None:
        """Run every contender at every size, one after the other."""
        for image_size in self._options.image_sizes:
            for name, each in self._contenders.items():
                self._runs[name, image_size].append(run_once(each, self._settings(image_size)))

    def _settings(self, image_size: int) -> BenchSettings:
        options = self._options
        return BenchSettings(
            batch_size=options.batch_size,
            image_size=image_size,
            workers=options.workers,
            seconds=0,
            images=self.taken,
        )

    def rows(self, image_size: int) -> list[Row]:
        """Return one section of the table."""
        bytes_per_image = self.num_bytes / self.num_images
        results = {
            name: row_of(each, self._runs[name, image_size], bytes_per_image) for name, each in self._contenders.items()
        }
        decode = results.get("decode")
        return [
            Row(
                image_size=image_size,
                name="(a) full decode" if name == "decode" else name,
                interpolation=CONTENDERS[name][2],
                result=result,
                of_decode=result.images_per_s / decode.images_per_s if decode else None,
            )
            for name, result in results.items()
        ]


def write_layouts(images: list[Path], layouts: set[str], work: Path, workers: int) -> dict[str, Path]:
    """Write the same images in every layout, repaired by `dataprep build` and without those that it rejects."""
    source = image_folder(images, work / "originals")
    roots = {layout: work / layout for layout in layouts | {"imagefolder"}}
    for layout in [each for each in OUR_FORMATS if each in roots]:
        command = [DATAPREP, "build", "imagenet", "--source", source, "--output", roots[layout], "--format", layout]
        command += ["--split", "train", "--allow-partial", "--max-reject-ratio", "1", "--num-shards", str(SHARDS)]
        _run([*command, "--workers", str(workers), "--json"])
    for layout in sorted(layouts.difference(OUR_FORMATS)):
        words = [layout, "--images", roots["imagefolder"] / "train", "--out", roots[layout], "--shards", SHARDS]
        _run(module_command(PEERS_PYTHON, "loaders.bench.peers_layouts", *words))
    return roots


def _run(command: list[Any]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")


def compare(rows: list[Row]) -> list[Comparison]:
    """Return the comparisons at one image size for which every rate was measured."""
    rates = {row.name: row.result.images_per_s for row in rows}
    ours = {
        interpolation: [row.result.images_per_s for row in rows if _is_ours(row) and row.interpolation == interpolation]
        for interpolation in OUR_FILTERS
    }
    others = {name: rate for name, rate in rates.items() if name in PEERS and name not in ("tf.data", "torchvision")}
    wanted = []
    if ours["bilinear"] and "tf.data" in rates:
        wanted.append(("our slowest bilinear to tf.data", min(ours["bilinear"]) / rates["tf.data"], BILINEAR_TARGET))
    if ours["bicubic"] and "torchvision" in rates:
        ratio = min(ours["bicubic"]) / rates["torchvision"]
        wanted.append(("our slowest bicubic to torchvision", ratio, TORCHVISION_TARGET))
    if ours["bicubic"] and others:
        fastest = max(others, key=lambda name: others[name])
        wanted.append(
            (f"our slowest bicubic to the fastest other, {fastest}", min(ours["bicubic"]) / others[fastest], 1)
        )
    for interpolation, own in ours.items():
        if len(own) > 1:
            wanted.append((f"our slowest format to our fastest, {interpolation}", min(own) / max(own), FORMATS_TARGET))
    return [Comparison(image_size=rows[0].image_size, title=title, ratio=r, target=t) for title, r, t in wanted]


def _is_ours(row: Row) -> bool:
    return row.name.startswith("ours-")


def print_section(rows: list[Row], comparisons: list[Comparison]) -> None:
    """Print the table of one image size, and how its targets were met."""
    print(
        f"\n{f'image size {rows[0].image_size}':27}{'resize':>9}{'images/s':>10}{'slowest':>9}{'fastest':>9}"
        f"{'CPU ms/image':>14}{'of (a)':>8}{'first batch s':>15}{'largest MB':>12}{'sum MB':>8}"
    )
    for row in rows:
        found = row.result
        print(
            f"{row.name:27}{row.interpolation:>9}{found.images_per_s:10,.0f}{min(found.rounds_images_per_s):9,.0f}"
            f"{max(found.rounds_images_per_s):9,.0f}{found.cpu_ms_per_image:14.2f}"
            f"{'' if row.of_decode is None else format(row.of_decode, '.2f'):>8}{found.first_batch_s:15.1f}"
            f"{found.largest_mb:12,.0f}{found.sum_mb:8,.0f}"
        )
    if comparisons:
        print(f"\n{'':55}{'ratio':>8}{'target':>9}")
    for each in comparisons:
        print(f"{each.title:55}{each.ratio:8.2f}{'>= ' + format(each.target, 'g'):>9}{each.verdict:>7}")


def main() -> None:
    """Measure and print."""
    options = parse_options()
    os.environ["NO_GCE_CHECK"] = "true"
    work = options.work.resolve() / f"loaders-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        bench = Bench(options, work)
        if not options.no_warm_up:
            bench.warm_up()
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            bench.round()
    finally:
        shutil.rmtree(work)
    print_header(bench, options)
    sections = [bench.rows(image_size) for image_size in options.image_sizes]
    for rows in sections:
        print_section(rows, compare(rows))
    if options.json:
        options.json.write_text(json.dumps(document(bench, sections, options), indent=1) + "\n")


def print_header(bench: Bench, options: argparse.Namespace) -> None:
    """Print what was measured, and how to read it."""
    recipes = [f"{name:16} {PEERS[name].recipe}\n" for name in options.contenders if name in PEERS]
    print(
        HEADER.format(
            images=bench.num_images,
            kilobytes=bench.num_bytes / bench.num_images / 1e3,
            workers=options.workers,
            cores=_cores(options),
            batch_size=options.batch_size,
            taken=bench.taken,
            rounds=options.rounds,
            warm_up="" if options.no_warm_up else " after a warm-up",
            recipes="".join(recipes),
        )
    )


def _cores(options: argparse.Namespace) -> int:
    """Return the number of cores to which every run is limited."""
    return min(options.workers, len(os.sched_getaffinity(0)))


def document(bench: Bench, sections: Iterable[list[Row]], options: argparse.Namespace) -> dict[str, Any]:
    """Return the tables, and facts about the input and the machine, as JSON values."""
    return {
        "images": bench.num_images,
        "bytes": bench.num_bytes,
        "taken": bench.taken,
        "rounds": options.rounds,
        "batch_size": options.batch_size,
        "workers": options.workers,
        "cores": _cores(options),
        "python": platform.python_version(),
        "codecs": codec_versions(),
        "rows": [asdict(row) for rows in sections for row in rows],
        "comparisons": [{**asdict(each), "verdict": each.verdict} for rows in sections for each in compare(rows)],
    }


def parse_options() -> argparse.Namespace:
    """Parse the command line; leave out peers that are not installed, with a message."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="folder of <wnid>/<wnid>_<n>.JPEG; default: demo data")
    parser.add_argument("--images", type=int, help="number of images of the corpus; default: all, 4,000 of demo data")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--image-sizes", type=int, nargs="+", default=[224])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2, help="number of processes or threads, and of cores for them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=float, default=2, help="epochs of a round, after --workers + 1 batches")
    parser.add_argument("--no-warm-up", action="store_true", help="measure the first runs, too")
    parser.add_argument("--work", type=Path, default=ROOT / "build/benchmarks", help="folder for the layouts")
    parser.add_argument("--json", type=Path, help="file to which the table is written as JSON")
    options = parser.parse_args()
    if not PEERS_PYTHON.exists():
        for name in IN_OWN_ENVIRONMENT:
            if name in options.contenders:
                print(f"{name} is left out: it is not installed; run: make setup", file=sys.stderr)
                options.contenders.remove(name)
    return options


if __name__ == "__main__":
    main()
