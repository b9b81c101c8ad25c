"""docs/agents.md and llms.txt say what `--help` and the documents say, and the guide's session runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import click

from dataprep.cli import COMMANDS
from scripts import agents
from tests.support.markdown import ROOT, links
from tests.support.tutorials import run_tutorial

GUIDE = (ROOT / agents.GUIDE).read_text()


def test_every_command_of_the_session_runs_and_prints_the_keys_that_are_shown(tmp_path: Path):
    run_tutorial(agents.GUIDE, tmp_path)


def test_the_session_has_every_command():
    steps = "\n".join(step.command for step in agents.STEPS)
    assert [name for name in COMMANDS if f"dataprep {name} " not in steps] == []
    assert [step.command for step in agents.STEPS] == re.findall(r"^\$ (.*)$", GUIDE, re.MULTILINE)


def test_the_guide_ends_with_what_help_says():
    assert GUIDE.endswith(agents.reference()), "regenerate it: python -m scripts.agents"


def test_every_option_of_every_command_is_in_its_part():
    for leaf in agents.leaves():
        part = GUIDE.split(f"\n### {leaf.words}\n")[1].split("\n### ")[0]
        options = [one for one in leaf.context.command.params if isinstance(one, click.Option) and not one.hidden]
        options = [one for one in options if one.name != "help_all"]  # the guide has all options
        assert [one.name for one in options if not any(f"{name}" in part for name in one.opts)] == []


def test_the_list_has_every_document_with_its_first_sentence():
    text = (ROOT / agents.LIST).read_text()
    assert text == agents.document_list(), "regenerate it: python -m scripts.agents"
    assert {"README.md", "DATA.md", "docs/loaders.md", "docs/tutorials/own-pictures.md"} <= set(links(agents.LIST))
    assert [line for line in text.splitlines() if line.startswith("- ") and not re.search(r"\): \S", line)] == []


def test_a_file_that_differs_is_named(capsys, monkeypatch, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# one\n\nTwo.\n")
    (tmp_path / agents.GUIDE).write_text("old")
    (tmp_path / agents.LIST).write_text("old")
    monkeypatch.setattr(agents, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["agents", "--check"])
    assert agents.main() == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [agents.GUIDE, agents.LIST]


def test_only_the_keys_of_an_object_are_shown():
    assert agents.keys('reading\n{"a": {"b": 1}, "c": [2]}\n') == '…\n{"a": …, "c": …}\n…'
    assert agents.keys("done\n") == "…"
