"""This process's client of google-cloud-storage, its credentials, and how often a failed request is sent again."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.api_core.retry import Retry
    from google.cloud.storage import Client
    from requests import Response

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
CONNECTIONS = 64
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


def retry_policy(is_worth_retrying: Callable[[Exception], bool] | None = None) -> Retry:
    """Exponential backoff with jitter, and a total deadline.

    Args:
        is_worth_retrying: of an error; by default 408, 429, 5xx and broken connections of google-cloud-storage are.
    """
    from google.cloud.storage.retry import DEFAULT_RETRY

    retry: Retry = DEFAULT_RETRY.with_timeout(RETRY_DEADLINE_S).with_delay(
        initial=RETRY_FIRST_WAIT_S, maximum=RETRY_LONGEST_WAIT_S, multiplier=2
    )
    return retry if is_worth_retrying is None else retry.with_predicate(is_worth_retrying)


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
