"""Decides which shard is built next, which is tried again, which is set aside, and when none is begun any more.

Nothing here knows an engine or reads a clock: times are seconds of any clock that starts at 0 or later, nodes are
names. The local pool has one node, which is always alive. On a cluster a shard is not blamed for a worker that was lost
with its node.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import count

from dataprep.builder.failures import MAX_ATTEMPTS, MAX_DEATHS, Failure, backoff_s, shards_set_aside
from dataprep.errors import BuildError, DataprepError, FullError
from dataprep.host.heartbeat import minutes
from dataprep.messages import counted

MAX_LOSSES = 20
"""Number of workers that a shard may lose in all, most of them with their nodes, before it is set aside."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that was lost while it built a shard."""

    node: str
    how: str
    """What happened, such as `hung, without progress for 20 min, and was killed` or `died (…)`."""
    too_often: str
    """Reason for setting the shard aside, with a placeholder for the count: `killed its worker {} times, …`."""
    hung: bool = False


class Dispatch:
    """The shards of a build: waiting, in flight, done, or set aside with a reason.

    Args:
        indexes: Indexes of the shards to build, in the order in which they are begun.
        is_left: Asked before a shard is handed out; where it is False, the shard is left out.
    """

    def __init__(self, indexes: Iterable[int], is_left: Callable[[int], bool] = lambda index: True) -> None:
        self._numbers = count()
        self._waiting = [(0.0, next(self._numbers), index) for index in dict.fromkeys(indexes)]
        """Heap of (earliest time, running number, index)."""
        self._is_left = is_left
        self._in_flight: set[int] = set()
        self._attempts: Counter[int] = Counter()
        self._losses: defaultdict[int, list[str]] = defaultdict(list)
        """Nodes of the workers that each shard has lost."""
        self._hangs_in_a_row = 0
        self.set_aside: dict[int, str] = {}
        self._full: FullError | None = None
        """The first error of a full disk: from then on no shard is begun or tried again, but those in flight may still
        end well, since a shard that fails makes room."""

    @property
    def left(self) -> int:
        """Number of shards that are waiting or in flight."""
        return len(self._waiting) + len(self._in_flight)

    def next_shard(self, now_s: float) -> int | None:
        """Return the shard to hand out next; None if none may be tried yet, or none is left."""
        while self._waiting and self._waiting[0][0] <= now_s:
            index = heapq.heappop(self._waiting)[2]
            if self._is_left(index):
                self._in_flight.add(index)
                return index
        return None

    def delay_s(self, now_s: float) -> float | None:
        """Return the time until a shard may be handed out; None if none waits."""
        return max(0.0, self._waiting[0][0] - now_s) if self._waiting else None

    def done(self, index: int) -> None:
        """Record that a shard is built."""
        self._in_flight.discard(index)
        self._hangs_in_a_row = 0

    def give_back(self, indexes: Iterable[int], now_s: float) -> None:
        """Put shards in the queue again that lost their worker and are not to blame."""
        for index in indexes:
            self._again(index, now_s)

    def failed(self, index: int, failure: Failure, now_s: float) -> str:
        """Put a shard that failed in the queue again, and return a line for the user; empty if there is nothing to say.

        Raises:
            DataprepError: Another attempt would not help, or there were enough.
        """
        if isinstance(failure.error, FullError) or (self._full is not None and failure.may_pass):
            return self._failed_for_space(index, failure.error)
        self._attempts[index] += 1
        if not failure.may_pass or self._attempts[index] >= MAX_ATTEMPTS:
            raise failure.error
        delay_s = backoff_s(self._attempts[index])
        self._again(index, now_s + delay_s)
        return f"shard {index}: {failure.error}; trying again in {delay_s:g} s"

    def end(self) -> None:
        """Raise the error of a run of which no shard is left, if it has one: a full disk, or shards that were set
        aside."""
        if self._full is not None:
            raise self._full
        if self.set_aside:
            raise shards_set_aside(self.set_aside)

    def lost(self, index: int, loss: Loss, alive: Collection[str], now_s: float) -> str:
        """Put a shard whose worker was lost in the queue again or set it aside, and return a line for the user.

        Args:
            index: The shard that is to blame, if its worker was not lost with the node.
            loss: What happened.
            alive: Nodes that are alive, as far as is known.
            now_s: The time.
        """
        nodes = self._losses[index]
        nodes.append(loss.node)
        self._hangs_in_a_row += loss.hung
        deaths = sum(node in alive for node in nodes)
        if deaths >= MAX_DEATHS:
            reason = loss.too_often.format(deaths)
        elif len(nodes) >= MAX_LOSSES:
            reason = f"lost its worker {len(nodes)} times, most of them with their nodes"
        else:
            self._again(index, now_s)
            return f"shard {index}: its worker {loss.how}; trying again"
        self._in_flight.discard(index)
        self.set_aside[index] = reason
        return f"shard {index}: {reason}; set aside"

    def refuse_hangs(self, last: int, processes: int, stall_s: float) -> None:
        """Raise BuildError if so many workers hung in a row, with no shard done in between, that no shard is to blame.

        Args:
            last: The shard of the last of them.
            processes: Number of workers.
            stall_s: Time without progress after which a worker counts as hung.
        """
        if self._waiting and self._hangs_in_a_row >= MAX_DEATHS * max(1, processes):
            raise BuildError(
                f"{self._hangs_in_a_row} workers hung one after the other, each without progress for "
                f"{minutes(stall_s)} (--stall-minutes), the last with shard {last}; check whether the disk, network "
                "or bucket of the originals and of the output responds, and run the same command again"
            )

    def _again(self, index: int, at_s: float) -> None:
        self._in_flight.discard(index)
        if self._full is None:
            heapq.heappush(self._waiting, (at_s, next(self._numbers), index))

    def _failed_for_space(self, index: int, error: DataprepError) -> str:
        """Begin no shard any more, and return a line for the user the first time, if other shards are in flight."""
        self._in_flight.discard(index)
        if self._full is not None or not isinstance(error, FullError):
            return ""
        self._full = error
        self._waiting.clear()
        if not self._in_flight:
            return ""
        under_way = counted(len(self._in_flight), "shard")
        return f"no space is left: no other shard is begun; {under_way} under way may still be finished"
