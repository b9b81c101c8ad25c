"""Trials of the leading changes: arithmetic on the stages selects them, a short run with each measures its gain.

A change of settings is tried on the data themselves, a cache and smaller images on a sample of them (`rehearsal.py`).
A change that needs another bucket keeps its prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dataprep.errors import UnansweredError
from loaders.diagnosis.findings import MIN_GAIN, Bound, Fix, Limit
from loaders.diagnosis.fixes import ranked
from loaders.diagnosis.prediction_errors import next_to_try
from loaders.diagnosis.slow_link import wait_for_reads_left_behind
from loaders.diagnosis.stages import Stages

MOST_TRIED = 5
"""Maximum number of changes that are tried.

Each takes as long as the run itself was watched, and twice that if it is repeated. For data behind a link four changes
can be tried; the first or second is usually so fast that no other can be faster.
"""
SMALL_GAIN = 1.2
"""Gain of the best change below which the run as it is is watched once more: two runs of one setting may differ by
5 %."""
DISTURBED = 0.8
"""Share of the prediction below which a trial is repeated, because another program may have disturbed it."""


def try_leading(stages: Stages, fixes: Sequence[Fix], observed: float, limit: Limit) -> list[Fix]:
    """Try the changes that may be the best one (`prediction_errors.py`), and leave out those that gain nothing.

    Args:
        stages: Stages of the run.
        fixes: Changes with their predictions.
        observed: Images/s of the run as it is.
        limit: What limits that run.

    Returns:
        The changes that gain something, the best first.
    """

    def rate_of(fix: Fix) -> float | None:
        try:
            rate = _tried(stages, fix)
            if rate is not None and rate < DISTURBED * fix.predicted_images_per_s:
                rate = max(rate, _tried(stages, fix) or 0.0)
        except (MemoryError, RuntimeError):
            return 0.0  # e.g. a batch that does not fit into memory
        except UnansweredError:
            wait_for_reads_left_behind()
            return 0.0  # more reads at once than the link carries
        return rate

    return _try_leading(fixes, observed, limit, rate_of, stages.observed_again)


def try_bound(stages: Stages, bound: Bound, observed: float) -> Bound:
    """Try a run without its transform, unless it is predicted to gain nothing.

    Args:
        stages: Stages of the run.
        bound: Prediction of the run without its transform.
        observed: Images/s of the run as it is.
    """
    if bound.gain < MIN_GAIN:
        return bound
    rate = stages.tried(stages.without_transform)
    if rate < DISTURBED * bound.predicted_images_per_s:
        rate = max(rate, stages.tried(stages.without_transform))
    return replace(bound, images_per_s=rate, gain=rate / observed, is_tried=True)


def _try_leading(
    fixes: Sequence[Fix],
    observed: float,
    limit: Limit,
    rate_of: Callable[[Fix], float | None],
    observe_again: Callable[[], float],
) -> list[Fix]:
    found, tried, untriable = list(fixes), 0, set[str]()
    while tried < MOST_TRIED and (leading := next_to_try(ranked(found), limit, untriable)) is not None:
        rate = rate_of(leading)
        if rate is None:
            untriable.add(leading.name)
            continue
        tried += 1
        rest = [fix for fix in found if fix is not leading]
        known = replace(leading, images_per_s=rate, gain=rate / observed, is_tried=True)
        found = [*rest, known] if known.gain >= MIN_GAIN else rest
    left = ranked([fix for fix in found if fix.gain >= MIN_GAIN])
    if not left or not left[0].is_tried or left[0].gain >= SMALL_GAIN:
        return left
    unchanged = max(observed, observe_again())
    return [fix for fix in left if not fix.is_tried or fix.images_per_s >= MIN_GAIN * unchanged]


def _tried(stages: Stages, fix: Fix) -> float | None:
    """Return the images/s of a run with a change; None where the change cannot be tried here."""
    if fix.name == "cache":
        return stages.tried_cached()
    if fix.needs == "restart":
        return stages.tried(stages.setup.changed(fix.settings))
    if fix.needs == "rebuild":
        return stages.tried_smaller(fix.settings["short_side"])
    return None
