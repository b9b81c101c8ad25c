"""Logs of a run: JSON lines on stdout and in `log.txt`, events for TensorBoard, numbers for Weights & Biases, a
bar, traces. For a bucket they are written to a local folder, whose copy in the bucket `BucketCopy` keeps up to date."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.errors import ConflictError, DataprepError, UsageError
from dataprep.formats.example import checksum, frame_head, message, varint
from dataprep.messages import counted, visible
from dataprep.storage import ObjectInfo, Storage, disk_errors, open_storage
from dataprep.storage.checksums import crc32c_of_bytes
from dataprep.storage.spool import temporary_folder
from dataprep.watching import LOG_FILE, PROFILE_REQUEST, log_lines, requested_s
from train.telemetry.goodput import COMPUTE, GOODPUT_FILE, Goodput, GoodputEvents

if TYPE_CHECKING:
    from rich.progress import Progress

RUN_FILE = "wandb-run.txt"
"""File in the folder of logs with the run's identifier."""


def open_wandb(project: str, folder: Path | None, *, resumed: bool) -> Any:
    """Open a run of a project; `WANDB_MODE=offline` keeps it in the folder until `wandb sync`. Without a folder the run
    has no files of its own, and cannot be continued. Raises UsageError if the package is not installed."""
    try:
        import wandb
    except ImportError as error:
        raise UsageError(f"`wandb` needs its package ({error}): pip install wandb") from error
    kept = None if folder is None else folder / RUN_FILE
    name = kept.read_text().strip() if resumed and kept is not None and kept.exists() else None
    run = wandb.init(project=project, id=name, resume="allow" if name else None, dir=folder)
    # Steps that were done again after a kill have smaller numbers, which wandb's own steps may not have.
    run.define_metric("*", step_metric="step")
    if kept is not None:
        kept.write_text(f"{run.id}\n")
    return run


# Tags of the wire format: field number x 8 + type.
_DOUBLE_1, _VARINT_1, _VARINT_2, _VARINT_3 = b"\x09", b"\x08", b"\x10", b"\x18"
_LEN_1, _LEN_3, _LEN_4, _LEN_5, _LEN_7, _FLOAT_2 = b"\x0a", b"\x1a", b"\x22", b"\x2a", b"\x3a", b"\x15"
_RGB = 3
_SESSION_START = 1


_EVENTS = "events.out.tfevents."
_FRAME_BYTES = 16
"""Bytes of a frame that are not its event: 8 of its length, and 4 of each checksum."""


