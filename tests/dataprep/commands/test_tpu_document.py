"""docs/tpu.md cannot rot: every command in it is one that the parsers take."""

import importlib
import re

import click
import pytest

from dataprep.cli import COMMANDS
from dataprep.cloud.accelerators import parse_accelerator
from dataprep.cloud.tpu.jobs import FRAMEWORKS
from dataprep.commands.tpu import command
from tests.support.markdown import ROOT, blocks, commands, words_of

DOCUMENT = "docs/tpu.md"
LINES = [
    (f"{DOCUMENT}:{line.line}", words_of(line.text, "dataprep"))
    for block in blocks(DOCUMENT)
    if block.info == "sh"
    for line in commands(block)
]
SCRIPTS = dict(re.findall(r"^    (dataprep-\S+) = (\S+):main$", (ROOT / "setup.cfg").read_text(), re.MULTILINE))
OURS = [pytest.param(words[1:], id=where) for where, words in LINES if words and words[0] == "tpu"]


def parsed(words: list[str]) -> dict:
    """What the command's own parser makes of its words."""
    name, *rest = words
    found = command.get_command(click.Context(command), name)
    assert found is not None, f"{name} is none of {', '.join(command.commands)}"
    return found.make_context(name, rest).params


@pytest.fixture(autouse=True)
def zone(monkeypatch):
    monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", "europe-west4-a")  # as the document begins
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("words", OURS)
def test_the_parsers_accept_every_documented_tpu_command(words, tmp_path, monkeypatch):
    if words[0] == "copy":
        monkeypatch.chdir(tmp_path)
        (tmp_path / words[2]).mkdir()
    params = parsed(words)
    if "accelerator" in params:
        parse_accelerator(params["accelerator"])


@pytest.mark.parametrize("words", [words for words in OURS if words.values[0][0] == "run" and "--" in words.values[0]])
def test_entries_accept_the_flags_of_the_document(words):
    program, *flags = parsed(words)["argv"]
    entry = importlib.import_module(SCRIPTS[program]).command
    entry.make_context(program, list(flags))


def test_every_tpu_command_is_documented():
    assert {words.values[0][0] for words in OURS} == set(command.commands)


def test_the_list_of_the_day_has_commands_that_there_are_from_the_plan_to_the_end():
    text = (ROOT / "docs/tpu.md").read_text()
    listed = re.search(r"^## All steps in order\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)[1]
    found = re.findall(r"\[`dataprep ([^`]+)`\]\([^)]+\)", listed)
    assert (found[0], found[-1]) == ("plan-input", "tpu delete")
    assert listed.count("`") == 2 * len(found), "each command has a link"
    known = {*COMMANDS, *(f"tpu {name}" for name in command.commands)}
    assert [name for name in found if name not in known] == []


def test_the_document_has_the_variables_of_each_framework():
    text = (ROOT / DOCUMENT).read_text()
    shown = dict(re.findall(r"`(PJRT_DEVICE|JAX_PLATFORMS)=(\S+?)` for `", text))
    ours = [(name, of[name]) for of in FRAMEWORKS.values() for name in ("PJRT_DEVICE", "JAX_PLATFORMS") if name in of]
    assert shown == dict(ours)
    assert "`PJRT_DEVICE=TPU` for `torch` (the default) and `JAX_PLATFORMS=tpu,cpu` for `jax`" in text
    assert "but neither for `torch-tpu`" in text
    assert not {"PJRT_DEVICE", "JAX_PLATFORMS"} & FRAMEWORKS["torch-tpu"].keys()
