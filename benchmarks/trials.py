"""How many trials until settings are within 5 % of the best? `dataprep diagnose` beside SPDL's published search.

    python benchmarks/trials.py --corpus DIR --json trials.json      # continues where it was stopped
    python benchmarks/trials.py --list

In each situation every setting of a grid is run, and those that the searches ask for, all in turns and by the same
loop of training (`situations/training_loop.py`). Then the trials of each search are counted on these rates
(`situations/searches.py`): whole runs with changed settings, until one is within 5 % of the best rate of all. What a
search measures of stages or of the device alone is counted for itself. When all settings have been run, the fastest
ones and every setting that a search named are run again in turns, and these runs alone are compared: the highest of
many rates is high by chance, too, and a machine's rate drifts. (The settings of the grid are too many for that.)

spdl:     stages profiled alone at 32, 16, 8, 4 and 1 (`profile_pipeline`), the best of each together, the concurrencies
          that its guide advises for the slowest stage (4, 8), the fastest of these in a process of its own.
          github.com/facebookresearch/spdl, docs/source/performance_analysis, and spdl/pipeline/_profile.py
by hand:  num_workers 0, 1, 2, 4, 8 until the rate rises no more, then prefetch_factor 4, 8
grid:     the whole grid in order
ours:     `dataprep diagnose` with these settings as all that can be changed, and again after its first change; every
          change that it tries is a trial
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.originals import machine_facts
from benchmarks.situations.generate import plant
from benchmarks.situations.machine import Machine, Rates
from benchmarks.situations.searches import (
    LEVELS,
    Setting,
    Stages,
    Step,
    by_hand,
    counted,
    grid,
    setting_of,
    spdl,
    trials_until,
    whole_grid,
)
from benchmarks.situations.situation import Situation, loader_settings, to_document
from benchmarks.situations.training_loop import Measured, load_transform, open_device
from loaders import open_loader
from loaders.config import LoaderConfig
from loaders.diagnosis.diagnose import diagnose
from loaders.diagnosis.observed_run import DIAGNOSE, RunSetup

ROOT = Path(__file__).resolve().parents[1]
SEED = 73313
"""Seed of the situations: their own, on which nothing was tuned."""
IDS = (
    *("requests-00", "queue-00", "requests-model-00", "link-00"),
    *("one-thread-00", "processes-00", "python-00", "waiting-00"),
)
SEARCHES = ("ours", "spdl", "by hand", "grid")
TARGET = 3
DIAGNOSES = 3
"""Maximum number of diagnoses, each of the run with the change that the one before named."""
LEADERS = 3
"""Number of the fastest settings that are run again beside those which a search named."""
LAST_ROUNDS = 3
WHOLE_RUNS = ("the run, with a change", "a run from a cache", "a run on smaller images")
"""Beginnings of what a diagnosis reports when it tries a change; all else is a measurement of a stage."""
SETTABLE = ("threads", "processes", "prefetch_batches", "reads_in_flight")


def main() -> None:
    """Measure what is not in the JSON yet, and print the table."""
    options = _parsed()
    cores = len(os.sched_getaffinity(0))
    os.environ["OMP_NUM_THREADS"] = str(max(1, cores // 2))  # as in diagnose.py
    document = _kept(options.json)
    with Machine(options.work.resolve(), options.corpus) as machine:
        rates = Rates(machine, options.work.resolve() / "rates.json")
        chosen = [plant(id_, rates, seed=options.seed, cores=cores) for id_ in options.only or IDS]
        if options.list:
            for situation in chosen:
                print(f"{situation.id:21}{situation.cause:48}{len(grid(setting_of(situation))):>3} settings")
            return
        known = {row["situation"]["id"]: row for row in document.get("rows", [])}
        found: list[dict[str, Any]] = []
        for situation in chosen:
            row = known.get(situation.id, {})
            if row.get("situation") != to_document(situation):
                row = _measured(machine, situation, options)
            found.append(row)
            facts = machine_facts() | {"seed": options.seed}
            others = [row for row in document.get("rows", []) if row["situation"]["id"] not in {*map(_id, found)}]
            document = facts | {"rows": [*others, *found]}
            if options.json is not None:
                options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(table(found))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the trials of every search in every situation, and how often ours met its target."""
    lines = [f"{'situation':21}{'planted':48}{'as it is':>9}{'best':>7}" + "".join(f"{name:>9}" for name in SEARCHES)]
    for row in rows:
        shares = f"{row['base'] / row['best']:>9.2f}{row['best']:>7,.0f}"
        counts = "".join(f"{_shown(row['trials'][name]):>9}" for name in SEARCHES)
        lines.append(f"{_id(row):21}{row['situation']['cause']:48}{shares}{counts}")
    medians = "".join(f"{_shown(_median([row['trials'][name]['trials'] for row in rows])):>9}" for name in SEARCHES)
    stages = "".join(
        f"{statistics.median(row['trials'][name]['stage_runs'] for row in rows):>9.0f}" for name in SEARCHES
    )
    lines += [f"{'median of trials':85}{medians}", f"{'median of runs of stages alone':85}{stages}"]
    met = sum(row["trials"]["ours"]["trials"] is not None and row["trials"]["ours"]["trials"] <= TARGET for row in rows)
    lines.append(f"ours within 5 % after at most {TARGET} trials: {met} of {len(rows)}")
    return "\n".join(lines)


