"""How many images to request ahead, so that fetching from a bucket limits a run no longer: pure arithmetic."""

from __future__ import annotations

import math

MORE_AHEAD = 4
"""Factor by which changes raise the batch size and the threads of a transform that waits, and by which they raise the
requests in flight at least."""
BEYOND = 2.0
"""Ratio of the rate at which fetching alone is to deliver to that of the next limit. In a run the requests share cores
with the other stages and each takes longer than alone: with as many as just reach the next limit, a run stays below
it."""
MOST_READS = 512
"""Number of requests in flight up to which they are raised by more than MORE_AHEAD: each takes a thread."""
ROOM = 2
"""Images in the batches ahead for each request in flight: those that have arrived and wait to be decoded, or for the
rest of their batch, are in flight no longer."""
BUSY_INTERPRETER = 0.9
"""Cores in use of one process that fetches, from which on its interpreter lock may be what limits it."""


def reads_needed(in_flight: float, fetch: float, beyond: float, usual: int) -> int:
    """Return the requests in flight with which fetching is no longer the limit, if its rate rises as their number does.

    They are no fewer than a loader has by default, because few requests at a time take more CPU time for each, so that
    `beyond` is too low.

    Args:
        in_flight: Images in flight now.
        fetch: Images/s of fetching alone with them.
        beyond: Images/s of the run if fetching were no limit.
        usual: Requests in flight where no number of them is set.
    """
    wanted = min(BEYOND * beyond / fetch * in_flight, MOST_READS)
    return math.ceil(max(MORE_AHEAD * in_flight, usual, wanted))


def batches_needed(reads: int, rows: int) -> int:
    """Return the batches ahead with which as many requests can always be in flight.

    Args:
        reads: Requests in flight, each for an image.
        rows: Images in a batch of this host.
    """
    return math.ceil(ROOM * reads / rows)


def rate_of_processes(fetch: float, own_cores: float, processes: int) -> float:
    """Return the images/s that several processes fetch, from the rate of one that has the requests of all of them in
    flight: as many times that rate as there are processes, if the interpreter lock limits the one, else the same.

    Args:
        fetch: Images/s of one process.
        own_cores: Cores that it used.
        processes: Number of processes, each of which has an interpreter lock of its own.
    """
    return fetch * max(1, processes) if own_cores >= BUSY_INTERPRETER else fetch
