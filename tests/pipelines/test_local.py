"""The engine of this machine: a pool for all shards, or one part of them."""

import pytest

from dataprep.builder.driver import run_build
from dataprep.errors import UsageError
from pipelines.local import check, open_engine, shards_at_once
from pipelines.parts import Part
from pipelines.protocol import EngineChoice, EngineWork
from tests.support.build_here import Quiet, request
from tests.support.builds import digests


def work_of(asked, lines):
    return EngineWork(
        dataset=asked.options.dataset, source_url=asked.source_url, output_url=asked.output_url, stall_s=60,
        log=lines.append, warn=lines.append,
    )  # fmt: skip


def test_a_part_that_is_alone_builds_the_bytes_of_the_whole_pool(originals, tmp_path):
    lines = []
    for name, part in (("whole", None), ("part", Part(1, 2))):
        asked = request(originals, tmp_path / name)
        with open_engine(EngineChoice(runner="local", workers=2, part=part), work_of(asked, lines)) as engine:
            assert run_build(asked, engine, Quiet()).shards_built > 0
    assert digests(tmp_path / "part") == digests(tmp_path / "whole")
    assert lines[0].startswith("part 1 of 2: ")


def test_all_parts_together_have_their_workers_in_flight():
    assert shards_at_once(EngineChoice(runner="local", workers=3), ()) == 3
    assert shards_at_once(EngineChoice(runner="local", workers=3, part=Part(1, 4)), ()) == 12


def test_options_of_another_engine_and_detaching_are_refused():
    with pytest.raises(UsageError, match="--address=auto"):
        check(EngineChoice(runner="local", workers=1, options=("--address=auto",)))
    with pytest.raises(UsageError, match="its workers end with this command"):
        check(EngineChoice(runner="local", workers=1, detach=True))
