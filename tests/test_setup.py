"""`make setup` installs what setup.cfg asks for, in the pinned versions, or says at once why it cannot."""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from dataprep.cloud.tpu.worker import UV
from dataprep.errors import DISTRIBUTION
from loaders.decode.decoders import extension_available
from pipelines.engines import BEAM, ENGINES
from scripts.check_python import SUPPORTED
from tests.support.markdown import ROOT

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
EXTRAS = {"": SETUP["options"]["install_requires"], **SETUP["options.extras_require"]}
CODECS = {"google-crc32c", "opencv-python-headless", "pillow", "simplejpeg", "torch", "torchvision"}
"""What makes bytes or pixels: the same versions in every environment."""
OF_SITE = {
    "accessible-pygments", "alabaster", "axe-playwright-python", "babel", "beautifulsoup4", "furo",
    "greenlet", "imagesize", "mdit-py-plugins", "myst-parser", "playwright", "roman-numerals",
    "snowballstemmer", "soupsieve", "sphinx", "sphinx-basic-ng", "sphinx-click",
    "sphinxcontrib-applehelp", "sphinxcontrib-devhelp", "sphinxcontrib-htmlhelp",
    "sphinxcontrib-jsmath", "sphinxcontrib-qthelp", "sphinxcontrib-serializinghtml",
}  # fmt: skip
OF_OTHER_TARGETS = {"pyspark", "py4j"} | OF_SITE
"""What `make cluster-test CLUSTER=spark` and `make site` install, and `make setup` does not: it is large, and few need
it."""

THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PINNED = (
    "constraints.txt", "dataprep/data/tpu-torch.txt", "dataprep/data/tpu-torch-tpu.txt", "dataprep/data/tpu-jax.txt",
    "benchmarks/peers-constraints.txt", "benchmarks/img2dataset-constraints.txt",
)  # fmt: skip
"""Files of pinned versions."""


def environment_of(python: str) -> dict[str, str]:
    """What markers are compared with on this platform, for another Python."""
    return {**default_environment(), "python_version": python, "python_full_version": f"{python}.0"}


@cache
def pins_of(file: str, python: str) -> dict[str, str]:
    """The versions that a file pins for a Python on this platform."""
    environment = environment_of(python)
    found = {}
    for line in (ROOT / file).read_text().splitlines():
        if line.startswith(("#", "    --hash=")):
            continue
        requirement = Requirement(line.removesuffix(" \\"))
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (pin,) = requirement.specifier
            assert pin.operator == "=="
            assert requirement.name not in found, f"{file} pins {requirement.name} twice for Python {python}"
            found[requirement.name] = pin.version
    return found


def requirements_of(extra: str, python: str = THIS_PYTHON) -> list[Requirement]:
    """What an extra asks for on a Python."""
    lines = [line for line in EXTRAS[extra].split("\n") if line and not line.startswith("#")]
    environment = environment_of(python)
    found = [Requirement(line) for line in lines]
    return [each for each in found if each.marker is None or each.marker.evaluate(environment)]


def pins_for(extra: str, python: str) -> dict[str, str]:
    return pins_of(f"dataprep/data/{extra}.txt" if extra.startswith("tpu-") else "constraints.txt", python)


@pytest.mark.parametrize("python", SUPPORTED)
@pytest.mark.parametrize("extra", EXTRAS)
def test_every_requirement_is_pinned_to_a_version_that_it_allows(extra: str, python: str):
    pins = pins_for(extra, python)
    for requirement in requirements_of(extra, python):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("python", SUPPORTED)
def test_pinned_and_installed_versions_are_those_that_the_extras_need(python: str):
    """Directly or through another package, as the metadata of the installed packages say it for each Python."""
    pins = pins_of("constraints.txt", python)
    ours = [extra for extra in EXTRAS if not extra.startswith("tpu-")]
    asked = [requirement for extra in ours for requirement in requirements_of(extra, python)]
    needed = all_needed(asked, python)
    for requirement in needed:
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{requirement} is asked for, {pin} is pinned"
    found = {canonicalize_name(requirement.name) for requirement in needed}
    if python == THIS_PYTHON:  # what a package needs that is installed on other Pythons alone is not known here
        assert set(pins) - found <= OF_OTHER_TARGETS
        installed = found - OF_OTHER_TARGETS
        assert {name: distribution(name).version for name in installed} == {name: pins[name] for name in installed}


