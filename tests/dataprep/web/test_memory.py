"""Bodies share a budget of bytes: never more than it, and never waiting for each other for ever."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.web.memory import Memory

BODY_BYTES = 100


class Held:
    """What is taken now, and the most that ever was."""

    def __init__(self) -> None:
        self.num_bytes = self.most_bytes = 0

    def take(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self.most_bytes = max(self.most_bytes, self.num_bytes)


async def arrive(memory, held, draw, whole):
    """One body of random pieces, which ends whole, broken off or cancelled, and whose bytes the caller takes later."""
    size, taken = draw.randint(0, BODY_BYTES), 0
    try:
        with memory.arriving() as arriving:
            while taken < size:
                piece = min(draw.randint(1, 40), size - taken)
                await arriving.take(piece)
                taken += piece
                held.take(piece)
                if draw.random() < 0.7:
                    await asyncio.sleep(0)
                if draw.random() < 0.02:
                    raise ConnectionError
            arriving.keep()
            whole.put_nowait(taken)
    except (ConnectionError, asyncio.CancelledError):
        held.take(-taken)


async def everything(seed, num_bytes, bodies):
    draw, held, whole = random.Random(seed), Held(), asyncio.Queue()
    memory = Memory(num_bytes, BODY_BYTES)
    tasks = [asyncio.create_task(arrive(memory, held, draw, whole)) for _ in range(bodies)]
    while not all(task.done() for task in tasks) or not whole.empty():
        # The caller takes what is whole, sometimes late; some rows are cancelled meanwhile.
        if draw.random() < 0.05:
            draw.choice(tasks).cancel()
        if not whole.empty() and draw.random() < 0.5:
            taken = whole.get_nowait()
            held.take(-taken)
            memory.give(taken)
        await asyncio.sleep(0)
    return memory, held


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(BODY_BYTES, 5 * BODY_BYTES), st.integers(1, 40))
def test_every_body_arrives_within_the_budget(seed, num_bytes, bodies):
    async def run():
        async with asyncio.timeout(60):  # what waits for ever fails here
            return await everything(seed, num_bytes, bodies)

    memory, held = asyncio.run(run())
    assert held.num_bytes == 0
    assert held.most_bytes <= num_bytes
    with memory.arriving() as last:
        assert last.take_now(num_bytes), "all of it is free again"


def test_a_body_counts_with_the_bytes_received_and_not_with_its_declared_size():
    memory = Memory(3 * BODY_BYTES, BODY_BYTES)
    arriving = [memory.arriving().__enter__() for _ in range(100)]
    assert all(each.take_now(2) for each in arriving)


def test_younger_bodies_leave_room_for_all_of_the_oldest():
    memory = Memory(2 * BODY_BYTES, BODY_BYTES)
    with memory.arriving() as oldest, memory.arriving() as second, memory.arriving() as third:
        assert second.take_now(60)
        assert not third.take_now(41)
        assert third.take_now(40)
        assert oldest.take_now(BODY_BYTES)


def test_the_next_oldest_body_continues_once_the_caller_takes_the_first():
    memory = Memory(2 * BODY_BYTES, BODY_BYTES)

    async def run():
        with memory.arriving() as first:
            assert first.take_now(BODY_BYTES)
            first.keep()
        with memory.arriving() as second:
            assert second.take_now(50)
            waiting = asyncio.create_task(second.take(51))
            await asyncio.sleep(0)
            assert not waiting.done()
            memory.give(BODY_BYTES)
            await asyncio.wait_for(waiting, 60)

    asyncio.run(run())


@pytest.mark.parametrize("granted", [False, True])
def test_a_body_cancelled_while_it_waits_holds_no_memory(granted):
    memory = Memory(BODY_BYTES, BODY_BYTES)

    async def wait():
        with memory.arriving() as younger:
            await younger.take(10)

    async def run():
        with memory.arriving() as oldest:
            assert oldest.take_now(BODY_BYTES)
            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0)
            if not granted:
                waiting.cancel()
        if granted:
            waiting.cancel()  # it was granted, and has not run since
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        with memory.arriving() as last:
            assert last.take_now(BODY_BYTES)

    asyncio.run(run())
