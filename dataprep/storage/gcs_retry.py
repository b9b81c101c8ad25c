"""How often and how long a request is sent again when Cloud Storage answers 408, 429 or 5xx, or not at all.

`gcs_errors.py` turns an error that remains after all retries into a message.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.api_core.retry import Retry

REQUEST_TIMEOUT_S = 60.0
"""Longest pause between two pieces of a response: a stalled connection is given up, a slow one is not."""
RETRY_DEADLINE_S = 300.0
RETRY_FIRST_WAIT_S = 0.2
RETRY_LONGEST_WAIT_S = 30.0


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


def count_retry(_error: Exception) -> None:
    """Count a request of the calling thread that is sent again, as `on_error` of a policy."""
    retries.count += 1


def request_timeout_s(deadlines: Deadlines | None) -> float:
    """Return the longest allowed pause in a response."""
    return REQUEST_TIMEOUT_S if deadlines is None else deadlines.stall_s


def retry_policy(
    is_worth_retrying: Callable[[Exception], bool] | None = None,
    *,
    deadlines: Deadlines | None = None,
    status_of: Callable[[Exception], int | None] = lambda error: getattr(error, "code", None),
) -> Retry:
    """Make a policy of exponential backoff with jitter and a deadline, which counts from here; use it for one call.

    Args:
        is_worth_retrying: Says whether an error is retryable; by default 408, 429, 5xx and broken connections of
            google-cloud-storage are.
        deadlines: None waits as long for a lost server as for one that refuses.
        status_of: Returns the HTTP status in an error, None if the server did not answer.
    """
    from google.cloud.storage.retry import DEFAULT_RETRY

    retry: Retry = DEFAULT_RETRY if is_worth_retrying is None else DEFAULT_RETRY.with_predicate(is_worth_retrying)
    deadline_s, longest_wait_s = RETRY_DEADLINE_S, RETRY_LONGEST_WAIT_S
    if deadlines is not None:
        deadline_s, longest_wait_s = deadlines.refused_s, deadlines.stall_s
        retry = retry.with_predicate(_until_lost(retry._predicate, status_of, deadlines.stall_s))
    return retry.with_timeout(deadline_s).with_delay(initial=RETRY_FIRST_WAIT_S, maximum=longest_wait_s, multiplier=2)


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
