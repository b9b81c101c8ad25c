"""Progress of a build or a training, read from its own files for `dataprep watch`, and requests for traces of one."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile
from math import isfinite
from typing import Any, TypeVar

from dataprep.builder.output import Claim, read_claim
from dataprep.builder.receipts import ReceiptWatch, read_summary
from dataprep.dataset.manifest import MANIFEST
from dataprep.errors import UndecidedError, UsageError
from dataprep.messages import counted, duration, printable
from dataprep.storage import ObjectInfo, Storage, open_storage

BUILDING, TRAINING, ENDED, COMPLETE, ABSENT = "building", "training", "ended", "complete", "absent"
"""States of a run. `ended`: a training run has done all its steps; `complete`: the dataset is finished; `absent`: there
is nothing to watch yet, or no longer."""
SILENT_AFTER_S = 60.0
"""Seconds without progress after which a line says so."""
MAX_READ = 64
"""Maximum number of receipts that one look reads, for repaired and rejected images; further ones are only counted."""
LOG_FILE = "log.txt"
"""Name of a training's log in its output folder."""
PROFILE_REQUEST = "profile-request.json"
"""Name of the request for a trace in the folder of a training's logs."""
MAX_TRACE_S = 300.0
"""Longest trace that may be asked for; a second of one may take some MB."""
PATIENCE_S = 120.0
"""Time that a trace may take to appear after its seconds."""
_TRACES, _OF_RANK = "plugins/profile", "rank-"
_TRACE = re.compile(rf"((?:{_OF_RANK}\d+/)?){_TRACES}/.")
_TELL_S = 10.0
"""Time between two lines about a trace that is waited for."""
Trace = TypeVar("Trace", bound=tuple[Any, str])
"""A trace: its host, and its name there."""
_SAVED = "checkpoint-"
"""Beginning of the names of checkpoints."""
_TAIL_BYTES = 1 << 18
"""Bytes at the end of a log that a look reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """State of a run at one look."""

    url: str
    state: str
    """`building`, `training`, `ended`, `complete` or `absent`."""
    idle_s: float = 0.0
    """Seconds since the last visible progress; for a build, and in a bucket, at most since this command's start."""

    @property
    def is_over(self) -> bool:
        """Whether the run is finished, so that further looks are useless."""
        return self.state in (COMPLETE, ENDED)

    @property
    def line(self) -> str:
        """One line for people."""
        words = {COMPLETE: "the dataset is complete", ABSENT: "no build and no training there yet"}
        return f"{printable(self.url)}: {words[self.state]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildSnapshot(Snapshot):
    """A build that is running, or that stopped before its dataset was complete."""

    name: str
    """Name of the dataset."""
    format: str
    shards: int
    """Planned shards."""
    finished_shards: int
    """Shards that have a receipt."""
    samples: int
    """Planned samples, including the ones that will be rejected."""
    finished_samples: int
    """Planned samples of the finished shards."""
    images_per_s: float | None
    """Rate since this command's first look; None until a shard is finished after it."""
    left_s: float | None
    """Seconds that the remaining shards take at this rate."""
    read_receipts: int
    """Receipts that were read for the next two fields; the others are only counted."""
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
            parts.append("index and manifest are written next")
        return _told(f"{printable(self.name)} as {self.format}: {'; '.join(parts)}", self.idle_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSnapshot(Snapshot):
    """State of a training run, read from the last lines of its log."""

    step: int | None
    """Last logged step; None if no step was logged yet."""
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
        none = "there" if self.state == ENDED else "yet"
        parts.append(f"saved {self.checkpoint}" if self.checkpoint else f"no checkpoint {none}")
        if self.state == ENDED:
            return f"{printable(self.url)}: ended, {', '.join(parts)}"
        return _told(f"{printable(self.url)}: {', '.join(parts)}", self.idle_s)


_SHOWN = {
    "epoch": "epoch {:.2f}",
    "loss": "loss {:.4f}",
    "images_per_s": "{:,.0f} images/s",
    "wait_share": "waits {:.0%} of the time",
    "goodput": "computed {:.0%} of the time since its first start",
}


def _told(line: str, idle_s: float) -> str:
    return f"{line}; no progress for {duration(idle_s)}" if idle_s >= SILENT_AFTER_S else line


class Pace:
    """The rate of a build between looks at it."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] = (0.0, 0)

    def saw(self, now_s: float, samples: int) -> None:
        """Note the number of samples in all finished shards; a smaller number than before is another build's."""
        if self._first is None or samples < self._last[1]:
            self._first = self._last = now_s, samples
        elif samples > self._last[1]:
            self._last = now_s, samples

    @property
    def images_per_s(self) -> float | None:
        """Samples per second between the first look and the latest one that saw progress; None before that."""
        if self._first is None or self._last[0] <= self._first[0]:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])

    def idle_s(self, now_s: float) -> float:
        """Seconds since a look last saw progress."""
        return now_s - self._last[0] if self._first is not None else 0.0


