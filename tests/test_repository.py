"""Workflows, forms and pages about the project agree with the Makefile and the Pythons."""

from __future__ import annotations

import re

import pytest
import yaml

from dataprep import __version__
from scripts.check_python import SUPPORTED
from tests.support.markdown import ROOT
from tests.test_setup import SETUP

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[0-9]*.yml"))
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def jobs_of(workflow) -> dict:
    return yaml.safe_load(workflow.read_text())["jobs"]


def test_workflows_test_build_wheels_and_make_the_site():
    runs = {
        path.stem: {step.get("run", "") for job in jobs_of(path).values() for step in job["steps"]}
        for path in WORKFLOWS
    }
    assert "make test PYTHON=python" in runs["tests"]
    assert "make release" in runs["wheels"]
    assert "make site" in runs["site"]
    assert "make audit PYTHON=python" in runs["audit"]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {target for each in runs.values() for text in each for target in re.findall(r"^make ([a-z-]+)", text)}
    assert called <= targets


def test_workflows_have_every_supported_python():
    for name, job in (("tests", "test"), ("audit", "pins")):
        assert tuple(jobs_of(ROOT / f".github/workflows/{name}.yml")[job]["strategy"]["matrix"]["python"]) == SUPPORTED
    steps = jobs_of(ROOT / ".github/workflows/wheels.yml")["release"]["steps"]
    (given,) = [step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", "")]
    assert tuple(given.split()) == SUPPORTED


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_pinned_actions_a_time_limit_and_no_right_that_a_job_does_not_name(path):
    lines = [line.partition("uses: ")[2] for line in path.read_text().splitlines() if "uses: " in line]
    assert [line for line in lines if not PINNED.fullmatch(line)] == []
    assert yaml.safe_load(path.read_text())["permissions"] == {}
    for job in jobs_of(path).values():
        assert job["permissions"] in ({"contents": "read"}, {"id-token": "write", "pages": "write"})
        assert job["timeout-minutes"] <= 90


def test_citation_names_the_version_and_the_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (__version__, SETUP["metadata"]["license"])


def test_forms_name_commands_that_exist():
    shown = {name for path in FORMS for name in re.findall(r"`dataprep ([a-z][a-z-]+)", path.read_text())}
    assert shown == {"demo-data", "diagnose"}
    assert all((ROOT / "dataprep/commands" / f"{name.replace('-', '_')}.py").exists() for name in shown)
