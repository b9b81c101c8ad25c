"""`profile_steps` A:B: a trace of some updates, in a folder where TensorBoard finds it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from dataprep.errors import UsageError

_STEP = re.compile(r"[0-9]{1,10}")


def parse_steps(text: str) -> tuple[int, int] | None:
    """Parse `A:B` with A < B; return None for an empty text. Raises UsageError for another form."""
    if not text:
        return None
    first, _, last = text.partition(":")
    if not (_STEP.fullmatch(first) and _STEP.fullmatch(last) and int(first) < int(last)):
        raise UsageError(
            f"`profile_steps` {text}: expected A:B, the first update and the one after the last, e.g. 20:25"
        )
    return int(first), int(last)


class StepProfile:
    """Tracer of some updates of a run.

    Args:
        steps: First step that is traced, and the first one after it that is not; None: no trace.
        folder: Folder of the run's logs; None: no trace.
        trace: Function that returns a context, which traces into a folder while it is open.
    """

    def __init__(
        self, steps: tuple[int, int] | None, folder: Path | None, trace: Callable[[Path], AbstractContextManager[None]]
    ) -> None:
        self._steps, self._folder, self._trace = steps, folder, trace
        self._stack = contextlib.ExitStack()

    def before(self, step: int) -> None:
        """Start or stop the trace before an update, if it is the first to be traced, or the first not to be."""
        if self._steps is None or self._folder is None:
            return
        if step == self._steps[0]:
            self._stack.enter_context(self._trace(self._folder))
        elif step == self._steps[1]:
            self.close()

    def close(self) -> None:
        """End the trace and write it."""
        self._stack.close()
