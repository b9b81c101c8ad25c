"""A process of a Ray cluster that builds shards; it imports no module of the driver."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import Any

import ray

from dataprep.builder.pool import failure_of
from dataprep.host.heartbeat import beat, beats
from dataprep.host.processes import BUILD_ENVIRONMENT
from dataprep.host.program import COLLECT_AFTER

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Numbers of mallopt(3)."""


class Worker:
    """An actor: a process of the cluster that builds one shard at a time, in one thread."""

    def __init__(self, begin: Callable[[int], Any], modules: Sequence[str]) -> None:
        _prepare_process()
        for module in modules:
            with suppress(ImportError):  # the shard's error says what is missing
                import_module(module)
        gc.freeze()  # as in the local pool
        gc.set_threshold(COLLECT_AFTER)
        self._begin = begin
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dataprep-shards")
        self._begun: dict[int, asyncio.Future[None]] = {}

    @property
    def is_free(self) -> bool:
        """Whether no shard is being begun."""
        return not self._begun

    async def node(self) -> str:
        """Return the ID of this process's node."""
        found: str = ray.get_runtime_context().get_node_id()
        return found

    async def beats(self) -> int:
        """Return a number that changes while this process makes progress."""
        return beats()

    async def build(self, index: int) -> Any:
        """Build a shard; return its receipt or a Failure."""
        loop = asyncio.get_running_loop()
        begun = self._begun[index] = loop.create_future()
        try:
            try:
                found = await loop.run_in_executor(self._thread, self._begin, index)
            finally:
                begun.set_result(None)
            return await asyncio.wrap_future(found) if isinstance(found, Future) else found
        except Exception as error:  # noqa: BLE001  whatever it is, the driver decides
            return failure_of(index, error)

    async def begun(self, index: int) -> None:
        """Return when the thread is free for the next shard; called after `build` for the same shard."""
        await self._begun[index]
        del self._begun[index]


def _prepare_process() -> None:
    """Do for a process that Ray started what the environment does for those of the local pool."""
    beat()
    for name in ("OPENBLAS_NUM_THREADS",):
        os.environ.setdefault(name, BUILD_ENVIRONMENT[name])
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, int(BUILD_ENVIRONMENT["MALLOC_MMAP_THRESHOLD_"]))
    libc.mallopt(_M_TRIM_THRESHOLD, int(BUILD_ENVIRONMENT["MALLOC_TRIM_THRESHOLD_"]))
    libc.mallopt(_M_ARENA_MAX, int(BUILD_ENVIRONMENT["MALLOC_ARENA_MAX"]))
