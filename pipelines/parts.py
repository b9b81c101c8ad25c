"""Builds one of several parts of a dataset: the engine of `dataprep build --part K/N`, which needs no scheduler.

    own shards (every N-th) -> shards that other parts have left -> until every shard has a receipt

The parts run anywhere, in any number and at any time. They know of each other only by the receipts in the output, so
the dataset becomes whole if one part remains. A shard may be built twice: both builds have the same bytes, and one of
their receipts counts.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dataprep.build.job import BuildJob, Engine
from dataprep.build.open_build import open_build
from dataprep.build.receipts import POLL_S, ReceiptWatch
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import UsageError
from dataprep.host.heartbeat import beat
from dataprep.storage import Storage

MIN_PATIENCE_S = 2.0
PATIENCE_SHARDS = 4
"""A part is silent when it finishes no shard while this part could have built so many in one process."""
AUTO = "auto"

_Build = Callable[[BuildJob, Iterable[int]], Iterator[ShardReceipt]]
"""Function that builds the shards of some indexes and yields their receipts."""


@dataclass(frozen=True, slots=True)
class Part:
    """Part `number`, from 1, of `count` parts."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"part {self.number} of {self.count}"

    def owner(self, index: int) -> int:
        """Return the number of the part to which a shard belongs."""
        return index % self.count + 1


@dataclass(frozen=True, slots=True)
class _Scheduler:
    """Variables in which a scheduler tells a task its place among others."""

    index: str
    first: str | None = None
    """Variable with the index of the first task, which is 0 otherwise."""
    step: str | None = None
    count: str | None = None


_SCHEDULERS = (
    _Scheduler("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP", count="SLURM_ARRAY_TASK_COUNT"),
    _Scheduler("BATCH_TASK_INDEX", count="BATCH_TASK_COUNT"),
    _Scheduler("JOB_COMPLETION_INDEX"),
    _Scheduler("DATAPREP_WORKER", count="DATAPREP_WORKERS"),
)
"""Slurm's job arrays, Google Batch, Indexed Jobs of Kubernetes, which do not tell their number, and `dataprep tpu run`.
"""


def part_of(text: str, environment: Mapping[str, str]) -> Part:
    """Return the part that a user names, as `2/8`, or leaves to the variables of a scheduler, as `auto` or `auto/8`.

    Raises:
        UsageError: The text names no part, or no scheduler's variables are there.
    """
    named = re.fullmatch(r"(\d{1,6}|auto)(?:/(\d{1,6}))?", text)
    if named is None or (named[1] != AUTO and named[2] is None):
        raise UsageError(f"--part {text}: expected K/N such as 2/8, or auto or auto/N in a task of a job array")
    if named[1] == AUTO:
        return _scheduled(text, named[2], environment)
    return _checked(text, int(named[1]), int(named[2]))


def _scheduled(text: str, count: str | None, environment: Mapping[str, str]) -> Part:
    for scheduler in _SCHEDULERS:
        if scheduler.index in environment:
            break
    else:
        names = ", ".join(scheduler.index for scheduler in _SCHEDULERS)
        raise UsageError(f"--part {text}: none of {names} is set; say --part K/N")

    def value(name: str | None, otherwise: int) -> int:
        found = environment.get(name, "") if name is not None else ""
        return int(found) if re.fullmatch(r"\d{1,9}", found) else otherwise

    total = int(count) if count is not None else value(scheduler.count, 0)
    if total == 0:
        raise UsageError(f"--part {text}: {scheduler.index} does not tell the number of parts; say --part auto/N")
    place, rest = divmod(value(scheduler.index, 0) - value(scheduler.first, 0), max(1, value(scheduler.step, 1)))
    if rest or not 0 <= place < total:
        raise UsageError(
            f"--part {text}: {scheduler.index}={environment[scheduler.index]} is none of {total} tasks in equal steps; "
            "say --part K/N"
        )
    return _checked(text, place + 1, total)


def _checked(text: str, number: int, count: int) -> Part:
    if not 1 <= number <= count:
        raise UsageError(f"--part {text}: expected K from 1 to N, such as 1/8 to 8/8")
    return Part(number, count)


