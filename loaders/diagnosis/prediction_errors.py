"""Choice of the changes to try: every change that may be the best one, given how wrong predictions have been.

The rate of a change that was not tried lies between two bounds: its prediction times the smallest and the largest ratio
of measured to predicted rate of such changes. A change is left out if its upper bound is below another's lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from loaders.diagnosis.findings import Fix, Limit


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorRange:
    """Smallest and largest expected ratio of a measured rate to the predicted one."""

    least: float
    most: float


USUAL = ErrorRange(least=0.9, most=4 / 3)
"""Range for most changes: in a hundred planted situations (benchmarks/README.md), 74 predictions from the stages alone
were within 10 %, and some were a quarter too low."""
LARGER: dict[tuple[str, Limit], ErrorRange] = {
    # In twelve situations of another seed, 1,232 images/s were measured for 454 predicted, and 1,191 for 615.
    ("cache", "fetch"): ErrorRange(least=0.9, most=2.75),
}
"""Ranges of predictions that were further off than usual, by change and by the limit of the run as it is."""


def error_range(name: str, limit: Limit) -> ErrorRange:
    """Return how wrong predictions of a change have been in runs with this limit."""
    return LARGER.get((name, limit), USUAL)


def highest_rate(fix: Fix, limit: Limit) -> float:
    """Return the images/s that a change reaches at most; for a tried one, the measured rate."""
    return fix.images_per_s if fix.is_tried else fix.images_per_s * error_range(fix.name, limit).most


def lowest_rate(fix: Fix, limit: Limit) -> float:
    """Return the images/s that a change reaches at least; for a tried one, the measured rate."""
    return fix.images_per_s if fix.is_tried else fix.images_per_s * error_range(fix.name, limit).least


def may_gain(fix: Fix, limit: Limit, min_gain: float) -> bool:
    """Whether a change is predicted to gain enough, or may do so for all that is known of its prediction's error."""
    most = LARGER[fix.name, limit].most if (fix.name, limit) in LARGER else 1.0
    return fix.gain * most >= min_gain


def next_to_try(fixes: Sequence[Fix], limit: Limit, untriable: Set[str] = frozenset()) -> Fix | None:
    """Return the untried change with the highest possible rate, or None if no untried change can be the best one.

    Args:
        fixes: All changes, tried or not.
        limit: Limit of the run as it is.
        untriable: Names of changes that cannot be tried here and keep their predictions.
    """
    certain = max((lowest_rate(fix, limit) for fix in fixes), default=0.0)
    untried = [fix for fix in fixes if not fix.is_tried and fix.name not in untriable]
    leading = max(untried, key=lambda fix: highest_rate(fix, limit), default=None)
    return leading if leading is not None and highest_rate(leading, limit) >= certain else None
