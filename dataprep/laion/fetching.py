"""`dataprep.web.fetch_many`, which is asynchronous, as the iterator that `collect` takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from queue import SimpleQueue
from typing import cast

from dataprep.laion.collect import Fetch
from dataprep.web.caches import Known
from dataprep.web.client import fetch_many
from dataprep.web.limits import Limits
from dataprep.web.outcomes import Outcome, Request

# Beside those that the fetcher has under way: enough for the encoder never to wait for a switch of threads.
OUTCOMES_AHEAD = 32


def web_fetch(limits: Limits, known: Known | None = None) -> Fetch:
    """A `Fetch` that asks the web, on a thread of its own, so that encoding never keeps it from its deadlines.

    Args:
        limits: Of connections, bytes, times and addresses.
        known: What earlier shards in this process learnt of hosts.
    """

    def fetch(requests: Iterable[Request]) -> Iterator[Outcome]:
        outcomes: SimpleQueue[Outcome | BaseException | None] = SimpleQueue()
        loop = asyncio.new_event_loop()
        room = asyncio.Semaphore(OUTCOMES_AHEAD)
        pump = loop.create_task(_pump(requests, limits, known, outcomes.put, room))
        thread = threading.Thread(target=_run, args=(loop, pump, outcomes.put), name="dataprep-web", daemon=True)
        thread.start()
        try:
            while (outcome := outcomes.get()) is not None:
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
                del outcome  # the body is the caller's now
                loop.call_soon_threadsafe(room.release)
        finally:
            if thread.is_alive():
                loop.call_soon_threadsafe(pump.cancel)
            thread.join()
            loop.close()

    return fetch


async def _pump(
    requests: Iterable[Request],
    limits: Limits,
    known: Known | None,
    put: Callable[[Outcome], None],
    room: asyncio.Semaphore,
) -> None:
    answers = cast("AsyncGenerator[Outcome]", fetch_many(requests, limits, known))
    async with aclosing(answers) as outcomes:
        async for outcome in outcomes:
            put(outcome)
            del outcome
            await room.acquire()


def _run(
    loop: asyncio.AbstractEventLoop, pump: asyncio.Task[None], put: Callable[[BaseException | None], None]
) -> None:
    try:
        loop.run_until_complete(pump)
    except asyncio.CancelledError:
        pass
    except BaseException as error:  # noqa: BLE001  raised again by the thread that asked
        put(error)
    finally:
        put(None)
        loop.run_until_complete(loop.shutdown_asyncgens())
