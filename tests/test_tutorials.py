"""Tutorials are true: `make soak SHOW=tutorials` runs every one as it stands, and some are run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.markdown import blocks, commands
from tests.support.tutorials import TUTORIALS, run_tutorial

SAMPLE = ("own-pictures", "from-hugging-face-datasets", "from-litdata")


@pytest.mark.parametrize("name", SAMPLE)
def test_a_tutorial_prints_what_it_shows(name, tmp_path: Path):
    run_tutorial(f"docs/tutorials/{name}.md", tmp_path)


@pytest.mark.parametrize("document", TUTORIALS)
def test_every_block_of_a_tutorial_is_of_a_kind_that_is_run(document):
    """The sh blocks are few: they need an account or an accelerator, or another tool's own environment."""
    infos = [block.info for block in blocks(document)]
    assert set(infos) <= {"console", "python", "text", "sh"}
    assert infos.count("sh") <= 1
    assert sum(len(commands(block)) for block in blocks(document) if block.info == "console")


def test_an_output_that_differs_is_detected(tmp_path, monkeypatch):
    (tmp_path / "wrong.md").write_text("```console\n$ echo one\ntwo\n```\n")
    with pytest.raises(AssertionError, match="--- shown ---\ntwo\n--- printed ---\none\n"):
        run_tutorial(str(tmp_path / "wrong.md"), tmp_path)
