"""The leading changes, tried: arithmetic on stages finds them, a short run with them says what they bring here.

A change of settings is tried on the data themselves, smaller images on the sample that was made of a local dataset.
What would need another bucket, or a cache that is full, keeps its prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from loaders.findings import Fix
from loaders.fixes import MIN_GAIN, ranked
from loaders.stages import Stages
from loaders.trial import Setup

MOST_TRIED = 3
"""Each takes as long as the run itself was watched; the fourth is rarely the best."""
DISTURBED = 0.8
"""Of the prediction: a run that makes less is tried once more, something else may have been at work."""


def try_leading(stages: Stages, fixes: Sequence[Fix], observed: float) -> list[Fix]:
    """Try whichever change is the best, until the best one was tried; those that bring nothing are left out.

    Args:
        stages: To run with.
        fixes: With what the stages predict of them.
        observed: Images/s of the run as it is.

    Returns:
        The best first.
    """

    def rate_of(fix: Fix) -> float | None:
        setup = _trial_of(stages, fix)
        if setup is None:
            return None
        try:
            rate = stages.tried(setup)
            if rate < DISTURBED * fix.predicted_images_per_s:
                rate = max(rate, stages.tried(setup))
        except (MemoryError, RuntimeError):
            return 0.0  # e.g. a batch that does not fit
        return rate

    return _try_leading(fixes, observed, rate_of)


def _try_leading(fixes: Sequence[Fix], observed: float, rate_of: Callable[[Fix], float | None]) -> list[Fix]:
    found = list(fixes)
    for _ in range(MOST_TRIED):
        best = next(iter(ranked(found)), None)
        rate = rate_of(best) if best is not None and not best.is_tried else None
        if best is None or rate is None:
            break
        found.remove(best)
        tried = replace(best, images_per_s=rate, gain=rate / observed, is_tried=True)
        if tried.gain >= MIN_GAIN:
            found.append(tried)
    return ranked(found)


def _trial_of(stages: Stages, fix: Fix) -> Setup | None:
    """A run that shows what a change brings; None where nothing here does."""
    if fix.name == "cache" or fix.needs == "copy":
        return None
    if fix.needs == "restart":
        return stages.setup.changed(fix.settings)
    if not stages.is_local:
        return None
    sample, _ = stages.shrunk(fix.settings["short_side"])
    return replace(stages.setup, url=sample, split="train", config=replace(stages.setup.config, fields=()))
