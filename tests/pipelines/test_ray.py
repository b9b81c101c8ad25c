"""The parts of Ray's engine that need no cluster; tests/cluster/test_ray.py runs it on one."""

import asyncio
import gc
from concurrent.futures import Future

import pytest

from dataprep.build.failures import Failure
from dataprep.build.job import BuildJob
from dataprep.errors import StorageError, UsageError
from pipelines import ray as engine
from pipelines.protocol import EngineChoice

DIED = """The actor died unexpectedly before finishing this task.
\tclass_name: Worker
\tactor_id: e21413158ef5a22840e35ddf01000000
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file.
"""
FAILED = """The actor died because of an error raised in its creation task, ray::Worker.__init__() (pid=1, ip=10.0.0.1)
ModuleNotFoundError: No module named 'pipelines'
"""


def test_options_are_checked_without_a_cluster():
    engine.check(EngineChoice(runner="ray", workers=1, options=("--address=head:6379",)))
    with pytest.raises(UsageError, match="--adress=head:6379"):
        engine.check(EngineChoice(runner="ray", workers=1, options=("--adress=head:6379",)))
    assert engine.shards_at_once(EngineChoice(runner="ray", workers=1, options=("--processes=8",)), ()) == 8


@pytest.mark.parametrize(
    ("text", "cause"),
    [(DIED, "its worker process has died"), (FAILED, "ModuleNotFoundError: No module named 'pipelines'")],
)
def test_the_telling_line_of_rays_errors_is_shown(text, cause):
    shown = engine.cause_of(Exception(text))
    assert cause in shown
    assert "\n" not in shown
    assert len(shown) <= 160


def test_a_detached_job_is_named_by_its_output_and_its_build():
    names = {engine.job_name(BuildJob(url, "", root, "archives")) for url in ("a", "b") for root in ("c", "d")}
    assert len(names) == 4
    assert engine.job_name(BuildJob("a", "", "c", "archives")) in names


def late(index):
    """Begin a shard whose last step another thread does."""
    future = Future()
    if index == 1:
        future.set_exception(StorageError("the disk is tired"))
    else:
        future.set_result(index)
    return future


def failing(index):
    raise StorageError(f"no shard {index}")


def call(begin, index):
    """Ask a worker for a shard as the driver does; its answer, and whether it is free."""

    async def run():
        worker = engine.Worker(begin, ("no_such_module",))
        answer, _ = await asyncio.gather(worker.build(index), worker.begun(index))
        return answer, worker.is_free

    return asyncio.run(run())


@pytest.fixture
def kept_settings():
    """A worker sets up the garbage collection of its process."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("kept_settings")
def test_a_worker_answers_with_a_receipt_or_a_failure_and_is_free_again():
    assert call(late, 0) == (0, True)
    assert call(abs, 5) == (5, True)
    for begin, text in ((late, "the disk is tired"), (failing, "no shard 1")):
        answer, free = call(begin, 1)
        assert isinstance(answer, Failure)
        assert (str(answer.error), answer.may_pass, free) == (text, True, True)
