"""How often and how long a request is sent again when Cloud Storage answers 408, 429 or 5xx, or not at all.

`gcs_errors.py` turns an error that remains after all retries into a message.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataprep.messages import one_line
from dataprep.storage.gcs_errors import proxy_note

if TYPE_CHECKING:
    from google.api_core.retry import Retry

REQUEST_TIMEOUT_S = 60.0
"""Longest pause between two pieces of a response: a stalled connection is given up, a slow one is not."""
RETRY_DEADLINE_S = 300.0
RETRY_FIRST_WAIT_S = 0.2
RETRY_LONGEST_WAIT_S = 30.0
SILENT_S = 2.0
"""Time for which a call may find no server before a warning says so, once in a process: retries last minutes."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Deadlines of a reader for which a training run waits, so that it soon reports a server that is gone."""

    lost_s: float
    """Seconds after which a call fails if the server has not answered at all."""
    refused_s: float = 60.0
    """Seconds for which a call is repeated if the server answers 408, 429 or 5xx."""

    @property
    def stall_s(self) -> float:
        """Longest pause in a response and before a retry: `lost_s` leaves time for two of them."""
        return 0.4 * self.lost_s


class Retries(threading.local):
    """Number of times that the calling thread has sent a range read again."""

    count = 0


retries = Retries()
_log = logging.getLogger(__name__)
_warned = threading.Event()


def request_timeout_s(deadlines: Deadlines | None) -> float:
    """Return the longest allowed pause in a response."""
    return REQUEST_TIMEOUT_S if deadlines is None else deadlines.stall_s


def status_in(error: Exception) -> int | None:
    """Return the HTTP status in an error of google-cloud-storage; None if the server did not answer."""
    answer = getattr(error, "response", None)  # of InvalidResponse, with which the read of a whole object fails
    status: int | None = getattr(error, "code", getattr(answer, "status_code", None))
    return status


def retry_policy(
    is_worth_retrying: Callable[[Exception], bool] | None = None,
    *,
    deadlines: Deadlines | None = None,
    status_of: Callable[[Exception], int | None] = status_in,
    counted: bool = False,
) -> Retry:
    """Make a policy of exponential backoff with jitter and a deadline, which counts from here; use it for one call.

    Args:
        is_worth_retrying: Says whether an error is retryable; by default 408, 429, 5xx and broken connections of
            google-cloud-storage are.
        deadlines: None waits as long for a lost server as for one that refuses.
        status_of: Returns the HTTP status in an error, None if the server did not answer.
        counted: Count what is sent again in `retries`.
    """
    from google.api_core.retry import Retry
    from google.cloud.storage.retry import DEFAULT_RETRY

    predicate = is_worth_retrying or DEFAULT_RETRY._predicate
    deadline_s, longest_wait_s = RETRY_DEADLINE_S, RETRY_LONGEST_WAIT_S
    if deadlines is not None:
        deadline_s, longest_wait_s = deadlines.refused_s, deadlines.stall_s
        predicate = _until_lost(predicate, status_of, deadlines.stall_s)
    return Retry(
        predicate=predicate,
        initial=RETRY_FIRST_WAIT_S,
        maximum=longest_wait_s,
        multiplier=2,
        timeout=deadline_s,
        on_error=_on_error(status_of, deadline_s if deadlines is None else deadlines.lost_s, counted),
    )


def _on_error(
    status_of: Callable[[Exception], int | None], lost_s: float, counted: bool
) -> Callable[[Exception], None]:
    """Return what a policy calls before each retry: a warning if there has been no answer for SILENT_S, and a count."""
    started_s = time.monotonic()

    def on_error(error: Exception) -> None:
        retries.count += counted
        silent_s = time.monotonic() - started_s
        if silent_s >= SILENT_S and status_of(error) is None and not _warned.is_set():
            _warned.set()
            _log.warning(
                "dataprep: warning: Cloud Storage does not answer (%s)%s; trying again until %.0f s have passed",
                one_line(error),
                proxy_note(),
                lost_s,
            )

    return on_error


def _until_lost(
    is_worth_retrying: Callable[[Exception], bool], status_of: Callable[[Exception], int | None], lost_s: float
) -> Callable[[Exception], bool]:
    """Narrow `is_worth_retrying`: no error is retryable once only broken connections were seen for `lost_s`."""
    broken_since_s: float | None = None

    def is_worth(error: Exception) -> bool:
        nonlocal broken_since_s
        now_s = time.monotonic()
        if status_of(error) is not None:
            broken_since_s = None
        elif broken_since_s is None:
            broken_since_s = now_s
        return (broken_since_s is None or now_s - broken_since_s < lost_s) and is_worth_retrying(error)

    return is_worth
