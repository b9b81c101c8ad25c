"""Parts of a build on a simulated clock, with the decisions of `pipelines.local`: who builds what, and how often."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dataprep.builder.receipts import LISTING_SHARE, POLL_S
from pipelines.engines import Part
from pipelines.local import Helper, patience_s

PAGE_RECEIPTS = 1000
"""Receipts of one answer when a bucket is listed."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What happens to the parts, by their number from 1."""

    killed_s: Mapping[int, float] = field(default_factory=dict)
    """When a part is killed for good."""
    started_s: Mapping[int, float] = field(default_factory=dict)
    """When a part starts; 0 otherwise."""
    slowness: Mapping[int, float] = field(default_factory=dict)
    """Factor of a part's times; 1 otherwise."""
    others: int = 0
    """Number of parts of a second group at the same output, which start at once and are not killed."""
    page_s: float = 0.0
    """Time that a page of receipts takes to be listed."""


@dataclass
class Simulated:
    """What came of it."""

    missing: set[int]
    """Shards without a receipt."""
    makespan_s: float = 0.0
    begun: Counter[int] = field(default_factory=Counter)
    """How often each shard was begun."""


def simulate(shard_s: Sequence[float], parts: int, workers: int, conditions: Conditions | None = None) -> Simulated:
    """Run `parts` parts until every shard is built or no part is left.

    Args:
        shard_s: Seconds that each shard takes.
        parts: Number of parts.
        workers: Processes of each part.
        conditions: What happens to the parts.
    """
    given = conditions or Conditions()
    result, order = Simulated(set(range(len(shard_s)))), itertools.count()

    def part(number: int, count: int) -> _Part:
        return _Part(Part(number, count), workers, shard_s, given)

    events = [(given.started_s.get(number, 0.0), next(order), part(number, parts)) for number in range(1, parts + 1)]
    group = {part for _, _, part in events}
    events += [(0.0, next(order), part(number, given.others)) for number in range(1, given.others + 1)]
    heapq.heapify(events)
    while events and result.missing:
        now_s, _, each = heapq.heappop(events)
        if each in group and now_s >= given.killed_s.get(each.part.number, float("inf")):
            continue
        result.makespan_s = now_s
        heapq.heappush(events, (each.step(now_s, result), next(order), each))
    return result


class _Part:
    """One part: its workers take its own shards as they are free, and shards of others together."""

    def __init__(self, part: Part, workers: int, shard_s: Sequence[float], given: Conditions) -> None:
        self.part, self._workers, self._shard_s = part, workers, shard_s
        self._slowness, self._page_s = given.slowness.get(part.number, 1.0), given.page_s
        self._own = iter(part.ordered(range(part.number - 1, len(shard_s), part.count)))
        self._running: list[tuple[float, int]] = []
        self._helper: Helper | None = None
        self._built, self._building_s, self._begun_s = 0, 0.0, -1.0

    def step(self, now_s: float, result: Simulated) -> float:
        """Finish and begin what is due, and return when to look again."""
        self._begun_s = now_s if self._begun_s < 0 else self._begun_s
        ended = {index for end_s, index in self._running if end_s <= now_s}
        self._built += len(ended)
        result.missing -= ended
        self._running = [each for each in self._running if each[0] > now_s]
        while self._helper is None and len(self._running) < self._workers:
            index = next(self._own, None)
            if index is None:
                break
            self._begin(index, now_s, result)
        if self._running:
            return min(self._running)[0]
        return self._help(now_s, result)

    def _help(self, now_s: float, result: Simulated) -> float:
        """Begin shards of others, and return when to look again."""
        self._building_s += now_s - self._begun_s
        patient_s = patience_s(self._workers * self._building_s / max(1, self._built))
        if self._helper is None:
            self._helper = Helper(self.part, self._workers, patient_s)
        looked_s = now_s + self._look_s(result)
        self._helper.patience_s, self._begun_s = patient_s, looked_s
        for index in self._helper.shards_to_take(result.missing, looked_s):
            self._begin(index, looked_s, result)
        if self._running:
            return min(self._running)[0]
        self._begun_s = looked_s + max(POLL_S, (looked_s - now_s) / LISTING_SHARE)
        return self._begun_s

    def _look_s(self, result: Simulated) -> float:
        """Return the time that it takes to list the receipts from the lowest missing one on."""
        listed = len(self._shard_s) - min(result.missing, default=0)
        return self._page_s * -(-listed // PAGE_RECEIPTS) if self._page_s else 0.0

    def _begin(self, index: int, now_s: float, result: Simulated) -> None:
        if index in result.missing:
            result.begun[index] += 1
            self._running.append((now_s + self._slowness * self._shard_s[index], index))