class EventFile:
    """A new file in a folder, to which each call appends, flushed.

    Args:
        restarts_at: First step that is done after this; TensorBoard forgets what earlier files have of it and of later
            ones. None: it forgets nothing.
    """

    def __init__(self, folder: Path, restarts_at: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{_EVENTS}{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("ab")
        self._write(0, message(_LEN_3, b"brain.Event:2"))
        if restarts_at is not None:
            self._write(restarts_at, message(_LEN_7, _VARINT_1 + varint(_SESSION_START)))

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Write scalar values by their tags, as float32; larger ones become infinite."""
        summary = b"".join(_value(tag, _FLOAT_2 + _float32(value)) for tag, value in values.items())
        self._write(step, message(_LEN_5, summary))

    def image(self, step: int, tag: str, png: bytes, *, height: int, width: int) -> None:
        """Write an image in PNG; height and width are in pixels."""
        content = _VARINT_1 + varint(height) + _VARINT_2 + varint(width) + _VARINT_3 + varint(_RGB)
        self._write(step, message(_LEN_5, _value(tag, message(_LEN_4, content + message(_LEN_4, png)))))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, step: int, what: bytes) -> None:
        event = _DOUBLE_1 + struct.pack("<d", time.time()) + _VARINT_2 + varint(step) + what
        self._file.write(frame_head(len(event)) + event + checksum(event))
        self._file.flush()


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _value(tag: str, content: bytes) -> bytes:
    return message(_LEN_1, message(_LEN_1, tag.encode()) + content)


ENDED = "ended"
"""Field that only the last line of a finished run has."""
LOOK_S, LOOK_ON_DISK_S = 12.0, 1.0
"""Time between two looks at what must be published, and for requests: two of them and an upload take less than 30 s."""
_MAX_REQUEST_BYTES = 1 << 12


class BucketCopy:
    """Copy of a local folder in a bucket: files that grow by complete lines and events are appended to, any other is
    written again once it has not changed between two looks. Raises UsageError if the storage is another kind of
    place."""

    def __init__(self, storage: Storage, folder: Path) -> None:
        from dataprep.storage.gcs import GCSStorage

        if not isinstance(storage, GCSStorage):
            raise UsageError(f"`log_dir` {storage.url}: cannot be written; expected a folder on a disk or gs://")
        self._storage, self._folder = storage, folder
        self._copied: dict[str, ObjectInfo | None] = {}
        """Object of each file that grows, as this process last wrote it."""
        self._left: set[str] = set()
        """Files that another program writes."""
        self._written: dict[str, tuple[int, int]] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        """Size and time of each other file, when it was written to the bucket, and at the last look."""

    def fetch(self, name: str) -> None:
        """Fetch an object into the folder, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            data = self._storage.read(name)
            (self._folder / name).write_bytes(data)

    def publish(self, *, last: bool = False) -> None:
        """Bring the bucket up to date, the last time also with files that have just changed.

        Raises:
            StorageError: The bucket cannot be written to; the next call tries again.
            ConflictError: Another program writes the same log, which this one no longer does.
        """
        for path in sorted(self._folder.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            name, status = path.relative_to(self._folder).as_posix(), path.stat()
            state = status.st_size, status.st_mtime_ns
            if path.name in (LOG_FILE, GOODPUT_FILE) or path.name.startswith(_EVENTS):
                self._extend(name, path)
            elif state != self._written.get(name):
                if last or state == self._seen.get(name):
                    self._storage.put(name, path.read_bytes())
                    self._written[name] = state
                self._seen[name] = state

    def _extend(self, name: str, path: Path) -> None:
        info = self._copied.get(name)
        if name in self._left or (info is not None and path.stat().st_size <= info.num_bytes):
            return
        if info is not None:
            fresh = self._complete(path, info.num_bytes)
            appended = self._storage.append(info, fresh) if fresh else info
            self._copied[name] = appended or self._ours(name, path)
        if self._copied.get(name) is None:  # of an earlier process, or removed
            self._storage.put(name, self._complete(path, 0))
            self._copied[name] = self._storage.stat(name)

    def _complete(self, path: Path, first: int) -> bytes:
        """Return the complete lines or events after the first bytes, which are in the bucket and are not read again."""
        with path.open("rb") as file:
            file.seek(first)
            data = file.read()
        return data[: complete_bytes(data, is_log=not path.name.startswith(_EVENTS))]

    def _ours(self, name: str, path: Path) -> ObjectInfo | None:
        """Return an object that another version has replaced, if that is ours: the response to its last append was
        lost."""
        info, data = self._storage.stat(name), path.read_bytes()
        if info is not None and info.crc32c != crc32c_of_bytes(data[: info.num_bytes]):
            self._left.add(name)
            raise ConflictError(f"{self._storage.url_of(name)}: another program writes it; this one no longer does")
        return info


def complete_bytes(data: bytes, *, is_log: bool) -> int:
    """Return the number of bytes at the beginning of a file that are complete lines, or complete events."""
    if is_log:
        return data.rfind(b"\n") + 1
    end = stop = 0
    while stop <= len(data):
        end, stop = stop, stop + _FRAME_BYTES + int.from_bytes(data[stop : stop + 8], "little")
    return end


class Logs:
    """Log lines, events and the progress bar of one run.

    Args:
        folder: Folder on a disk, or gs://bucket/prefix; None: no file is written.
        enabled: False for all ranks but the first, so that they log nothing.
        wandb: Project of Weights & Biases; None: nothing is logged there.
        spell: Writes the fields that a line for people names as options of the command line.
        by_epochs: Also show everything over epochs x 1000, as in resnet_jax, to compare runs with other batch sizes.
            These are a run of their own for TensorBoard, `epochs`: where a run goes on, it forgets what is done again
            by steps.
    """

    def __init__(
        self,
        folder: str | None,
        *,
        enabled: bool = True,
        wandb: str | None = None,
        spell: Callable[[str], str] = str,
        by_epochs: bool = False,
    ) -> None:
        self._stack = contextlib.ExitStack()
        self._storage = storage = open_storage(folder) if folder is not None else None
        self._request, self._asked_s = b"", 0.0
        self.place = storage.url if storage is not None else ""
        """Path or URL of the folder, for messages."""
        self._where = Path(storage.url) if storage is not None else None
        self._copy: BucketCopy | None = None
        if storage is not None and not storage.is_local:
            self._where = self._stack.enter_context(temporary_folder()) / "logs"
            self._where.mkdir()
            self._copy = BucketCopy(storage, self._where)
            for name in (LOG_FILE, RUN_FILE, GOODPUT_FILE) if enabled else ():
                self._copy.fetch(name)
        self.folder = self._where if enabled else None
        self._enabled, self._spell = enabled, spell
        self._bar: Progress | None = None
        self._events: EventFile | None = None
        self._epochs: EventFile | None = None
        self._by_epochs = by_epochs
        self._project = wandb if enabled else None
        self._wandb: Any = None
        self._goodput: Goodput | None = None
        self._goodput_events: GoodputEvents | None = None
        self._closed, self._is_behind = threading.Event(), False
        self._thread = threading.Thread(target=self._keep_up, name="dataprep-logs", daemon=True)

    @property
    def takes_loader(self) -> bool:
        """Whether numbers of the loader are logged."""
        return self._wandb is not None

    def trace_folder(self, rank: int) -> Path | None:
        """Return the folder for traces of a rank; all but the first have their own, as several may share a machine."""
        return self._where / f"rank-{rank:02d}" if self._where is not None and rank > 0 else self._where

    def open(self, *, step: int, total_steps: int, epoch: float = 0.0, goodput: Goodput | None = None) -> None:
        """Start after a step, and remove lines of later steps, which a killed run may have left, and that it ended.

        Args:
            epoch: Epochs that were done, with their fraction.
            goodput: Time of this attempt, to which the time of earlier ones is added; None: it is not logged.
        """
        self._goodput = goodput
        if self.folder is not None:
            with disk_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._forget_after(step)
                self._events = EventFile(self.folder, step + 1)
                if self._by_epochs:
                    self._epochs = EventFile(self.folder / "epochs", round(1000 * epoch) + 1)
                if goodput is not None:
                    self._goodput_events = GoodputEvents(
                        path=self.folder / GOODPUT_FILE, job=self.place.rpartition("/")[2]
                    )
                    self._goodput_events.begin(goodput, step)
        if self._copy is not None:
            self._copy.publish()  # an error now ends the run; later it becomes a warning
        if self._storage is not None:
            self._request = self._read_request()
            self._thread.start()
        if self._project is not None:
            self._wandb = open_wandb(self._project, self.folder, resumed=step > 0)
        if self._enabled and sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task("training", total=total_steps, completed=step)
            self._bar.start()

    def close(self) -> None:
        """Close the progress bar and the files."""
        if self._bar is not None:
            self._bar.stop()
        for events in (self._events, self._epochs):
            if events is not None:
                events.close()
        if self._wandb is not None:
            self._wandb.finish()
        if self._goodput is not None and self._goodput_events is not None:
            self._goodput_events.end(self._goodput)
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._copy is not None:
            self._publish(self._copy, last=True)
        self._stack.close()

    def asked_s(self) -> float:
        """Return for how many seconds `dataprep train profile` has asked for a trace since the last call; 0: it has
        not."""
        if not self._asked_s:  # almost always
            return 0.0
        asked_s, self._asked_s = self._asked_s, 0.0
        return asked_s

    def _keep_up(self) -> None:
        while not self._closed.wait(LOOK_S if self._copy is not None else LOOK_ON_DISK_S):
            if self._copy is not None:
                self._publish(self._copy)
            request = self._read_request()
            if request not in (b"", self._request):
                self._request, self._asked_s = request, requested_s(request)

    def _read_request(self) -> bytes:
        try:
            return self._storage.read(PROFILE_REQUEST, _MAX_REQUEST_BYTES) if self._storage is not None else b""
        except (DataprepError, OSError):  # there is none, or the bucket does not answer: the next look asks again
            return b""

    def _publish(self, copy: BucketCopy, *, last: bool = False) -> None:
        try:
            copy.publish(last=last)
            self._is_behind = False
        except (DataprepError, OSError) as error:
            if last or not self._is_behind or isinstance(error, ConflictError):
                self.tell(f"{error}; the bucket lacks the last log lines{'' if last else ' until it answers again'}")
            self._is_behind = True

    def scalars(self, line: Mapping[str, float]) -> None:
        """Log one line of numbers, including `step` and `loss`, and write them as scalars for TensorBoard."""
        self._line(line)
        values = {name: line[name] for name in line if name != "step"}
        self._numbers(int(line["step"]), line.get("epoch", 0.0), "train", values)
        if self._bar is not None:
            self._bar.update(self._task, completed=line["step"], description=f"loss {line['loss']:.4f}")

    def goodput(self, step: int) -> float:
        """Log the time of the run by cause; return the share of computing, 0..1."""
        seconds = self._goodput.seconds() if self._goodput is not None else {COMPUTE: 1.0}
        if self._goodput is not None and self._goodput_events is not None:
            self._goodput_events.log(self._goodput, step)
        if self._events is not None:
            self._events.scalars(step, {f"goodput/{cause}_s": each for cause, each in seconds.items()})
        return seconds[COMPUTE] / (sum(seconds.values()) or 1.0)

    def evaluation(self, step: int, epoch: float, found: Mapping[str, float]) -> None:
        """Log the numbers of an evaluation, with names that begin with `val_`, in TensorBoard with `val/`."""
        self._line({"step": step, "epoch": epoch, **{f"val_{name}": value for name, value in found.items()}})
        self._numbers(step, epoch, "val", found)

    def ended(self, step: int, epoch: float) -> None:
        """Log, as the last line, that the run has done all of its steps."""
        self._line({"step": step, "epoch": epoch, ENDED: True})

    def loader(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of the loader, for Weights & Biases alone."""
        if self._wandb is not None:
            self._wandb.log({**values, "step": step})

    def picture(self, step: int, tag: str, png: bytes, *, height: int, width: int) -> None:
        """Write a picture for TensorBoard, and as a file that the next picture replaces."""
        if self._events is not None and self.folder is not None:
            self._events.image(step, tag, png, height=height, width=width)
            (self.folder / f"{tag}.png").write_bytes(png)

    def tell(self, text: str) -> None:
        """Print a line for people to stderr."""
        if not self._enabled:
            return
        text = self._spell(text)
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(visible(text), file=sys.stderr, flush=True)

    def _numbers(self, step: int, epoch: float, kind: str, values: Mapping[str, float]) -> None:
        named = {f"{kind}/{name}": value for name, value in values.items()}
        if self._events is not None:
            self._events.scalars(step, named)
        if self._epochs is not None:
            over_epochs = {f"ep_{kind}/{name}": value for name, value in values.items() if name != "epoch"}
            self._epochs.scalars(round(1000 * epoch), over_epochs)
        if self._wandb is not None:
            self._wandb.log({**named, "step": step})

    def _line(self, line: Mapping[str, float]) -> None:
        if not self._enabled:
            return
        text = json.dumps(line)
        print(text, flush=True)
        if self.folder is not None:
            with disk_errors(self.folder / LOG_FILE), (self.folder / LOG_FILE).open("a") as file:
                file.write(f"{text}\n")

    def _forget_after(self, step: int) -> None:
        if self.folder is None or not (self.folder / LOG_FILE).exists():
            return
        lines = list(log_lines((self.folder / LOG_FILE).read_bytes()))  # a kill may have truncated the last one
        if others := sum(values is None for _, values in lines):
            self.tell(f"{self.place}/{LOG_FILE}: {counted(others, 'line')} that no training logged; passed over")
        kept = [line for line, values in lines if values is None or (values["step"] <= step and ENDED not in values)]
        aside = self.folder / f"{LOG_FILE}.new"
        aside.write_bytes(b"".join(line + b"\n" for line in kept))
        os.replace(aside, self.folder / LOG_FILE)  # noqa: PTH105


def _bar() -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from dataprep.host.piped import VisibleConsole

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=VisibleConsole(sys.stderr))


_STEP = re.compile(r"[0-9]{1,10}")


def parse_steps(text: str) -> tuple[int, int] | None:
    """Parse `A:B` with A < B; return None for an empty text. Raises UsageError for another form."""
    if not text:
        return None
    first, _, last = text.partition(":")
    if not (_STEP.fullmatch(first) and _STEP.fullmatch(last) and int(first) < int(last)):
        raise UsageError(
            f"`profile_steps` {text}: expected A:B, the first update and the one after the last, e.g. 20:25"
        )
    return int(first), int(last)


class StepProfile:
    """Tracer of some updates of a run.

    Args:
        steps: First step that is traced, and the first one after it that is not; None: no trace.
        folder: Folder of the run's logs; None: no trace.
        trace: Function that returns a context, which traces into a folder while it is open.
        asked_s: Function that returns the seconds for which a trace was asked for since its last call; 0: it was not.
    """

    def __init__(
        self,
        steps: tuple[int, int] | None,
        folder: Path | None,
        trace: Callable[[Path], AbstractContextManager[None]],
        asked_s: Callable[[], float] = float,
    ) -> None:
        self._steps, self._folder, self._trace, self._asked_s = steps or (-1, -1), folder, trace, asked_s
        self._stack = contextlib.ExitStack()
        self._until_s: float | None = None
        """Time at which the trace that was asked for ends, by the monotonic clock."""

    def before(self, step: int) -> None:
        """Start or stop a trace before an update: the first to be traced or not to be, or after it was asked for."""
        if self._folder is None:
            return
        if self._until_s is not None:
            if time.monotonic() >= self._until_s:
                self.close()
        elif step == self._steps[0]:
            self._stack.enter_context(self._trace(self._folder))
        elif step == self._steps[1]:
            self.close()
        elif (asked_s := self._asked_s()) and not self._steps[0] < step < self._steps[1]:
            self._stack.enter_context(self._trace(self._folder))
            self._until_s = time.monotonic() + asked_s

    def close(self) -> None:
        """End the trace and write it."""
        self._until_s = None
        self._stack.close()
