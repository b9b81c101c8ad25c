"""Problems of a user's own data, which are collected and raised together, so that one run shows all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dataprep.errors import DataprepError, SourceError, UsageError

Refuse = Callable[[DataprepError], None]
"""Takes a problem: it raises it at once, or notes it so that reading goes on."""
SHOWN_PROBLEMS = 10
"""Maximum number of problems that an error lists."""


def at_once(error: DataprepError) -> None:
    """Raise a problem."""
    raise error


class Problems:
    """Counts problems, and keeps the first few.

    Args:
        where: Source of the data, which begins the error.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self.count = 0
        self._first: list[DataprepError] = []
        self._raised: DataprepError | None = None

    def add(self, error: DataprepError) -> None:
        """Note a problem."""
        self.count += 1
        if self.count <= SHOWN_PROBLEMS:
            self._first.append(error)

    def take(self, others: Problems) -> None:
        """Note all problems of others."""
        for error in others._first:
            self.add(error)
        self.count += others.count - len(others._first)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a problem that is raised inside, and go on behind."""
        try:
            yield
        except (SourceError, UsageError) as error:
            if error is self._raised:
                raise
            self.add(error)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise all problems at the end, with the one that is raised inside, if any."""
        with self.noted():
            yield
        self.refuse()

    def refuse(self) -> None:
        """Raise the only problem as it is, or several as one error with a line for each of the first; none: go on."""
        if not self.count:
            return
        if self.count == 1:
            self._raised = self._first[0]
        else:
            lines = [str(error).removeprefix(f"{self._where}: ") for error in self._first]
            if more := self.count - len(lines):
                lines.append(f"and {more:,} more")
            listed = "".join(f"\n  {line}" for line in lines)
            self._raised = SourceError(
                f"{self._where}: {self.count:,} problems; mend them, and run the same command again:{listed}"
            )
        raise self._raised
