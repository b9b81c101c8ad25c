"""What one look at a run shows, and the numbers that several looks give. Pure: no file is read here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dataprep.messages import duration, printable

BUILDING, TRAINING, ENDED, WHOLE, ABSENT = "building", "training", "ended", "whole", "absent"
"""States of a run. `ended`: a training has done all of its steps; `whole`: the dataset is finished; `absent`: there is
nothing to watch yet, or any more."""
SILENT_AFTER_S = 60.0
"""Seconds without progress after which a line says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """What one look at a run found."""

    url: str
    state: str
    """`building`, `training`, `ended`, `whole` or `absent`."""
    idle_s: float = 0.0
    """Seconds since the last progress that can be seen: of a build since this command first looked at the latest."""

    @property
    def is_over(self) -> bool:
        """Whether no later look can find more."""
        return self.state in (WHOLE, ENDED)

    @property
    def line(self) -> str:
        """One line for people."""
        words = {WHOLE: "the dataset is whole", ABSENT: "no build and no training there yet"}
        return f"{printable(self.url)}: {words[self.state]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildSnapshot(Snapshot):
    """A build that is running, or that stopped before its dataset was whole."""

    name: str
    """Name of the dataset."""
    format: str
    shards: int
    """Planned shards."""
    finished_shards: int
    """Shards that have a receipt."""
    samples: int
    """Planned samples, those among them that will be rejected."""
    finished_samples: int
    """Planned samples of the finished shards."""
    images_per_s: float | None
    """Rate since this command first looked; None until a shard was finished since then."""
    left_s: float | None
    """Seconds that the missing shards take at this rate."""
    read_receipts: int
    """Receipts that were read for the two counts that follow; others are only counted."""
    repaired: dict[str, int] = field(default_factory=dict)
    """Repaired images by reason."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Rejected images by reason."""

    @property
    def line(self) -> str:
        """One line for people."""
        parts = [f"{self.finished_shards:,} of {self.shards:,} shards, {self.finished_samples:,} samples"]
        if self.images_per_s is not None and self.left_s is not None:
            parts.append(f"{self.images_per_s:,.0f} images/s, {duration(self.left_s)} left")
        for what, reasons in (("repaired", self.repaired), ("rejected", self.rejected)):
            if reasons:
                named = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
                parts.append(f"{sum(reasons.values()):,} {what} ({named})")
        if self.finished_shards == self.shards:
            parts.append("index and manifest are being written")
        return _told(f"{printable(self.name)} as {self.format}: {'; '.join(parts)}", self.idle_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSnapshot(Snapshot):
    """A training, as the last lines of its log show it."""

    step: int | None
    """None: no step was logged yet."""
    numbers: dict[str, float] = field(default_factory=dict)
    """The latest value of every number in the log: `loss`, `epoch`, `images_per_s`, `wait_share`, `val_accuracy`, …"""
    checkpoint: str | None = None
    """Name of the newest checkpoint."""

    @property
    def line(self) -> str:
        """One line for people."""
        if self.step is None:
            return _told(f"{printable(self.url)}: training, no step was logged yet", self.idle_s)
        parts = [f"step {self.step:,}"]
        for name, form in _SHOWN.items():
            if name in self.numbers:
                parts.append(form.format(self.numbers[name]))
        parts += [
            f"{name.removeprefix('val_')} {value:.4g} (validation)"
            for name, value in sorted(self.numbers.items())
            if name in ("val_loss", "val_accuracy")
        ]
        if self.state == ENDED:
            parts.append(f"saved {self.checkpoint}" if self.checkpoint else "no checkpoint there")
            return f"{printable(self.url)}: ended, {', '.join(parts)}"
        parts.append(f"saved {self.checkpoint}" if self.checkpoint else "no checkpoint yet")
        return _told(f"{printable(self.url)}: {', '.join(parts)}", self.idle_s)


_SHOWN = {
    "epoch": "epoch {:.2f}",
    "loss": "loss {:.4f}",
    "images_per_s": "{:,.0f} images/s",
    "wait_share": "waits {:.0%} of the time",
}


def _told(line: str, idle_s: float) -> str:
    return f"{line}; no progress for {duration(idle_s)}" if idle_s >= SILENT_AFTER_S else line


class Pace:
    """The rate of a build between looks at it."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] = (0.0, 0)

    def saw(self, now_s: float, samples: int) -> None:
        """Note the samples of all finished shards; fewer than before are those of another build."""
        if self._first is None or samples < self._last[1]:
            self._first = self._last = now_s, samples
        elif samples > self._last[1]:
            self._last = now_s, samples

    @property
    def images_per_s(self) -> float | None:
        """Samples a second from the first look to the last that found more; None before there was one."""
        if self._first is None or self._last[0] <= self._first[0]:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])

    def idle_s(self, now_s: float) -> float:
        """Seconds since a look found more."""
        return now_s - self._last[0] if self._first is not None else 0.0


def latest(lines: Iterable[dict[str, float]]) -> tuple[int | None, dict[str, float]]:
    """Return the last step, and the latest value of each number, of lines of a log in their order."""
    step: int | None = None
    numbers: dict[str, float] = {}
    for line in lines:
        step = int(line["step"])
        numbers |= line
    numbers.pop("step", None)
    return step, numbers
