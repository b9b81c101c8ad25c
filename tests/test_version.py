"""The version is in one place, `dataprep.__version__`, and every text that shows it agrees."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version

from dataprep import __version__
from dataprep.errors import DISTRIBUTION
from tests.support.markdown import DOCUMENTS, ROOT
from tests.test_setup import SETUP

SHOWN = re.compile(r"(?:tpu_dataprep-|tpu-dataprep==|/dataprep:)(\d+(?:\.\w+)+?)(?=[-\s'\"`\]]|\.tar|\.whl|$)")
"""Names of files, pins and images that contain the version."""
RECIPES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/recipes").iterdir())


def shown_versions() -> dict[str, set[str]]:
    """The versions that documents and recipes show of this package."""
    names = {*DOCUMENTS, *RECIPES, "Dockerfile", "Dockerfile.user"} - {"CHANGELOG.md"}
    found = {name: set(SHOWN.findall((ROOT / name).read_text())) for name in sorted(names)}
    return {name: versions for name, versions in found.items() if versions}


def test_every_document_shows_the_version_of_the_package():
    shown = shown_versions()
    assert {"Dockerfile", "docs/clusters.md", "docs/recipes/batch.json"} <= set(shown)
    assert {name: versions for name, versions in shown.items() if versions != {__version__}} == {}


def test_metadata_take_the_version_from_the_package():
    """An editable install has the metadata of the last `make setup`, which this test therefore compares as well."""
    assert SETUP["metadata"]["version"] == "attr: dataprep.__version__"
    assert version(DISTRIBUTION) == __version__, "run make setup"


def test_commands_print_the_version():
    command = [sys.executable, "-m", "dataprep", "--version"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed == f"dataprep, version {__version__}\n"


def test_changelog_begins_with_the_version():
    headings = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == __version__
    assert len(set(headings)) == len(headings)