class RunWatch:
    """A build or a training at one place.

    Args:
        url: Output of a build, on disk or in a bucket, or the output folder of a training.
        clock: Returns the time in seconds.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage, self._clock = open_storage(url), clock
        self._build: _BuildWatch | None = None
        self._log_version, self._changed_s = -1, 0.0

    def look(self) -> Snapshot:
        """Look at the files now.

        In a bucket a look takes one request for the plan, one for each thousand receipts to list, up to 64 to read new
        receipts, and one for the manifest if there is no plan. A look at a training takes five, and one for each
        thousand further objects.

        Raises:
            FormatError: The plan or a receipt is damaged, or was written by something else.
        """
        claim = read_claim(self._storage)
        if claim is not None:
            if self._build is None or self._build.claim.root != claim.root:
                self._build = _BuildWatch(self._storage, claim, self._clock)
            return self._build.look()
        self._build = None
        if self._storage.stat(MANIFEST) is not None:
            return Snapshot(url=self._storage.url, state=COMPLETE)
        log = self._storage.stat(LOG_FILE)
        if log is not None:
            return self._training(log)
        return Snapshot(url=self._storage.url, state=ABSENT)

    def _training(self, log: ObjectInfo) -> TrainingSnapshot:
        if log.version != self._log_version:
            self._log_version, self._changed_s = log.version, self._clock()
        idle_s = self._clock() - self._changed_s if log.written_ns is None else time.time() - log.written_ns / 1e9
        tail = _tail(self._storage, log)
        step, numbers = _latest(tail)
        saved = takewhile(
            lambda name: name.startswith(_SAVED),
            (info.name.partition("/")[0] for info in self._storage.list(first=_SAVED)),
        )
        return TrainingSnapshot(
            url=self._storage.url,
            state=ENDED if _has_ended(tail) else TRAINING,
            idle_s=max(0.0, idle_s),
            step=step,
            numbers=numbers,
            checkpoint=max(saved, default=None),
        )


class _BuildWatch:
    def __init__(self, storage: Storage, claim: Claim, clock: Callable[[], float]) -> None:
        self.claim = claim
        self._storage, self._clock = storage, clock
        self._sizes = [count for split in claim.plan.splits for count in split.shard_samples]
        self._receipts = ReceiptWatch(storage, claim.root, range(len(self._sizes)))
        self._pace = Pace()
        self._repaired: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._read = 0

    def look(self) -> BuildSnapshot:
        for index, info in islice(self._receipts.look().items(), MAX_READ):
            receipt = read_summary(self._storage, info, index, self.claim.root)
            if receipt is not None:
                self._read += 1
                for event in receipt.events:
                    counts = self._repaired if event.kind == "repaired" else self._rejected
                    counts[event.reason] += 1
        missing = self._receipts.missing
        samples, left = sum(self._sizes), sum(self._sizes[index] for index in missing)
        now_s = self._clock()
        self._pace.saw(now_s, samples - left)
        rate = self._pace.images_per_s
        return BuildSnapshot(
            url=self._storage.url,
            state=BUILDING,
            idle_s=self._pace.idle_s(now_s),
            name=self.claim.plan.options.name,
            format=self.claim.plan.options.format,
            shards=len(self._sizes),
            finished_shards=len(self._sizes) - len(missing),
            samples=samples,
            finished_samples=samples - left,
            images_per_s=rate,
            left_s=None if rate is None else left / rate,
            read_receipts=self._read,
            repaired=dict(self._repaired),
            rejected=dict(self._rejected),
        )


def _has_ended(data: bytes) -> bool:
    """Return whether the last line of a training's log says that the run has done all of its steps."""
    try:
        line = json.loads(data.rstrip().rpartition(b"\n")[2])
    except (ValueError, RecursionError):
        return False
    return isinstance(line, dict) and line.get("ended") is True


def _tail(storage: Storage, log: ObjectInfo) -> bytes:
    """Return the complete lines at the end of a log; a kill may have cut the last one."""
    first = max(0, log.num_bytes - _TAIL_BYTES)
    data = storage.read_range(LOG_FILE, first, log.num_bytes - first)
    whole = data[: data.rfind(b"\n") + 1]
    return whole[whole.find(b"\n") + 1 :] if first else whole


