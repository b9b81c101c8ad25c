"""Wraps the asynchronous `dataprep.web` in iterators for `collect`; one thread serves all of them."""

from __future__ import annotations

import asyncio
import socket
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, contextmanager, suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, cast

import uvloop

from dataprep.errors import BuildError
from dataprep.fetched.collect import Fetch
from dataprep.web.client import Fetcher
from dataprep.web.politeness import Known
from dataprep.web.requests import Limits, Outcome, Request

# Outcomes that wait for the encoder, in addition to those in flight: enough that it never waits for a thread switch.
OUTCOMES_AHEAD = 64
# Number of outcomes whose slots are released together: one by one, the thread would need a tenth more time.
OUTCOMES_AT_ONCE = 32


def web_fetch(limits: Limits, known: Known | None = None, *, kept: bool = False) -> Fetch:
    """Return a `Fetch` that runs in its own thread, so that encoding never delays its deadlines.

    Several threads may use it at once; they share the limits and the connections.

    Args:
        known: Knowledge about hosts, kept between fetches.
        kept: Keep the thread, its connections and the hosts' turns between fetches, as long as the `Fetch` lives;
            otherwise they end with the last running fetch.
    """
    return _Web(limits, known or Known(), kept=kept).fetch


class _Loop(uvloop.Loop):
    """An event loop whose requests take half the CPU time of asyncio's own loop."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Resolve with the type of a stream socket. Connecting to an address resolves it again: for a stream socket
        directly, for others in another thread, which costs as much as connecting."""
        return await super().getaddrinfo(host, port, **{"type": socket.SOCK_STREAM, **options})


class _Running(NamedTuple):
    loop: asyncio.AbstractEventLoop
    fetcher: Fetcher
    stop: asyncio.Event
    pumps: set[asyncio.Task[None]]
    thread: threading.Thread


class _Web:
    """Runs a fetcher in a thread while anything is fetched; with `kept`, from the first fetch on."""

    def __init__(self, limits: Limits, known: Known, *, kept: bool) -> None:
        self._limits, self._known, self._kept = limits, known, kept
        self._running: _Running | None = None
        self._lock = threading.Lock()
        self._users = 0

    def fetch(self, requests: Iterable[Request]) -> Iterator[Outcome]:
        """Yield one outcome for each request, in any order; closing the iterator cancels the requests in flight."""
        outcomes: SimpleQueue[Outcome | BaseException | None] = SimpleQueue()
        room = asyncio.Semaphore(OUTCOMES_AHEAD)
        with self._used() as running:
            loop = running.loop
            pump = asyncio.run_coroutine_threadsafe(_begin(running, requests, outcomes.put, room), loop).result()
            taken = 0
            try:
                while (outcome := outcomes.get()) is not None:
                    if isinstance(outcome, BaseException):
                        raise outcome
                    yield outcome
                    del outcome  # so that only the caller holds the body
                    taken += 1
                    if taken % OUTCOMES_AT_ONCE == 0:
                        _call(loop, _release, room, OUTCOMES_AT_ONCE)
            except BaseException:
                _call(loop, pump.cancel)
                while outcomes.get() is not None:
                    pass
                raise

    @contextmanager
    def _used(self) -> Iterator[_Running]:
        """Start the thread for its first user, and end it after the last one unless it is kept."""
        with self._lock:
            if self._running is None:
                self._running = running = _start(self._limits, self._known)
                if self._kept:
                    weakref.finalize(self, _end, running)
            running = self._running
            self._users += 1
        try:
            yield running
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and not self._kept:
                    self._running = None
                    _end(running)


def _start(limits: Limits, known: Known) -> _Running:
    ready: Future[_Running] = Future()
    threading.Thread(target=_run, args=(limits, known, ready), name="dataprep-web", daemon=True).start()
    return ready.result()


def _end(running: _Running) -> None:
    """End the thread and wait for it."""
    _call(running.loop, running.stop.set)
    if running.thread is not threading.current_thread():  # garbage collection may run this in any thread
        running.thread.join()


def _run(limits: Limits, known: Known, ready: Future[_Running]) -> None:
    try:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(_serve(limits, known, ready))
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)


async def _serve(limits: Limits, known: Known, ready: Future[_Running]) -> None:
    async with Fetcher(limits, known) as fetcher:
        loop, thread = asyncio.get_running_loop(), threading.current_thread()
        running = _Running(loop, fetcher, asyncio.Event(), set(), thread)
        ready.set_result(running)
        try:
            await running.stop.wait()
        finally:  # before the connections are closed, because that would give their rows a failed status
            for pump in running.pumps:
                pump.cancel()
            await asyncio.gather(*running.pumps, return_exceptions=True)


async def _begin(
    running: _Running,
    requests: Iterable[Request],
    put: Callable[[Outcome | BaseException | None], None],
    room: asyncio.Semaphore,
) -> asyncio.Task[None]:
    """Start a task that puts all outcomes, then the error that ended it, if any, then None."""

    def end(pump: asyncio.Task[None]) -> None:
        running.pumps.discard(pump)
        # A caller that stopped early reads no more; one that still reads must not take missing rows for failed ones.
        cut_off = BuildError("the download thread ended early; run the same command again")
        error = cut_off if pump.cancelled() else pump.exception()
        if error is not None:
            put(error)
        put(None)

    pump = asyncio.create_task(_pump(running.fetcher, requests, put, room))
    running.pumps.add(pump)
    pump.add_done_callback(end)
    return pump


async def _pump(
    fetcher: Fetcher, requests: Iterable[Request], put: Callable[[Outcome], None], room: asyncio.Semaphore
) -> None:
    outcomes = cast("AsyncGenerator[Outcome]", fetcher.fetch_many(requests))
    async with aclosing(outcomes):
        async for outcome in outcomes:
            put(outcome)
            del outcome
            await room.acquire()


def _release(room: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        room.release()


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    """Call on the loop's thread, if that has not ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)
