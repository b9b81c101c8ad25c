"""Who resumes in mid-epoch on another number of ranks? What each loader repeats and skips: a table and a picture.

python benchmarks/resume.py --json resume.json --picture resume.png

One epoch of the same photographs is begun by 8 ranks, which store their states and are killed some batches later. It is
resumed by other numbers of ranks until the epoch ends, with the same global batch. Every loader reads its own format,
and is set up for this as its own documents say (benchmarks/peers/resume_*.py). Batch and samples are chosen so that an
epoch that nobody stops delivers every sample exactly once with each number of ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import PEERS, PEERS_PYTHON, ROOT, common_options, report, work_folder
from benchmarks.originals import build, corpus_images, image_folder, write_order
from benchmarks.resume_judge import Life, Verdict, judge
from benchmarks.tables import joined, resume_change, resume_outcome

RANKS = 8
"""Ranks of the first life."""
CHANGES = ((8,), (7,), (6,), (4,), (12,), (6, 4))
"""Numbers of ranks that resume, one after the other."""
BATCH = 168
"""Samples of a step on all ranks: divisible by every number of ranks above."""
STEPS = 10
"""Steps of the epoch."""
STEPS_OF_A_LIFE = 4
"""Steps whose state the first life stores; each later one but the last stores the state after half as many."""
POLL_S = 0.05
DEADLINE_S = 900
"""A life that takes longer than this hangs."""


ARENA_PYTHON = PEERS_PYTHON.parents[1] / "arena/bin/python"


class Loader(NamedTuple):
    """One row of the table."""

    name: str
    peer: str
    """Name of the script in peers/, without `resume_`."""
    package: str
    """Distribution whose version is recorded."""
    data: str
    """Which of the written datasets it reads."""
    documents: str
    """The documents whose set-up it has."""
    variant: str = ""
    python: str = str(PEERS_PYTHON)

    @property
    def script(self) -> Path:
        """Return the script."""
        return PEERS / f"resume_{self.peer}.py"


HERE, ARENA = sys.executable, str(ARENA_PYTHON)
LOADERS = (
    Loader("dataprep", "dataprep", "tpu-dataprep", "webdataset", "docs/loaders.md, Save and resume", python=HERE),
    Loader("MosaicML streaming", "mosaic", "mosaicml-streaming", "mds", "Fast Resumption; Elastic Determinism"),
    Loader("Grain, ElasticIterator", "grain", "grain", "array_record", "ElasticIterator's docstring", "elastic"),
    Loader("LitData", "litdata", "litdata", "litdata", "README, Pause, resume data streaming"),
    Loader("LanceDB", "lance", "lancedb", "lance", "Training: Checkpointing; Resuming", python=ARENA),
    Loader("Energon", "energon", "megatron-energon", "energon", "Save and Restore; Reproducible Scaling"),
    Loader("Grain, DataLoader", "grain", "grain", "array_record", "DataLoader guide, checkpointing", "loader"),
    Loader("torchdata", "torchdata", "torchdata", "imagefolder", "Stateful DataLoader tutorial"),
    Loader("datasets streaming", "datasets", "datasets", "parquet", "Stream: Save a dataset checkpoint", python=HERE),
    Loader("webdataset, split by node", "webdataset", "webdataset", "webdataset", "multinode guide; #177", "split"),
    Loader("webdataset, resampled", "webdataset", "webdataset", "webdataset", "#177, #234 and #271", "resampled"),
)


class RefusedError(Exception):
    """A loader did not resume; the message is its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """The settings of all rows."""

    ranks: int
    batch: int
    steps: int
    steps_of_a_life: int
    work: Path

    @property
    def samples(self) -> int:
        """Return the number of samples of the epoch."""
        return self.batch * self.steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A life that has ended."""

    folder: Path
    world_size: int
    steps: int | None

    def logged(self) -> Life:
        """Return what its ranks took."""
        paths = [self.folder / f"log-{rank}.jsonl" for rank in range(self.world_size)]
        return Life(logs=[list(map(json.loads, path.read_text().splitlines())) for path in paths], steps=self.steps)


class Launcher:
    """A process that has imported a loader's library, and runs lives of a training with it."""

    def __init__(self, contest: Contest, loader: Loader) -> None:
        self.contest, self.loader = contest, loader
        command = [loader.python, str(loader.script), "train"]
        self._process = subprocess.Popen(command, env=_environment(), stdin=subprocess.PIPE, text=True)

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, before: Sequence[Ran], world_size: int, steps: int | None) -> Ran:
        """Run all ranks of one life, and kill them once all have stored their states.

        Raises:
            RefusedError: A rank failed, or delivered no further batch in time.
        """
        contest = self.contest
        worlds = [*(life.world_size for life in before), world_size]
        folder = contest.work / "lives" / self.loader.name / ("-".join(map(str, worlds)) + "-end" * (steps is None))
        folder.mkdir(parents=True)
        ran = Ran(folder=folder, world_size=world_size, steps=steps)
        life = {
            "data": str(contest.work / self.loader.data),
            "folder": str(folder),
            "before": str(before[-1].folder) if before else None,
            "world_before": before[-1].world_size if before else 0,
            "world_size": world_size,
            "batch_size": contest.batch,
            "samples": contest.samples,
            "taken": contest.batch * sum(life.steps or 0 for life in before),
            "steps": steps,
            "port": _free_port(),
            "variant": self.loader.variant,
        }
        if self._process.stdin is None:
            raise RuntimeError("the launcher has no input")
        print(json.dumps(life), file=self._process.stdin, flush=True)
        try:
            self._wait(ran)
        finally:
            _kill(folder)
        return ran

    def _wait(self, ran: Ran) -> None:
        """Wait until the epoch has ended or all ranks have stored their states; raise RefusedError after an error."""
        deadline_s = time.monotonic() + DEADLINE_S
        ready = [ran.folder / f"ready-{rank}" for rank in range(ran.world_size)]
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise SystemExit(f"{self.loader.script.name} ended with {self._process.returncode}")
            code = ran.folder / "code"
            ended = code.exists()
            if errors := sorted(ran.folder.glob("error-*.json")):
                raise RefusedError(_one_line(json.loads(errors[0].read_text())))
            if ended and code.read_text() != "0":
                raise RefusedError(_one_line((ran.folder / "output.txt").read_text()))
            if all(path.exists() for path in ready) if ran.steps is not None else ended:
                return
            if ended:
                raise RefusedError(f"the epoch ended before step {ran.steps}")
            time.sleep(POLL_S)
        raise RefusedError(f"no end after {DEADLINE_S} s")


