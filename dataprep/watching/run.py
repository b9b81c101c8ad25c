"""Looks at a build or a training through the files that it writes anyway."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from math import isfinite
from pathlib import Path

from dataprep.build.claim import Claim, read_claim
from dataprep.build.receipts import ReceiptWatch, read_summary
from dataprep.dataset.manifest import MANIFEST
from dataprep.storage import ObjectInfo, Storage, disk_errors, open_storage
from dataprep.watching.snapshots import (
    ABSENT,
    BUILDING,
    ENDED,
    TRAINING,
    WHOLE,
    BuildSnapshot,
    Pace,
    Snapshot,
    TrainingSnapshot,
    latest,
)

MAX_READ = 64
"""Receipts that one look reads for what was repaired and rejected; those beyond are only counted."""
LOG_FILE = "log.txt"
"""Name of a training's log in its output folder."""
_TAIL_BYTES = 1 << 18
"""End of a log that a look reads."""


class RunWatch:
    """A build or a training at one place.

    Args:
        url: Output of a build, on disk or in a bucket, or the output folder of a training.
        clock: Returns the time in seconds.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage, self._clock = open_storage(url), clock
        self._build: _BuildWatch | None = None

    def look(self) -> Snapshot:
        """Look at the files now.

        In a bucket a look takes a request for the plan, one for each thousand receipts that may be new, at most 64 for
        receipts that are, and one for the manifest when there is no plan.

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
            return Snapshot(url=self._storage.url, state=WHOLE)
        folder = Path(self._storage.url) if self._storage.is_local else None
        if folder is not None and (folder / LOG_FILE).is_file():
            return _training(folder)
        return Snapshot(url=self._storage.url, state=ABSENT)

    def losses(self) -> list[tuple[int, float]]:
        """Return the steps at the end of a training's log, ascending, each with its latest loss."""
        path = Path(self._storage.url) / LOG_FILE
        if not self._storage.is_local or not path.is_file():
            return []
        with disk_errors(path):
            found = {int(line["step"]): line["loss"] for line in _lines(_tail(path)) if "loss" in line}
        return sorted(found.items())


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
        self._count(self._receipts.look())
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

    def _count(self, new: dict[int, ObjectInfo]) -> None:
        for index, info in islice(new.items(), MAX_READ):
            receipt = read_summary(self._storage, info, index, self.claim.root)
            if receipt is not None:
                self._read += 1
                for event in receipt.events:
                    counts = self._repaired if event.kind == "repaired" else self._rejected
                    counts[event.reason] += 1


def _training(folder: Path) -> TrainingSnapshot:
    path = folder / LOG_FILE
    with disk_errors(path):
        idle_s = max(0.0, time.time() - path.stat().st_mtime)
        tail = _tail(path)
        step, numbers = latest(_lines(tail))
        saved = max((each.name for each in folder.glob("checkpoint-*")), default=None)
    return TrainingSnapshot(
        url=str(folder),
        state=ENDED if _has_ended(tail) else TRAINING,
        idle_s=idle_s,
        step=step,
        numbers=numbers,
        checkpoint=saved,
    )


def _has_ended(data: bytes) -> bool:
    """Return whether the last line of a training's log says that the run has done all of its steps."""
    try:
        line = json.loads(data.rstrip().rpartition(b"\n")[2])
    except (ValueError, RecursionError):
        return False
    return isinstance(line, dict) and line.get("ended") is True


def _tail(path: Path) -> bytes:
    """Return the whole lines at the end of a file; the last may have been cut by a kill."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    return whole if size <= _TAIL_BYTES else whole[whole.find(b"\n") + 1 :]


def _lines(data: bytes) -> Iterator[dict[str, float]]:
    """Yield the numbers of each line that is one of a training's log; others are left out."""
    for text in data.splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and type(line.get("step")) is int:
            yield {name: value for name, value in line.items() if type(value) in (int, float) and isfinite(value)}
