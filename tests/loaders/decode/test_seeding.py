"""Global generators are seeded from a sample's own, for one thread at a time, and restored."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from loaders.decode.seeding import seeded


def test_generators_are_seeded_and_restored():
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    drawn = []
    for number in (7, 7, 8):
        with seeded(np.random.default_rng(number)) as seed:
            drawn.append((seed, random.random(), float(np.random.rand())))
    assert drawn[0] == drawn[1]
    assert len({each for draws in drawn[1:] for each in draws}) == 6
    with pytest.raises(ValueError, match="inside"), seeded(np.random.default_rng(0)):
        raise ValueError("inside")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_one_thread_is_in_the_block_at_a_time():
    inside, order = threading.Event(), []

    def second() -> None:
        inside.wait()
        with seeded(np.random.default_rng(1)):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with seeded(np.random.default_rng(0)):
        inside.set()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
