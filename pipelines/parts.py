"""Builds one of several parts of a dataset: the engine of `dataprep build --part K/N`, which needs no scheduler.

    own shards (every N-th) -> shards that other parts have left -> until every shard has a receipt

The parts run anywhere, in any number and at any time. They know of each other only by the receipts in the output, so
the dataset becomes whole if one part remains. A shard may be built twice: both builds have the same bytes, and one of
their receipts counts.

The shards of a part are in an order that depends on N. So parts of another N, begun beside these, rarely take a shard
that is just being built, and what is finished they leave out.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from dataprep.builder.job import BuildJob, Engine
from dataprep.builder.output import OpenBuild, open_build
from dataprep.builder.receipts import POLL_S, ReceiptWatch
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import UsageError
from dataprep.host.heartbeat import beat

MIN_PATIENCE_S = 2.0
PATIENCE_SHARDS = 4
"""A part is silent when it finishes no shard while this part could have built so many in one process."""
AUTO = "auto"

_WORD = 2**64 - 1

_Build = Callable[[BuildJob, Iterable[int], Callable[[int], bool]], Iterator[ShardReceipt]]
"""Function that builds the shards of some indexes, in their order, and yields their receipts. Before it begins a shard
it asks whether that is still left."""


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

    def ordered(self, indexes: Iterable[int]) -> list[int]:
        """Return indexes in the order in which their part begins them: as if shuffled, another for each `count`."""
        return sorted(indexes, key=self._mixed)

    def _mixed(self, index: int) -> int:
        """Return a word of 64 bits that looks random: SplitMix64, Steele et al., OOPSLA 2014."""
        word = (self.count << 32) + index + 1 & _WORD
        word = word * 0x9E3779B97F4A7C15 & _WORD
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
        return word ^ word >> 31


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
        for index in self.part.ordered(missing):
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
    """Make an engine for dataprep.builder.driver, which yields the receipts of the shards that this part has built.

    Args:
        part: The part.
        workers: Number of shards that `build` has in flight.
        build: Builds the shards of some indexes; it is called several times.
        log: Receives lines for the user.
    """

    def engine(job: BuildJob, indexes: list[int]) -> Iterator[ShardReceipt]:
        own = part.ordered(index for index in indexes if part.owner(index) == part.number)
        log(f"{part}: {len(own)} of {len(indexes)} shards that are missing")
        work = _Work(open_build(job.output_url, job.root, job.pointer), indexes, partial(build, job), workers)
        yield from work.build(own)
        yield from _help(work, Helper(part, workers, work.patience_s), log)

    return engine


class _Work:
    """The shards of a build that are left, as its receipts show, and the time that this part takes for one.

    Args:
        opened: The build.
        indexes: Indexes of the shards that are missing.
        build: Builds shards; it is asked for some of them at a time.
        workers: Number of shards that `build` has in flight.
    """

    def __init__(
        self,
        opened: OpenBuild,
        indexes: Iterable[int],
        build: Callable[[Iterable[int], Callable[[int], bool]], Iterator[ShardReceipt]],
        workers: int,
    ) -> None:
        self._opened, self._build, self._workers = opened, build, workers
        self._receipts = ReceiptWatch(opened.storage, opened.root, indexes)
        self._built, self._building_s = 0, 0.0
        self.is_whole = False
        """Whether there is a manifest; the receipts may be gone then."""

    @property
    def missing(self) -> set[int]:
        """Indexes of the shards without a receipt, as of the last look."""
        return self._receipts.missing

    @property
    def wait_s(self) -> float:
        """Seconds until the next look is due."""
        return self._receipts.wait_s

    @property
    def patience_s(self) -> float:
        """Seconds after which another part is silent."""
        return patience_s(self._workers * self._building_s / max(1, self._built))

    def look(self) -> None:
        """Look for receipts and manifest. Raises OvertakenError if another build owns the output."""
        self._receipts.look()
        self.is_whole = self._opened.storage.stat(MANIFEST) is not None
        if not self.is_whole:
            self._opened.check()

    def build(self, indexes: list[int]) -> Iterator[ShardReceipt]:
        """Build shards, but for those that others finish before they are begun."""
        started_s = time.monotonic()
        for receipt in self._build(indexes, self._is_left):
            self._built += 1
            yield receipt
        self._building_s += time.monotonic() - started_s

    def await_manifest(self) -> None:
        """Leave the manifest to the part that built the last shard, unless that one does not write it."""
        until_s = time.monotonic() + self.patience_s
        while time.monotonic() < until_s and self._opened.storage.stat(MANIFEST) is None:
            beat()
            time.sleep(POLL_S)

    def _is_left(self, index: int) -> bool:
        if not self._receipts.wait_s:
            self.look()
        return not self.is_whole and index in self._receipts.missing


def _help(work: _Work, helper: Helper, log: Callable[[str], object]) -> Iterator[ShardReceipt]:
    """Build what others have left, until no shard is missing; then wait a while for another part's manifest."""
    built_last = True
    while True:
        beat()
        work.look()
        if work.is_whole:
            return
        if not work.missing:
            break
        helper.patience_s = work.patience_s
        taken = helper.shards_to_take(work.missing, time.monotonic())
        if taken:
            log(f"{helper.part}: building {len(taken)} of {len(work.missing)} shards that other parts have left")
            yield from work.build(taken)
        else:
            time.sleep(work.wait_s)
        built_last = bool(taken)
    if not built_last:
        work.await_manifest()
