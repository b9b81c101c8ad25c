"""README.md and docs/reading.md are true: what they show is run as it stands, and prints what they show."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.libraries import in_process, output_of
from tests.support.markdown import ROOT, Block, blocks, commands, is_undecided, shows
from tests.support.own_data import picture, write_files

README = "README.md"
READING = "docs/reading.md"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """As after `make setup`, with no network and nothing of the user's."""
    return {
        **os.environ,
        **warm.stand_in(tmp_path_factory.mktemp("programs")),
        "HOME": str(tmp_path_factory.mktemp("home")),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.mark.parametrize("document", [README, READING])
def test_every_example_runs_in_order_and_prints_what_is_shown(document, environment, tmp_path):
    """Python blocks run where other tests read with the same libraries, as torch and TensorFlow take seconds to come
    up. The output of each is compared with the ```text block after it.
    """
    if document == README:
        names = [f"pictures/{name}/{number}.jpg" for name in ("cats", "dogs") for number in range(32)]
        write_files(tmp_path, {name: picture(number) for number, name in enumerate(names)})
    programs: list[Block] = []
    expected: dict[Block, str] = {}
    for block in [*blocks(document), Block("end", "", 0)]:
        if block.info == "python":
            programs.append(block)
        elif block.info == "text":
            expected[programs[-1]] = block.text
        elif block.info in ("console", "end"):
            outputs = run_programs(programs, tmp_path)
            for program, output in outputs.items():
                compare(f"{document}:{program.line}", expected[program], output)
            programs = []
            run_commands(document, block, tmp_path, environment)


def run_commands(document: str, block: Block, folder: Path, environment: dict[str, str]) -> None:
    for command in commands(block):
        run = subprocess.run(
            ["bash", "-c", command.text],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=800,
            check=False,
        )
        where = f"{document}:{command.line}: {command.text}"
        if is_undecided(command.text, run.returncode, run.stdout):
            continue
        assert run.returncode == 0, f"{where}\nended with {run.returncode}:\n{run.stdout}"
        compare(where, command.output, run.stdout)


def run_programs(programs: list[Block], folder: Path) -> dict[Block, str]:
    """The output of each."""
    outputs = {}
    for block in programs:
        path = folder / f"readme-line-{block.line}.py"
        path.write_text(block.text)
        outputs[block] = in_process("tensorflow" if "tensorflow" in block.text else "torch", output_of, path)
    return outputs


def compare(where: str, shown: str, printed: str) -> None:
    if not shows(shown, printed):
        pytest.fail(f"{where}\n--- shown ---\n{shown}--- printed ---\n{printed}", pytrace=False)


def test_the_readme_has_at_most_750_words():
    assert len((ROOT / README).read_text().split()) <= 750


@pytest.mark.parametrize("document", [README, READING])
def test_every_block_is_of_a_tested_kind(document):
    assert {block.info for block in blocks(document)} <= {"console", "sh", "python", "text"}