def log_lines(data: bytes) -> Iterator[tuple[bytes, Mapping[str, Any] | None]]:
    """Yield each complete line of a training's log, and its values; None for what the training did not write."""
    for text in data.split(b"\n")[:-1]:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        yield text, line if isinstance(line, dict) and type(line.get("step")) is int else None


def _latest(data: bytes) -> tuple[int | None, dict[str, float]]:
    """Return the last step in the lines of a log, and the latest value of each number."""
    step: int | None = None
    numbers: dict[str, float] = {}
    for _, line in log_lines(data):
        if line is not None:
            step = line["step"]
            numbers |= {name: value for name, value in line.items() if type(value) in (int, float) and isfinite(value)}
    numbers.pop("step", None)
    return step, numbers


def profile_request(seconds: float) -> bytes:
    """Return the content of a request for a trace of some seconds."""
    return json.dumps({"seconds": seconds, "asked_s": time.time()}).encode()


def ask_profile(
    url: str,
    seconds: float,
    *,
    hosts: int = 1,
    tell: Callable[[str], object] = str,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Ask a running training for a trace of its next seconds; return the URLs of the traces' files.

    Args:
        url: Folder of its logs, on disk or in a bucket.
        hosts: Number of hosts whose traces are waited for.
        tell: Called with lines about the progress.

    Raises:
        UsageError: No training logs there.
        UndecidedError: No trace came.
    """
    storage = open_storage(url)
    if storage.stat(LOG_FILE) is None:
        raise UsageError(f"{url}: no {LOG_FILE} of a training there; give the folder of its logs")

    def ask() -> None:
        try:
            current: bytes | None = storage.read(PROFILE_REQUEST)
        except FileNotFoundError:
            current = None
        if not storage.replace(PROFILE_REQUEST, profile_request(seconds), current):
            raise UndecidedError(f"{storage.url_of(PROFILE_REQUEST)}: another request came first; run this again")

    def look() -> dict[tuple[str, str], int]:
        of_ranks = takewhile(lambda info: info.name.startswith(_OF_RANK), storage.list(first=_OF_RANK))
        listed = chain(storage.list(_TRACES), of_ranks)
        return {(found[1], info.name): info.num_bytes for info in listed if (found := _TRACE.match(info.name))}

    wait = TraceWait(seconds=seconds, hosts=hosts, tell=tell, sleep=sleep)
    return [storage.url_of(name) for _, name in sorted(wait.traces(storage.url, look, ask))]


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceWait:
    """Waits for a trace that a running training is asked for."""

    seconds: float
    """Length of the trace."""
    hosts: int = 1
    """Number of hosts whose traces are waited for."""
    tell: Callable[[str], object] = str
    """Called with lines about the progress."""
    sleep: Callable[[float], None] = time.sleep
    poll_s: float = 2.0
    """Time between two looks."""

    def traces(self, place: str, look: Callable[[], dict[Trace, int]], ask: Callable[[], object]) -> dict[Trace, int]:
        """Ask, wait until there are new traces that no longer grow, and return them with their sizes in bytes.

        Args:
            place: Folder of the logs, for messages.
            look: Returns the size of each trace that there is, by its host and its name.
            ask: Writes the request.

        Raises:
            UndecidedError: No trace came.
        """
        before, patience_s = look(), self.seconds + PATIENCE_S
        ask()
        self.tell(f"asked for {duration(self.seconds)}; the trace appears in {place}/{_TRACES}")
        seen: dict[Trace, int] = {}
        told_s = elapsed_s = 0.0
        while elapsed_s < patience_s:
            self.sleep(self.poll_s)
            elapsed_s += self.poll_s
            found = {trace: size for trace, size in look().items() if trace not in before}
            if found == seen and len({host for host, _ in found}) >= self.hosts:
                return found
            seen = found
            if elapsed_s - told_s >= _TELL_S:
                told_s = elapsed_s
                self.tell(
                    f"{counted(len(found), 'trace')} after {duration(elapsed_s)} of at most {duration(patience_s)}"
                )
        if not seen:
            raise UndecidedError(
                f"{place}: no trace after {duration(patience_s)}; see by `dataprep watch` whether the training runs"
            )
        return seen


def requested_s(request: bytes) -> float:
    """Return the seconds that a request for a trace asks for, at most `MAX_TRACE_S`; 0 if it is damaged."""
    try:
        seconds = float(json.loads(request)["seconds"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return 0.0
    return seconds if 0 < seconds <= MAX_TRACE_S else 0.0
