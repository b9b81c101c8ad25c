"""`--profile_steps A:B`: a trace of some updates, in a folder where TensorBoard finds it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from dataprep.errors import UsageError


def parse_steps(text: str, flag: str = "--profile_steps") -> tuple[int, int] | None:
    """`A:B` with A < B; None for nothing.

    Args:
        text: What was given.
        flag: How it is spelt, for the message.

    Raises:
        UsageError: It is something else.
    """
    if not text:
        return None
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise UsageError(f"{flag} {text}: expected A:B, the first update and the one after the last, e.g. 20:25")
    return int(first), int(last)


class StepProfile:
    """Traces some updates of a run.

    Args:
        steps: From the first of these until before the second; None: none.
        folder: Of the run's logs; None keeps nothing.
        trace: Traces into a folder while it is open.
    """

    def __init__(
        self,
        steps: tuple[int, int] | None,
        folder: Path | None,
        trace: Callable[[Path], AbstractContextManager[None]],
    ) -> None:
        self._steps, self._folder, self._trace = steps, folder, trace
        self._stack = contextlib.ExitStack()

    def before(self, step: int) -> None:
        """Start or stop, where an update after so many says so."""
        if self._steps is None or self._folder is None:
            return
        if step == self._steps[0]:
            self._stack.enter_context(self._trace(self._folder))
        elif step == self._steps[1]:
            self.close()

    def close(self) -> None:
        """Write what was traced."""
        self._stack.close()
