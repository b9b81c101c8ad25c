"""How many processes a cluster is asked for; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def room_of(nodes: Iterable[Mapping[str, float]], need: Mapping[str, float]) -> int:
    """Return the number of processes for which nodes have room.

    Args:
        nodes: Resources of each node, by name.
        need: Resources that a process needs, by name; those of 0 count nothing.
    """
    wanted = {name: amount for name, amount in need.items() if amount > 0}
    return sum(min((int(node.get(name, 0) / amount) for name, amount in wanted.items()), default=1) for node in nodes)


def processes_wanted(room: int, left: int, most: int | None) -> int:
    """Return the number of processes to have, those included for which a node must join first.

    Args:
        room: Number of processes for which the nodes have room now.
        left: Number of shards that are not done.
        most: Number that the user wants; None: as many as have room, but at least one, so that an autoscaler sees a
            demand.
    """
    return min(left, max(1, room) if most is None else most)
