"""Finds the datasets of a loader's state that were built or adopted anew since, so that their order is another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

SHOWN_DIGITS = 12
"""Number of digits of a plan's hash in a message, as `dataprep inspect` shows it."""
_IDENTITY = ("plan", "revision")


def other_builds(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return what is known of each dataset that has the same name in a state but is another build, one line each.

    Args:
        ours: What the sequence of this loader depends on: `LoaderState.sequence`.
        theirs: The same of the state, which may be malformed.
    """
    return [
        f"{label}{_described(before, 'then')}, {_described(now, 'now')}"
        for label, now, before in _pairs(ours, theirs)
        if _identity(now) and _identity(before) and _identity(now) != _identity(before)
    ]


def _pairs(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts about the same dataset or dataset of a mixture: its label in messages, ours, theirs."""
    if "datasets" not in ours:
        yield "", ours, theirs
        return
    before = theirs.get("datasets")
    for name, now in ours["datasets"].items():
        if isinstance(before, Mapping) and name in before:
            yield f"{name}: ", now, before[name]


def _identity(part: Any) -> tuple[Any, ...]:
    """Return plan and revision of the dataset in a part of a sequence, and () if it has none."""
    dataset = part.get("dataset") if isinstance(part, Mapping) else None
    if not isinstance(dataset, Mapping) or not isinstance(dataset.get("plan"), str):
        return ()
    return tuple(dataset.get(name) for name in _IDENTITY)


def _described(part: Mapping[str, Any], when: str) -> str:
    plan, revision = _identity(part)
    images = part.get("samples")
    count = f"{images:,}" if isinstance(images, int) else str(images)
    return f"{count} images {when} (plan {plan[:SHOWN_DIGITS]}, revision {revision})"
