"""A machine on which dataprep does not run is refused in one line, before anything else can fail there."""

import ast
import subprocess
import sys

import pytest

from dataprep.host.program import NEWEST, OLDEST, unsupported
from scripts.check_python import SUPPORTED
from tests.support.markdown import ROOT

EARLY = ("dataprep/__init__.py", "dataprep/__main__.py", "dataprep/host/__init__.py", "dataprep/host/program.py")
"""Files that any Python runs before it is refused."""


def refused(program: str, *options: str) -> str:
    """The one line that a program in a new interpreter ends with, and the exit code 2."""
    command = [sys.executable, *options, "-c", program]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, ""), run.stderr
    (line,) = run.stderr.splitlines()
    return line


def test_this_machine_is_supported():
    assert unsupported() == ""


@pytest.mark.parametrize("version", ["3, 6, 15", "3, 10, 13", "3, 14, 0"])
def test_another_python_is_refused(version):
    run = "import runpy, sys; sys.version_info = ({}); runpy.run_module('dataprep', run_name='__main__')"
    line = refused(run.format(version))
    assert line.startswith("dataprep: got Python ")
    assert f"({sys.executable}), expected CPython 3.11, 3.12 or 3.13: install dataprep with one of these" in line


@pytest.mark.parametrize(
    ("change", "problem"), [("sys.version_info = (3, 10, 0)", "got Python"), ("sys.platform = 'win32'", "got Windows")]
)
def test_pip_install_is_refused_before_it_downloads_anything(change, problem):
    """Changed is what setup.py sees when pip runs it, after the imports that need the true values."""
    program = f"import platform, runpy, setuptools, sys; {change}; runpy.run_path('setup.py')"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    (line,) = run.stderr.splitlines()
    assert run.returncode == 1
    assert line.startswith(f"dataprep: {problem}")


def refused_on_windows(module: str) -> bool:
    """Whether a program is; only the refusal can be tried here: the platform's name is changed after the imports."""
    line = refused(f"import sys; from {module} import main; sys.platform = 'win32'; sys.argv[1:] = ['--help']; main()")
    return line.endswith(": got Windows, expected Linux: install WSL 2 (run: wsl), and install dataprep inside it")


def test_windows_is_refused():
    assert refused_on_windows("dataprep.cli")


def test_windows_is_refused_by_programs_of_training():
    assert refused_on_windows("train.export")


def test_a_python_without_the_packages_is_refused():
    line = refused("import runpy; runpy.run_module('dataprep', run_name='__main__')", "-S")
    assert line.startswith(f"dataprep: package click is not installed for {sys.executable}; install dataprep with it")


@pytest.mark.parametrize("path", EARLY)
def test_old_pythons_can_read_what_refuses_them(path):
    ast.parse((ROOT / path).read_text(), feature_version=(3, 6))


def test_the_supported_pythons_are_those_of_the_package():
    assert [f"{major}.{minor}" for major, minor in (OLDEST, NEWEST)] == [SUPPORTED[0], SUPPORTED[-1]]


SHOWN_AT_THE_END = """
import atexit, gc
from dataprep.host.program import COLLECT_AFTER, collect_rarely

atexit.register(lambda: print(gc.get_freeze_count() > 1_000))
frozen = gc.get_freeze_count()  # not 0 on Python 3.12
collect_rarely()
print(gc.get_threshold()[0] == COLLECT_AFTER, gc.isenabled(), gc.get_freeze_count() - frozen)
"""


def test_garbage_is_collected_rarely_and_not_at_the_end():
    run = subprocess.run([sys.executable, "-c", SHOWN_AT_THE_END], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["True True 0", "True"]
