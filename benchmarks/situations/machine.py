"""This machine in a situation, with the bucket's delays and competing processes, and measurements in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.situations.datasets import BUCKET, Datasets
from benchmarks.situations.guardian import Guardian
from benchmarks.situations.planting import EMULATOR, planted
from benchmarks.situations.situation import Situation, diagnose_arguments
from benchmarks.situations.training_loop import Measured, train, train_alone
from loaders import open_loader
from tests.support.gcs_emulator import REPOSITORY, GCSEmulator

DIAGNOSE_TIMEOUT_S = 180


class DiagnoseError(Exception):
    """`dataprep diagnose` failed or did not finish in time."""


class Machine:
    """This machine, its datasets, and an emulated bucket.

    Args:
        work: Folder that keeps datasets, caches and rates.
        corpus: Class folders of photographs; None: demo data.
    """

    def __init__(self, work: Path, corpus: Path | None) -> None:
        self.corpus, self._work = corpus, work
        self._datasets = Datasets(work, corpus)
        self._emulator = GCSEmulator()
        self._warm: set[Path] = set()
        self._guardian: Guardian | None = None

    def __enter__(self) -> Machine:
        self._emulator.start()
        self._others = os.environ.get(EMULATOR)
        os.environ[EMULATOR] = self._emulator.url
        self._emulator.create_bucket(BUCKET)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._emulator.stop()
        del os.environ[EMULATOR]
        if self._others is not None:
            os.environ[EMULATOR] = self._others

    def rate(self, situation: Situation, seconds: float) -> Measured:
        """Train in a situation."""
        cache_dir = self._warm_cache(situation)
        with self.into(situation) as url:
            return train(situation, url, seconds=seconds, cache_dir=cache_dir)

    def device_rate(self, situation: Situation, seconds: float) -> Measured:
        """Measure the situation's device alone, fed with a batch that it already has."""
        return train_alone(situation, seconds=seconds)

    def image_bytes(self, situation: Situation) -> float:
        """Return the mean size of the stored images."""
        with self.into(situation) as url, open_loader(url, batch_size=1) as loader:
            return loader.index.mean_image_bytes()

    def diagnose(self, situation: Situation) -> dict[str, Any]:
        """Run `dataprep diagnose --json` as a user would, and return what it prints.

        Raises:
            DiagnoseError: The command failed or did not finish in time; the message has the end of its stderr.
        """
        with self.into(situation) as url:
            command = [sys.executable, "-m", "dataprep", *diagnose_arguments(situation, url)]
            pipe = subprocess.PIPE
            with subprocess.Popen(command, cwd=REPOSITORY, stdout=pipe, stderr=pipe, text=True) as process:
                if self._guardian is not None:
                    self._guardian.ends(process.pid)
                try:
                    output, errors = process.communicate(timeout=DIAGNOSE_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise DiagnoseError(f"no answer in {DIAGNOSE_TIMEOUT_S} s") from None
        try:
            document: dict[str, Any] = json.loads(output)
        except ValueError:
            raise DiagnoseError(f"exit code {process.returncode}: {errors.strip()[-300:]}") from None
        return document

    @contextmanager
    def into(self, situation: Situation) -> Iterator[str]:
        """Put the machine into a situation inside the context; yield the URL of the dataset."""
        url = self._datasets.url(situation)
        with ExitStack() as stack:
            if situation.is_in_bucket:
                stack.callback(self._set_bucket, 0.0, None)
                self._set_bucket(situation.latency_ms or 0.0, situation.bandwidth_bytes_per_s)
            if situation.outside is not None:
                folder = None if situation.is_in_bucket else Path(url)
                stack.callback(setattr, self, "_guardian", None)
                self._guardian = stack.enter_context(
                    planted(situation.outside, folder, work=self._work, emulator_pid=self._emulator.pid)
                )
            yield url

    def _set_bucket(self, latency_ms: float, bandwidth_bytes_per_s: float | None) -> None:
        self._emulator.set_latency(latency_ms)
        self._emulator.set_bandwidth(bandwidth_bytes_per_s)

    def _warm_cache(self, situation: Situation) -> str | None:
        """Fill the situation's cache with the whole dataset and return its folder; None if it has no cache."""
        if not situation.is_cached:
            return None
        folder = self._datasets.cache_dir(situation)
        if folder not in self._warm:
            # A fast bucket fills the cache with the same bytes.
            fast = replace(situation, latency_ms=0.0, bandwidth_bytes_per_s=None, outside=None)
            with (
                self.into(fast) as url,
                open_loader(url, batch_size=8, image_size=32, cache_dir=str(folder)) as loader,
            ):
                for _ in islice(chain(loader, loader), len(loader) + 1):
                    pass
            self._warm.add(folder)
        return str(folder)


class Rates:
    """Rates of this machine without a planted cause, measured once and kept in a file, to set severities by.

    Args:
        kept: JSON file, written after each measurement.
    """

    def __init__(self, machine: Machine, kept: Path, *, seconds: float = 1.5) -> None:
        self._machine, self._kept, self._seconds = machine, kept, seconds
        self._known: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}

    def loader(self, situation: Situation) -> float:
        """Return the images/s of the situation's loader with a device that takes no time."""
        bare = replace(situation, id="", cause="", device="simulated:1e12", model="", transfer_ahead=0)
        return self._measured("loader", bare, lambda: self._machine.rate(bare, self._seconds).images_per_s)

    def device(self, situation: Situation) -> float:
        """Return the images/s of the situation's device alone."""
        named = {name: getattr(situation, name) for name in ("device", "model", "batch_size", "image_size")}
        bare = Situation(id="", cause="", is_real=True, **named)
        return self._measured("device", bare, lambda: self._machine.device_rate(bare, self._seconds).images_per_s)

    def image_bytes(self, situation: Situation) -> float:
        """Return the mean size of the stored images."""
        named = {name: getattr(situation, name) for name in ("dataset", "format", "short_side")}
        bare = Situation(id="", cause="", is_real=True, device="", **named)
        return self._measured("bytes", bare, lambda: self._machine.image_bytes(bare))

    def _measured(self, kind: str, situation: Situation, measure: Any) -> float:
        key = f"{kind} {_differences(situation)}"
        if key not in self._known:
            print(f"calibrating: {key}", file=sys.stderr)
            self._known[key] = measure()
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            self._kept.write_text(json.dumps(self._known, indent=1) + "\n")
        return self._known[key]


_PLAIN = Situation(id="", cause="", is_real=True, device="")


def _differences(situation: Situation) -> str:
    """Return the fields of a situation that do not have their usual values, as text."""
    fields = Situation.__dataclass_fields__.keys() - {"id", "cause", "is_real"}
    found = {name: getattr(situation, name) for name in sorted(fields)}
    return " ".join(f"{name}={value}" for name, value in found.items() if value != getattr(_PLAIN, name))
