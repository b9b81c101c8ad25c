"""The part of Ray's engine that needs no cluster; tests/cluster/test_ray.py runs it on one."""

import pytest

from dataprep.errors import BuildError, StorageError, UsageError
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


folders_of_workers = on_use("pipelines.ray.engine:_WithoutCurrentFolder")
tell = on_use("pipelines.ray.engine:_tell")
RayError = on_use("ray.exceptions:RayError")


def test_without_options_a_process_takes_a_cpu_of_this_nodes_cluster():
    options = engine.ray_options(())
    assert (options.address, options.need, options.processes) == ("auto", {"CPU": 1.0}, None)


def test_all_options_are_understood():
    words = "--address=10.0.0.1:6379 --cpus 0.5 --memory=2 --resource=fast=1 --resource=spot=0.5 --processes=64"
    options = engine.ray_options(words.split())
    assert options.address == "10.0.0.1:6379"
    assert options.need == {"CPU": 0.5, "memory": float(2 << 30), "fast": 1.0, "spot": 0.5}
    assert options.processes == 64


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("--adress=auto", "unrecognized arguments: --adress=auto after --; the options are --address=HOST:PORT"),
        ("--cpus=0", "argument --cpus: invalid"),
        ("--memory=much", "argument --memory: invalid"),
        ("--processes=0", "argument --processes: invalid"),
        ("--processes=1.5", "argument --processes: invalid"),
        ("--resource=fast", "argument --resource: invalid"),
        ("--address=ray://head:10001", "run this command on a node of the cluster"),
        ("--address=local", "expected auto, or HOST:PORT of the cluster's head"),
    ],
)
def test_other_options_and_values_are_refused(word, fault):
    with pytest.raises(UsageError) as error:
        engine.ray_options([word])
    assert fault in str(error.value)


def test_an_address_where_nothing_listens_is_refused_at_once():
    with pytest.raises(
        UsageError, match=r"nothing answers at --address=127\.0\.0\.1:99999 \(.*start the cluster first"
    ):
        engine.connect(engine.ray_options(["--address=127.0.0.1:99999"]))


@pytest.mark.parametrize(
    ("nodes", "words", "room"),
    [
        ([], "", 0),
        ([{"CPU": 4.0}, {"CPU": 3.0}], "", 7),
        ([{"CPU": 4.0}, {"CPU": 3.0}], "--cpus=2", 3),
        ([{"CPU": 4.0, "memory": 5e9}], "--cpus=0.5 --memory=2", 2),
        ([{"CPU": 4.0}, {"CPU": 4.0, "fast": 2.0}], "--resource=fast=1", 2),
    ],
)
def test_the_room_of_nodes_counts_whole_processes_on_each(nodes, words, room):
    states = [{"Alive": True, "Resources": node} for node in nodes]
    lost = {"Alive": False, "Resources": {"CPU": 9.0, "fast": 9.0}}
    assert engine.room(engine.ray_options(words.split()), [*states, lost]) == room


def test_workers_do_not_look_for_modules_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = folders_of_workers()
    folders.extend(["/opt/bin", str(tmp_path)])
    assert folders == ["/opt/bin"]


def test_tasks_that_ray_tries_again_are_told_in_one_line_and_nothing_else():
    lines = []
    retried = "Task run_task failed. There are 1 retries remaining, so the task will be retried. Error: \n" + "x" * 900
    tell(lines.append, {"lines": [retried, "A worker died\n or was killed"], "pid": "raylet"}, ignore_prefix=False)
    assert len(lines) == 1
    assert lines[0].startswith("ray: Task run_task failed. There are 1 retries remaining, so the task will be retried.")
    assert len(lines[0]) < 220


def test_a_lost_connection_is_explained_in_one_line():
    for error in (ConnectionError("no route\nto the host"), RayError("no route\nto the host")):
        with (
            pytest.raises(BuildError, match=r"^ray: the cluster cannot be reached any more \(.*no route.*\); run "),
            engine.explained(),
        ):
            raise error


def test_errors_of_the_build_pass():
    with pytest.raises(StorageError, match="the disk is tired"), engine.explained():
        raise StorageError("the disk is tired")