def _shown(found: Mapping[str, Any] | float | None) -> str:
    """Return a count as text; a search that ends before it is within 5 % has `> trials`."""
    if isinstance(found, Mapping):
        return f">{found['of']}" if found["trials"] is None else str(found["trials"])
    return "never" if found is None else f"{found:g}"


def _median(counts: Sequence[int | None]) -> float | None:
    """Return the median, in which a search that never arrives is above all others."""
    middle = statistics.median_low([float("inf") if count is None else count for count in counts])
    return None if middle == float("inf") else middle


def _id(row: Mapping[str, Any]) -> str:
    return str(row["situation"]["id"])


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="folder of <wnid>/<wnid>_<n>.JPEG; default: demo data")
    parser.add_argument("--only", nargs="+", choices=IDS, metavar="ID", help="these situations")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each setting")
    parser.add_argument("--work", type=Path, default=ROOT / "build/benchmarks/situations")
    parser.add_argument("--json", type=Path, help="results, written after each situation; those in it are not repeated")
    parser.add_argument("--list", action="store_true", help="print the situations and run none")
    return parser.parse_args()


def _kept(path: Path | None) -> dict[str, Any]:
    return json.loads(path.read_text()) if path is not None and path.exists() else {}


def _measured(machine: Machine, situation: Situation, options: argparse.Namespace) -> dict[str, Any]:
    started_s = time.monotonic()
    found = _Found(machine, situation, options.seconds)
    base, settings = setting_of(situation), grid(setting_of(situation))
    for _ in range(options.rounds):
        for setting in settings:
            found.run(setting)
    stages = Stages(
        decode={level: found.decode_rate(level) for level in LEVELS},
        fetch={level: found.fetch_rate(level) for level in LEVELS} if situation.is_in_bucket else {},
    )
    headspace = machine.device_rate(situation, options.seconds).images_per_s
    ours, stage_runs = _diagnosed(found)
    steps = {
        "ours": ours,
        "spdl": counted(spdl(base, stages, found.rate)),
        "by hand": counted(by_hand(base, found.rate)),
        "grid": counted(whole_grid(base)),
    }
    for step in itertools.chain.from_iterable(steps.values()):
        while found.runs(step.setting) < options.rounds:
            found.run(step.setting)
    leaders = sorted(found.settings(), key=found.rate, reverse=True)[:LEADERS]
    named = [step.setting for name in SEARCHES if name != "grid" for step in steps[name]]
    last = found.again(list(dict.fromkeys([base, *leaders, *named])), LAST_ROUNDS)
    best = max(last[setting] for setting in leaders)

    def rate(setting: Setting) -> float:
        return last.get(setting) or found.rate(setting)

    alone = {"ours": stage_runs, "spdl": 1 + len(stages.decode) + len(stages.fetch), "by hand": 0, "grid": 0}
    return {
        "situation": to_document(situation),
        "base": rate(base),
        "best": best,
        "device": headspace,
        "rates": [asdict(setting) | {"images_per_s": rate(setting)} for setting in found.settings()],
        "stages": {"decode": dict(stages.decode), "fetch": dict(stages.fetch)},
        "trials": {
            name: {
                "trials": trials_until(base, steps[name], rate, best),
                "of": steps[name][-1].trials if steps[name] else 0,
                "stage_runs": alone[name],
                "steps": [{"trials": step.trials, **asdict(step.setting)} for step in steps[name]],
            }
            for name in SEARCHES
        },
        "elapsed_s": round(time.monotonic() - started_s, 1),
    }