def _kill(folder: Path) -> None:
    """Kill the ranks of a life and their workers, in the middle of what they do, and wait for their end."""
    while not (folder / "code").exists():
        if (folder / "group").exists():
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.killpg(int((folder / "group").read_text()), signal.SIGKILL)
        time.sleep(POLL_S)


def run_change(launcher: Launcher, first: Ran, change: Sequence[int]) -> dict[str, Any]:
    """Resume a first life with other numbers of ranks to the end of the epoch, and judge what all lives delivered."""
    row: dict[str, Any] = {"ranks": [first.world_size, *change]}
    lives = [first]
    try:
        for number, world_size in enumerate(change, start=1):
            steps = launcher.contest.steps_of_a_life // 2 if number < len(change) else None
            lives.append(launcher.run(lives, world_size, steps))
    except RefusedError as refusal:
        return row | {"refused": str(refusal)}
    return row | {"refused": None} | asdict(judged(launcher.contest, lives))


def judged(contest: Contest, lives: Sequence[Ran]) -> Verdict:
    """Compare the logs of an epoch's lives with the photographs."""
    shards = json.loads((contest.work / "order.json").read_bytes())["shards"]
    return judge([key for shard in shards for _, key, _ in shard], [life.logged() for life in lives])


def _one_line(message: str) -> str:
    """Return a message on one line; of one that holds a traceback, of a worker, its last line."""
    lines = message.strip().splitlines()
    return " ".join((lines[-1] if "Traceback (most recent call last)" in message else " ".join(lines)).split())