def all_needed(asked: list[Requirement], python: str) -> list[Requirement]:
    """What is asked for, and what that needs on a Python, directly or through another package."""
    queue, needed = list(asked), []
    seen: set[tuple[str, str]] = set()
    while queue:
        requirement = queue.pop()
        needed.append(requirement)
        name = canonicalize_name(requirement.name)
        for extra in ["", *requirement.extras]:
            if (name, extra) not in seen:
                seen.add((name, extra))
                queue += needed_by(name, extra, python)
    return needed


def needed_by(name: str, extra: str, python: str) -> Iterator[Requirement]:
    """What a package needs on a Python, by the metadata of the installed version.

    Nothing if it is not installed, or if that Python gets another version, whose tests know it.
    """
    environment = environment_of(python) | {"extra": extra}
    with contextlib.suppress(PackageNotFoundError):
        installed = distribution(name)
        if pins_of("constraints.txt", python).get(name, installed.version) != installed.version:
            assert python != THIS_PYTHON, f"{name} {installed.version} is installed, another version is pinned"
            return
        for line in installed.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(environment):
                yield requirement


def test_new_pythons_have_the_newest_jax_and_3_11_the_last_that_it_can_have():
    """Versions are numbers here, because a newer pin must not need a change of this test."""
    jax = {python: Version(pins_of("constraints.txt", python)["jax"]) for python in SUPPORTED}
    assert str(jax["3.11"]) == "0.10.2"
    assert jax["3.12"] == jax["3.13"] >= Version("0.12")


@pytest.mark.parametrize("python", SUPPORTED)
@pytest.mark.parametrize("file", PINNED)
def test_every_line_of_pins_can_be_parsed_and_a_package_has_one_version_on_each_python(file: str, python: str):
    assert pins_of(file, python)


@pytest.mark.parametrize("python", SUPPORTED)
@pytest.mark.parametrize(
    "file", ["dataprep/data/tpu-torch.txt", "dataprep/data/tpu-jax.txt", "benchmarks/peers-constraints.txt"]
)
def test_codecs_have_the_same_version_in_every_environment(file: str, python: str):
    ours, theirs = pins_of("constraints.txt", python), pins_of(file, python)
    shared = CODECS & theirs.keys()
    assert {"pillow", "simplejpeg"} <= shared
    assert {name: theirs[name] for name in shared} == {name: ours[name] for name in shared}


@pytest.mark.parametrize("python", SUPPORTED)
def test_requirements_have_hashes_and_the_same_versions_but_of_pillow(python: str):
    """Beam allows no Pillow 13, and is none of their extras."""
    extras = ("", "demo", "report", "laion", "hf", "s3", "select", "metrics")
    ours, theirs = pins_of("constraints.txt", python), pins_of("requirements.txt", python)
    needed = [requirement for extra in extras for requirement in requirements_of(extra, python)]
    assert {canonicalize_name(requirement.name) for requirement in needed} <= theirs.keys()
    assert {name for name, version in theirs.items() if version != ours[name]} <= {"pillow"}
    pins = re.split(r"^(?=\S)", (ROOT / "requirements.txt").read_text(), flags=re.MULTILINE)
    assert [pin for pin in pins if pin and "--hash=sha256:" not in pin] == []


def test_uv_has_one_version_here_and_on_workers():
    assert f"pip install --quiet --disable-pip-version-check {UV}\n" in (ROOT / "Makefile").read_text()


def test_no_file_holds_the_address_of_an_index():
    for path in [
        ROOT / "constraints.txt",
        ROOT / "requirements.txt",
        *ROOT.glob("benchmarks/*.txt"),
        *ROOT.glob("dataprep/data/tpu-*.txt"),
    ]:
        assert "://" not in path.read_text(), path


