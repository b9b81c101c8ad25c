"""The part of Ray's engine that needs no cluster; tests/cluster/test_ray.py runs it on one."""

import pytest

from dataprep.errors import UsageError
from pipelines.engines import EngineChoice
from tests.support.on_use import on_use

engine = on_use("pipelines.ray.engine")


def test_options_are_checked_without_a_cluster():
    engine.check(EngineChoice(runner="ray", workers=1, options=("--address=head:6379",)))
    with pytest.raises(UsageError, match="--adress=head:6379"):
        engine.check(EngineChoice(runner="ray", workers=1, options=("--adress=head:6379",)))
    assert engine.shards_at_once(EngineChoice(runner="ray", workers=1, options=("--processes=8",)), ()) == 8


@pytest.mark.parametrize(("most", "room", "count"), [(None, 0, 64), (None, 1_000, 2_000), (8, 1_000, 8)])
def test_tasks_in_flight_keep_all_nodes_busy_unless_their_number_is_given(most, room, count, monkeypatch):
    monkeypatch.setattr("pipelines.ray.engine.room", lambda _options: room)
    assert engine.Run(abs, (), None, most).in_flight == count
