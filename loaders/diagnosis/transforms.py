"""The part of preparing that is the user's own transform: what it is called, what it takes, and a run without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from loaders.config import LoaderConfig
from loaders.diagnosis.findings import TransformCost
from loaders.engine.stats import StageTimes

_LOCKED = 0.8
"""Share of one core that the calls of a transform in all threads of a process take at least if it holds the interpreter
lock: the rest is the time in which the loader itself has the lock. They cannot take more than one core."""
_MOST_LOCKED = 1.1
"""The same share at most; a tenth is the error of measurement."""
_WAITING = 1.3
"""Ratio of a transform's time to its CPU time from which on its threads wait."""
_IDLE_CORES = 0.5
"""Cores that must be idle, or threads may wait for a core instead of the lock."""
_EXPLAINED = 0.5
"""Share of a transform's time from which on its CPU time, in as many threads as take turns, explains it."""


def without_transforms(config: LoaderConfig) -> LoaderConfig:
    """Return the same settings without any transform."""
    groups = tuple(replace(group, transform=None) for group in config.view_groups)
    return replace(config, transform=None, view_groups=groups)


def transform_cost(
    config: LoaderConfig, before: Mapping[str, StageTimes], after: Mapping[str, StageTimes]
) -> TransformCost | None:
    """Return what the transforms took between two looks at a loader's stages; None where there are none.

    Args:
        config: Settings of the loader.
        before: Stages at the first look.
        after: Stages at the second one.
    """
    nothing = StageTimes()
    images, transform_s, cpu_s = _between(before.get("transform", nothing), after.get("transform", nothing))
    decoded, prepare_s, _ = _between(before.get("decode", nothing), after.get("decode", nothing))
    if not images or not decoded:
        return None
    return TransformCost(
        name=", ".join(dict.fromkeys(_name_of(each) for each in config.transforms if each is not None)),
        s_per_image=transform_s / images,
        cpu_s_per_image=cpu_s / images,
        prepare_s_per_image=prepare_s / decoded,
        holds_lock=False,
        without=None,
    )


def holds_lock(cost: TransformCost, *, threads: int, images_per_s: float, idle_cores: float) -> bool:
    """Whether the threads of a process take turns in a transform, as those that run Python code do.

    Args:
        cost: What the transform takes.
        threads: Threads of one process that call it.
        images_per_s: Rate of one process.
        idle_cores: Cores that nothing used meanwhile.
    """
    taken = images_per_s * cost.cpu_s_per_image
    is_waiting = cost.s_per_image >= _WAITING * cost.cpu_s_per_image
    return threads > 1 and _LOCKED <= taken <= _MOST_LOCKED and is_waiting and idle_cores >= _IDLE_CORES


def waits_for_no_core(cost: TransformCost, threads: int) -> bool:
    """Whether a transform waits for something other than a core or the interpreter lock, such as a disk or a server.

    Args:
        cost: What the transform takes.
        threads: Threads of one process that call it, and take turns if it holds the lock.
    """
    return threads * cost.cpu_s_per_image < _EXPLAINED * cost.s_per_image


def _between(before: StageTimes, after: StageTimes) -> tuple[int, float, float]:
    """Return the images of a stage, its working time and its CPU time between two looks at it."""
    return (
        after.items - before.items,
        after.busy_s.sum_s - before.busy_s.sum_s,
        after.cpu_s.sum_s - before.cpu_s.sum_s,
    )


def _name_of(transform: Any) -> str:
    """Return where a transform is defined, as `--transform` names it; of an object its class."""
    if isinstance(transform, partial):
        return _name_of(transform.func)
    kind = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{kind.__module__}:{kind.__qualname__}"
