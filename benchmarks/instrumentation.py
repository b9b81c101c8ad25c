"""What timing the stages and serving metrics costs, and how busy a device is that needs nearly all a loader can give.

An overhead is the median over rounds, in each of which the two runs follow each other.

python benchmarks/instrumentation.py --corpus DIR --json instrumentation.json
python benchmarks/instrumentation.py --corpus DIR --only metrics --json metrics.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from originals import DATAPREP, corpus_images, image_folder, machine_facts  # noqa: E402

from loaders.config import LoaderConfig  # noqa: E402
from loaders.diagnosis.fetch_rate import fetch_rate_alone  # noqa: E402
from loaders.diagnosis.observed_run import (  # noqa: E402
    RunSetup,
    observe,
    parse_simulated,
)
from loaders.diagnosis.sample import write_sample  # noqa: E402
from loaders.diagnosis.stages import prepare_rate  # noqa: E402
from loaders.engine import pipeline, producer  # noqa: E402
from loaders.engine.batch import Batch  # noqa: E402
from loaders.engine.stats import Stats  # noqa: E402
from loaders.loader import Loader, open_configured, open_loader  # noqa: E402

FORMATS = ("webdataset", "tfrecord", "imagefolder")
WARM_UP_BATCHES = 4
MOST_OVERHEAD = 0.02
MOST_METRICS_OVERHEAD = 0.01
SCRAPES = 200
SCRAPER = """
import sys, time, urllib.request
while True:
    with urllib.request.urlopen(sys.argv[1], timeout=10) as answer:
        size = len(answer.read())
    print(size, flush=True)
    time.sleep(1)
"""
"""Program that requests metrics each second."""
ASKED = 0.85
"""Rate of the simulated device as a share of the slower one of fetching and preparing."""
BUSY = 0.9
TABLES = ("overhead", "metrics", "utilisation")
SAMPLE_IMAGES = 512


def build(source: Path, target: Path, format_name: str) -> str:
    """Build the images in one of our formats; return the URL."""
    command = [DATAPREP, "build", "imagenet", "--source", source, "--output", target, "--format", format_name]
    command += ["--split", "train", "--allow-partial", "--max-reject-ratio", "1", "--num-shards", "8", "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return str(target)


def speed(url: str, seconds: float, batch_size: int) -> tuple[float, float]:
    """Return the images/s of our loader when its batches are taken at once, and its CPU milliseconds an image."""
    with open_loader(url, batch_size=batch_size) as loader:
        return taken(warmed_up(loader), seconds)


def warmed_up(loader: Loader) -> Iterator[Batch]:
    """Return the loader's batches without end, after the first ones."""
    batches = chain.from_iterable(repeat(loader))
    for _ in range(WARM_UP_BATCHES):
        next(batches)
    return batches


def taken(batches: Iterator[Batch], seconds: float) -> tuple[float, float]:
    """Take batches for some seconds; return images/s, and CPU milliseconds an image."""
    images, started_s, cpu_started_s = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() < started_s + seconds:
        images += len(next(batches).images)
    elapsed_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_started_s
    return images / elapsed_s, 1e3 * cpu_s / images


