"""The part of preparing that is the user's own transform: what it is called, what it takes, and a run without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from loaders.config import LoaderConfig
from loaders.diagnosis.findings import TransformCost
from loaders.engine.stats import StageTimes


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
        without=None,
    )


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
