"""Rules that every test keeps."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import FRAMEWORKS, LONG, imported_when_collected
from tests.selection import FULL, KEPT, is_full, touched
from tests.soak import SHOWS
from tests.support import waiting, warm
from tests.support.markdown import DOCUMENTS, ROOT

MAY_BE_SKIPPED = {
    "cluster/test_slurm.py": "Slurm",
    "cluster/test_spark.py": "a second Python",
    "dataprep/commands/test_inspect_browser.py": "Chromium",
    "dataprep/commands/test_tpu.py": "root",
    "dataprep/storage/test_errors.py": "a tmpfs that its users can mount",
    "dataprep/cloud/tpu/test_command_lines.py": "the Google Cloud SDK",
    "dataprep/cloud/tpu/test_terraform.py": "terraform",
    "dataprep/cloud/tpu/test_worker.py": "root",
    "loaders/test_decode_alone.py": "a C compiler and the headers of libjpeg-turbo",
    "loaders/decode/test_decoders.py": "a C compiler and the headers of libjpeg-turbo",
    "loaders/diagnosis/test_browser.py": "Chromium",
    "benchmarks/test_unseen_situations.py": "root, control groups of version 1, and a disk",
    "test_laion_ssrf.py": "network namespaces",
}
"""What else a machine must have for some tests of a file; what `make setup` installs is never in question."""
PYTHON = sorted((ROOT / "tests").rglob("*.py"))
PLAIN = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""For runs of pytest inside of a test: to import all plugins takes seconds in each of its processes."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def matching(pattern: str) -> list[Path]:
    """Files in which something is to be found; to parse all takes seconds."""
    return [path for path in PYTHON if re.search(pattern, path.read_text(), re.MULTILINE)]


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
    for path in matching(rf"\.({'|'.join(skipping)})\b"):
        names = (node.attr for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute))
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


@pytest.mark.parametrize(
    ("chosen", "last", "workers"),
    [
        ("with", "Not run: 1 (Chromium is not installed); 3 (terraform is not installed).", 1),
        ("of_nothing", "No test was skipped.", 0),
    ],
)
def test_a_run_ends_with_one_line_about_what_did_not_run(tmp_path: Path, chosen: str, last: str, workers: int):
    (tmp_path / "test_some.py").write_text(SKIPPING)
    (tmp_path / "conftest.py").write_text("from tests.support.summary import pytest_unconfigure\n")
    words = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-k", chosen, "-p", "no:cacheprovider", tmp_path]
    words += ["-p", "xdist", "-c", "/dev/null", "--rootdir", tmp_path]
    run = subprocess.run(words, cwd=ROOT, env=PLAIN, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert run.stdout.splitlines()[-1] == last


def test_no_test_module_imports_a_framework_at_its_top(pytestconfig: pytest.Config):
    """Every worker collects every file: TensorFlow, torch, JAX and Beam take a minute of a processor in each.

    `tests/train` imports `train`, which is torch, where `make test` leaves it out.
    """
    found = []
    for path in matching(rf"^(import|from) .*\b({'|'.join(FRAMEWORKS)})\b"):
        where = path.relative_to(ROOT / "tests")
        if path.name.startswith(("test_", "conftest")) and where.parts[0] not in ("train", "cluster", "gpu"):
            for node in parsed(path).body:
                names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                found += [(str(where), name) for name in names if name.partition(".")[0] in FRAMEWORKS]
    assert found == []
    if pytestconfig.option.quick:
        assert imported_when_collected == set()


def test_the_end_of_a_process_is_asked_of_is_running():
    """`psutil.wait_procs` and the folders of /proc count the zombies that process 1 of a container may keep."""
    counting = re.compile(r"pid_exists|wait_procs|/proc/\{\w+\}\"\)\.exists")
    here = Path(__file__)
    assert [path.name for path in PYTHON if path != here and counting.search(path.read_text())] == []


def test_a_zombie_does_not_run():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        assert waiting.end_soon([process.pid])
        assert process.returncode is None  # nobody has waited for it


def test_what_make_test_leaves_out_exists():
    for row, touched_by in FULL.items():
        file, _, name = row.partition("::")
        assert (ROOT / file).exists(), row
        assert name in (ROOT / file).read_text() if name else True, row
        assert all((ROOT / path).exists() for path in touched_by), row


@pytest.mark.parametrize(
    ("changed", "runs", "not_run"),
    [
        (["docs/loading.md"], ["tests/test_agents.py"], ["tests/train"]),
        (["train/optim/lars.py"], ["tests/train"], ["tests/pipelines"]),
        (["tests/train/loops/test_tasks.py"], ["tests/train"], ["tests/pipelines"]),
        (["pipelines/local.py", "README.md"], ["tests/pipelines"], ["tests/train"]),
        (["setup.cfg"], ["tests/pipelines", "tests/train", "tests/benchmarks"], []),
    ],
)
def test_a_change_runs_what_it_touches(changed, runs, not_run):
    found = touched(changed)
    assert set(runs) <= set(found)
    assert not set(not_run) & set(found)


def test_the_longest_row_decides_what_make_test_leaves_out():
    assert is_full("tests/train/loops/test_tasks.py")
    assert not is_full("tests/train/test_train_resnet.py")  # one of its tests runs
    assert is_full("tests/train/test_train_resnet.py::test_every_flag_has_a_test")
    assert not any(is_full(row) for row, touched_by in FULL.items() if touched_by == KEPT)
    assert not is_full("tests/test_crash.py::test_any")


def test_test_files_that_are_listed_to_run_first_exist():
    assert [file for file in LONG if not (ROOT / file).exists()] == []


def test_only_tests_with_commands_of_their_own_are_left_out_by_a_run(pytestconfig: pytest.Config):
    """`make cluster-test`, `make gpu-test` and `make soak SHOW=site` run these."""
    patterns = pytestconfig.getini("norecursedirs")
    folders = {folder for path in PYTHON for folder in path.relative_to(ROOT / "tests").parents}
    left_out = {str(each) for each in folders if any(fnmatch(each.name, pattern) for pattern in patterns)}
    assert left_out == {"cluster", "gpu", "site"}


def test_programs_are_forked_though_new_sockets_have_a_timeout():
    """Beam gives them one when it looks for credentials."""
    socket.setdefaulttimeout(5)
    try:
        process = warm.start("platform", environment=os.environ, folder=ROOT, imported=("numpy",))
    finally:
        socket.setdefaulttimeout(None)
    with process:
        assert process.communicate()[0].startswith("Linux")


def test_a_run_in_the_background_of_a_shell_can_still_test_ctrl_c(tmp_path: Path):
    """A shell that is not interactive lets programs behind `&` ignore SIGINT, and their children inherit it."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_configure\n")
    (tmp_path / "test_some.py").write_text(
        "import signal\ndef test_signal():\n    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", tmp_path]
    command = ["sh", "-c", '"$@" & wait $!', "sh", *words, tmp_path]
    run = subprocess.run(command, cwd=ROOT, env=PLAIN, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def test_no_test_is_decided_by_a_clock():
    """No assertion of a test reads a clock of the wall or of a processor."""
    clock = r"\btime\.(time|monotonic|perf_counter|process_time|thread_time)(_ns)?\("
    found = []
    for path in matching(rf"assert[^:]{{0,200}}?{clock}"):
        functions = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef)]
        for test in (each for each in functions if each.name.startswith("test_")):
            asserted = [ast.unparse(node) for node in ast.walk(test) if isinstance(node, ast.Assert)]
            found += [f"{path.name} {test.name}" for text in asserted if re.search(clock, text)]
    assert found == []


