"""What `dataprep guard` costs a run that reads from Cloud Storage: with it and without it, in turn.

    python benchmarks/guard.py --json benchmarks/results/guard.json

A run computes for a while each step, and reads the next four objects of 256 KiB meanwhile, from an emulator that waits
20 ms before it answers. A second kind of run computes nothing, so that it shows what each read costs. The time is that
of the steps alone, without the start of the process; each of the two ways is first in every other round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.gcs_emulator import GCSEmulator  # noqa: E402
from tests.support.guard_soak import EPOCHS, LATENCY_MS  # noqa: E402
from tests.support.guarded import ENVIRONMENT, HERE, NAME, fill_bucket  # noqa: E402

BUCKET = "guard-near"
CLIENTS = ("google-cloud-storage", "obstore")
COMPUTE_S = (0.05, 0.0)
TARGET = 0.01
"""Largest overhead that is wanted of a run that computes."""


def run_s(client: str, compute_s: float, *, guarded: bool) -> float:
    """Return the seconds that the steps of a run take."""
    words = [sys.executable, "-c", EPOCHS, client, f"gs://{BUCKET}/{NAME}", str(compute_s)]
    if guarded:
        words = [sys.executable, "-m", "dataprep", "guard", "--zone", HERE, "--json", "--", *words]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(run.stderr[-2000:])
    return float((run.stderr if guarded else run.stdout).split()[-1])


def overhead(client: str, compute_s: float, rounds: int) -> dict[str, Any]:
    """Measure a kind of run in rounds; return its times and the overhead of the guard, in the median round."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for guarded in (True, False) if number % 2 else (False, True):
            found[guarded].append(run_s(client, compute_s, guarded=guarded))
    lost = [with_it / without - 1 for with_it, without in zip(found[True], found[False], strict=True)]
    return {
        "client": client,
        "compute_ms": 1000 * compute_s,
        "alone_s": found[False],
        "guarded_s": found[True],
        "overhead": statistics.median(lost),
        "overhead_quartiles": statistics.quantiles(lost, n=4)[::2],
        "overhead_of_the_fastest": min(found[True]) / min(found[False]) - 1,
    }


def main() -> None:
    """Measure, and print or write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be 2 or more, for quartiles")
    os.environ.update(ENVIRONMENT)
    rows = []
    with GCSEmulator() as emulator:
        os.environ["STORAGE_EMULATOR_HOST"] = emulator.url
        fill_bucket(emulator, BUCKET)
        emulator.set_latency(LATENCY_MS)
        for client in CLIENTS:
            for compute_s in COMPUTE_S:
                rows.append(overhead(client, compute_s, options.rounds))
                row = rows[-1]
                low, high = row["overhead_quartiles"]
                short = " (more than wanted)" if compute_s and row["overhead"] > TARGET else ""
                print(
                    f"{client}, {row['compute_ms']:g} ms a step: {row['overhead']:+.1%}{short}, quartiles {low:+.1%} "
                    f"and {high:+.1%}, fastest rounds {row['overhead_of_the_fastest']:+.1%}",
                    flush=True,
                )
    if options.json:
        document = {"latency_ms": LATENCY_MS, "rounds": options.rounds, "cores": os.cpu_count(), "rows": rows}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