def _environment() -> dict[str, str]:
    quiet = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1"}
    return dict(os.environ) | quiet | {"PYTHONPATH": str(ROOT)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def write_datasets(contest: Contest, loaders: Sequence[Loader], corpus: Path | None) -> None:
    """Write the photographs in the format of every loader: as many shards as samples of a step."""
    images = corpus_images(corpus, contest.work, contest.samples)
    if len(images) < contest.samples:
        raise SystemExit(f"{len(images)} images, expected {contest.samples}; give a larger corpus")
    root = image_folder(images, contest.work / "folder")
    order = contest.work / "order.json"
    (root / "train").rename(contest.work / "imagefolder")  # a folder of classes and nothing else
    (root / "train").symlink_to(contest.work / "imagefolder")
    write_order(root, order, contest.batch)
    build(root, contest.work / "webdataset", shards=contest.batch)
    for loader in loaders:
        out = contest.work / loader.data
        if not out.exists():
            given = contest.work / "webdataset" if loader.data == "energon" else order
            command = [loader.python, loader.script, "write", given, out]
            subprocess.run(command, check=True, env=_environment(), stdout=subprocess.DEVNULL)


def run_loader(contest: Contest, loader: Loader, changes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return all that one row of the table has."""
    row: dict[str, Any] = {"loader": loader.name, "documents": loader.documents, "version": _version(loader)}
    with Launcher(contest, loader) as launcher:
        row["uninterrupted"] = asdict(judged(contest, [launcher.run([], contest.ranks, None)]))
        first = launcher.run([], contest.ranks, contest.steps_of_a_life)
        row["changes"] = []
        for change in changes:
            row["changes"].append(run_change(launcher, first, change))
            print(f"{loader.name:28}{_outcome(row['changes'][-1])}", file=sys.stderr)
    return row


def _version(loader: Loader) -> str:
    program = f"from importlib.metadata import version; print(version({loader.package!r}))"
    return subprocess.run([loader.python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def _outcome(change: dict[str, Any]) -> str:
    refused = f": {change['refused']}" if change["refused"] is not None else ""
    return f"{resume_change(change['ranks']):14}{resume_outcome(change)[1]}{refused}"


def main() -> None:
    """Run the contest and print its table."""
    parser = common_options(__doc__)
    names = [loader.name for loader in LOADERS]
    parser.add_argument("--loaders", nargs="+", metavar="NAME", choices=names, default=names, help="rows; default: all")
    parser.add_argument("--ranks", type=int, default=RANKS, help="number of ranks of the first life")
    parser.add_argument("--changes", nargs="+", metavar="N[,N]", help="numbers of ranks that resume; default: all")
    parser.add_argument("--batch", type=int, default=BATCH, help="samples of a step on all ranks, and shards")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of the epoch")
    parser.add_argument("--picture", type=Path, help="file to which the picture is written: .png or .svg")
    options = parser.parse_args()
    loaders = [each for each in LOADERS if each.name in options.loaders]
    changes = [tuple(map(int, each.split(","))) for each in options.changes] if options.changes else CHANGES
    with work_folder(options, "resume") as work:
        contest = Contest(
            ranks=options.ranks, batch=options.batch, steps=options.steps, steps_of_a_life=STEPS_OF_A_LIFE, work=work
        )
        write_datasets(contest, loaders, options.corpus)
        rows = [run_loader(contest, loader, changes) for loader in loaders]
    document = {"samples": contest.samples, "batch": contest.batch, "ranks": contest.ranks}
    document |= {"taken_before_the_stop": STEPS_OF_A_LIFE * contest.batch, "rows": rows}
    if options.json and options.json.exists():
        document = joined(json.loads(options.json.read_bytes()), document, names)
    report("resume", document, options)
    if options.picture:
        drawing = [PEERS_PYTHON, Path(__file__).with_name("pictures.py"), "resume", options.picture]
        subprocess.run(drawing, input=json.dumps(document), text=True, check=True)


if __name__ == "__main__":
    main()
