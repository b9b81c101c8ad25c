"""The table of engines, by the name that `--runner` gives; each is imported when it is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dataprep.errors import UsageError, install_hint
from pipelines.protocol import EngineModule

LOCAL = "local"


@dataclass(frozen=True, slots=True)
class _Entry:
    load: Callable[[], EngineModule]
    """Imports the engine's module."""
    library: str = ""
    """Name of the library that it needs."""
    extra: str = ""
    """Extra of this package that installs the library."""


def _local() -> EngineModule:
    import pipelines.local

    return pipelines.local


def _ray() -> EngineModule:
    import pipelines.ray.engine

    return pipelines.ray.engine


def _beam() -> EngineModule:
    import pipelines.beam.engine

    return pipelines.beam.engine


def _spark() -> EngineModule:
    import pipelines.spark.engine

    return pipelines.spark.engine


ENGINES: dict[str, _Entry] = {
    LOCAL: _Entry(_local),
    "ray": _Entry(_ray, "Ray", "ray"),
    "spark": _Entry(_spark, "PySpark", "spark"),
}
"""Engines with a name of their own. Every other name is that of a Beam runner."""
BEAM = _Entry(_beam, "Apache Beam", "beam")


def engine_module(runner: str) -> EngineModule:
    """Import the engine that `--runner` names. Raises UsageError if its library is not installed."""
    entry = ENGINES.get(runner, BEAM)
    try:
        return entry.load()
    except ImportError as error:
        raise UsageError(f"--runner {runner} needs {entry.library} ({error}): {install_hint(entry.extra)}") from error
