"""Shows progress: to people on stderr, a bar on a terminal and lines in a file; to Python callers by callback.

A Python function without a callback shows a bar on a terminal and in a notebook, and nothing elsewhere. Its messages go
to the logger `dataprep`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Self

import click

from dataprep.arguments import WHERE, Request, option, request, spelled
from dataprep.commands.region_options import Billed
from dataprep.errors import StorageError
from dataprep.host.cpu import available_cores
from dataprep.host.heartbeat import MAX_STALL_MINUTES, STALL_S, beat, minutes, watched
from dataprep.messages import counted, human_bytes

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from dataprep.builder.plan import Plan
    from dataprep.dataset.records import ShardReceipt

LINE_EVERY_S = 30
"""Seconds between two lines of progress if stderr is a file."""
_MB = 10**6
_log = logging.getLogger("dataprep")


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Progress of a function, as its callback `progress` gets it."""

    step: str
    """Step that runs, such as `building` or `writing index and manifest`."""
    done: int | None
    """Number of images, rows, bytes or shards done; None in a step of unknown length."""
    total: int | None
    """Total number; None if it is not known."""
    rate: str
    """Rates for people, such as `310 images/s, 34.1 MB/s`; empty if there are none."""


Callback = Callable[[Progress], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Viewer:
    """Receiver of progress and messages."""

    quiet: bool = False
    """Whether only warnings are shown."""
    is_python: bool = False
    """Whether a Python function reports: by callback and logging, and never by ending the process."""
    callback: Callback | None = None
    stall_s: float | None = None
    """Time without progress of the thread that enters an ImageProgress after which the process ends with an error,
    because a hanging read cannot be interrupted. None for no limit. A Python function only warns."""
    spell: Callable[[str], str] = str
    """Function that writes the fields of a request in a message as people give them: as options of the command line."""

    def note(self, line: str) -> None:
        """Report something worth knowing before the work begins."""
        if self.is_python:
            _log.info("%s", line)
        else:
            click.echo(f"note: {self.spell(line)}", err=True)


PYTHON = Viewer(is_python=True)
"""Receiver of the messages of a Python function that shows no progress."""


class ImageProgress:
    """A progress bar over images with rate, bytes and remaining time.

    Args:
        viewer: Receiver of progress and messages; by default people on stderr.
        quiet: Without a viewer, print only warnings.
    """

    _unit = "images"

    def __init__(self, viewer: Viewer | None = None, *, quiet: bool = False) -> None:
        self._viewer = viewer or Viewer(quiet=quiet)
        self._is_watched = self._viewer.stall_s is not None and not self._viewer.is_python
        self.stall_s = self._viewer.stall_s or STALL_S
        self._watch = ExitStack()
        self.notes: list[str] = []
        """Lines that were logged, warnings included, for a result in JSON."""
        self._doing = "starting"
        shows_bar = sys.stderr.isatty() and not self._viewer.quiet and self._viewer.callback is None
        self._bar = _bar() if shows_bar else None
        self._notebook = (
            NotebookBar() if self._viewer.is_python and self._viewer.callback is None and in_notebook() else None
        )
        self._task: TaskID | None = None
        self._what = ""
        self._images = self._done = self._bytes = 0
        self._started_s = self._line_s = time.monotonic()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        if self._is_watched:
            self._watch.enter_context(watched(self.stall_s, self._warn_of_standstill, self._give_up))
        return self

    def __exit__(self, *_error: object) -> None:
        self._watch.close()
        self.stop()

    def stop(self) -> None:
        """Remove the bar, before the result is printed."""
        if self._bar is not None:
            self._bar.stop()
        if self._notebook is not None:
            self._notebook.stop()

    def log(self, line: str) -> None:
        """Print a line above the bar, and keep it for the result."""
        line = self._viewer.spell(line)
        self.notes.append(line)
        if self._viewer.is_python:
            _log.info("%s", line)
        self._print(line)

    def _print(self, line: str) -> None:
        if self._viewer.is_python:
            return
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
        elif not self._viewer.quiet:
            click.echo(line, err=True)

    def warn(self, line: str, *, keep: bool = True) -> None:
        """Print a warning above the bar, even if quiet; with `keep` the result has it, too."""
        line = self._viewer.spell(line)
        if keep:
            self.notes.append(f"warning: {line}")
        if self._viewer.is_python:
            _log.warning("%s", line)
        elif self._bar is not None:
            self._print(line)
        else:
            click.echo(f"dataprep: warning: {line}", err=True)

    def step(self, what: str) -> None:
        """Show that something of unknown length has begun."""
        self._show(what, None, None, "")

    def reading(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """Show how much of an original archive has been listed or hashed."""
        self._show(f"reading {name}", done_bytes, total_bytes, "")

    def begin(self, what: str, images: int) -> None:
        """Begin to count `images` images."""
        self._what, self._images = what, images
        self._started_s = self._line_s = time.monotonic()
        self._show(what, 0, images, "")

    def advance(self, images: int, num_bytes: int) -> None:
        """Count images as finished."""
        self._done += images
        self._bytes += num_bytes
        elapsed_s = max(1e-6, time.monotonic() - self._started_s)
        left_s = (self._images - self._done) * elapsed_s / max(1, self._done)
        said = f"{self._done:,} of {self._images:,} {self._unit}"
        self._report(self._done, self._images, self._rate(elapsed_s), said, left_s)

    def _report(self, done: int, total: int, rate: str, said: str, left_s: float) -> None:
        self._show(self._what, done, total, rate)
        if self._bar is None and time.monotonic() - self._line_s > LINE_EVERY_S:
            self._line_s = time.monotonic()
            self._print(f"{self._what}: {said}, {rate}, {left_s / 60:.0f} min left")

    def _rate(self, elapsed_s: float) -> str:
        return f"{self._done / elapsed_s:,.0f} images/s, {human_bytes(self._bytes / elapsed_s)}/s"

    def _warn_of_standstill(self, idle_s: float) -> None:
        self.warn(
            f"{self._doing}: nothing was read or written for {minutes(idle_s)}; this ends after "
            f"{minutes(self.stall_s)} (--stall-minutes)"
        )

    def _give_up(self, idle_s: float) -> None:
        """End the process, from the watching thread. Unfinished work stays as after a kill, and a rerun continues."""
        self.stop()
        click.echo(
            f"dataprep: {self._doing}: nothing was read or written for {minutes(idle_s)} (--stall-minutes); check "
            "whether the disk, network or bucket responds, and run the same command again",
            err=True,
        )
        os._exit(StorageError.exit_code)

    def _show(self, what: str, done: int | None, total: int | None, rate: str) -> None:
        self._doing = what
        if self._viewer.callback is not None:
            self._viewer.callback(Progress(step=what, done=done, total=total, rate=rate))
        if self._notebook is not None:
            self._notebook.show(what, done, total, rate)
        if self._bar is None:
            return
        if self._task is None:
            self._task = self._bar.add_task(what, total=total, rate=rate)
        self._bar.update(self._task, description=what, total=total, completed=done or 0, rate=rate)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookBar:
    """One line of progress below a cell of a notebook, which is gone when the work is done."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html, self._shown_s = HTML, 0.0
        self._handle = display(HTML(""), display_id=True)

    def show(self, what: str, done: int | None, total: int | None, rate: str) -> None:
        """Show a step, at most five times a second."""
        if time.monotonic() - self._shown_s < 0.2:
            return
        self._shown_s = time.monotonic()
        known = "" if done is None or not total else f" value={done} max={total}"
        count = "" if not known else f"{done:,} of {total:,}"
        words = escape(" · ".join(part for part in (what, count, rate) if part))
        self._handle.update(self._html(f"<progress{known}></progress> {words}"))

    def stop(self) -> None:
        """Remove the line."""
        self._handle.update(self._html(""))


def _bar() -> RichProgress:
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    from dataprep.host.piped import VisibleConsole

    return RichProgress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        console=VisibleConsole(sys.stderr),
        transient=True,
    )


class BuildProgress(ImageProgress):
    """Shows the progress that `dataprep.builder.driver` reports."""

    def enumerating(self, split: str) -> None:
        self.step(f"listing the originals of {split}")

    def planned(self, plan: Plan, done: set[int]) -> None:
        self.shards([count for split in plan.splits for count in split.shard_samples], done)

    def shards(self, samples: Sequence[int], done: set[int]) -> None:
        """Begin to build shards.

        Args:
            samples: Number of samples in each shard.
            done: Numbers of the shards that exist already.
        """
        self._shard_samples = samples
        if done:
            self.log(f"continuing: {len(done):,} of {counted(len(samples), 'shard')} done before")
        missing = (count for index, count in enumerate(self._shard_samples) if index not in done)
        self.begin("building", sum(missing))

    def shard_done(self, receipt: ShardReceipt) -> None:
        self.advance(self._shard_samples[receipt.index], receipt.num_bytes)

    def assembling(self) -> None:
        self.step("writing index and manifest")


class LaionProgress(BuildProgress):
    """Shows the progress of a build from a table of URLs, where some rows become no image.

    Args:
        viewer: See `ImageProgress`.
        quiet: See `ImageProgress`.
        lines: Function that describes how a number of shards that are left will be fetched.
    """

    _unit = "rows"

    def __init__(
        self,
        viewer: Viewer | None = None,
        *,
        quiet: bool = False,
        lines: Callable[[Plan, int], Iterable[str]] = lambda _plan, _shards: (),
    ) -> None:
        super().__init__(viewer, quiet=quiet)
        self._lines = lines
        self._reasons: Counter[str] = Counter()

    def planned(self, plan: Plan, done: set[int]) -> None:
        super().planned(plan, done)
        if left := plan.num_shards - len(done):
            for line in self._lines(plan, left):
                self.log(line)

    def shard_done(self, receipt: ShardReceipt) -> None:
        if receipt.fetched is not None:
            self._reasons.update(receipt.fetched.reasons)
        super().shard_done(receipt)

    def _rate(self, elapsed_s: float) -> str:
        """Write rates as `310 rows/s, 245 images/s, 4.1 MB/s, 79 % fetched; http 404 9 %, timeout 4 %`."""
        rows = max(1, self._done)
        came, failures = self._reasons["success"], self._reasons - Counter(success=self._reasons["success"])
        rate = (
            f"{self._done / elapsed_s:,.0f} rows/s, {came / elapsed_s:,.0f} images/s, "
            f"{human_bytes(self._bytes / elapsed_s)}/s, {100 * came / rows:.0f} % fetched"
        )
        top = ", ".join(f"{reason} {100 * count / rows:.0f} %" for reason, count in failures.most_common(3))
        return f"{rate}; {top}" if top else rate


class VerifyProgress(ImageProgress):
    """Shows the progress that `dataprep.verification.run` reports."""

    def started(self, samples: int) -> None:
        self.begin("verifying", samples)

    def shard_done(self, samples: int, num_bytes: int) -> None:
        self.advance(samples, num_bytes)


class CopyProgress(ImageProgress):
    """Shows the progress that `dataprep.cloud.replicate` reports from many threads, as a bar over megabytes."""

    def copying(self, target: str, objects: int, num_bytes: int) -> None:
        """Begin the copy to one target."""
        self._lock = threading.Lock()
        self._what, self._objects, self._total_bytes = f"copying to {target} (MB)", objects, num_bytes
        self._done = self._bytes = 0
        self._started_s = self._line_s = time.monotonic()
        self._show(self._what, 0, num_bytes // _MB, "")

    def copied(self, objects: int, num_bytes: int) -> None:
        """Count objects and bytes as copied."""
        beat()
        with self._lock:
            self._done += objects
            self._bytes += num_bytes
            bytes_per_s = self._bytes / max(1e-6, time.monotonic() - self._started_s)
            rate = f"{self._done:,} of {self._objects:,} objects, {human_bytes(bytes_per_s)}/s"
            left_s = (self._total_bytes - self._bytes) / max(1.0, bytes_per_s)
            said = f"{human_bytes(self._bytes)} of {human_bytes(self._total_bytes)}"
            self._report(self._bytes // _MB, self._total_bytes // _MB, rate, said, left_s)


@request
class Watched(Billed):
    """Options of work that shows its progress and ends when there is none."""

    stall_minutes: float = option(
        "Minutes without progress after which stuck work is stopped: a worker is killed and its shard retried, a Beam "
        "job is cancelled, a copy fails.",
        default=STALL_S / 60,
        low=0,
        high=MAX_STALL_MINUTES,
        open_low=True,
        group=WHERE,
        rare=True,
    )
    progress: Callback | None = option(
        "Function called with a Progress (step, done, total, rate) after each advance. None: a progress bar, on a "
        "terminal or in a notebook.",
        default=None,
        only="python",
    )

    def viewer(self) -> Viewer:
        """Return the receiver of progress and messages of a Python function."""
        return Viewer(is_python=True, callback=self.progress, stall_s=60 * self.stall_minutes)


@request
class LocalRun(Watched):
    """Options of work in processes on this machine."""

    workers: int = option(
        "Number of worker processes.", default_factory=available_cores, low=1, shown="number of cores", group=WHERE
    )


def people(asked: Request, *, quiet: bool) -> Viewer:
    """Return the receiver of progress and messages of a command."""
    stall_s = 60 * asked.stall_minutes if isinstance(asked, Watched) else None
    return Viewer(quiet=quiet, stall_s=stall_s, spell=partial(spelled, type(asked)))
