"""The protocol of an engine: what `dataprep build` asks of the module that `--runner` names, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from dataprep.builder.job import Engine
from pipelines.parts import Part


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineChoice:
    """What a command line says of the engine of a build; it changes no byte of the dataset."""

    runner: str
    """Value of --runner."""
    options: tuple[str, ...] = ()
    """Arguments after `--`, which belong to the engine."""
    workers: int
    """Number of processes, if the engine starts them on this machine."""
    part: Part | None = None
    """Part of the dataset that this run builds, beside others; None: all of it."""
    detach: bool = False
    """Whether to submit the job and leave it running, without waiting for its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineWork:
    """What an engine is told of the build before it is planned."""

    dataset: str
    source_url: str
    output_url: str
    stall_s: float
    """Time without progress after which a worker counts as hanging, or a job that finishes no shard."""
    log: Callable[[str], None]
    """Receives lines for the user."""
    warn: Callable[[str], None]
    """Receives warnings for the user, which are shown even where nothing else is."""


class EngineModule(Protocol):
    """An engine: a module with these three functions."""

    def check(self, choice: EngineChoice, /) -> None:
        """Refuse a choice with which no build can run; no cluster is contacted. Raises UsageError."""

    def shards_at_once(self, choice: EngineChoice, urls: tuple[str, ...], /) -> int:
        """Return the largest number of shards in progress, by which the limits for web hosts are divided.

        Args:
            urls: URLs of originals and dataset.

        Raises:
            UsageError: The choice does not limit it, or the engine cannot be reached.
        """

    def open_engine(self, choice: EngineChoice, work: EngineWork, /) -> AbstractContextManager[Engine]:
        """Open the engine for `dataprep.builder.driver`; it is closed when the build ends, for any reason.

        The engine raises `DetachedJob` when it has submitted a job that goes on without this process.

        Raises:
            UsageError: At once, if a worker could not work, or something is missing.
        """


class DetachedJob(Exception):
    """A job was submitted, or is still running, and goes on without this process.

    Args:
        name: Name of the job in its cluster.
        text: What runs, how to look at it, and how to end it.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name
