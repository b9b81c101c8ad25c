"""The leading changes, tried: arithmetic on stages finds them, a short run with them says what they bring here.

A change of settings is tried on the data themselves, a cache and smaller images on a sample of them (`rehearsal.py`).
What would need another bucket keeps its prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from loaders.findings import Fix
from loaders.fixes import MIN_GAIN, ranked
from loaders.stages import Stages

MOST_TRIED = 3
"""Each takes as long as the run itself was watched; the fourth is rarely the best."""
WORTH_TRYING = 0.75
"""Of the best rate: what is predicted to bring as much may bring more, for some predictions are a quarter too low."""
DISTURBED = 0.8
"""Of the prediction: a run that makes less is tried once more, something else may have been at work."""


def try_leading(stages: Stages, fixes: Sequence[Fix], observed: float) -> list[Fix]:
    """Try whichever change is the best, and what comes near it; those that bring nothing are left out.

    Args:
        stages: To run with.
        fixes: With what the stages predict of them.
        observed: Images/s of the run as it is.

    Returns:
        The best first.
    """

    def rate_of(fix: Fix) -> float | None:
        try:
            rate = _tried(stages, fix)
            if rate is not None and rate < DISTURBED * fix.predicted_images_per_s:
                rate = max(rate, _tried(stages, fix) or 0.0)
        except (MemoryError, RuntimeError):
            return 0.0  # e.g. a batch that does not fit
        return rate

    return _try_leading(fixes, observed, rate_of)


def _try_leading(fixes: Sequence[Fix], observed: float, rate_of: Callable[[Fix], float | None]) -> list[Fix]:
    found, tried, untriable = list(fixes), 0, set[str]()
    while tried < MOST_TRIED and (leading := _leading(ranked(found), untriable)) is not None:
        rate = rate_of(leading)
        if rate is None:
            untriable.add(leading.name)
            continue
        tried += 1
        rest = [fix for fix in found if fix is not leading]
        known = replace(leading, images_per_s=rate, gain=rate / observed, is_tried=True)
        found = [*rest, known] if known.gain >= MIN_GAIN else rest
    return ranked(found)


def _leading(found: Sequence[Fix], untriable: Set[str]) -> Fix | None:
    """What to try next: the best of what was not tried; None where nothing near the best one is left."""
    near = (fix for fix in found if fix.images_per_s >= WORTH_TRYING * found[0].images_per_s)
    return next((fix for fix in near if not fix.is_tried and fix.name not in untriable), None)


def _tried(stages: Stages, fix: Fix) -> float | None:
    """Images/s of a run that shows what a change brings; None where nothing here does."""
    if fix.name == "cache":
        return stages.tried_cached()
    if fix.needs == "restart":
        return stages.tried(stages.setup.changed(fix.settings))
    if fix.needs == "rebuild":
        return stages.tried_smaller(fix.settings["short_side"])
    return None
