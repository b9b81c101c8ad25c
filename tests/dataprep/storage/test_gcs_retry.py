"""How often and how long a failed request is sent again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
from google.api_core.exceptions import RetryError
from google.api_core.retry import Retry

from dataprep.storage import gcs_retry
from dataprep.storage.gcs_retry import Deadlines, retry_policy


class Refusal(Exception):
    """An answer of the server, with its HTTP status."""

    def __init__(self, code: int | None) -> None:
        self.code = code


def attempts(retry: Retry, errors: Sequence[Exception]) -> int:
    """Call through a retry what fails with these errors, one after the other; the number of calls until it ended."""
    left, made = list(errors), []

    def call() -> str:
        made.append(1)
        if left:
            raise left.pop(0)
        return "done"

    with contextlib.suppress(Refusal, RetryError):
        retry(call)()
    return len(made)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs_retry, "RETRY_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(gcs_retry, "RETRY_LONGEST_WAIT_S", 0.001)


@pytest.mark.usefixtures("quickly")
def test_only_retryable_requests_are_retried():
    retry = retry_policy(lambda error: getattr(error, "code", None) == 503)
    assert attempts(retry, [Refusal(503)] * 5) == 6
    assert attempts(retry, [Refusal(503), Refusal(404), Refusal(503)]) == 2


@pytest.mark.usefixtures("quickly")
def test_requests_fail_at_the_deadline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gcs_retry, "RETRY_DEADLINE_S", 0.05)
    assert 1 < attempts(retry_policy(lambda error: True), [Refusal(503)] * 100_000) < 100_000


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_reader_with_deadlines_waits_as_long_for_a_server_that_refuses(status: int):
    retry = retry_policy(lambda error: True, deadlines=Deadlines(lost_s=0.0, refused_s=60.0))
    assert attempts(retry, [Refusal(status)] * 5) == 6


@pytest.mark.usefixtures("quickly")
def test_a_server_that_never_answers_is_lost_at_once_where_the_deadline_is_none():
    retry = retry_policy(lambda error: True, deadlines=Deadlines(lost_s=0.0, refused_s=60.0))
    assert attempts(retry, [Refusal(None)] * 5) == 1
    patient = retry_policy(lambda error: True, deadlines=Deadlines(lost_s=3600.0, refused_s=60.0))
    assert attempts(patient, [Refusal(None)] * 5) == 6
