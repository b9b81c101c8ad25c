"""The image of the Dockerfile has what a worker needs, in the driver's versions.

`make cluster-test CLUSTER=image` builds datasets with its environment.
"""

from __future__ import annotations

import ast
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dataprep.builder.recipe import RECIPES, recipe_named
from scripts.check_python import SUPPORTED
from tests.support.dockerfile import read_image
from tests.support.markdown import ROOT
from tests.test_setup import SETUP, all_needed, pins_of, requirements_of

IMAGE = read_image()
GRAPH = "pipelines.beam.engine"
"""Module of the transform that Beam's workers run."""


def test_image_has_the_drivers_beam_and_a_supported_python():
    python = IMAGE.arguments["PYTHON_VERSION"]
    assert python in SUPPORTED
    assert IMAGE.arguments["BEAM_VERSION"] == pins_of("constraints.txt", python)["apache-beam"]
    assert IMAGE.base == f"apache/beam_python{python}_sdk:{IMAGE.arguments['BEAM_VERSION']}"


def test_image_installs_under_the_constraints_of_the_driver():
    assert IMAGE.pip[IMAGE.pip.index("--constraint") + 1] == "constraints.txt"
    assert IMAGE.copied["constraints.txt"] == "./constraints.txt"
    assert IMAGE.pip[-1].startswith(".[")
    assert {"beam", "laion"} <= IMAGE.extras


def test_image_has_every_package_and_what_their_installation_reads():
    packages = {each.removesuffix("*") for each in SETUP["options.packages.find"]["include"].split()}
    assert packages <= set(IMAGE.copied)
    assert {"setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"} <= set(IMAGE.copied)
    assert all((ROOT / source).exists() for source in IMAGE.copied)


@pytest.mark.parametrize("recipe", RECIPES)
def test_everything_that_a_worker_imports_is_installed_in_the_image(recipe):
    ours = {GRAPH, *(name for name in recipe_named(recipe).worker_modules if name.startswith("dataprep"))}
    found = packages_distributions()
    needed = {canonicalize_name(found[top][0]) for top in imported_from(ours) if top in found}
    assert {"apache-beam", "pillow", "pyarrow"} <= needed
    assert needed - installed_in_the_image() == set()


def imported_from(modules: set[str]) -> set[str]:
    """Top-level names that these modules of ours import anywhere, or those that they import at once."""
    names: set[str] = set()
    waiting, seen = [*modules], set(modules)
    while waiting:
        tree = ast.parse(source_of(waiting.pop()))
        names |= {name.partition(".")[0] for node in ast.walk(tree) for name in imports(node)}
        new = {name for node in tree.body for name in imports(node) if source_of(name)} - seen
        seen |= new
        waiting += new
    return names - {"google"}  # a namespace of several distributions


def imports(node: ast.AST) -> list[str]:
    """Names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def source_of(module: str) -> str:
    """The text of a module of ours; empty for others."""
    for path in (ROOT / f"{module.replace('.', '/')}.py", ROOT / module.replace(".", "/") / "__init__.py"):
        if module.partition(".")[0] in ("dataprep", "pipelines") and path.exists():
            return path.read_text()
    return ""


def installed_in_the_image() -> set[str]:
    """Names of all distributions in the image."""
    python = IMAGE.arguments["PYTHON_VERSION"]
    asked = [requirement for extra in ("", *IMAGE.extras) for requirement in requirements_of(extra)]
    needed = all_needed([*asked, Requirement("tpu-dataprep")], python)
    return {canonicalize_name(requirement.name) for requirement in needed}
