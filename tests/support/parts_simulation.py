"""Parts of a build on a simulated clock, with the decisions of `pipelines.parts`: who builds what, and how often."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.parts import POLL_S, Helper, Part, patience_s


@dataclass
class Simulated:
    """What came of it."""

    makespan_s: float = 0.0
    begun: Counter[int] = field(default_factory=Counter)
    """How often each shard was begun."""
    finished: set[int] = field(default_factory=set)


def simulate(
    shard_s: Sequence[float],
    parts: int,
    workers: int,
    *,
    killed_s: Mapping[int, float] | None = None,
    started_s: Mapping[int, float] | None = None,
    others: int = 0,
) -> Simulated:
    """Run `parts` parts until every shard is built or no part is left.

    Args:
        shard_s: Seconds that each shard takes.
        parts: Number of parts.
        workers: Processes of each part.
        killed_s: When a part is killed for good, by its number.
        started_s: When a part starts, by its number; 0 otherwise.
        others: Number of parts of a second group at the same output, which start at once and are not killed.
    """
    killed, started = killed_s or {}, started_s or {}
    result, order = Simulated(), itertools.count()
    events = [
        (started.get(number, 0.0), next(order), _Part(Part(number, parts), workers, shard_s))
        for number in range(1, parts + 1)
    ]
    group = {part for _, _, part in events}
    events += [(0.0, next(order), _Part(Part(number, others), workers, shard_s)) for number in range(1, others + 1)]
    heapq.heapify(events)
    while events and len(result.finished) < len(shard_s):
        now_s, _, part = heapq.heappop(events)
        if part in group and now_s >= killed.get(part.part.number, float("inf")):
            continue
        result.makespan_s = now_s
        heapq.heappush(events, (part.step(now_s, result), next(order), part))
    return result


class _Part:
    """One part: its workers take its own shards as they are free, and shards of others together."""

    def __init__(self, part: Part, workers: int, shard_s: Sequence[float]) -> None:
        self.part, self._workers, self._shard_s = part, workers, shard_s
        self._own = part.ordered(index for index in range(len(shard_s)) if part.owner(index) == part.number)
        self._running: list[tuple[float, int]] = []
        self._helper: Helper | None = None
        self._built, self._building_s, self._begun_s = 0, 0.0, -1.0

    def step(self, now_s: float, result: Simulated) -> float:
        """Finish and begin what is due, and return when to look again."""
        self._begun_s = now_s if self._begun_s < 0 else self._begun_s
        ended = {index for end_s, index in self._running if end_s <= now_s}
        self._built += len(ended)
        result.finished |= ended
        self._running = [each for each in self._running if each[0] > now_s]
        while self._helper is None and self._own and len(self._running) < self._workers:
            self._begin(self._own.pop(0), now_s, result)
        if self._running:
            return min(self._running)[0]
        self._building_s += now_s - self._begun_s
        patient_s = patience_s(self._workers * self._building_s / max(1, self._built))
        if self._helper is None:
            self._helper = Helper(self.part, self._workers, patient_s)
        self._helper.patience_s, self._begun_s = patient_s, now_s
        missing = set(range(len(self._shard_s))) - result.finished
        for index in self._helper.shards_to_take(missing, now_s):
            self._begin(index, now_s, result)
        if self._running:
            return min(self._running)[0]
        self._begun_s = now_s + POLL_S
        return now_s + POLL_S

    def _begin(self, index: int, now_s: float, result: Simulated) -> None:
        if index not in result.finished:
            result.begun[index] += 1
            self._running.append((now_s + self._shard_s[index], index))
