"""What a stopped and resumed epoch delivered: which samples came twice, and which never. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

Log = Sequence[Sequence[str]]
"""Keys of the samples of each step of one rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Life:
    """What all ranks of one life of a training took."""

    logs: Sequence[Log]
    steps: int | None
    """Steps that the stored state has; what came after it is lost. None: nothing is lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Numbers of samples of one epoch."""

    samples: int
    repeated: int
    """Samples that came more than once."""
    skipped: int
    """Samples that never came."""

    @property
    def exact(self) -> bool:
        """Whether every sample came exactly once."""
        return self.repeated == self.skipped == 0


def judge(epoch: Collection[str], lives: Iterable[Life]) -> Verdict:
    """Count the samples of an epoch that came twice and never.

    Raises:
        ValueError: A rank has no log of a step that the state counts, or a sample is none of the epoch.
    """
    times: Counter[str] = Counter()
    for life in lives:
        for rank, log in enumerate(life.logs):
            if life.steps is not None and len(log) < life.steps:
                raise ValueError(f"rank {rank} logged {len(log)} steps, expected {life.steps} or more")
            times.update(key for step in log[: life.steps] for key in step)
    known = set(epoch)
    if foreign := sorted(times.keys() - known):
        raise ValueError(f"{foreign[0]} is no sample of the epoch")
    return Verdict(
        samples=len(known), repeated=sum(count > 1 for count in times.values()), skipped=len(known - times.keys())
    )
