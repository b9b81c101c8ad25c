"""Errors of Cloud Storage and its clients that remain after all retries, turned into one line that names the next step.

`gcs_retry.py` decides which answers are retried at all, and for how long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from dataprep.errors import AccessError, CredentialsError, StorageError, UnansweredError
from dataprep.messages import first_line, shell_words
from dataprep.storage.gcs_client import emulator_url
from dataprep.storage.messages import GO_ON

MISSING_BUCKET = "bucket does not exist"
REQUESTER_PAYS = "requester pays"
ADDRESS = "https://storage.googleapis.com"
_PERMISSION = re.compile(r"storage\.[a-z]+\.[A-Za-z]+")


@contextmanager
def bucket_errors(url: str, permission: str, next_step: str = GO_ON) -> Iterator[None]:
    """Turn errors of Cloud Storage and its clients inside the block into ours.

    FileNotFoundError passes as it is, and so does the failed precondition of an upload, which the caller examines.

    Args:
        url: URL of the object or prefix in use.
        permission: Permission that the work needs, in case the server does not name it.
        next_step: What to do where Cloud Storage did not answer.

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
    """Return which proxy the environment puts before Cloud Storage, without its password; empty if there is none."""
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
        copy = shell_words("gcloud", "storage", "cp", "--recursive", "--billing-project=PROJECT", url, "gs://BUCKET/")
        return AccessError(
            f"{url}: whoever reads this bucket pays for it (requester pays), and dataprep names no project that pays; "
            f"copy it to a bucket of your own, and use the copy: {copy}"
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
