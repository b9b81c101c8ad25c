"""Judge: finds the best single change of a situation by trying each, and compares `dataprep diagnose` with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.situations.situation import NONE, Change, Situation, change_of
from benchmarks.situations.training_loop import Measured

MIN_GAIN = 1.05
"""Smallest ratio of the rate with a change to the rate without it at which the change counts."""
TIE = 0.96
"""Share of the best rate at which a change counts as good as the best."""
FIRST_LOOK = 0.5
"""Share of the seconds for the first trial of each change; the best two and the unchanged situation then get all."""
AGAIN = 2
MAX_DRIFT = 0.10
"""Largest relative difference between two measurements of a situation; beyond it the machine was not steady."""
TRIES = 3

RIGHT, TIED, WRONG = "right", "tie", "wrong"
UNDECIDED = "undecided"
"""Verdict on a diagnosis that decides nothing and says why, where other programs use the cores and a change helps."""
Rate = Callable[[Situation, float], Measured]


@dataclass(frozen=True, slots=True)
class Truth:
    """Measured rates of a situation and of its changes, images/s."""

    base: float
    """Rate without a change."""
    changes: tuple[tuple[Change, float], ...]
    drift: float = 0.0
    """Relative difference of the unchanged situation's rates before and after the changes were tried."""

    @property
    def best(self) -> str:
        """Name of the change with the highest rate, or `none`."""
        change, rate = max(self.changes, key=lambda found: found[1])
        return change.name if rate >= MIN_GAIN * self.base else NONE

    def verdict(self, named: str) -> str:
        """Return `right`, `tie` (as good as the best within the error of measurement) or `wrong`."""
        if named == self.best:
            return RIGHT
        enough = max(TIE * max(rate for _, rate in self.changes), MIN_GAIN * self.base)
        is_tied = any(change.name == named and rate >= enough for change, rate in self.changes)
        return TIED if is_tied and self.best != NONE else WRONG


def verdict_on(situation: Situation, truth: Truth, diagnosis: Mapping[str, Any]) -> str:
    """Return the verdict on a diagnosis.

    If other programs use the cores of the run and the diagnosis says that it is undecided, the verdict is `undecided`
    instead of `wrong`. That counts as right, and is counted for itself as well.
    """
    verdict = truth.verdict(named_by(diagnosis))
    is_excused = situation.is_contended and bool(diagnosis.get("undecided"))
    return UNDECIDED if verdict == WRONG and is_excused else verdict


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A predicted rate and the measured one, images/s."""

    predicted: float
    """Rate that the diagnosis shows: for a change that it tried, the rate of the trial."""
    from_stages: float
    """Rate that was predicted from the stages alone."""
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
    """Try each change alone; repeat that if the machine was not steady meanwhile.

    Args:
        rate: Function that trains in a situation for a number of seconds.
        tries: Maximum number of tries, 1 or more.
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
    """Return the change that a diagnosis names; `none` also if it expects too small a gain to count as a change."""
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
    """Diagnose, then make the change that the diagnosis names with its settings; for `none` change nothing.

    All of it is repeated if the machine was not steady meanwhile. That is judged without the diagnosis: the unchanged
    situation is measured before and after, and the change twice.

    Args:
        diagnose: Function that returns what `dataprep diagnose --json` prints for a situation.
        rate: Function that trains in a situation for a number of seconds.
        tries: Maximum number of tries, 1 or more.
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
    """Return the situation after the named change; None if no change is named."""
    return None if named_by(diagnosis) == NONE else change_of(diagnosis["fixes"][0]).applied(situation)


def _drift(first: Measured, second: Measured) -> float:
    return abs(second.images_per_s / first.images_per_s - 1)
