"""This process's client of google-cloud-storage, with its credentials, retries and errors.

A request is repeated if Cloud Storage answers 408, 429 or 5xx, or not at all. An error after the last retry becomes one
line that names the next step.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataprep.errors import AccessError, CredentialsError, StorageError, UnansweredError
from dataprep.messages import first_line, one_line
from dataprep.storage.errors import GO_ON

if TYPE_CHECKING:
    from google.api_core.retry import Retry
    from google.cloud.storage import Client
    from requests import Response

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
CONNECTIONS = 64
NO_BUCKET_METADATA = "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA"
"""Environment variable that keeps the library from requesting a bucket's metadata, which only its traces need."""
FIRST_ERROR_STATUS = 400
MISSING_BUCKET = "bucket does not exist"
REQUESTER_PAYS = "requester pays"
CLOUD_STORAGE = "Cloud Storage"
PAYING_PROJECT = "x-goog-user-project"
BILLING_PROJECT = "GOOGLE_CLOUD_QUOTA_PROJECT"
"""Environment variable of Google's libraries that names the project which pays for requests."""
ADDRESS = "https://storage.googleapis.com"
_PERMISSION = re.compile(r"storage\.[a-z]+\.[A-Za-z]+")
REQUEST_TIMEOUT_S = 60.0
"""Longest pause between two pieces of a response: a stalled connection is closed, a slow one is not."""
RETRY_DEADLINE_S = 300.0
RETRY_FIRST_WAIT_S = 0.2
RETRY_LONGEST_WAIT_S = 30.0
SILENT_S = 2.0
"""Time without an answer after which a call warns, once in a process: retries last minutes."""
_log = logging.getLogger(__name__)
_warned = threading.Event()


def emulator_url() -> str:
    """Return the URL of an emulator; empty for the real Cloud Storage."""
    return os.environ.get("STORAGE_EMULATOR_HOST", "")


def client() -> Client:
    """Return the client of this process, which all its threads may use; a forked process gets its own. Raises
    DefaultCredentialsError of google.auth if no credentials were found."""
    return _client(os.getpid(), emulator_url(), billing_project())


def credentials() -> tuple[Any, str | None]:
    """Return the application default credentials and their project. Raises DefaultCredentialsError without any."""
    return _credentials(os.getpid(), os.environ.get(BILLING_PROJECT, ""))


def bill(project: str | None) -> None:
    """Name the project that pays for requests to requester-pays buckets, by this process and those that it starts.

    None leaves it as it is.
    """
    if project:
        os.environ[BILLING_PROJECT] = project


def billing_project() -> str:
    """Return the project that pays for requests to requester-pays buckets; empty if none is named. Raises
    DefaultCredentialsError if there are no credentials."""
    named = os.environ.get(BILLING_PROJECT, "")
    return named if named or emulator_url() else getattr(credentials()[0], "quota_project_id", None) or ""


# The process is part of both keys: a forked one must not share a connection with its parent.
@functools.lru_cache(maxsize=1)
def _credentials(_pid: int, project: str) -> tuple[Any, str | None]:
    import google.auth

    found: tuple[Any, str | None] = google.auth.default(scopes=[SCOPE], quota_project_id=project or None)
    return found


@functools.lru_cache(maxsize=1)
def _client(_pid: int, emulator: str, project: str) -> Client:
    os.environ.setdefault(NO_BUCKET_METADATA, "true")
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud.storage import Client
    from requests.adapters import HTTPAdapter

    found, own = (AnonymousCredentials(), None) if emulator else credentials()
    session = AuthorizedSession(found)
    session.headers.update({PAYING_PROJECT: project} if project else {})
    session.hooks["response"].append(_read_error)
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
    return Client(project=own, credentials=found, _http=session)


def _read_error(response: Response, **_options: Any) -> None:
    """Read the body of a failed download, which the library leaves unread, so that its connection can be used again."""
    if response.status_code >= FIRST_ERROR_STATUS:
        _ = response.content


@contextmanager
def bucket_errors(url: str, permission: str, next_step: str = GO_ON) -> Iterator[None]:
    """Turn errors of Cloud Storage and its clients inside the block into ours.

    FileNotFoundError passes unchanged, and so does the failed precondition of an upload, which the caller examines.

    Args:
        url: URL of the object or prefix in use.
        permission: Permission that the request needs, for the error if the server does not name it.
        next_step: Advice for the error if Cloud Storage did not answer.

    Raises:
        AccessError: A permission or credentials are missing (CredentialsError), or the bucket does not exist.
        StorageError: Anything else, after the retries (UnansweredError).
    """
    from google.api_core.exceptions import GoogleAPIError, PreconditionFailed
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from obstore.exceptions import BaseError
    from requests import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except PreconditionFailed:
        raise
    except (GoogleAPIError, GoogleAuthError, DataCorruption, InvalidResponse, BaseError) as error:
        raise _explained(error, url, permission, next_step) from error
    except (RequestException, HTTPError) as error:
        raise _unanswered(error, url, next_step) from error