@dataclass(slots=True)
class Helper:
    """Decides which shards of others a part builds when its own are done. Times are seconds of any clock.

    Two rules, so that little is built twice. All shards of a part that has been silent for `patience_s` may be taken.
    Of any other part only those are taken that it will begin last: all but its next `2 * workers`.
    """

    part: Part
    workers: int
    patience_s: float
    _seen: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Number of missing shards of each part, and when it last changed."""
    _silent: set[int] = field(default_factory=set)
    """Parts of which every shard may be taken."""

    def shards_to_take(self, missing: Iterable[int], now_s: float) -> list[int]:
        """Return at most `workers` shards to build next; none while the other parts are at work on all that are left.

        Args:
            missing: Indexes of the shards without a receipt.
            now_s: The time.
        """
        left: dict[int, list[int]] = defaultdict(list)
        for index in sorted(missing):
            left[self.part.owner(index)].append(index)
        free: list[int] = []
        for owner, indexes in left.items():
            count, since_s = self._seen.get(owner, (-1, now_s))
            if count != len(indexes):
                since_s = now_s
            self._seen[owner] = len(indexes), since_s
            if owner == self.part.number or now_s - since_s >= self.patience_s:
                self._silent.add(owner)  # for good: what others build of its shards does not bring it back
            free += indexes if owner in self._silent else indexes[2 * self.workers :]
        return self._share(sorted(free))

    def _share(self, free: list[int]) -> list[int]:
        """Return what this part takes of shards that all parts may take: each begins at a place of its own."""
        first = (self.part.number - 1) * len(free) // self.part.count
        most = -(-len(free) // self.part.count)
        return (free[first:] + free[:first])[: min(self.workers, most)]


def patience_s(shard_s: float) -> float:
    """Return the seconds after which a part is silent, where one process takes `shard_s` seconds for a shard."""
    return max(MIN_PATIENCE_S, PATIENCE_SHARDS * shard_s)


def part_engine(part: Part, workers: int, build: _Build, log: Callable[[str], object]) -> Engine:
    """Make an engine for dataprep.build.driver, which yields the receipts of the shards that this part has built.

    Args:
        part: The part.
        workers: Number of shards that `build` has in flight.
        build: Builds the shards of some indexes; it is called several times.
        log: Receives lines for the user.
    """

    def engine(job: BuildJob, indexes: list[int]) -> Iterator[ShardReceipt]:
        own = [index for index in indexes if part.owner(index) == part.number]
        log(f"{part}: {len(own)} of {len(indexes)} shards that are missing")
        started_s = time.monotonic()
        yield from build(job, own)
        shard_s = workers * (time.monotonic() - started_s) / max(1, len(own))
        helper = Helper(part, workers, patience_s(shard_s))
        yield from _help(helper, job, set(indexes), build, log)

    return engine


def _help(
    helper: Helper, job: BuildJob, indexes: set[int], build: _Build, log: Callable[[str], object]
) -> Iterator[ShardReceipt]:
    """Build what others have left, until no shard is missing; then wait a while for another part's manifest."""
    opened = open_build(job.output_url, job.root)
    receipts = ReceiptWatch(opened.storage, opened.root, indexes)
    built_last = True
    while True:
        beat()
        receipts.look()
        missing = receipts.missing
        if opened.storage.stat(MANIFEST) is not None:
            return  # and the receipts may be gone
        opened.check()
        if not missing:
            break
        taken = helper.shards_to_take(missing, time.monotonic())
        if taken:
            log(f"{helper.part}: building {len(taken)} of {len(missing)} shards that other parts have left")
            yield from build(job, taken)
        else:
            time.sleep(receipts.wait_s)
        built_last = bool(taken)
    if not built_last:
        _await_manifest(opened.storage, helper.patience_s)


def _await_manifest(storage: Storage, wait_s: float) -> None:
    """Leave the manifest to the part that built the last shard, unless that one does not write it."""
    until_s = time.monotonic() + wait_s
    while time.monotonic() < until_s and storage.stat(MANIFEST) is None:
        beat()
        time.sleep(POLL_S)
