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
"""Share of the best rate from which on a change is as good as the best."""
FIRST_LOOK = 0.5
"""Share of the seconds for the first look at each change; the best two and the situation itself then get them all."""
AGAIN = 2
MAX_DRIFT = 0.10
"""Largest relative difference between two measurements of a situation; beyond it the machine was not steady."""
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
    drift: float = 0.0
    """Relative difference between two measurements of the same thing; see MAX_DRIFT."""

    @property
    def error(self) -> float:
        """Relative error of the predicted rate."""
        return abs(self.predicted - self.measured) / self.measured

    @property
    def error_from_stages(self) -> float:
        """Relative error of the rate that was predicted from the stages."""
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
    rates = tuple(each.images_per_s for each in found)
    return Truth((before + after).images_per_s, tuple(zip(changes, rates, strict=True)), _drift(before, after))


def named_by(diagnosis: Mapping[str, Any]) -> str:
    """The change that a diagnosis names; `none` also where it expects less of it than counts as a change."""
    fixes = diagnosis["fixes"]
    return fixes[0]["name"] if fixes and fixes[0]["gain"] >= MIN_GAIN else NONE


def do_what_is_named(
    situation: Situation,
    diagnose: Callable[[Situation], Mapping[str, Any]],
    rate: Rate,
    seconds: float,
    *,
    tries: int = TRIES,
) -> tuple[Mapping[str, Any], WhatIf]:
    """Diagnose, then do what the diagnosis names, with the settings that it names; of `none`, leave things as they are.

    All of it is done again where the machine was not steady meanwhile, which is told without the diagnosis: by the
    situation itself before and after, and by the change itself, done twice.

    Args:
        diagnose: What `dataprep diagnose --json` says of a situation.
        rate: Trains in a situation for so many seconds.
        tries: 1 or more.
    """
    for _ in range(tries):
        before = rate(situation, seconds)
        diagnosis = diagnose(situation)
        named = _named_situation(situation, diagnosis)
        done = [rate(named, seconds) for _ in range(AGAIN)] if named else []
        after = rate(situation, seconds)
        drift = max(_drift(before, after), _drift(*done) if done else 0.0)
        if drift <= MAX_DRIFT:
            break
    if not done:
        rates = diagnosis["observed_images_per_s"], diagnosis["predicted_images_per_s"]
        return diagnosis, WhatIf(*rates, (before + after).images_per_s, drift)
    fix = diagnosis["fixes"][0]
    rates = fix["images_per_s"], fix["predicted_images_per_s"]
    return diagnosis, WhatIf(*rates, sum(done, Measured()).images_per_s, drift)


def _named_situation(situation: Situation, diagnosis: Mapping[str, Any]) -> Situation | None:
    """After the change that is named, if one is."""
    return None if named_by(diagnosis) == NONE else change_of(diagnosis["fixes"][0]).applied(situation)


def _drift(first: Measured, second: Measured) -> float:
    return abs(second.images_per_s / first.images_per_s - 1)
