"""How long builds on thousands of cores take, compared with the least possible time, by how shards reach the cores.

    python benchmarks/schedules.py --corpus DIR --json schedules.json

The times of shards are measured: the images are built in small shards, one after the other, and a shard of another size
is a sum of such times, drawn at random. Machines are slower than others at times, as recorded in results/build.json:
each machine has the factor of one round there. The clock of the builds themselves is simulated.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import shutil
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.originals import NoProgress, common_options, corpus_images, image_folder, machine_facts
from benchmarks.tables import recorded
from dataprep.builder.driver import run_build
from dataprep.builder.plan import BuildOptions, BuildRequest
from dataprep.builder.recipe import BuildJob, build_shard
from dataprep.dataset.records import ShardReceipt
from tests.support.parts_simulation import Conditions, simulate

IMAGES_A_SHARD = 40
"""Images of a shard that is measured."""
CORES = 16
"""Cores of a machine."""
PAGE_S = 0.05
"""Assumed time for listing a page of 1,000 receipts in a bucket."""
LAION_CORE_HOURS = 206
"""Core-hours of LAION-400M: DATA.md."""
LAION_SHARDS = 41_408


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines of equal size; `slowness` has the factor of each machine's times."""

    cores: int
    slowness: Sequence[float]

    @property
    def all_cores(self) -> int:
        return self.cores * len(self.slowness)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A build."""

    name: str
    shards: int
    shard_s: float
    """Mean time of a shard on a core."""
    parts: int
    """Measured shards that make one of these."""
    machines: int
    stragglers: float = 0.0
    """Share of shards that take ten times as long."""
    in_parts: bool = True
    """Whether parts are simulated, too; half a million shards would take them hours."""


LAION_SHARD_S = 3600 * LAION_CORE_HOURS / LAION_SHARDS
SCENARIOS = (
    Scenario(name="ImageNet", shards=548, shard_s=2_338 / 1_159, parts=58, machines=8),
    Scenario(name="LAION-400M", shards=LAION_SHARDS, shard_s=LAION_SHARD_S, parts=170, machines=63),
    Scenario(
        name="LAION-400M, one shard in 100 ten times as long",
        shards=LAION_SHARDS, shard_s=LAION_SHARD_S, parts=170, machines=63, stragglers=0.01,
    ),
    Scenario(name="LAION-400M", shards=LAION_SHARDS, shard_s=LAION_SHARD_S, parts=170, machines=625),
    Scenario(name="LAION-5B", shards=585_000, shard_s=LAION_SHARD_S, parts=170, machines=625, in_parts=False),
)  # fmt: skip
"""Mean times: ImageNet's are those of one worker that has two cores, 1,159 images a second (results/build.json), and
LAION-400M's follow from DATA.md's core-hours, where 32 % of a shard's 10,000 links are dead. Slow shards are assumed,
not measured."""


def lower_bound_s(shard_s: Sequence[float], machines: Machines) -> float:
    """Return a time that no schedule can beat: all cores busy to the end, and the longest shard on the fastest core."""
    speed = machines.cores * sum(1 / factor for factor in machines.slowness)
    return max(sum(shard_s) / speed, max(shard_s) * min(machines.slowness))


def dynamic(shard_s: Sequence[float], machines: Machines) -> float:
    """Return the time of a build in which every core that is free takes the next shard."""
    return window(shard_s, machines, per_core=1)


def window(shard_s: Sequence[float], machines: Machines, per_core: int) -> float:
    """Return the time of a build whose driver hands shards to machines ahead, up to `per_core` for each of their cores.

    A shard stays on its machine. Each one that is finished makes room for the next there.
    """
    left = iter(shard_s)
    waiting: list[deque[float]] = [deque() for _ in machines.slowness]
    for _ in range(per_core * machines.cores):
        for queue in waiting:
            queue.extend(islice(left, 1))
    running: list[tuple[float, int]] = []
    for number, queue in enumerate(waiting):
        for _ in range(min(machines.cores, len(queue))):
            heapq.heappush(running, (machines.slowness[number] * queue.popleft(), number))
    now_s = 0.0
    while running:
        now_s, number = heapq.heappop(running)
        queue = waiting[number]
        queue.extend(islice(left, 1))
        if queue:
            heapq.heappush(running, (now_s + machines.slowness[number] * queue.popleft(), number))
    return now_s


def dealt(shard_s: Sequence[float], machines: Machines) -> float:
    """Return the time of a build whose shards are dealt to the cores before it begins, the same number to each."""
    return _fixed(shard_s, machines, range(len(shard_s)))


def reshuffled(shard_s: Sequence[float], machines: Machines, rng: random.Random) -> float:
    """Return the time of a build whose shards have random keys, which decide on the core."""
    return _fixed(shard_s, machines, (rng.randrange(machines.all_cores) for _ in shard_s))


def _fixed(shard_s: Sequence[float], machines: Machines, cores: Iterator[int] | range) -> float:
    busy_s = [0.0] * machines.all_cores
    for core, seconds in zip(cores, shard_s, strict=True):
        busy_s[core % len(busy_s)] += seconds
    return max(seconds * machines.slowness[core // machines.cores] for core, seconds in enumerate(busy_s))


def parts(shard_s: Sequence[float], machines: Machines) -> float:
    """Return the time of a build of which each machine builds a part."""
    slowness = dict(enumerate(machines.slowness, 1))
    found = simulate(shard_s, len(slowness), machines.cores, Conditions(slowness=slowness, page_s=PAGE_S))
    return found.makespan_s


PARTS = f"parts of {CORES} cores"
SCHEDULES: dict[str, Callable[[Sequence[float], Machines, random.Random], float]] = {
    "local pool, Ray, Spark: one queue": lambda shard_s, machines, _: dynamic(shard_s, machines),
    PARTS: lambda shard_s, machines, _: parts(shard_s, machines),
    "static, dealt in turn": lambda shard_s, machines, _: dealt(shard_s, machines),
    "Reshuffle, random keys": reshuffled,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One build by all schedules."""

    name: str
    shards: int
    cores: int
    bound_s: float
    ratios: dict[str, float]
    """Time of each schedule that was simulated, divided by the bound: median of the seeds."""


