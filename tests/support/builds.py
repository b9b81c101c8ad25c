"""Run `dataprep` as a user does, and compare what stands afterwards."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from dataprep.cli import exit_code_of, group
from dataprep.dataset.paths import CARDS
from dataprep.storage import open_storage
from tests.support import warm
from tests.support.words import replaced

LIMITS = ("--allow-partial", "--max-reject-ratio", "0.2")
OWN = ("--name", "pets", "--max-reject-ratio", "0.2")
"""Options for a user's own pictures, whose number nobody has published."""
FORMATS = ("webdataset", "tfrecord", "imagefolder")


def dataprep(*arguments: object, timeout_s: float = 800, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line; the exit code is the caller's to look at. Its modules are imported already."""
    words = command(*arguments)
    variables = {**os.environ, **environment}
    start = partial(warm.start, environment=variables, folder=Path.cwd(), imported=warm.DATAPREP)
    with start("dataprep", *words[words.index("dataprep") + 1 :]) as process:
        out, err = process.communicate(timeout_s)
    assert process.returncode is not None
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def succeeds(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line, which must succeed; what it printed."""
    run = dataprep(*arguments, **environment)
    assert run.returncode == 0, run.stderr[-3000:]
    return run


def refuses(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process; it must refuse its arguments or its data. What it printed."""
    out, err, words = io.StringIO(), io.StringIO(), command(*arguments)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", words[words.index("dataprep") :])
        for name, value in environment.items():
            patch.setenv(name, value)
        code = exit_code_of(group, "dataprep")
    assert code == 2, err.getvalue()[-3000:]
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def invoked(command: click.Command, *arguments: object) -> Result:
    """Call a command in this process; an expected error is raised."""
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def printed(command: click.Command, *arguments: object) -> str:
    """Call a command in this process, which must end well and have nothing to warn of; what it printed."""
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def dataprep_anew(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in an interpreter of its own, whose hash seed is another each time."""
    variables = {**os.environ, **environment}
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=800, env=variables, check=False)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "dataprep", *(str(argument) for argument in arguments)]


def build_arguments(recipe: str, source: object, output: object, fmt: str, *more: object) -> list[object]:
    """Words of the command that builds, or for the recipe `convert` converts."""
    if recipe == "convert":
        words, limits = ["convert", source], LIMITS[1:]
    else:
        words = ["build", recipe.removesuffix("-parquet"), "--source", source]
        limits = OWN if recipe in ("folder", "table") else LIMITS
    return replaced([*words, "--output", output, "--format", fmt, *limits, "--json"], *more)


def build(dataset: str, source: object, output: object, fmt: str, *more: object, **environment: str) -> dict:
    """Build, which must succeed; the JSON that it prints."""
    return _printed(dataprep_anew(*build_arguments(dataset, source, output, fmt, *more), **environment))


def build_warm(dataset: str, source: object, output: object, fmt: str, *more: object) -> dict:
    """Build, which must succeed, with modules that are imported already, which takes half the time; the JSON."""
    return json.loads(succeeds(*build_arguments(dataset, source, output, fmt, *more)).stdout)


def _printed(run: subprocess.CompletedProcess[str]) -> dict:
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


def digests(url: object) -> dict[str, str]:
    """SHA-256 of every stored object by its name, links of a folder by their targets: what `same bytes` means.

    The cards are left out: they are outside of every digest, and written when the dataset is whole already.
    """
    storage = open_storage(str(url))
    found = {}
    for info in storage.list():
        if info.name in CARDS:
            continue
        found[info.name] = hashlib.sha256(storage.read(info.name)).hexdigest()
    if storage.is_local:
        for path in Path(str(url)).rglob("*"):
            if path.is_symlink():
                found[f"{path.relative_to(str(url))} ->"] = os.readlink(path)
    return found


def is_finished(url: object) -> bool:
    return open_storage(str(url)).stat("dataset.json") is not None