class _Found:
    """Rates of one situation, measured when they are first asked for.

    Args:
        seconds: Length of a run.
    """

    def __init__(self, machine: Machine, situation: Situation, seconds: float) -> None:
        self.machine, self.situation, self.seconds = machine, situation, seconds
        self._measured: dict[Setting, list[Measured]] = {}

    def run(self, setting: Setting) -> None:
        """Run once more with a setting."""
        measured = self.machine.rate(setting.applied(self.situation), self.seconds)
        self._measured.setdefault(setting, []).append(measured)

    def runs(self, setting: Setting) -> int:
        """Return how often a setting has been run."""
        return len(self._measured.get(setting, ()))

    def rate(self, setting: Setting) -> float:
        """Return the images/s of a setting over all its runs."""
        if not self.runs(setting):
            self.run(setting)
        return sum(self._measured[setting], Measured()).images_per_s

    def again(self, settings: Sequence[Setting], rounds: int) -> dict[Setting, float]:
        """Run some settings again in turns, and return the images/s of these runs alone."""
        for _ in range(rounds):
            for setting in settings:
                self.run(setting)
        return {setting: sum(self._measured[setting][-rounds:], Measured()).images_per_s for setting in settings}

    def settings(self) -> list[Setting]:
        """Return all settings that have been run."""
        return list(self._measured)

    def decode_rate(self, threads: int) -> float:
        """Return the images/s of as many decoding threads alone: a dataset on the disk, a device that takes no time."""
        alone = replace(self.situation, device="simulated:1e12", model="", latency_ms=None, bandwidth_bytes_per_s=None)
        alone = replace(alone, threads=threads, processes=0, reads_in_flight=None)
        return self.machine.rate(alone, self.seconds).images_per_s

    def fetch_rate(self, concurrency: int) -> float:
        """Return the images/s of as many threads that each fetch one image at a time from the bucket."""
        with self.machine.into(self.situation) as url, open_loader(url, batch_size=1) as loader:
            reads = _reads(loader.index)
            storage, ends_s = loader.dataset.storage, time.monotonic() + self.seconds

            def fetch() -> int:
                images = 0
                while time.monotonic() < ends_s:
                    storage.read_range(*next(reads))
                    images += 1
                return images

            started_s = time.monotonic()
            with ThreadPoolExecutor(concurrency) as pool:
                tasks = [pool.submit(fetch) for _ in range(concurrency)]
                images = sum(task.result() for task in tasks)
            return images / (time.monotonic() - started_s)


def _reads(index: Any) -> Iterator[tuple[str, int, int]]:
    """Yield file, offset and length of one image after the other, again and again; safe in many threads."""
    entries = index.shard(0)
    known = [
        (index.file_of(0, entries, entry), int(entries.image_offset[entry]), int(entries.image_bytes[entry]))
        for entry in range(len(entries))
    ]
    return itertools.cycle(known)


def _diagnosed(found: _Found) -> tuple[list[Step], int]:
    """Diagnose the run, then the run with the named change, and so on.

    Returns:
        The settings that were named, with the trials up to each, and the number of measurements of stages.
    """
    setting, steps, reports, untried = setting_of(found.situation), list[Step](), list[str](), 0
    for _ in range(DIAGNOSES):
        situation = setting.applied(found.situation)
        with found.machine.into(situation) as url:
            settings = loader_settings(situation) | {"transform": load_transform(situation.transform)}
            setup = RunSetup(
                url=url,
                split="train",
                config=LoaderConfig(**settings),
                transfer_ahead=situation.transfer_ahead,
                options={name: DIAGNOSE[name] for name in SETTABLE},
            )
            diagnosis = diagnose(setup, open_device(situation), seconds=found.seconds, progress=reports.append)
        named = next((fix for fix in diagnosis.fixes if fix.needs == "restart"), None)
        if named is None:
            break
        changed = {name: value for name, value in named.settings.items() if name in SETTABLE}
        setting = replace(setting, **changed)
        untried += not named.is_tried  # the run with it is the first one
        steps.append(Step(setting, untried + sum(report.startswith(WHOLE_RUNS) for report in reports)))
    whole = sum(report.startswith(WHOLE_RUNS) for report in reports)
    return steps, len(reports) - whole


if __name__ == "__main__":
    main()