def proxy_note() -> str:
    """Describe the proxy that the environment sets for Cloud Storage, without its password; empty if there is none."""
    from requests.utils import get_environ_proxies, select_proxy

    address = emulator_url() or ADDRESS
    proxy = select_proxy(address, get_environ_proxies(address, no_proxy=None))
    if not proxy:
        return ""
    variable = f"{address.partition(':')[0].upper()}_PROXY or ALL_PROXY"
    return f" (through the proxy {proxy.rpartition('@')[2]} of {variable}; NO_PROXY lists hosts that need none)"


def is_missing_bucket(error: BaseException) -> bool:
    """Return whether a "not found" is about the bucket instead of the object."""
    return MISSING_BUCKET in str(error)


def _explained(error: Exception, url: str, permission: str, next_step: str) -> StorageError:
    from google.api_core.exceptions import Forbidden, NotFound, Unauthorized
    from google.auth.exceptions import DefaultCredentialsError, RefreshError
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    said = first_line(error)
    if isinstance(error, Forbidden | PermissionDeniedError):
        named = _PERMISSION.search(str(error))
        return AccessError(
            f"{url}: permission {named[0] if named else permission} is missing; grant it to the account in use, "
            f"for example with roles/storage.objectUser on the bucket ({said})"
        )
    if isinstance(error, Unauthorized | UnauthenticatedError | DefaultCredentialsError | RefreshError):
        return CredentialsError(
            f'{url}: no valid credentials; run "gcloud auth application-default login", or give the machine a service '
            f"account with {permission} ({said})"
        )
    if REQUESTER_PAYS in str(error).lower().replace("-", " "):
        return AccessError(
            f"{url}: whoever reads this bucket pays for it (requester pays): name the project that pays, "
            f"`billing_project` or {BILLING_PROJECT}=PROJECT in the environment"
        )
    if isinstance(error, NotFound) and is_missing_bucket(error):
        bucket = "/".join(url.split("/")[:3])
        return AccessError(f"{url}: the bucket {bucket} does not exist; create it, or check its name")
    return _unanswered(error, url, next_step)


def _unanswered(error: Exception, url: str, next_step: str) -> StorageError:
    said = f"{url}: {first_line(error).rstrip('.')}{proxy_note()}"
    if "SOCKS" in said:  # requests lacks the package for such a proxy, and retries do not help
        return AccessError(f"{said}; name a proxy of http:// there, or unset the variable")
    return UnansweredError(f"{said}; {next_step}")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Deadlines of a reader in a training run, short enough that a lost server is soon reported."""

    lost_s: float
    """Seconds after which a call fails if the server has not answered at all."""
    refused_s: float = 60.0
    """Seconds for which a call is repeated if the server answers 408, 429 or 5xx."""

    @property
    def stall_s(self) -> float:
        """Longest pause in a response and before a retry; two of them fit into `lost_s`."""
        return 0.4 * self.lost_s


class Retries(threading.local):
    """Number of range reads that the calling thread has repeated."""

    count = 0


retries = Retries()


def request_timeout_s(deadlines: Deadlines | None) -> float:
    """Return the longest allowed pause in a response."""
    return REQUEST_TIMEOUT_S if deadlines is None else deadlines.stall_s


def status_in(error: Exception) -> int | None:
    """Return the HTTP status in an error of google-cloud-storage; None if the server did not answer."""
    answer = getattr(error, "response", None)  # InvalidResponse, from a failed read of a complete object, has it
    status: int | None = getattr(error, "code", getattr(answer, "status_code", None))
    return status


def retry_policy(
    is_worth_retrying: Callable[[Exception], bool] | None = None,
    *,
    deadlines: Deadlines | None = None,
    status_of: Callable[[Exception], int | None] = status_in,
    counted: bool = False,
    server: str = CLOUD_STORAGE,
) -> Retry:
    """Make a policy of exponential backoff with jitter and a deadline, which starts now; use it for one call.

    Args:
        is_worth_retrying: Returns whether an error is retryable; by default 408, 429, 5xx and broken connections of
            google-cloud-storage are.
        deadlines: None waits as long for a lost server as for one that answers with errors.
        status_of: Returns the HTTP status in an error, None if the server did not answer.
        counted: Count repeated requests in `retries`.
        server: Name of the server, for the warning that it does not answer.
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
        on_error=_on_error(status_of, deadline_s if deadlines is None else deadlines.lost_s, counted, server),
    )


def _on_error(
    status_of: Callable[[Exception], int | None], lost_s: float, counted: bool, server: str
) -> Callable[[Exception], None]:
    """Return a policy's callback before each retry: it warns after SILENT_S without an answer, and counts."""
    started_s = time.monotonic()

    def on_error(error: Exception) -> None:
        retries.count += counted
        silent_s = time.monotonic() - started_s
        if silent_s >= SILENT_S and status_of(error) is None and not _warned.is_set():
            _warned.set()
            _log.warning(
                "dataprep: warning: %s does not answer (%s)%s; trying again until %.0f s have passed",
                server,
                one_line(error),
                proxy_note() if server == CLOUD_STORAGE else "",
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
