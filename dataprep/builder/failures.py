"""Failed tasks of shards, as every engine treats them: which are tried again, how often, and how the build ends."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from dataprep.errors import AccessError, BuildError, ConflictError, DataprepError, FullError, StorageError
from dataprep.host.program import names_advice
from dataprep.storage.errors import FULL, GO_ON

MAX_DEATHS = 3
"""Number of workers that one task may kill or hang before it is set aside."""
MAX_ATTEMPTS = 4
"""Maximum number of attempts at a task that fails with a retryable error of storage or operating system."""
FIRST_BACKOFF_S = 0.5


@dataclass(frozen=True, slots=True)
class Failure:
    """Message that a worker sends instead of a result."""

    error: DataprepError
    may_pass: bool
    """Whether another attempt may succeed."""


def failure_of(index: int, error: BaseException) -> Failure:
    """Return the message about the error of a shard's task; unexpected errors are named with their location."""
    if isinstance(error, DataprepError):
        may_pass = isinstance(error, StorageError) and not isinstance(error, AccessError | ConflictError | FullError)
        return Failure(error, may_pass)
    if isinstance(error, UnicodeError) and (advice := names_advice()):
        text = f"shard {index}: a name has letters that cannot be written here ({error}); {advice}"
        return Failure(BuildError(text), may_pass=False)
    if isinstance(error, OSError) and error.errno in FULL:
        return Failure(FullError(f"shard {index}: {error}; free some space and {GO_ON}"), may_pass=False)
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"shard {index}: unexpected {type(error).__name__}: {error} ({where.name}:{where.lineno})"
    return Failure(BuildError(text), may_pass=isinstance(error, OSError))


def backoff_s(attempts: int) -> float:
    """Return the time to wait before the next attempt, after this many that failed."""
    return FIRST_BACKOFF_S * 2.0 ** (attempts - 1)


def shards_set_aside(reasons: Mapping[int, str]) -> BuildError:
    """Return the error of a run that has set shards aside, and done all others.

    Args:
        reasons: Why each shard was set aside, by its index.
    """
    names = "; ".join(f"shard {index}: {why}" for index, why in sorted(reasons.items()))
    return BuildError(
        f"{len(reasons)} of the shards could not be built: {names}. "
        "All others are done; run the same command again to try these"
    )
