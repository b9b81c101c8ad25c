"""What a person sees on stderr while something long runs; nothing where stderr is no terminal but lines."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from dataprep.commands.options import human_bytes
from dataprep.plan import Plan
from dataprep.records import ShardReceipt

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_EVERY_S = 30
"""Between progress lines where stderr is a file."""
_MB = 10**6


class ImageProgress:
    """A bar over images with rate, bytes and time left."""

    _unit = "images"

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar = _bar() if sys.stderr.isatty() and not quiet else None
        self._task: TaskID | None = None
        self._what = ""
        self._images = self._done = self._bytes = 0
        self._started_s = self._line_s = time.monotonic()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bar away; what follows is the result."""
        if self._bar is not None:
            self._bar.stop()

    def log(self, line: str) -> None:
        """One line that stays."""
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
        elif not self._quiet:
            click.echo(line, err=True)

    def step(self, what: str) -> None:
        """Something of unknown length is under way."""
        self._show(what, None, None, "")

    def reading(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """This much of an original archive was walked or hashed."""
        self._show(f"reading {name}", done_bytes, total_bytes, "")

    def begin(self, what: str, images: int) -> None:
        """So many images are to be worked on from now."""
        self._what, self._images = what, images
        self._started_s = self._line_s = time.monotonic()
        self._show(what, 0, images, "")

    def advance(self, images: int, num_bytes: int) -> None:
        """These are done."""
        self._done += images
        self._bytes += num_bytes
        elapsed_s = max(1e-6, time.monotonic() - self._started_s)
        rate = self._rate(elapsed_s)
        self._show(self._what, self._done, self._images, rate)
        if self._bar is None and time.monotonic() - self._line_s > LINE_EVERY_S:
            self._line_s = time.monotonic()
            left_s = (self._images - self._done) * elapsed_s / max(1, self._done)
            done = f"{self._done:,} of {self._images:,} {self._unit}"
            self.log(f"{self._what}: {done}, {rate}, {left_s / 60:.0f} min left")

    def _rate(self, elapsed_s: float) -> str:
        return f"{self._done / elapsed_s:,.0f} images/s, {human_bytes(self._bytes / elapsed_s)}/s"

    def _show(self, what: str, done: int | None, total: int | None, rate: str) -> None:
        if self._bar is None:
            return
        if self._task is None:
            self._task = self._bar.add_task(what, total=total, rate=rate)
        self._bar.update(self._task, description=what, total=total, completed=done or 0, rate=rate)


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )


class BuildProgress(ImageProgress):
    """What `dataprep.driver` tells of a build."""

    def enumerating(self, split: str) -> None:
        self.step(f"listing the originals of {split}")

    def planned(self, plan: Plan, done: set[int]) -> None:
        self.shards([count for split in plan.splits for count in split.shard_samples], done)

    def shards(self, samples: Sequence[int], done: set[int]) -> None:
        """So many samples have the shards; these stand already."""
        self._shard_samples = samples
        if done:
            self.log(f"going on: {len(done)} of {len(samples)} shards stand already")
        missing = (count for index, count in enumerate(self._shard_samples) if index not in done)
        self.begin("building", sum(missing))

    def shard_done(self, receipt: ShardReceipt) -> None:
        self.advance(self._shard_samples[receipt.index], receipt.num_bytes)

    def assembling(self) -> None:
        self.step("writing index and manifest")


class LaionProgress(BuildProgress):
    """The same of a table of URLs: of its rows not all become images."""

    _unit = "rows"

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._reasons: Counter[str] = Counter()

    def shard_done(self, receipt: ShardReceipt) -> None:
        if receipt.fetched is not None:
            self._reasons.update(receipt.fetched.reasons)
        super().shard_done(receipt)

    def _rate(self, elapsed_s: float) -> str:
        """`310 rows/s, 245 images/s, 4.1 MB/s, 79 % came; http 404 9 %, timeout 4 %`."""
        rows = max(1, self._done)
        came, failures = self._reasons["success"], self._reasons - Counter(success=self._reasons["success"])
        rate = (
            f"{self._done / elapsed_s:,.0f} rows/s, {came / elapsed_s:,.0f} images/s, "
            f"{human_bytes(self._bytes / elapsed_s)}/s, {100 * came / rows:.0f} % came"
        )
        top = ", ".join(f"{reason} {100 * count / rows:.0f} %" for reason, count in failures.most_common(3))
        return f"{rate}; {top}" if top else rate


class VerifyProgress(ImageProgress):
    """What `dataprep.verify` tells of a verification."""

    def started(self, samples: int) -> None:
        self.begin("verifying", samples)

    def shard_done(self, samples: int, num_bytes: int) -> None:
        self.advance(samples, num_bytes)


class CopyProgress(ImageProgress):
    """What `dataprep.replicate` tells of copies; a bar over megabytes. Many threads report."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._lock = threading.Lock()
        self._objects = self._total_bytes = 0

    def copying(self, target: str, objects: int, num_bytes: int) -> None:
        """So much is to be copied to one place from now."""
        self._what, self._objects = f"copying to {target} (MB)", objects
        self._total_bytes = num_bytes
        self._done = self._bytes = 0
        self._started_s = self._line_s = time.monotonic()
        self._show(self._what, 0, num_bytes // _MB, "")

    def copied(self, objects: int, num_bytes: int) -> None:
        """These are done."""
        with self._lock:
            self._done += objects
            self._bytes += num_bytes
            bytes_per_s = self._bytes / max(1e-6, time.monotonic() - self._started_s)
            rate = f"{self._done:,} of {self._objects:,} objects, {human_bytes(bytes_per_s)}/s"
            self._show(self._what, self._bytes // _MB, self._total_bytes // _MB, rate)
            if self._bar is None and time.monotonic() - self._line_s > LINE_EVERY_S:
                self._line_s = time.monotonic()
                left_s = (self._total_bytes - self._bytes) / max(1.0, bytes_per_s)
                done = f"{human_bytes(self._bytes)} of {human_bytes(self._total_bytes)}"
                self.log(f"{self._what}: {done}, {rate}, {left_s / 60:.0f} min left")
