"""The engine of the runner `local`: a pool of processes of this machine, for all shards or for one part of them.

A part needs no scheduler:

    own shards (every N-th) -> shards that other parts have left -> until every shard has a receipt

The parts run anywhere, in any number and at any time. They know of each other only by the receipts in the output, so
the dataset becomes complete if one part remains. A shard may be built twice: both builds have the same bytes, and one
of their receipts counts.

A part's order of its shards depends on N. So parts of another N, begun next to these, rarely take a shard
that is just being built, and they leave out what is finished.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from dataprep.builder.pool import Pool
from dataprep.builder.receipts import POLL_S, ReceiptWatch
from dataprep.builder.recipe import BuildJob, Engine, begin_shard, recipe_named
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import UsageError
from dataprep.host.heartbeat import beat
from dataprep.storage import open_storage
from pipelines.engines import EngineChoice, EngineWork, Part

MIN_PATIENCE_S = 2.0
PATIENCE_SHARDS = 4
"""A part counts as silent if it finishes no shard in the time that one process here takes for this many."""
_BUCKET_MODULES = ("google.cloud.storage", "obstore.store")

_Build = Callable[[BuildJob, Iterable[int], Callable[[int], bool]], Iterator[ShardReceipt]]
"""Function that builds the shards of some indexes, in their order, and yields their receipts. Before each shard it asks
whether the shard is still missing."""


def check(choice: EngineChoice) -> None:
    """Refuse options of other engines. Raises UsageError."""
    if choice.options:
        raise UsageError(
            f"got options {' '.join(choice.options)} for another engine than `runner` {choice.runner}, which has none; "
            "name that engine with `runner`"
        )
    if choice.detach:
        raise UsageError(f"`detach` with `runner` {choice.runner}: its workers end with this command; leave one out")


def shards_at_once(choice: EngineChoice, _urls: tuple[str, ...]) -> int:
    """Return the number of shards built at the same time in all parts, assuming that every part runs as many processes
    as this one."""
    return choice.workers * (1 if choice.part is None else choice.part.count)


@contextmanager
def open_engine(choice: EngineChoice, work: EngineWork) -> Iterator[Engine]:
    """Open a pool; its modules are imported while the originals are listed and planned."""
    on_disk = open_storage(work.source_url).is_local and open_storage(work.output_url).is_local
    preload = work.worker_modules if on_disk else (*work.worker_modules, *_BUCKET_MODULES)
    with Pool(choice.workers, work.warn, preload=preload, stall_s=work.stall_s) as pool:

        def build(
            job: BuildJob, indexes: Iterable[int], is_left: Callable[[int], bool] = lambda _: True
        ) -> Iterator[ShardReceipt]:
            return pool.run(partial(begin_shard, job), indexes, is_left)

        if (part := choice.part) is None:
            yield build
        else:
            yield lambda job, indexes: _PartOfBuild(part, choice.workers, build, work.log, job, indexes).receipts()


@dataclass(slots=True)
class Helper:
    """Decides which shards of other parts a part builds when its own are done. Times are seconds of any clock.

    Two rules, so that little is built twice. All shards of a part that has been silent for `patience_s` may be taken.
    From any other part only the shards that it begins last are taken: all except its next `2 * workers`.
    """

    part: Part
    workers: int
    patience_s: float
    _seen: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Number of missing shards of each part, and when it last changed."""
    _silent: set[int] = field(default_factory=set)
    """Parts whose shards may all be taken."""

    def shards_to_take(self, missing: Iterable[int], now_s: float) -> list[int]:
        """Return at most `workers` missing shards to build next; none while the other parts work on all of them."""
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
        """Return this part's share of the shards that all parts may take: each part begins at its own place."""
        first = (self.part.number - 1) * len(free) // self.part.count
        most = -(-len(free) // self.part.count)
        return (free[first:] + free[:first])[: min(self.workers, most)]


def patience_s(shard_s: float) -> float:
    """Return the seconds after which a part is silent, if one process takes `shard_s` seconds for a shard."""
    return max(MIN_PATIENCE_S, PATIENCE_SHARDS * shard_s)


class _PartOfBuild:
    """A part at work: its own shards, then those that other parts have left, as the receipts show.

    `build` has `workers` shards in flight, and is called several times.
    """

    def __init__(
        self, part: Part, workers: int, build: _Build, log: Callable[[str], object], job: BuildJob, indexes: list[int]
    ) -> None:
        self._part, self._workers, self._log, self._indexes = part, workers, log, indexes
        self._build = partial(build, job)
        self._is_over = partial(recipe_named(job.recipe).is_over, job)
        self._watch = ReceiptWatch(open_storage(job.output_url), job.root, indexes)
        self._built, self._building_s = 0, 0.0
        self._is_whole = False
        """Whether the result is published; the receipts may be gone then."""

    def receipts(self) -> Iterator[ShardReceipt]:
        """Build until no shard is missing; then wait a while for another part's manifest."""
        own = self._part.ordered(index for index in self._indexes if self._part.owner(index) == self._part.number)
        self._log(f"{self._part}: {len(own)} of {len(self._indexes)} shards that are missing")
        yield from self._build_shards(own)
        helper, built_last = Helper(self._part, self._workers, self._patience_s()), True
        while self._shards_are_missing():
            helper.patience_s, missing = self._patience_s(), self._watch.missing
            taken = helper.shards_to_take(missing, time.monotonic())
            if taken:
                self._log(f"{self._part}: building {len(taken)} of {len(missing)} shards that other parts have left")
                yield from self._build_shards(taken)
            else:
                time.sleep(self._watch.wait_s)
            built_last = bool(taken)
        if not built_last:
            self._await_result()

    def _build_shards(self, indexes: list[int]) -> Iterator[ShardReceipt]:
        """Build shards, except those that others finish before they are begun."""
        started_s = time.monotonic()
        for receipt in self._build(indexes, self._is_left):
            self._built += 1
            yield receipt
        self._building_s += time.monotonic() - started_s

    def _is_left(self, index: int) -> bool:
        if not self._watch.wait_s:
            self._look()
        return not self._is_whole and index in self._watch.missing

    def _shards_are_missing(self) -> bool:
        beat()
        self._look()
        return not self._is_whole and bool(self._watch.missing)

    def _look(self) -> None:
        """Look for receipts and the result. Raises OvertakenError if another build owns the output."""
        self._watch.look()
        self._is_whole = self._is_over()

    def _patience_s(self) -> float:
        return patience_s(self._workers * self._building_s / max(1, self._built))

    def _await_result(self) -> None:
        """Leave the manifest to the part that built the last shard, unless that part does not write it."""
        until_s = time.monotonic() + self._patience_s()
        while time.monotonic() < until_s and not self._is_over():
            beat()
            time.sleep(POLL_S)