FOREIGN = re.compile(
    r"""(?<![\w./~-])dataprep\s?(?:\[[a-z]|[=<>~]=\s?\d)"""  # dataprep[laion], dataprep==1.0
    r"""|pip3? install(?:\s+-\S+)*\s+['"]?dataprep(?![\w/-])"""
    r"""|(?:distribution|version|metadata|requires)\(['"]dataprep['"]\)"""
)
"""Places that name the distribution `dataprep`, which is another project's on the package index."""


def source_files() -> Iterator[Path]:
    """The repository's files; hidden folders, caches and what `make demo` and builds write are left out."""
    outputs = {ROOT / "demo", ROOT / "build", ROOT / "dist"}
    for folder, folders, names in os.walk(ROOT):
        kept = (name for name in folders if Path(folder, name) not in outputs and name != "__pycache__")
        folders[:] = [name for name in kept if not name.startswith(".") and not name.endswith(".egg-info")]
        yield from (Path(folder, name) for name in names)


def test_no_text_names_a_foreign_distribution():
    """An error that says `pip install 'dataprep[laion]'` would send people to somebody else's package."""
    found = []
    for path in source_files():
        if path == Path(__file__):
            continue
        with contextlib.suppress(UnicodeDecodeError):
            lines = path.read_text().splitlines()
            found += [
                f"{path.relative_to(ROOT)}:{number}: {line}"
                for number, line in enumerate(lines, 1)
                if FOREIGN.search(line)
            ]
    assert found == []
    assert SETUP["metadata"]["name"] == DISTRIBUTION


def test_every_install_hint_names_an_extra():
    """In the code by `install_hint` or `needing`, elsewhere by the distribution's name."""
    named = re.compile(r"""(?:install_hint|needing)\(['"]([^'"]+)['"][,)]|tpu-dataprep\[([a-z,-]+)\]""")
    found = {
        extra
        for path in source_files()
        if path.suffix in (".py", ".md", ".sh", ".tf")
        for code, text in named.findall(path.read_text())
        for extra in (code or text).split(",")
    }
    found |= {entry.extra for entry in (*ENGINES.values(), BEAM) if entry.extra}
    assert found >= {"beam", "demo", "finetune", "jax", "laion", "report", "tpu-jax", "tpu-torch", "xla"}
    assert found <= set(EXTRAS)


def test_the_package_metadata_names_the_supported_pythons():
    allowed = Requirement(f"python{SETUP['options']['python_requires']}").specifier
    assert [version for minor in range(30) if (version := f"3.{minor}") in allowed] == list(SUPPORTED)
    assert ", ".join(SUPPORTED[:-1]) + f" or {SUPPORTED[-1]}" in (ROOT / "README.md").read_text()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `make setup` needs to begin, without an environment."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("setup.cfg", "setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def interpreter(folder: Path, *statements: str) -> Path:
    """This Python, but for what the statements change before a program is run."""
    program = "; ".join(["import runpy, sys", *statements, "runpy.run_path(sys.argv[1], run_name='__main__')"])
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-c", program])} "$@"\n')
    path.chmod(0o755)
    return path


