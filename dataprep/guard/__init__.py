"""An egress budget for any process that reads Cloud Storage: docs/guard.md.

    import dataprep.guard

    with dataprep.guard.open_guard(max_usd=5, allow=["us-central1"]) as guard:
        train()
    print(guard.report())

On a command line: `dataprep guard --max-usd 5 -- COMMAND`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import IO, TYPE_CHECKING, cast

from dataprep.errors import UsageError

if TYPE_CHECKING:
    from dataprep.guard.report import GuardReport

__all__ = ("Guard", "open_guard")


class Guard:
    """The guard of this process and of all that it starts; `open_guard` makes it."""

    def __init__(self, server: subprocess.Popen[bytes], stack: ExitStack) -> None:
        self._server = server
        self._stack = stack
        self._last: GuardReport | None = None

    def report(self) -> GuardReport:
        """Return the report on what was read so far; after the end, the last one."""
        from dataprep.dataset.documents import decoder
        from dataprep.guard.report import GuardReport

        if self._last is not None:
            return self._last
        return decoder(GuardReport).decode(_ask(self._server, b"report"))

    def close(self) -> None:
        """End the guard: from now on reads are neither counted nor refused."""
        if self._last is None:
            self._last = self.report()
            self._stack.close()

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_guard(*, max_usd: float | None = None, allow: Iterable[str] = (), zone: str | None = None) -> Guard:
    """Put this process, and all that it starts from now on, under an egress budget.

    Open it before clients of Cloud Storage are made: connections that exist already pass it by. A refused read raises
    the client's own error for status 403, whose text names bucket, place, price and the nearest copy.

    Args:
        max_usd: Maximum cost of all requests and bytes; None for no limit.
        allow: Regions, dual-regions and multi-regions from which objects may be read; empty for all.
        zone: The reader's zone or region; by default this machine's.

    Raises:
        UsageError: A limit is set and no price is known, a package is missing, or HTTPS_PROXY is set.
    """
    import msgspec

    from dataprep.cloud.machine import this_zone
    from dataprep.dataset.documents import decoder
    from dataprep.guard.clients import environment_of_clients
    from dataprep.guard.ledger import allowed_places
    from dataprep.guard.serve import Settings, Started

    settings = Settings(where=zone or this_zone(), max_usd=max_usd, allowed=allowed_places(allow))
    with ExitStack() as stack:
        server = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "dataprep.guard.serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for this process, not for its guard
            )
        )
        stack.callback(cast("IO[bytes]", server.stdin).close)
        started = decoder(Started).decode(_ask(server, msgspec.json.encode(settings)))
        if started.error:
            raise UsageError(started.error)
        stack.enter_context(environment_of_clients(started.environment))
        return Guard(server, stack.pop_all())


def _ask(server: subprocess.Popen[bytes], line: bytes) -> bytes:
    asked, said = cast("IO[bytes]", server.stdin), cast("IO[bytes]", server.stdout)
    asked.write(line + b"\n")
    asked.flush()
    return said.readline()
