"""Goodput of a run: its time since its first start by cause, over all attempts; every moment counts for one cause.

`goodput.jsonl` in the folder of the logs has a line for each event, with the keys that ml-goodput-measurement logs, so
its calculator reads them; lines of steps also have our own sums.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataprep.messages import duration

GOODPUT_FILE = "goodput.jsonl"
COMPUTE, REPEATED, IDLE = "compute", "repeated", "idle"
CAUSES: Mapping[str, str] = {
    COMPUTE: "",
    "start": "imports take it, longer on a slow disk, and the index of data that has no manifest and no index_dir",
    "compile": "keep what is compiled for the next attempt: JAX_COMPILATION_CACHE_DIR in JAX",
    "restore": "keep checkpoints in the region of the machines",
    "input": "the same command with --diagnose says why the run waits for its input",
    "checkpoint": "save less often",
    "evaluation": "evaluate less often",
    REPEATED: "save more often: these updates were lost with an attempt, and done again",
    IDLE: "start again sooner: no attempt ran, or it logged nothing more before it was killed",
}
"""Causes that time is counted for, and what helps against each."""
ADVISED_SHARE = 0.05
"""Share of the time above which a cause gets advice."""


class Goodput:
    """Counts the time since this process started, in seconds since 1970, by cause; at first by `start`."""

    def __init__(self, started_s: float, clock: Callable[[], float] = time.time) -> None:
        self.started_s, self._clock = started_s, clock
        self._seconds = dict.fromkeys(CAUSES, 0.0)
        self._cause, self._since_s = "start", started_s

    def enter(self, cause: str) -> str:
        """Count the time from now on for another cause; return the one before."""
        now_s, before = max(self._clock(), self._since_s), self._cause
        self._seconds[before] += now_s - self._since_s
        self._cause, self._since_s = cause, now_s
        return before

    @contextlib.contextmanager
    def during(self, cause: str) -> Iterator[None]:
        """Count the time inside the context for a cause."""
        before = self.enter(cause)
        try:
            yield
        finally:
            self.enter(before)

    @property
    def counted_s(self) -> float:
        """Time until which all is counted, seconds since 1970."""
        return self._since_s

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each cause until now; their sum is the time since the first start."""
        self.enter(self._cause)
        return dict(self._seconds)

    def follow(self, earlier: Earlier) -> None:
        """Add the time of earlier attempts, and the time between the last one and this one."""
        for cause, elapsed_s in earlier.seconds.items():
            self._seconds[cause] += elapsed_s
        gap_s = self.started_s - earlier.until_s
        self._seconds[IDLE if gap_s > 0 else "start"] += gap_s  # clocks of two hosts may differ


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """Time of the earlier attempts of a run."""

    until_s: float
    """Time of their last event, seconds since 1970."""
    seconds: Mapping[str, float]
    count: int
    """Count of the step of the events that this attempt begins with."""


def earlier_attempts(lines: Iterable[str], step: int) -> Earlier | None:
    """Return the time of the attempts that wrote a file of events; None if there was none.

    The run resumes after `step`: computing beyond it is repeated.
    """
    last: tuple[float, dict[str, float]] | None = None
    kept_s, count = 0.0, 0
    for line in lines:
        try:
            event = json.loads(line)
            seconds = {cause: float(event["seconds"][cause]) for cause in CAUSES}
            last = float(event["step_start_time"]), seconds
            if event["updates"] <= step:
                kept_s, count = seconds[COMPUTE], int(event["step_count"])
        except (KeyError, TypeError, ValueError, RecursionError):
            continue  # another event, or cut by a kill
    if last is None:
        return None
    until_s, seconds = last
    lost_s = max(0.0, seconds[COMPUTE] - kept_s)
    seconds[COMPUTE] -= lost_s
    seconds[REPEATED] += lost_s
    return Earlier(until_s=until_s, seconds=seconds, count=count)


@dataclass(kw_only=True)
class GoodputEvents:
    """Writes the events of one attempt into `goodput.jsonl`."""

    path: Path
    job: str
    """Name of the run."""
    _logged: dict[str, float] = field(default_factory=dict)
    _logged_s: float = 0.0
    _updates: int = 0
    _count: int = 0
    """Number of log lines so far, which ml-goodput-measurement takes for the steps; a resumed run goes back."""

    def begin(self, goodput: Goodput, step: int) -> None:
        """Take over the file of earlier attempts, and write that this one has prepared its training."""
        *lines, cut = self.path.read_text(errors="replace").split("\n") if self.path.exists() else [""]
        if cut:
            self.path.write_text("".join(f"{line}\n" for line in lines))
        if (earlier := earlier_attempts(lines, step)) is not None:
            goodput.follow(earlier)
            self._count = earlier.count
        self._logged, self._logged_s = goodput.seconds(), goodput.counted_s
        started = ("job_start_time", "training_prep_start_time")
        self._write(*({name: goodput.started_s} for name in started), {"training_prep_end_time": self._logged_s})
        self._step(step)

    def log(self, goodput: Goodput, step: int) -> None:
        """Write the time since the last call: an event for each cause that is not computing, then a step."""
        seconds, now_s, at_s = goodput.seconds(), goodput.counted_s, self._logged_s
        for cause in CAUSES:
            if cause != COMPUTE and (elapsed_s := seconds[cause] - self._logged[cause]) > 0:
                named, end_s = {"custom_badput_event_type": cause}, min(at_s + elapsed_s, now_s)
                self._write(
                    named | {"custom_badput_event_start_time": at_s}, named | {"custom_badput_event_end_time": end_s}
                )
                at_s = end_s
        self._logged, self._logged_s = seconds, now_s
        self._count += 1
        self._step(step)

    def end(self, goodput: Goodput) -> None:
        """Write the time since the last step, such as of the last checkpoint, and that the attempt has ended."""
        self.log(goodput, self._updates)
        self._write({"job_end_time": self._logged_s})

    def _step(self, step: int) -> None:
        self._updates = step
        event = {"step_count": self._count, "step_start_time": self._logged_s, "updates": step}
        self._write({**event, "seconds": {cause: round(each, 3) for cause, each in self._logged.items()}})

    def _write(self, *events: Mapping[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write("".join(json.dumps({"job_name": self.job, **event}) + "\n" for event in events))


def goodput_text(seconds: Mapping[str, float]) -> str:
    """Return a line about the time of a run, and one of advice for each cause that takes much of it."""
    total_s = sum(seconds.values()) or 1.0
    shares = {cause: each / total_s for cause, each in sorted(seconds.items(), key=lambda item: -item[1])}
    named = ", ".join(f"{cause} {share:.1%}" for cause, share in shares.items() if share >= 0.001)
    advised = [cause for cause, share in shares.items() if share > ADVISED_SHARE and CAUSES[cause]]
    lines = [f"of {duration(total_s)} since the first start: {named}"]
    return "\n".join([*lines, *(f"  {cause} ({duration(seconds[cause])}): {CAUSES[cause]}" for cause in advised)])


def process_start_s() -> float:
    """Return the time at which this process started, in seconds since 1970; where Linux does not say, now."""
    now_s = time.time()
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        up_s = float(Path("/proc/uptime").read_text().split()[0])
        return now_s - max(0.0, up_s - ticks / os.sysconf("SC_CLK_TCK"))
    return now_s
