"""This process's client of google-cloud-storage, its credentials, and how often a failed request is sent again."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.api_core.retry import Retry
    from google.cloud.storage import Client
    from requests import Response

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
CONNECTIONS = 64
REQUEST_TIMEOUT_S = 60.0
"""Between two pieces of a response: a stalled connection is given up, a slow one is not."""
RETRY_DEADLINE_S = 300.0
RETRY_FIRST_WAIT_S = 0.2
RETRY_LONGEST_WAIT_S = 30.0
FIRST_ERROR_STATUS = 400


def emulator_url() -> str:
    """Where an emulator listens; empty for the real Cloud Storage."""
    return os.environ.get("STORAGE_EMULATOR_HOST", "")


def client() -> Client:
    """Safe in all threads of this process; another process, forked ones included, gets its own.

    Raises:
        google.auth.exceptions.DefaultCredentialsError: There are no credentials.
    """
    return _client(os.getpid(), emulator_url())


@dataclass(frozen=True, slots=True)
class Impatience:
    """For readers that must say soon that the server is gone: a training run waits for them."""

    lost_s: float
    """Without any answer a call fails within this time."""
    refused_s: float = 60.0
    """So long a server is asked again that answers 408, 429 or 5xx."""

    @property
    def stall_s(self) -> float:
        """Longest pause in a response, and longest wait before a request is sent again: there is time for two."""
        return 0.4 * self.lost_s


def request_timeout_s(impatience: Impatience | None) -> float:
    """Longest pause in a response."""
    return REQUEST_TIMEOUT_S if impatience is None else impatience.stall_s


def retry_policy(
    is_worth_retrying: Callable[[Exception], bool] | None = None,
    *,
    impatience: Impatience | None = None,
    status_of: Callable[[Exception], int | None] = lambda error: getattr(error, "code", None),
) -> Retry:
    """Exponential backoff with jitter, and a total deadline; for one call, as the time counts from here.

    Args:
        is_worth_retrying: of an error; by default 408, 429, 5xx and broken connections of google-cloud-storage are.
        impatience: None waits as long for a lost server as for one that refuses.
        status_of: The HTTP status that an error tells of, None where the server did not answer.
    """
    from google.cloud.storage.retry import DEFAULT_RETRY

    retry: Retry = DEFAULT_RETRY if is_worth_retrying is None else DEFAULT_RETRY.with_predicate(is_worth_retrying)
    deadline_s, longest_wait_s = RETRY_DEADLINE_S, RETRY_LONGEST_WAIT_S
    if impatience is not None:
        deadline_s, longest_wait_s = impatience.refused_s, impatience.stall_s
        retry = retry.with_predicate(_until_lost(retry._predicate, status_of, impatience.stall_s))
    return retry.with_timeout(deadline_s).with_delay(initial=RETRY_FIRST_WAIT_S, maximum=longest_wait_s, multiplier=2)


def _until_lost(
    is_worth_retrying: Callable[[Exception], bool], status_of: Callable[[Exception], int | None], lost_s: float
) -> Callable[[Exception], bool]:
    """As the first argument has it, but not once all of `lost_s` has passed with nothing but broken connections."""
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


def credentials() -> tuple[Any, str | None]:
    """Application default credentials and their project.

    Raises:
        google.auth.exceptions.DefaultCredentialsError: There are none.
    """
    return _credentials(os.getpid())


# The process is part of both keys: a forked one must not share a connection with its parent.
@functools.lru_cache(maxsize=1)
def _credentials(_pid: int) -> tuple[Any, str | None]:
    import google.auth

    found: tuple[Any, str | None] = google.auth.default(scopes=[SCOPE])
    return found


@functools.lru_cache(maxsize=1)
def _client(_pid: int, emulator: str) -> Client:
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud.storage import Client
    from requests.adapters import HTTPAdapter

    found, project = (AnonymousCredentials(), None) if emulator else credentials()
    session = AuthorizedSession(found)
    session.hooks["response"].append(_read_error)
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
    return Client(project=project, credentials=found, _http=session)


def _read_error(response: Response, **_options: Any) -> None:
    """The library leaves the body of a failed download unread, so that its connection could not be used again."""
    if response.status_code >= FIRST_ERROR_STATUS:
        _ = response.content
