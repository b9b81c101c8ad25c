"""The table of engines: each is imported when it is named, and what is missing is said."""

import subprocess
import sys

import pytest

from dataprep.errors import UsageError
from pipelines.engines import ENGINES, EngineChoice, engine_module

HEAVY = ("apache_beam", "pyspark", "ray")


def test_an_engine_is_imported_when_it_is_named():
    code = f"""
import sys, pipelines.engines, dataprep.commands.build_run
assert not [name for name in {HEAVY} if name in sys.modules]
pipelines.engines.engine_module("local")
assert not [name for name in {HEAVY} if name in sys.modules]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("runner", [*ENGINES, "FnApiRunner"])
def test_every_engine_checks_a_choice_and_states_its_shards_in_flight(runner):
    module = engine_module(runner)
    choice = EngineChoice(runner=runner, workers=3)
    module.check(choice)
    assert callable(module.open_engine)
    with pytest.raises(UsageError, match="--nonsense=1"):
        module.check(EngineChoice(runner=runner, workers=3, options=("--nonsense=1",)))


def test_a_library_that_is_missing_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pipelines.beam.engine", None)
    with pytest.raises(UsageError, match=r"`runner` FnApiRunner: .*; pip install '.*\[beam\]'"):
        engine_module("FnApiRunner")