BINDING = re.compile(
    r"^ *(?:(?:async )?def|class) (\w+)|^ *([\w, =]+)(?::.*)? = |^ *(?:from \S+ )?import (\([^)]*\)|.+)", re.MULTILINE
)


@cache
def bound(module: str) -> frozenset[str] | None:
    """Return the names that a module of ours has by its source; None if it is made in C, or makes names when asked."""
    base = ROOT.joinpath(*module.split("."))
    if not (base.is_dir() or base.with_suffix(".py").is_file()):
        return None if list(base.parent.glob(f"{base.name}*.c")) else frozenset()
    source = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    text = source.read_text() if source.is_file() else ""
    names = {each.name.partition(".")[0] for each in base.glob("*")}
    names |= {name for found in BINDING.findall(text) for each in found for name in re.findall(r"\w+", each)}
    return None if "__getattr__" in names else frozenset(names)


def test_what_programs_beside_the_packages_import_from_them_is_there():
    """Mypy reads the packages alone, and no test runs every program in benchmarks/."""
    ours = re.compile(r"^ *from ((?:dataprep|loaders|pipelines|train)[\w.]*) import (\([^)]*\)|[^(\n]+)$", re.MULTILINE)
    missing = []
    for path in [
        *PYTHON,
        *(each for name in ("benchmarks", "examples", "scripts") for each in (ROOT / name).rglob("*.py")),
    ]:
        for module, text in ours.findall(path.read_text()):
            imported = re.findall(r"(\w+)(?: as \w+)?[,)\s]*", re.sub(r"#.*", "", text))
            if (names := bound(module)) is not None:
                missing += [f"{path.relative_to(ROOT)}: {name} of {module}" for name in imported if name not in names]
    assert not missing
