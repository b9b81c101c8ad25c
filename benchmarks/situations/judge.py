"""Finds the best single change of a situation by trying each, and compares with what `dataprep diagnose` named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.situations.situation import NONE, Change, Situation, change_of
from benchmarks.situations.training_loop import Measured

MIN_GAIN = 1.05
"""A change that brings less is none."""
TIE = 0.96
"""Of the best rate: a change that reaches it is as good."""
FIRST_LOOK = 0.5
"""Of the seconds: for each change once; the best two and the situation itself are measured again, for all of them."""
AGAIN = 2
MAX_DRIFT = 0.10
"""Of the situation itself between its two measurements; beyond it the machine did something else meanwhile."""
TRIES = 3

RIGHT, TIED, WRONG = "right", "tie", "wrong"
Rate = Callable[[Situation, float], Measured]


@dataclass(frozen=True, slots=True)
class Truth:
    """What was measured, images/s."""

    base: float
    """As it is."""
    changes: tuple[tuple[Change, float], ...]
    drift: float = 0.0
    """By which the situation itself changed from before to after its changes were tried, relative."""

    @property
    def best(self) -> str:
        """The change that brings most, or `none`."""
        change, rate = max(self.changes, key=lambda found: found[1])
        return change.name if rate >= MIN_GAIN * self.base else NONE

    def verdict(self, named: str) -> str:
        """`right`, `tie` (as good as the best, within what is measured) or `wrong`."""
        if named == self.best:
            return RIGHT
        enough = max(TIE * max(rate for _, rate in self.changes), MIN_GAIN * self.base)
        is_tied = any(change.name == named and rate >= enough for change, rate in self.changes)
        return TIED if is_tied and self.best != NONE else WRONG


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A prediction, and what came of it, images/s."""

    predicted: float
    """What the diagnosis shows: of a change that it tried, the rate of that trial."""
    from_stages: float
    """What the stages alone had promised."""
    measured: float

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return abs(self.predicted - self.measured) / self.measured

    @property
    def error_from_stages(self) -> float:
        """Likewise."""
        return abs(self.from_stages - self.measured) / self.measured


def find_truth(
    situation: Situation, changes: Sequence[Change], rate: Rate, seconds: float, *, tries: int = TRIES
) -> Truth:
    """Try each change alone; where the machine was not steady meanwhile, again.

    Args:
        rate: Trains in a situation for so many seconds.
        tries: 1 or more.
    """
    for _ in range(tries):
        truth = _tried(situation, changes, rate, seconds)
        if truth.drift <= MAX_DRIFT:
            break
    return truth


def _tried(situation: Situation, changes: Sequence[Change], rate: Rate, seconds: float) -> Truth:
    before = rate(situation, FIRST_LOOK * seconds)
    found = [rate(change.applied(situation), FIRST_LOOK * seconds) for change in changes]
    leading = sorted(range(len(found)), key=lambda index: -found[index].images_per_s)[:AGAIN]
    for index in leading:
        found[index] += rate(changes[index].applied(situation), seconds)
    after = rate(situation, seconds)
    drift = abs(after.images_per_s / before.images_per_s - 1)
    rates = tuple(each.images_per_s for each in found)
    return Truth((before + after).images_per_s, tuple(zip(changes, rates, strict=True)), drift)


def named_by(diagnosis: Mapping[str, Any]) -> str:
    """The change that a diagnosis names; `none` also where it expects less of it than counts as a change."""
    fixes = diagnosis["fixes"]
    return fixes[0]["name"] if fixes and fixes[0]["gain"] >= MIN_GAIN else NONE


def what_if(situation: Situation, diagnosis: Mapping[str, Any], truth: Truth, rate: Rate, seconds: float) -> WhatIf:
    """Do what the diagnosis names, with the settings that it names; of `none`, its rate of things as they are."""
    if named_by(diagnosis) == NONE:
        return WhatIf(diagnosis["observed_images_per_s"], diagnosis["predicted_images_per_s"], truth.base)
    fix = diagnosis["fixes"][0]
    changed = change_of(fix).applied(situation)
    measured = rate(changed, seconds) + rate(changed, seconds)  # one of them may have met a slow moment of the machine
    return WhatIf(fix["images_per_s"], fix["predicted_images_per_s"], measured.images_per_s)
