"""The three ways to repair a dataset that docs/written.md shows: each gives the bytes that were there before."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.support.builds import dataprep, digests
from tests.support.markdown import blocks, commands
from tests.support.own_data import picture, write_files

BLOCKS = [
    [command.text for command in commands(block)]
    for block in blocks("docs/written.md")
    if any(command.text.startswith("dataprep verify shards") for command in commands(block))
]
BUILD = BLOCKS[0][0].removesuffix(" --overwrite")


def run(line: str) -> str:
    words = shlex.split(line)
    if words[0] == "rm":
        for name in words[1:]:
            Path(name).unlink()
        return ""
    done = dataprep(*words[1:])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("lines", BLOCKS, ids=["build again", "build what is missing", "from a copy"])
def test_a_damaged_dataset_is_mended_as_documented(lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "pictures", {f"{name}/{number}.jpg": picture(number) for name in "ab" for number in (1, 2)})
    run(BUILD)
    shutil.copytree("shards", "copy")
    before = digests(tmp_path / "shards")
    shard = next((tmp_path / "shards").glob("train/*.tar"))
    shard.write_bytes(shard.read_bytes()[:-1024])
    damaged = dataprep(*shlex.split(BUILD)[1:])
    assert damaged.returncode == 1
    assert re.search(rf"the dataset is damaged, 1 file of it: train/{shard.name} has [\d,]+ bytes", damaged.stderr)
    assert dataprep("verify", "shards").returncode == 1
    for line in lines:
        run(line)
    after = digests(tmp_path / "shards")
    assert {name: after[name] for name in after if name != "replicas.json"} == before


def test_the_document_has_all_ways():
    assert len(BLOCKS) == 3