def lines_of_setup(checkout: Path, python: Path | str) -> list[str]:
    command = ["make", "--silent", "setup", f"PYTHON={python}"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    run = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert not (checkout / ".venv").exists()
    return [line for line in (run.stdout + run.stderr).splitlines() if not line.startswith("make: ")]


NEXT = "expected CPython 3.11, 3.12 or 3.13, such as: make setup PYTHON=python3.13"
UNSUPPORTED = {
    "is CPython 3.10": "sys.version_info = (3, 10, 13)",
    "is CPython 3.14": "sys.version_info = (3, 14, 0)",
    "is CPython 3.13t": "sys.version_info = (3, 13, 0); sys.abiflags = 't'",
    "is PyPy 3.11": "import platform; sys.version_info = (3, 11, 0); platform.python_implementation = lambda: 'PyPy'",
}


@pytest.mark.parametrize(("problem", "change"), UNSUPPORTED.items(), ids=list(UNSUPPORTED))
def test_another_interpreter_is_refused_in_one_line(checkout, tmp_path, problem, change):
    python = interpreter(tmp_path, change)
    assert lines_of_setup(checkout, python) == [f"PYTHON={python} {problem}; {NEXT}"]


def test_a_python_without_its_shared_library_is_refused_in_one_line(checkout, tmp_path):
    change = "import ctypes; ctypes.CDLL = lambda name: (_ for _ in ()).throw(OSError(name))"
    (line,) = lines_of_setup(checkout, interpreter(tmp_path, change))
    assert "has no shared library libpython3." in line
    assert line.endswith(NEXT)


@pytest.mark.parametrize("python", ["no-such-python", "/bin/false"])
def test_an_interpreter_that_cannot_be_run_is_named_in_one_line(checkout, python):
    assert lines_of_setup(checkout, python) == [f"PYTHON={python} cannot be found or run; {NEXT}"]


def found_python(tmp_path: Path, *arguments: str, versions: tuple[str, ...], broken: tuple[str, ...] = ()) -> str:
    """What the search prints where PATH has working Pythons of these versions, and some that cannot be run."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for version in (*versions, *broken):
        (commands / f"python{version}").write_text(f"#!/bin/sh\nexit {int(version in broken)}\n")
        (commands / f"python{version}").chmod(0o755)
    command = [shutil.which("bash") or "bash", "scripts/find_python.sh", *arguments]
    environment = {"PATH": str(commands), "PYENV_ROOT": str(tmp_path), "HOME": str(tmp_path)}
    (commands / "dirname").symlink_to(shutil.which("dirname") or "")
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_the_newest_python_that_works_is_the_default(tmp_path):
    assert found_python(tmp_path, versions=("3.11", "3.12"), broken=("3.13",)) == "python3.12"


def test_without_a_python_that_works_python3_is_named_so_that_the_error_says_what_it_lacks(tmp_path):
    assert found_python(tmp_path, versions=(), broken=SUPPORTED) == "python3"


def test_one_version_can_be_looked_for_and_pyenvs_versions_are_found(tmp_path):
    python = tmp_path / "versions/3.12.9/bin/python3.12"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    assert found_python(tmp_path, "3.12", versions=("3.11",), broken=("3.12",)) == str(python)


def test_a_version_that_is_not_there_gives_nothing(tmp_path):
    assert found_python(tmp_path, "3.13", versions=("3.11", "3.12"), broken=("3.13",)) == ""


def test_another_python_than_that_of_the_environment_is_refused(checkout, tmp_path):
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/uv").touch(mode=0o755)
    (checkout / ".venv/bin/python").symlink_to(interpreter(tmp_path, "").rename(tmp_path / "made-with"))
    asked = tmp_path / "asked-for"
    asked.write_text('#!/bin/sh\n[ "$1" = -c ] && echo Python 3.9 || echo\n')
    asked.chmod(0o755)
    command = ["bash", "scripts/check_python.sh", str(asked)]
    run = subprocess.run([*command, "command line"], cwd=checkout, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert f"PYTHON={asked} is Python 3.9, .venv is of " in run.stderr
    assert "remove .venv and .bench-venv to change it" in run.stderr
    assert subprocess.run([*command, "file"], cwd=checkout, check=False).returncode == 0


def test_the_extension_is_built_wherever_it_can_be(tmp_path):
    """Where its compiler or a header is missing, the install goes on; nothing else may stop it unnoticed."""
    (tmp_path / "can.c").write_text("#include <stdio.h>\n#include <jpeglib.h>\nint main(void) { return 0; }\n")
    command = ["cc", "can.c", "-ljpeg", "-o", "can"]
    can = shutil.which("cc") and subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    assert extension_available() == bool(can)
