"""What serving metrics costs a loader that is scraped each second.

    python benchmarks/instrumentation.py --corpus DIR --images 300 --rounds 30 --json metrics.json

One loader with `metrics_port` is measured, while it is scraped and while it is not, because two that do the same differ
more than scraping costs. The overhead is the median over rounds, in each of which the two follow each other.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import common_options, report, work_folder
from benchmarks.originals import build, corpus_images, image_folder
from loaders.loader import Loader, open_loader

WARM_UP_BATCHES = 4
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
SIGNALS = {"with": signal.SIGCONT, "without": signal.SIGSTOP}


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


def scrape_cpu_ms(loader: Loader) -> float:
    """Return the processor time that a loader's process spends on one scrape, milliseconds, while it loads nothing."""
    while loader.snapshot().ready_batches < loader.config.prefetch_batches:
        time.sleep(0.01)
    program = f"import sys, urllib.request\nfor _ in range({SCRAPES}): urllib.request.urlopen(sys.argv[1]).read()"
    started_s = time.process_time()
    subprocess.run([sys.executable, "-c", program, str(loader.metrics_url)], check=True)
    return 1e3 * (time.process_time() - started_s) / SCRAPES


def measured(url: str, batch_size: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure images/s and CPU time of a loader while it is scraped and while it is not."""
    rates: dict[str, list[float]] = {"with": [], "without": []}
    cpu_ms: dict[str, list[float]] = {"with": [], "without": []}
    with open_loader(url, batch_size=batch_size, metrics_port=0) as loader:
        batches = chain.from_iterable(repeat(loader))
        for _ in range(WARM_UP_BATCHES):
            next(batches)
        scrape_ms = scrape_cpu_ms(loader)
        with scraping(str(loader.metrics_url)) as scraper:
            for number in range(rounds):
                # Each of the two is first in every other round.
                for which in ("with", "without") if number % 2 else ("without", "with"):
                    scraper.send_signal(SIGNALS[which])
                    images, started_s, cpu_started_s = 0, time.perf_counter(), time.process_time()
                    while time.perf_counter() < started_s + seconds:
                        images += len(next(batches).images)
                    rates[which].append(images / (time.perf_counter() - started_s))
                    cpu_ms[which].append(1e3 * (time.process_time() - cpu_started_s) / images)
    lost = [1 - mine / other for mine, other in zip(rates["with"], rates["without"], strict=True)]
    return {
        "rounds": rounds,
        "seconds": seconds,
        "batch_size": batch_size,
        "scrape_cpu_ms": scrape_ms,
        "rates": rates,
        "cpu_ms": cpu_ms,
        "overhead": statistics.median(lost),
        "overhead_quartiles": statistics.quantiles(lost, n=4)[::2],
        "cpu_overhead": statistics.median(cpu_ms["with"]) / statistics.median(cpu_ms["without"]) - 1,
    }


def main() -> None:
    """Measure and print."""
    parser = common_options(__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    with work_folder(options, "instrumentation") as work:
        images = corpus_images(options.corpus, work, options.images)
        url = build(image_folder(images, work / "originals"), work / "webdataset", shards=8)
        found = measured(url, options.batch_size, options.rounds, options.seconds)
    report("metrics", {"images": len(images), "metrics": found}, options)


if __name__ == "__main__":
    main()
