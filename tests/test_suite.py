"""Rules that every test keeps."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.soak import SHOWS
from tests.support.markdown import DOCUMENTS, ROOT

MAY_BE_SKIPPED = {
    "cluster/test_cluster.py": "Maven Central",
    "dataprep/commands/test_tpu.py": "root",
    "dataprep/storage/test_disk_errors.py": "a tmpfs that its users can mount",
    "dataprep/cloud/tpu/test_command_lines.py": "the Google Cloud SDK",
    "dataprep/cloud/tpu/test_terraform.py": "terraform",
    "dataprep/cloud/tpu/test_worker.py": "root",
    "loaders/test_decode_alone.py": "a C compiler and the headers of libjpeg-turbo",
    "loaders/decode/test_decoders.py": "a C compiler and the headers of libjpeg-turbo",
    "loaders/report/test_browser.py": "Chromium",
    "test_laion_ssrf.py": "network namespaces",
}
"""What else a machine must have for some tests of a file; what `make setup` installs is never in question."""
PYTHON = sorted((ROOT / "tests").rglob("*.py"))


def test_every_soak_check_is_called_by_the_name_of_what_it_shows():
    numbered, unknown = [], []
    for path in [*PYTHON, ROOT / "Makefile", *(ROOT / name for name in DOCUMENTS)]:
        text = path.read_text()
        numbered += [(path.name, name) for name in re.findall(r"\bShow [0-9]|SHOW=[0-9n]\b|\bshow_[0-9]", text)]
        unknown += [(path.name, name) for name in re.findall(r"SHOW=([a-z-]+)", text) if name not in SHOWS]
    assert (numbered, unknown) == ([], [])


def test_only_tests_that_need_more_than_setup_installs_may_be_skipped():
    skipping = {"skip", "skipif", "importorskip", "xfail"}
    found = set()
    for path in PYTHON:
        names = (node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))
        if skipping & set(names):
            found.add(str(path.relative_to(ROOT / "tests")))
    assert found == set(MAY_BE_SKIPPED)


SKIPPING = """
import pytest

@pytest.mark.skipif(True, reason="terraform is not installed")
@pytest.mark.parametrize("number", range(3))
def test_with_terraform(number): ...

def test_with_a_browser():
    pytest.skip("Chromium is not installed")

def test_of_nothing_else(): ...
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("chosen", "last"),
    [
        ("with", "Not run: 1 (Chromium is not installed); 3 (terraform is not installed)."),
        ("of_nothing", "No test was skipped."),
    ],
)
def test_a_run_ends_with_one_line_about_what_did_not_run(tmp_path: Path, workers: int, chosen: str, last: str):
    (tmp_path / "test_some.py").write_text(SKIPPING)
    (tmp_path / "conftest.py").write_text("from tests.support.summary import pytest_unconfigure\n")
    words = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-k", chosen, "-p", "no:cacheprovider", tmp_path]
    words += ["-c", "/dev/null", "--rootdir", tmp_path]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert run.stdout.splitlines()[-1] == last


def test_test_files_that_are_listed_to_run_first_exist():
    assert [file for file in LONG if not (ROOT / file).exists()] == []


CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
DEADLINES = {"wait_until", "wait_for", "_wait_gone"}
"""Functions that wait for a condition; their clock only ends a wait that would be for ever."""


def test_no_test_is_decided_by_a_clock():
    """No assertion is about a clock, nor about a value that was computed from one in the same function."""
    found = []
    for path in PYTHON:
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and function.name not in DEADLINES:
                found += [f"{path.name}:{line} {function.name}" for line in timed_assertions(function)]
    assert found == []


def timed_assertions(function: ast.FunctionDef) -> list[int]:
    """Lines of assertions about a clock."""
    timed: set[str] = set()

    def is_timed(node: ast.AST) -> bool:
        return any(
            (isinstance(part, ast.Name) and part.id in timed)
            or (isinstance(part, ast.Attribute) and part.attr.removesuffix("_ns") in CLOCKS and is_time(part.value))
            for part in ast.walk(node)
        )

    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    for node in sorted(assigned, key=lambda node: node.lineno):
        if is_timed(node.value):
            timed |= {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return [node.lineno for node in ast.walk(function) if isinstance(node, ast.Assert) and is_timed(node.test)]


def is_time(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "time"


def test_a_timed_assertion_is_detected():
    program = """
def test_quick():
    started_s = time.monotonic()
    work()
    elapsed_s = time.monotonic() - started_s
    assert elapsed_s < 2
    assert time.process_time_ns() < 3
    assert work() == 4
"""
    (function,) = ast.parse(program).body
    assert timed_assertions(function) == [6, 7]
