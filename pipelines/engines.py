"""Engines: their interface to `dataprep build`, their table by name, and the part that a run builds.

An engine is a module with the three functions of `EngineModule`. It is imported when it is named.
"""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn, Protocol, cast

from dataprep.builder.recipe import Engine
from dataprep.errors import UsageError, needing

LOCAL = "local"
AUTO = "auto"

_WORD = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Part:
    """Part `number`, from 1, of `count` parts."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"part {self.number} of {self.count}"

    def owner(self, index: int) -> int:
        """Return the number of the part to which a shard belongs."""
        return index % self.count + 1

    def ordered(self, indexes: Iterable[int]) -> list[int]:
        """Return indexes in the order that their part begins them: as if shuffled, and different for each `count`."""
        return sorted(indexes, key=self._mixed)

    def _mixed(self, index: int) -> int:
        """Hash an index to a pseudo-random 64-bit word (SplitMix64, Steele et al., OOPSLA 2014)."""
        word = (self.count << 32) + index + 1 & _WORD
        word = word * 0x9E3779B97F4A7C15 & _WORD
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
        return word ^ word >> 31


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineChoice:
    """Options of a build's engine; they change no byte of the dataset."""

    runner: str
    """Value of --runner."""
    options: tuple[str, ...] = ()
    """Arguments after `--`, which belong to the engine."""
    workers: int
    """Number of processes, if the engine starts them on this machine."""
    part: Part | None = None
    """Part of the dataset that this run builds, next to other parts; None: all of it."""
    detach: bool = False
    """Whether to submit the job and leave it running, without waiting for its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineWork:
    """Facts about the build that an engine gets before it is planned."""

    worker_modules: tuple[str, ...]
    """Modules that a worker imports before its first shard."""
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
        """Refuse a choice that no build can run with; no cluster is contacted. Raises UsageError."""

    def shards_at_once(self, choice: EngineChoice, urls: tuple[str, ...], /) -> int:
        """Return the largest number of shards in progress; the limits for web hosts are divided by it.

        Args:
            urls: URLs of originals and dataset.

        Raises:
            UsageError: The choice does not limit it, or the engine cannot be reached.
        """

    def open_engine(self, choice: EngineChoice, work: EngineWork, /) -> AbstractContextManager[Engine]:
        """Open the engine for `dataprep.builder.driver`; it is closed when the build ends, for any reason.

        The engine raises `DetachedJob` when it has submitted a job that continues without this process.

        Raises:
            UsageError: At once, if a worker could not work, or something is missing.
        """


class DetachedJob(Exception):
    """A job was submitted, or is still running, and continues without this process; the text says what to do."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


@dataclass(frozen=True, slots=True)
class _Entry:
    module: str
    extra: str = ""
    """Extra of this package that installs what it needs."""


ENGINES: dict[str, _Entry] = {
    LOCAL: _Entry("pipelines.local"),
    "ray": _Entry("pipelines.ray.engine", "ray"),
    "spark": _Entry("pipelines.spark.engine", "spark"),
}
"""Engines with a name of their own. Every other name is a Beam runner."""
BEAM = _Entry("pipelines.beam.engine", "beam")


def engine_module(runner: str) -> EngineModule:
    """Import the engine that `runner` names. Raises UsageError if its library is not installed."""
    entry = ENGINES.get(runner, BEAM)
    with needing(entry.extra, f"`runner` {runner}"):
        return cast(EngineModule, import_module(entry.module))


LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
REACH_S = 10.0


def unreachable(address: str) -> Exception | None:
    """Return why nothing answers at HOST:PORT, after 10 s at most; engines would wait for minutes. None: it answers."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except (OSError, OverflowError, ValueError) as error:
        return error
    return None


class EngineParser(argparse.ArgumentParser):
    """Parser of an engine's options after `--`; each error is a UsageError."""

    def __init__(self, runner: str) -> None:
        super().__init__(prog=runner, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        known = [f"{action.option_strings[0]}={action.metavar}" for action in self._actions]
        raise UsageError(f"`runner` {self.prog}: {message} after --; the options are {' '.join(known)}")


def part_of(text: str, environment: Mapping[str, str]) -> Part:
    """Return the part that a user names, as `2/8`, or leaves to the variables of a scheduler, as `auto` or `auto/8`.
    Raises UsageError if the text names no part, or no scheduler's variables are there."""
    named = re.fullmatch(r"(\d{1,6}|auto)(?:/(\d{1,6}))?", text)
    if named is None or (named[1] != AUTO and named[2] is None):
        raise UsageError(f"`part` {text}: expected K/N such as 2/8, or auto or auto/N in a task of a job array")
    if named[1] == AUTO:
        return _scheduled(text, named[2], environment)
    return _checked(text, int(named[1]), int(named[2]))


def _scheduled(text: str, count: str | None, environment: Mapping[str, str]) -> Part:
    for scheduler in _SCHEDULERS:
        if scheduler.index in environment:
            break
    else:
        names = ", ".join(scheduler.index for scheduler in _SCHEDULERS)
        raise UsageError(f"`part` {text}: none of {names} is set; give `part` K/N")

    def value(name: str | None, otherwise: int) -> int:
        found = environment.get(name, "") if name is not None else ""
        return int(found) if re.fullmatch(r"\d{1,9}", found) else otherwise

    total = int(count) if count is not None else value(scheduler.count, 0)
    if total == 0:
        raise UsageError(f"`part` {text}: {scheduler.index} does not say how many parts there are; give `part` auto/N")
    place, rest = divmod(value(scheduler.index, 0) - value(scheduler.first, 0), max(1, value(scheduler.step, 1)))
    if rest or not 0 <= place < total:
        raise UsageError(
            f"`part` {text}: {scheduler.index}={environment[scheduler.index]} is not one of {total} tasks in equal "
            "steps; give `part` K/N"
        )
    return _checked(text, place + 1, total)


def _checked(text: str, number: int, count: int) -> Part:
    if not 1 <= number <= count:
        raise UsageError(f"`part` {text}: expected K from 1 to N, such as 1/8 to 8/8")
    return Part(number, count)


@dataclass(frozen=True, slots=True)
class _Scheduler:
    """Variables that a scheduler sets to give a task its place among others."""

    index: str
    first: str | None = None
    """Variable with the index of the first task, which is 0 otherwise."""
    step: str | None = None
    count: str | None = None


_SCHEDULERS = (
    _Scheduler("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP", count="SLURM_ARRAY_TASK_COUNT"),
    _Scheduler("BATCH_TASK_INDEX", count="BATCH_TASK_COUNT"),
    _Scheduler("JOB_COMPLETION_INDEX"),
    _Scheduler("DATAPREP_WORKER", count="DATAPREP_WORKERS"),
)
"""Slurm's job arrays, Google Batch, Indexed Jobs of Kubernetes, which do not say how many tasks there are, and
`dataprep tpu run`."""