def scenario_shards(scenario: Scenario, measured_s: Sequence[float], rng: np.random.Generator) -> list[float]:
    """Draw the time of every shard."""
    relative = np.asarray(measured_s) / statistics.fmean(measured_s)
    means = [rng.choice(relative, scenario.parts).mean() for _ in range(scenario.shards)]
    factors = np.where(rng.random(scenario.shards) < scenario.stragglers, 10, 1)
    return (scenario.shard_s * np.asarray(means) * factors).tolist()


def machine_factors(document: dict[str, Any]) -> list[float]:
    """Return how much longer each recorded round of a benchmark took than the median round of the same work."""
    rounds = [row["result"]["wall_s"] for row in document["rows"]]
    return [seconds / statistics.median(found) for found in rounds for seconds in found]


def scheduled(scenario: Scenario, measured_s: Sequence[float], factors: Sequence[float], seeds: int) -> Row:
    """Simulate a build by every schedule."""
    schedules = {name: made for name, made in SCHEDULES.items() if scenario.in_parts or name != PARTS}
    found: dict[str, list[float]] = {name: [] for name in schedules}
    bounds = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        machines = Machines(CORES, rng.choice(factors, scenario.machines).tolist())
        shard_s = scenario_shards(scenario, measured_s, rng)
        bounds.append(lower_bound_s(shard_s, machines))
        for name, schedule in schedules.items():
            found[name].append(schedule(shard_s, machines, random.Random(seed)) / bounds[-1])
    return Row(
        name=scenario.name,
        shards=scenario.shards,
        cores=CORES * scenario.machines,
        bound_s=round(statistics.median(bounds), 1),
        ratios={name: round(statistics.median(ratios), 3) for name, ratios in found.items()},
    )


def measure(images: list[Path], work: Path, rounds: int) -> list[float]:
    """Build the images in small shards, and return the processor time of each, in seconds."""
    source = image_folder(images, work / "originals")
    measured_s: list[float] = []

    def engine(job: BuildJob, indexes: list[int]) -> Iterator[ShardReceipt]:
        for index in indexes:
            started_s = time.process_time()
            receipt = build_shard(job, index)
            measured_s.append((time.process_time() - started_s) / receipt.samples)
            yield receipt

    for number in range(rounds + 1):
        options = BuildOptions(
            dataset="imagenet", format="webdataset", splits=("train",), allow_partial=True,
            num_shards=max(1, len(images) // IMAGES_A_SHARD),
        )  # fmt: skip
        output = work / f"out-{number}"
        request = BuildRequest(options=options, source_url=str(source), output_url=str(output), max_reject_ratio=1)
        run_build(request, engine, NoProgress())
        shutil.rmtree(output)
        if number == 0:
            measured_s.clear()  # imports, and files that were not in memory
    return measured_s


def table(document: dict[str, Any]) -> list[str]:
    """Return the table of docs/clusters.md."""
    rows = document["rows"]
    cells = [["time over the least possible", *(row["name"] for row in rows)], ["---"] * (1 + len(rows))]
    cells.append(["shards, cores", *(f"{row['shards']:,}, {row['cores']:,}" for row in rows)])
    cells.append(["least possible", *(f"{row['bound_s']:,.0f} s" for row in rows)])
    cells += [
        [name, *(f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "–" for row in rows)]
        for name in rows[0]["ratios"]
    ]
    return [f"| {' | '.join(line)} |" for line in cells]


def main() -> None:
    """Measure, simulate and print."""
    parser = common_options(__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="draws of each build, of which the median counts")
    options = parser.parse_args()
    work = options.work.resolve() / f"schedules-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        images = corpus_images(options.corpus, work, options.images)
        measured_s = measure(images, work, options.rounds)
        image_bytes = sum(image.stat().st_size for image in images)
    finally:
        shutil.rmtree(work)
    factors = machine_factors(recorded("build"))
    rows = []
    for scenario in SCENARIOS:
        print(f"{scenario.name}: {scenario.shards:,} shards", file=sys.stderr)
        rows.append(asdict(scheduled(scenario, measured_s, factors, options.seeds)))
    document = {
        "images": len(images),
        "bytes": image_bytes,
        "rounds": options.rounds,
        "seeds": options.seeds,
        **machine_facts(),
        "image_cpu_ms": [round(1e3 * seconds, 4) for seconds in measured_s],
        "machine_factors": [round(factor, 3) for factor in factors],
        "rows": rows,
    }
    print("\n".join(table(document)))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
