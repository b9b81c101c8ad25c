"""A worker's answers, without a cluster."""

import asyncio
import gc
from concurrent.futures import Future

import pytest

from dataprep.builder.pool import Failure
from dataprep.errors import StorageError
from tests.support.on_use import on_use

Worker = on_use("pipelines.ray.worker:Worker")


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
        worker = Worker(begin, ("no_such_module",))
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
