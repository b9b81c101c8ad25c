"""Global random generators, seeded for one image at a time: for libraries that draw from them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_ONE_AT_A_TIME = threading.Lock()
"""Held while an augmentation runs, because it draws from generators that the whole process shares."""


@contextmanager
def seeded(rng: np.random.Generator) -> Iterator[int]:
    """Seed the generators of Python and NumPy from a sample's own one, and restore them at the end of the block.

    One thread of a process is in the block at a time. The value is the seed, for generators of other libraries.
    """
    import numpy as np

    seed = int(rng.integers(2**32))
    with _ONE_AT_A_TIME:
        states = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield seed
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
