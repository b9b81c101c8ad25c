"""Range reads from Cloud Storage, outside the interpreter lock; docs/decisions/0001-range-reads.md says why obstore."""

from __future__ import annotations

import functools
import json
import os
import re
from typing import TYPE_CHECKING

from dataprep.storage import gcs_client, gcs_retry
from dataprep.storage.base import NO_VERSION

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, GCSStore

CONNECT_TIMEOUT_S = 10.0
HTTP_NOT_SATISFIABLE = 416
_WORTH_RETRYING = {None, 408, 429, 500, 502, 503, 504}
_STATUS = re.compile(r"status code: (\d{3})")

_runtime_pid: int | None = None


def read_range(
    bucket: str,
    name: str,
    offset: int,
    num_bytes: int,
    deadlines: gcs_retry.Deadlines | None = None,
    generation: int = NO_VERSION,
) -> tuple[bytes, int | None]:
    """Read bytes of an object from `offset`: fewer than `num_bytes`, or none, if the object ends before.

    Args:
        name: Name of the object in its bucket.
        num_bytes: At least 1.
        generation: Generation of the object; NO_VERSION reads the present one.

    Returns:
        The bytes, and the size of the whole object where the answer says it.

    Raises:
        FileNotFoundError: There is no such object or generation, or no such bucket.
        obstore.exceptions.BaseError, google.api_core.exceptions.GoogleAPIError, google.auth.exceptions.GoogleAuthError:
            Anything else, after the retries.
    """
    if _runtime_is_of_parent():
        return _read_with_client(bucket, name, offset, num_bytes, deadlines, generation)
    import obstore
    from obstore.exceptions import GenericError

    store = _store(bucket, gcs_client.emulator_url(), deadlines)
    # Obstore's own retries are off: they leave out 429.
    retry = gcs_retry.retry_policy(_is_worth_retrying, deadlines=deadlines, status_of=_status, counted=True)

    def read() -> tuple[bytes, int | None]:
        wanted: GetOptions = {"range": (offset, offset + num_bytes)}
        if generation:
            wanted["version"] = str(generation)
        answer = obstore.get(store, name, options=wanted)
        return answer.bytes().to_bytes(), answer.meta["size"]

    try:
        found: tuple[bytes, int | None] = retry(read)()
        return found
    except GenericError as error:
        if _status(error) == HTTP_NOT_SATISFIABLE:
            return b"", None
        raise


def _runtime_is_of_parent() -> bool:
    """Return whether obstore was used before this process forked: its threads are gone then, and reads never end."""
    global _runtime_pid
    if _runtime_pid is None:
        _runtime_pid = os.getpid()
    return _runtime_pid != os.getpid()


def _is_worth_retrying(error: BaseException) -> bool:
    from obstore.exceptions import GenericError, UnauthenticatedError

    if isinstance(error, UnauthenticatedError):
        # The connection for fetching a token broke.
        return _status(error) is None and "TransportError" in str(error)
    return isinstance(error, GenericError) and _status(error) in _WORTH_RETRYING


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error contains; None if the server did not answer."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _read_with_client(
    bucket: str, name: str, offset: int, num_bytes: int, deadlines: gcs_retry.Deadlines | None, generation: int
) -> tuple[bytes, None]:
    from google.api_core.exceptions import NotFound, RequestRangeNotSatisfiable

    blob = gcs_client.client().bucket(bucket).blob(name, generation=generation or None)
    last, retry = offset + num_bytes - 1, gcs_retry.retry_policy(deadlines=deadlines)
    timeout_s = gcs_retry.request_timeout_s(deadlines)
    try:
        data: bytes = blob.download_as_bytes(start=offset, end=last, checksum=None, retry=retry, timeout=timeout_s)
    except RequestRangeNotSatisfiable:
        return b"", None
    except NotFound as error:
        raise FileNotFoundError(str(error)) from error
    return data, None


@functools.lru_cache(maxsize=64)
def _store(bucket: str, emulator: str, deadlines: gcs_retry.Deadlines | None = None) -> GCSStore:
    from obstore.auth.google import GoogleCredentialProvider
    from obstore.store import GCSStore

    stall_s = gcs_retry.request_timeout_s(deadlines)
    options: ClientConfig = {
        "connect_timeout": f"{min(stall_s, CONNECT_TIMEOUT_S) * 1000:.0f}ms",
        "read_timeout": f"{stall_s * 1000:.0f}ms",
        "timeout": f"{gcs_retry.RETRY_DEADLINE_S:.0f}s",
    }
    if emulator:
        key = {"gcs_base_url": emulator, "disable_oauth": True}
        key |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        return GCSStore(
            bucket,
            config={"service_account_key": json.dumps(key)},
            client_options={**options, "allow_http": True},
            retry_config={"max_retries": 0},
        )
    found, _ = gcs_client.credentials()
    return GCSStore(
        bucket,
        client_options=options,
        retry_config={"max_retries": 0},
        credential_provider=GoogleCredentialProvider(found),
    )
