"""Comparison of our loader with others on the same data, in turn; each run is a process of its own.

with tempfile.TemporaryDirectory() as folder:
    table = run_bench(BenchRequest(urls=("shards",)), Path(folder), progress)
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from dataprep.adoption import Progress as AdoptProgress
from dataprep.errors import DataprepError, UndecidedError, UsageError
from dataprep.host.cpu import background_cores
from dataprep.host.measure import CommandError
from dataprep.host.versions import machine_document
from dataprep.messages import not_one_of
from loaders.bench.copies import Copy
from loaders.bench.data import grouped, open_bench_data
from loaders.bench.peers import PEERS
from loaders.bench.runs import ROOT, BenchSettings, Contender, Run, last_line, row_of, run_once, warm_up
from loaders.bench.table import OURS, BenchSection, BenchTable, LeftOut, Settings

LOADERS = (OURS, *PEERS)
PEERS_PYTHON = ROOT / ".bench-venv/bin/python"
"""Interpreter of the environment that `make setup` creates in a checkout."""
_FIND = "import sys, importlib.util as u; print(*(name for name in sys.argv[1:] if u.find_spec(name)))"


class Progress(AdoptProgress, Protocol):
    """Progress of a comparison."""

    def running(self, what: str, done: int, total: int) -> None:
        """Report that `done` of `total` runs are finished, and that the next one has begun."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRequest:
    """Datasets and loaders to compare.

    Raises:
        UsageError: A loader is unknown; the message lists all and names the nearest.
    """

    urls: tuple[str, ...]
    """Datasets of any origin; all tars together are one dataset, and `{000..146}` is expanded."""
    split: str = "train"
    loaders: tuple[str, ...] = LOADERS
    settings: BenchSettings = field(default_factory=BenchSettings)
    rounds: int = 5
    copied_images: int = 2000
    """Maximum number of images to copy for loaders that need another layout."""
    copies: Path | None = None
    """Folder that keeps the copies; None: they are removed in the end, and data in a bucket are not copied."""
    peer_python: Path | None = None
    """Interpreter of an environment with more loaders; None: the one that `make setup` creates, if it exists."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.copied_images < 1:
            raise UsageError(f"rounds and images must be 1 or more, got {self.rounds} and {self.copied_images}")
        for name in self.loaders:
            if name not in LOADERS:
                raise UsageError(not_one_of("loader", name, LOADERS))


def run_bench(request: BenchRequest, work: Path, progress: Progress) -> BenchTable:
    """Compare loaders on every dataset of a request.

    Args:
        request: Datasets and loaders.
        work: Empty folder for indexes and copies; the caller removes it.
        progress: Receives what is being done.

    Raises:
        DataprepError: A dataset cannot be read, or our own loader failed.
        UndecidedError: No loader could be measured at all.
    """
    machine = machine_document(background_cores())
    pythons = find_pythons(request)
    sections = tuple(
        _DatasetBench(request, urls, work / str(number), pythons, progress).run()
        for number, urls in enumerate(grouped(request.urls))
    )
    if not any(section.rows for section in sections):
        reasons = "; ".join(f"{each.loader}: {each.reason}" for section in sections for each in section.left_out)
        raise UndecidedError(f"no loader could be measured: {reasons}")
    settings = request.settings
    found_settings: Settings = {
        "batch_size": settings.batch_size,
        "image_size": settings.image_size,
        "workers": settings.workers,
        "rounds": request.rounds,
        "seconds": settings.seconds or None,
        "batches": settings.images // settings.batch_size or None,
    }
    return BenchTable(sections=sections, settings=found_settings, machine=machine)


def find_pythons(request: BenchRequest) -> dict[str, Path | str]:
    """Return the interpreter for each peer: this one, or `peer_python` if only that has all packages of the peer.

    Raises:
        UsageError: `peer_python` cannot be run.
    """
    others = request.peer_python or (PEERS_PYTHON if PEERS_PYTHON.exists() else None)
    chosen = {name: PEERS[name].packages for name in request.loaders if name in PEERS}
    wanted = sorted({package for packages in chosen.values() for package in packages})
    found: dict[str, Path | str] = {}
    pythons: list[Path | str] = [sys.executable, *([others] if others else [])]
    for python in pythons:
        try:
            command = [python, "-P", "-c", _FIND, *wanted]
            there = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
        except (OSError, subprocess.CalledProcessError) as error:
            raise UsageError(f"{python}: cannot be run ({error}); expected --peer-python ENV/bin/python") from error
        for name, packages in chosen.items():
            if there.issuperset(packages):
                found.setdefault(name, python)
    return found


class _DatasetBench:
    """Comparison on one dataset: which loaders can read it, how, and what the rounds measured."""

    def __init__(
        self,
        request: BenchRequest,
        urls: tuple[str, ...],
        work: Path,
        pythons: Mapping[str, Path | str],
        progress: Progress,
    ) -> None:
        self._request, self._settings, self._progress, self._pythons = request, request.settings, progress, pythons
        workers = self._settings.workers
        progress.step(f"opening {urls[0]}")
        self._data = open_bench_data(urls, request.split, work / "index", progress, workers)
        samples = self._data.dataset.split.samples
        if samples < self._settings.batch_size:
            raise UsageError(
                f"{self._data.url}: {samples:,} images in {request.split}, a batch takes "
                f"{self._settings.batch_size:,}; choose --batch-size {max(1, samples // workers)}"
            )
        copies = request.copies or work
        self._copy = Copy(self._data, copies, request.copied_images, workers, progress)
        self._left_out: list[LeftOut] = []

    def run(self) -> BenchSection:
        """Warm up every loader, then measure round after round."""
        contenders = [found for name in self._request.loaders if (found := self._contender(name))]
        contenders = self._try(contenders, self._warmed, "warming up")
        if any(each.data == "copy" for each in contenders) and OURS in self._request.loaders:
            contenders += self._try(self._ours_on_copy(), self._warmed, "warming up")
        runs: dict[Contender, list[Run]] = defaultdict(list)

        def measured(contender: Contender) -> Contender:
            runs[contender].append(run_once(contender, self._settings))
            return contender

        for number in range(self._request.rounds):
            contenders = self._try(contenders, measured, f"round {number + 1} of {self._request.rounds}")
        return self._section({each: runs[each] for each in contenders})

    def _section(self, runs: Mapping[Contender, Sequence[Run]]) -> BenchSection:
        data, has_copy = self._data, any(each.data == "copy" for each in runs)
        copied_bytes = self._copy.bytes_per_image if has_copy else 0.0
        rows = [
            row_of(each, found, data.bytes_per_image if each.data == "original" else copied_bytes)
            for each, found in runs.items()
        ]
        return BenchSection(
            url=data.url,
            split=data.dataset.split.name,
            layout=data.layout,
            samples=data.dataset.split.samples,
            bytes_per_image=data.bytes_per_image,
            copied_images=self._copy.images if has_copy else 0,
            copied_bytes_per_image=copied_bytes,
            rows=tuple(sorted(rows, key=lambda row: -row.images_per_s)),
            left_out=tuple(self._left_out),
        )

    def _try(
        self, contenders: Sequence[Contender], run: Callable[[Contender], Contender], what: str
    ) -> list[Contender]:
        """Run contenders in turn and return those that succeeded; a failure of our loader is an error."""
        through = []
        for number, contender in enumerate(contenders):
            self._progress.running(f"{what}: {contender.loader}", number, len(contenders))
            try:
                through.append(run(contender))
            except CommandError as error:
                self._leave_out(contender.loader, last_line(error.stderr))
            except DataprepError as error:
                self._leave_out(contender.loader, str(error))
        return through

    def _warmed(self, contender: Contender) -> Contender:
        """Warm up a contender; one that cannot read the original files is replaced by one on the copy."""
        try:
            warm_up(contender, self._settings)
        except CommandError as error:
            if contender.loader == OURS or contender.data == "copy" or not self._may_copy:
                raise
            self._progress.log(f"{contender.loader} cannot read the original files: {last_line(error.stderr)}")
            contender = self._on_copy(contender.loader)
            warm_up(contender, self._settings)
        return contender

    def _leave_out(self, loader: str, reason: str) -> None:
        if loader == OURS:
            raise DataprepError(f"{self._data.url}: {reason}")
        self._left_out.append(LeftOut(loader=loader, reason=reason))

    @property
    def _may_copy(self) -> bool:
        return self._data.is_local or self._request.copies is not None

    def _contender(self, name: str) -> Contender | None:
        data = self._data
        if name == OURS:
            url, split = data.dataset.url, data.dataset.split.name
            return Contender(loader=OURS, layout=data.layout, root=url, split=split)
        if name not in self._pythons:
            self._leave_out(name, _missing(name))
            return None
        if PEERS[name].layout == data.layout and not data.why_unreadable:
            return self._peer(name, data.root, "original", data.files)
        if not self._may_copy:
            self._leave_out(name, f"{data.why_unreadable}; --convert DIR compares on a local copy of some images")
            return None
        try:
            return self._on_copy(name)
        except DataprepError as error:
            self._leave_out(name, str(error))
            return None

    def _on_copy(self, name: str) -> Contender:
        layout = PEERS[name].layout
        python = self._pythons[name] if layout in ("mds", "array_record") else sys.executable
        return self._peer(name, str(self._copy.layout(layout, python)), "copy")

    def _peer(self, name: str, root: str, data: Literal["original", "copy"], files: tuple[str, ...] = ()) -> Contender:
        peer = PEERS[name]
        return Contender(
            loader=name,
            layout=peer.layout,
            root=root,
            files=files,
            data=data,
            interpolation=peer.interpolation,
            python=self._pythons[name],
        )

    def _ours_on_copy(self) -> list[Contender]:
        """Return our loader on the copy, for comparison with loaders that do not read the original files."""
        if self._copy.is_whole:
            return []
        layout = self._data.layout
        return [Contender(loader=OURS, layout=layout, root=self._copy.indexed(layout), data="copy")]


def _missing(name: str) -> str:
    packages = ", ".join(PEERS[name].packages.values())
    return f"needs {packages}: install it, here or in another environment (`make setup`; --peer-python ENV/bin/python)"
