"""What the emulator's record of requests says."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote


def longest_chain(served: Iterable[tuple[float, float, str]]) -> list[str]:
    """Return the longest sequence of requests in which each begins after the one before has ended.

    Args:
        served: Begin and end of each request, and its method and path.
    """
    chain, ended_s = [], float("-inf")
    for begun_s, end_s, what in sorted(served, key=lambda request: request[1]):
        if begun_s >= ended_s:
            chain.append(unquote(what))
            ended_s = end_s
    return chain
