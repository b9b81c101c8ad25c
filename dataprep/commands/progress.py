"""What a person sees on stderr while a build or a verification runs; nothing where stderr is no terminal but lines."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from dataprep.commands.options import human_bytes
from dataprep.plan import Plan
from dataprep.records import ShardReceipt

LINE_EVERY_S = 30
"""Between progress lines where stderr is a file."""


class BuildProgress:
    """A bar over samples with rate, bytes and time left."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(file=sys.stderr, quiet=quiet)
        self._live = self._console.is_terminal and not quiet
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._live,
        )
        self._task: TaskID | None = None
        self._samples = self._done = self._bytes = 0
        self._shard_samples: list[int] = []
        self._started_s = self._line_s = time.monotonic()

    def __enter__(self) -> BuildProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bar away; what follows is the result."""
        self._bar.stop()

    def log(self, line: str) -> None:
        """One line that stays."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def reading(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """This much of an original archive was walked or hashed."""
        self._show(f"reading {name}", done_bytes, total_bytes, "")

    def enumerating(self, split: str) -> None:
        self._show(f"listing the originals of {split}", None, None, "")

    def planned(self, plan: Plan, done: set[int]) -> None:
        self._shard_samples = [count for split in plan.splits for count in split.shard_samples]
        self._samples = sum(self._shard_samples)
        self._started_s = self._line_s = time.monotonic()
        before = sum(self._shard_samples[index] for index in done)
        if done:
            self.log(f"going on: {len(done)} of {plan.num_shards} shards stand already")
        self._samples -= before
        self._show("building", 0, self._samples, "")

    def shard_done(self, receipt: ShardReceipt) -> None:
        self._done += self._shard_samples[receipt.index]
        self._bytes += receipt.num_bytes
        elapsed_s = max(1e-6, time.monotonic() - self._started_s)
        rate = f"{self._done / elapsed_s:,.0f} images/s, {human_bytes(self._bytes / elapsed_s)}/s"
        self._show("building", self._done, self._samples, rate)
        if not self._live and time.monotonic() - self._line_s > LINE_EVERY_S:
            self._line_s = time.monotonic()
            left_s = (self._samples - self._done) * elapsed_s / self._done
            self.log(f"{self._done:,} of {self._samples:,} images, {rate}, {left_s / 60:.0f} min left")

    def assembling(self) -> None:
        self._show("writing index and manifest", None, None, "")

    def _show(self, what: str, done: int | None, total: int | None, rate: str) -> None:
        if self._task is None:
            self._task = self._bar.add_task(what, total=total, rate=rate)
        self._bar.update(self._task, description=what, total=total, completed=done or 0, rate=rate)
