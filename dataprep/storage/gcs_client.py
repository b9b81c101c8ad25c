"""This process's client of google-cloud-storage, and its credentials."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.cloud.storage import Client
    from requests import Response

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
CONNECTIONS = 64
NO_BUCKET_METADATA = "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA"
"""Environment variable with which the library asks no bucket for its metadata, which only its traces need."""
FIRST_ERROR_STATUS = 400


def emulator_url() -> str:
    """Return the URL of an emulator; empty for the real Cloud Storage."""
    return os.environ.get("STORAGE_EMULATOR_HOST", "")


def client() -> Client:
    """Return the client of this process, which all its threads may use; a forked process gets its own.

    Raises:
        google.auth.exceptions.DefaultCredentialsError: There are no credentials.
    """
    return _client(os.getpid(), emulator_url())


def credentials() -> tuple[Any, str | None]:
    """Return the application default credentials and their project.

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
    os.environ.setdefault(NO_BUCKET_METADATA, "true")
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
    """Read the body of a failed download, which the library leaves unread, so that its connection can be used again."""
    if response.status_code >= FIRST_ERROR_STATUS:
        _ = response.content