@contextmanager
def scraping(url: str) -> Iterator[subprocess.Popen[str]]:
    """Scrape metrics each second while the context is open, in a process; the first scrape is done when it opens.

    Its own CPU time does not count: Prometheus runs elsewhere.
    """
    command = [sys.executable, "-c", SCRAPER, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as scraper:
        try:
            if scraper.stdout is None or int(scraper.stdout.readline()) < 1000:
                raise SystemExit(f"{url}: no metrics")
            yield scraper
        finally:
            scraper.kill()


class _NoClock:
    """Replacement for the module `time`, which reads no clock."""

    @staticmethod
    def monotonic() -> float:
        return 0.0


def _count_nothing(*_: object, **counts: float) -> None:
    """Do nothing; a mock would keep a list of its calls."""


@contextmanager
def not_timed() -> Iterator[None]:
    """Turn off the clocks and counters of the stages inside the context."""
    with (
        mock.patch.object(Stats, "add", _count_nothing),
        mock.patch.object(pipeline, "time", _NoClock),
        mock.patch.object(producer, "time", _NoClock),
    ):
        yield


def overhead(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure images/s and CPU time with and without the instrumentation, in turn."""

    def measure(context: AbstractContextManager[None]) -> tuple[float, float]:
        with context:
            return speed(url, options.seconds, options.batch_size)

    return compared(options.rounds, lambda: measure(contextlib.nullcontext()), lambda: measure(not_timed()))


def metrics_overhead(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure images/s and CPU time of one loader with `metrics_port`, while it is scraped and while it is not.

    One loader is measured, because two that do the same differ more than scraping costs. The setting itself only opens
    the port: stages are always timed.
    """
    settings = {"rounds": options.rounds, "seconds": options.seconds, "batch_size": options.batch_size}
    settings["scrape_cpu_ms"] = scrape_cpu_ms(url, options.batch_size)
    with open_loader(url, batch_size=options.batch_size, metrics_port=0) as loader:
        batches = warmed_up(loader)
        with scraping(str(loader.metrics_url)) as scraper:

            def measure(number: signal.Signals) -> tuple[float, float]:
                scraper.send_signal(number)
                return taken(batches, options.seconds)

            return settings | compared(options.rounds, lambda: measure(signal.SIGCONT), lambda: measure(signal.SIGSTOP))


def scrape_cpu_ms(url: str, batch_size: int) -> float:
    """Return the processor time that a loader's process spends on one scrape, milliseconds, while it loads nothing."""
    with open_loader(url, batch_size=batch_size, metrics_port=0) as loader:
        for _ in zip(range(WARM_UP_BATCHES), loader, strict=False):
            pass
        while loader.snapshot().ready_batches < loader.config.prefetch_batches:
            time.sleep(0.01)
        program = f"import sys, urllib.request\nfor _ in range({SCRAPES}): urllib.request.urlopen(sys.argv[1]).read()"
        started_s = time.process_time()
        subprocess.run([sys.executable, "-c", program, str(loader.metrics_url)], check=True)
        return 1e3 * (time.process_time() - started_s) / SCRAPES


def compared(
    rounds: int, with_it: Callable[[], tuple[float, float]], without: Callable[[], tuple[float, float]]
) -> dict[str, Any]:
    """Return images/s and CPU time of two measurements that take turns, their medians and the overhead of the first."""
    measure = {"with": with_it, "without": without}
    found: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    for number in range(rounds):
        # Each of the two is first in every other round.
        for which in ("with", "without") if number % 2 else ("without", "with"):
            found[which].append(measure[which]())
    rates, cpu_ms = ({which: [each[index] for each in rows] for which, rows in found.items()} for index in (0, 1))
    lost = [1 - timed / not_timed for timed, not_timed in zip(rates["with"], rates["without"], strict=True)]
    return {
        "rates": rates,
        "cpu_ms": cpu_ms,
        **{which: statistics.median(each) for which, each in rates.items()},
        "overhead": statistics.median(lost),
        "overhead_quartiles": statistics.quantiles(lost, n=4)[::2],
        "cpu_overhead": statistics.median(cpu_ms["with"]) / statistics.median(cpu_ms["without"]) - 1,
    }


def utilisation(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure how busy a simulated device is whose rate is a share of that of fetching and preparing."""
    config = LoaderConfig(batch_size=options.batch_size)
    found = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder, open_configured(url, "train", config) as loader:
            fetched = fetch_rate_alone(loader, config, options.seconds, 0.0, keep=SAMPLE_IMAGES)
            prepared = prepare_rate(write_sample(fetched.images, Path(folder)), config, options.seconds, 0.0).rate
        asked = ASKED * min(fetched.rate.images_per_s, prepared.images_per_s)
        device = parse_simulated(f"simulated:{asked:.1f}")
        run = observe(RunSetup(url=url, split="train", config=config), device, options.seconds)
        found.append((fetched.rate.images_per_s, prepared.images_per_s, asked, run.images_per_s / asked))
    fetch, prepare, asked, busy = (statistics.median(column) for column in zip(*found, strict=True))
    slowest = min(each[3] for each in found)
    return {"fetch": fetch, "prepare": prepare, "asked": asked, "utilisation": busy, "slowest": slowest}


def main() -> None:
    """Measure and print."""
    options = parse_options()
    chosen = (options.only,) if options.only else TABLES
    work = options.work.resolve() / f"instrumentation-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        images = corpus_images(options.corpus, work, options.images)
        source = image_folder(images, work / "originals")
        formats = FORMATS if "utilisation" in chosen else FORMATS[:1]
        urls = {name: build(source, work / name, name) for name in formats}
        found: dict[str, Any] = machine_facts() | {"images": len(images)}
        if "overhead" in chosen:
            found["overhead"] = overhead(urls["webdataset"], options)
        if "metrics" in chosen:
            found["metrics"] = metrics_overhead(urls["webdataset"], options)
        if "utilisation" in chosen:
            found["utilisation"] = {name: utilisation(url, options) for name, url in urls.items()}
    finally:
        shutil.rmtree(work)
    print_tables(found, options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def print_tables(found: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the tables that were measured."""
    print(f"medians of {options.rounds} rounds of {options.seconds:g} s, batches of {options.batch_size}, 224 pixels\n")
    if "overhead" in found:
        print_overhead(found["overhead"], MOST_OVERHEAD, "timed", "not timed")
    if "metrics" in found:
        print_overhead(found["metrics"], MOST_METRICS_OVERHEAD, "scraped", "not scraped")
        print(f"one scrape takes {found['metrics']['scrape_cpu_ms']:.1f} ms of a core\n")
    if "utilisation" in found:
        print_utilisation(found["utilisation"])


def print_overhead(cost: dict[str, Any], most: float, with_it: str, without: str) -> None:
    """Print what a part of the loader costs."""
    verdict, target = "PASS" if cost["overhead"] <= most else "short", f"<= {most:.0%}"
    print(f"{'':14}{with_it:>10}{without:>11}{'overhead':>10}{'target':>9}{'of CPU ms an image':>20}")
    print(
        f"{'webdataset':14}{cost['with']:10,.0f}{cost['without']:11,.0f}{cost['overhead']:10.1%}{target:>9}"
        f"{cost['cpu_overhead']:20.1%}  {verdict}\n"
    )


def print_utilisation(found: dict[str, Any]) -> None:
    """Print how busy a device is."""
    print(f"{'':14}{'fetch':>10}{'prepare':>11}{'asked':>10}{'utilisation':>13}{'slowest':>9}{'target':>9}")
    for name, row in found.items():
        verdict = "PASS" if row["utilisation"] >= BUSY else "short"
        print(
            f"{name:14}{row['fetch']:10,.0f}{row['prepare']:11,.0f}{row['asked']:10,.0f}{row['utilisation']:13.1%}"
            f"{row['slowest']:9.1%}{'>= ' + format(BUSY, '.0%'):>9}  {verdict}"
        )


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="folder of <wnid>/<wnid>_<n>.JPEG; default: demo data")
    parser.add_argument("--images", type=int, help="number of images of the corpus; default: all, 4,000 of demo data")
    parser.add_argument("--only", choices=TABLES, help="table that is measured; default: all")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--work", type=Path, default=ROOT / "build/benchmarks", help="folder for the layouts")
    parser.add_argument("--json", type=Path, help="file to which the tables are written as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
