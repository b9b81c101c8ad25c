"""Hostile original files, over 300 of them: what each is, and what must become of it.

`HOSTILE` is a fixed list. A case writes its original files into an empty folder; the dataset is then to be enumerated
and built with `allow_partial`, so that a count is never the reason. Three outcomes:

    refused     enumerating raises SourceError, on one line that `words` (a regular expression) is found in
    rejected    it enumerates, and a build lists `key` as rejected for the reason `words`
    harmless    it enumerates to `samples` references, and a build with its default options succeeds
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from dataprep.dataset.index import events_file, read_events
from dataprep.storage import open_storage
from tests.support.builds import command
from tests.support.hostile_case import Case
from tests.support.hostile_folders import FOLDER_CASES
from tests.support.hostile_images import IMAGE_CASES
from tests.support.hostile_labels import LABEL_CASES
from tests.support.hostile_tars import TAR_CASES
from tests.support.hostile_zips import ZIP_CASES

HOSTILE: tuple[Case, ...] = (*TAR_CASES, *ZIP_CASES, *FOLDER_CASES, *LABEL_CASES, *IMAGE_CASES)


MAX_CASE_S = 60
MAX_MEMORY_BYTES = 2**30


def fault_of(case: Case, root: Path) -> str:
    """Build a case below an empty folder; empty when it came out as it should."""
    originals, here = root / "originals", root / "here"
    originals.mkdir()
    here.mkdir()
    case.write(originals)
    before = _tree(originals)
    arguments = ["build", case.dataset, "--split", case.split, "--source", originals, "--output", root / "out"]
    arguments += ["--format", "webdataset", "--allow-partial", "--max-reject-ratio", 1, "--workers", 1, "--json"]
    code, stdout, stderr, memory_bytes = _run([*map(str, arguments)], here)
    if code is None:
        return f"still running after {MAX_CASE_S} s"
    if re.search(r"Traceback|unexpected \w+(Error|Exception)\b", stderr):
        return f"traceback or unexpected error: {stderr[-600:]}"
    if memory_bytes > MAX_MEMORY_BYTES:
        return f"{memory_bytes:,} bytes of memory"
    if (
        list(here.iterdir())
        or _tree(originals) != before
        or {path.name for path in root.iterdir()}
        - {
            "originals",
            "here",
            "out",
        }
    ):
        return "something was written outside the target"
    return _outcome_fault(case, root / "out", code, stdout, stderr)


def _outcome_fault(case: Case, output: Path, code: int, stdout: str, stderr: str) -> str:
    whole = (output / "dataset.json").exists()
    if case.outcome == "refused":
        good = code == 2 and not whole and len(stderr.splitlines()) == 1 and re.search(case.words, stderr)
        return "" if good else f"expected a refusal with {case.words!r}, got exit code {code}: {stderr[-600:]}"
    if code != 0 or not whole:
        return f"expected a dataset, got exit code {code}: {stderr[-600:]}"
    if case.outcome == "harmless":
        samples = json.loads(stdout)["splits"][0]["samples"]
        return "" if samples == case.samples else f"{samples} samples, expected {case.samples}"
    events = {event.key: event for event in read_events(open_storage(str(output)), events_file(case.split))}
    found = events.get(case.key)
    good = found is not None and found.kind == "rejected" and re.search(case.words, found.reason)
    return "" if good else f"expected {case.key} rejected as {case.words!r}, got {found}"


# The kernel's peak of a process begins with that of whoever forked it: a test process has gigabytes, this has none.
MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code if code >= 0 else 128 - code)
"""


def _run(arguments: list[str], folder: Path) -> tuple[int | None, str, str, int]:
    """Exit code (None: killed at the limit), both outputs, and the largest process's peak memory."""
    with tempfile.TemporaryDirectory() as aside:
        peak = Path(aside) / "peak"
        measured = [sys.executable, "-S", "-c", MEASURE, str(peak), *command(*arguments)]
        run = subprocess.run(
            ["timeout", "--kill-after=5", str(MAX_CASE_S), *measured],
            capture_output=True,
            text=True,
            errors="replace",
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            check=False,
        )
        if not peak.exists():
            return None, run.stdout, run.stderr, 0
        return run.returncode, run.stdout, run.stderr, int(peak.read_text()) * 1024


def _tree(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_size) for path in folder.rglob("*"))
