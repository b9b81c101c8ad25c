"""Arranges traces of all workers as a run that TensorBoard shows: `plugins/profile/<run>/<host>.xplane.pb`. Pure.

Every host names its folder by the start time on its own clock; some tools leave out `plugins/profile`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from dataprep.errors import UsageError
from dataprep.storage.base import check_name

ONE_RUN_S = 120.0
"""Time after the first folder's within which other folders belong to the same run."""
_FORMAT = "%Y_%m_%d_%H_%M_%S"
Trace = tuple[int, str]
"""Number of a worker, and a path below its folder of logs."""


def arrange(traces: Iterable[Trace]) -> dict[Trace, str]:
    """Return the path of each trace below TensorBoard's log folder.

    Raises:
        UsageError: A trace is in a folder whose name is not a time, or its path leaves the folder of logs.
    """
    by_time = sorted((_time_of(path), worker, path) for worker, path in traces)
    runs: dict[Trace, str] = {}
    first: datetime | None = None
    for time, worker, path in by_time:
        if first is None or time - first > timedelta(seconds=ONE_RUN_S):
            first = time
        runs[worker, path] = first.strftime(_FORMAT)
    named = Counter((run, PurePosixPath(path).name) for (_, path), run in runs.items())
    placed = {}
    for (worker, path), run in runs.items():
        name = PurePosixPath(path).name
        if named[run, name] > 1:  # hosts of the same name, or two traces of one host within the time
            name = f"worker-{worker:02d}.{PurePosixPath(path).parent.name}.{name}"
        placed[worker, path] = f"plugins/profile/{run}/{name}"
    return placed


def _time_of(path: str) -> datetime:
    folder = PurePosixPath(check_name(path)).parent.name
    try:
        return datetime.strptime(folder, _FORMAT)
    except ValueError:
        raise UsageError(f"{path}: expected a trace in a folder such as plugins/profile/2026_11_21_12_30_00") from None
