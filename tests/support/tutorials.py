"""Runs what a tutorial shows, in order and in one folder, and compares what it prints with what the tutorial shows.

```console blocks are commands with their output; a ```python block is written to a file and run, and the ```text block
after it is its output. One that begins with `# NAME.py` is saved under this name, for others to import. ```sh blocks
are read only: each tutorial says why they are not run.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support import warm
from tests.support.gcs_emulator import GCSEmulator
from tests.support.markdown import ROOT, blocks, commands, is_undecided, shows

FOLDER = "docs/tutorials"
TUTORIALS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / FOLDER).glob("*.md"))
BUCKET = "my-data"
"""The bucket of every tutorial that has one."""
COPIES = "my-copies"
"""A second bucket, for copies."""
SERVER = "server.pid"
"""File in which a tutorial keeps the number of a process that it leaves running."""
PEERS = str(ROOT / ".bench-venv/bin/python")
"""Python with MosaicML's streaming and LitData, whose pins exclude ours."""
OPEN_CLIP = ROOT / ".bench-venv/open_clip"
"""Folder of open_clip's training program, with webdataset as it wants it."""
LONGEST_S = 800


def run_tutorial(document: str, folder: Path) -> str:
    """Run a tutorial in an empty folder; return how many commands and programs it shows.

    Raises:
        AssertionError: A command failed, or its output is not the one that is shown.
    """
    run = 0
    with surroundings((ROOT / document).read_text(), folder) as environment:
        shown = blocks(document)
        for block, after in zip(shown, [*shown[1:], None], strict=True):
            if block.info == "console":
                for command in commands(block):
                    _compare(f"{document}:{command.line}", ["bash", "-c", command.text], command.output, environment)
                    run += 1
            elif block.info == "python":
                named = re.match(r"# (\w+\.py)\n", block.text)
                path = folder / "work" / named[1] if named else folder / f"line-{block.line}.py"
                path.write_text(block.text)
                output = after.text if after is not None and after.info == "text" else ""
                peers = re.search(r"^(from streaming import|import litdata)", block.text, re.MULTILINE)
                python = PEERS if peers else sys.executable
                _compare(f"{document}:{block.line}", [python, str(path)], output, environment)
                run += 1
    return f"{run} commands and programs"


def _compare(where: str, words: list[str], shown: str, environment: Mapping[str, str]) -> None:
    output = printed(where, words, environment)
    if output is None:
        return
    assert shows(shown, output), f"{where}: {words[-1]}\n--- shown ---\n{shown}--- printed ---\n{output}"


def printed(where: str, words: list[str], environment: Mapping[str, str]) -> str | None:
    """Run a command; return what it prints, or None for a diagnosis that a busy machine leaves undecided.

    Raises:
        AssertionError: The command failed.
    """
    run = subprocess.run(
        words,
        cwd=environment["PWD"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    if is_undecided(words[-1], run.returncode, run.stdout):
        return None
    assert run.returncode == 0, f"{where}: {words[-1]}\nended with {run.returncode}:\n{run.stdout}"
    return run.stdout


@contextlib.contextmanager
def surroundings(text: str, folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a reader after `make setup`, with emulated buckets where the text names them."""
    home = folder / "home"
    home.mkdir()
    work = folder / "work"
    work.mkdir()
    programs = folder / "programs"
    programs.mkdir()
    environment = {
        **os.environ,
        **warm.stand_in(programs),
        "HOME": str(home),
        "PWD": str(work),
        "PYTHONPATH": os.pathsep.join(map(str, [work, OPEN_CLIP] if "open_clip_train" in text else [work])),
        "COLUMNS": "120",
        "NO_GCE_CHECK": "true",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    with contextlib.ExitStack() as stack:
        if f"gs://{BUCKET}" in text:
            emulator = stack.enter_context(GCSEmulator())
            emulator.create_bucket(BUCKET)
            emulator.create_bucket(COPIES)
            environment["STORAGE_EMULATOR_HOST"] = emulator.url
        stack.callback(_end, work / SERVER)
        yield environment


def _end(path: Path) -> None:
    """End the process that a tutorial has left running."""
    if path.exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGTERM)
