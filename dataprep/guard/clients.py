"""Environment variables that lead the clients of Cloud Storage through the guard, each by what its library reads.

HTTPS_PROXY             requests (google-cloud-storage), httpx (Hugging Face), reqwest (obstore), libcurl (tensorstore,
                        TensorFlow, pyarrow), httplib2 (gcloud, gsutil, Beam), gRPC, which the guard then refuses
FSSPEC_GCS, FSSPEC_GS   gcsfs: aiohttp reads HTTPS_PROXY only if its session is told to
*_CA_BUNDLE and others  the file with the guard's certificate and the usual ones
STORAGE_EMULATOR_HOST   set only if the command has one already: the guard then stands before that emulator
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dataprep.errors import UsageError
from dataprep.guard.requests import is_storage_host

CA_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HTTPLIB2_CA_CERTS",
    "TENSORSTORE_CA_BUNDLE",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "AWS_CA_BUNDLE",
)
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy")
EMULATOR_VARIABLES = ("STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT")
_FSSPEC_VARIABLES = ("FSSPEC_GCS", "FSSPEC_GS")
_DIRECT = ("localhost", "127.0.0.1", "::1", "metadata.google.internal", "169.254.169.254")
"""Hosts that no client reaches through the guard: this machine and the metadata server."""


def client_environment(url: str, bundle: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set for a command.

    Args:
        url: URL of the guard, `http://127.0.0.1:PORT`.
        bundle: File of trusted certificates, the guard's among them.
        inherited: The environment that the command would have without the guard.

    Raises:
        UsageError: HTTPS_PROXY is set already, or FSSPEC_GCS is no JSON object.
    """
    for name in PROXY_VARIABLES:
        if inherited.get(name):
            raise UsageError(
                f"{name} is set to {inherited[name]!r}, and the guard passes nothing on to another proxy; unset it"
            )
    found = dict.fromkeys(PROXY_VARIABLES, url) | dict.fromkeys(CA_VARIABLES, str(bundle))
    found |= dict.fromkeys(("NO_PROXY", "no_proxy"), _direct(inherited))
    found |= {name: url for name in EMULATOR_VARIABLES if inherited.get(name)}
    found |= {name: _fsspec(name, inherited.get(name, "{}")) for name in _FSSPEC_VARIABLES}
    return found


def usual_certificates(inherited: Mapping[str, str]) -> bytes:
    """Return the certificates that the command would trust without the guard, as PEM.

    Raises:
        UsageError: A file that the environment names cannot be read.
    """
    import certifi

    named = next((inherited[name] for name in CA_VARIABLES if inherited.get(name)), certifi.where())
    try:
        return Path(named).read_bytes()
    except OSError as error:
        raise UsageError(f"{named}: certificates cannot be read ({error})") from error


@contextmanager
def environment_of_clients(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for this process inside the block, and tell libraries that have read them already."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    _tell_fsspec()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _tell_fsspec()


def _tell_fsspec() -> None:
    """Let fsspec read its variables again: it does so once, when it is imported, and then keeps its file systems."""
    if "fsspec.config" not in sys.modules:
        return
    import fsspec.config

    for protocol in ("gcs", "gs"):
        fsspec.config.conf.pop(protocol, None)
    fsspec.config.set_conf_env(fsspec.config.conf)
    if "gcsfs" in sys.modules:
        sys.modules["gcsfs"].GCSFileSystem.clear_instance_cache()


def _fsspec(name: str, text: str) -> str:
    """Return the settings of gcsfs with a session that reads HTTPS_PROXY."""
    try:
        settings = json.loads(text)
        session = {**settings.get("session_kwargs", {}), "trust_env": True}
    except (ValueError, AttributeError, TypeError):
        raise UsageError(f"{name} is {text[:80]!r}, expected a JSON object with settings of gcsfs") from None
    return json.dumps({**settings, "session_kwargs": session})


def _direct(inherited: Mapping[str, str]) -> str:
    """Return the hosts that are reached directly: the inherited ones, without any of Cloud Storage."""
    listed = (inherited.get("no_proxy") or inherited.get("NO_PROXY") or "").split(",")
    kept = [name.strip() for name in listed if name.strip() and not _covers_storage(name.strip())]
    return ",".join(dict.fromkeys([*_DIRECT, *kept]))


def _covers_storage(name: str) -> bool:
    """Return whether an entry of NO_PROXY stands for a host of Cloud Storage."""
    suffix = name.lower().partition(":")[0].lstrip("*.")
    hosts = ("storage.googleapis.com", "www.googleapis.com")
    return is_storage_host(suffix) or any(host == suffix or host.endswith(f".{suffix}") or not suffix for host in hosts)
