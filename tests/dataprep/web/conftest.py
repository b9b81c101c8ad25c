"""One web on loopback for a test, and a way to fetch from it."""

import asyncio
import functools
import ssl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dataprep.web.politeness import Known
from dataprep.web.requests import Limits, Outcome
from tests.support.fetching import fetch_all, loopback_limits
from tests.support.name_server import NameServer, name_server
from tests.support.web_server import WebServer, addresses_of, web_server


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@pytest.fixture
def names() -> Iterator[NameServer]:
    with name_server(addresses_of) as server:
        yield server


@pytest.fixture
def limits(names: NameServer) -> Callable[..., Limits]:
    """Limits that reach the web on loopback, some of them changed."""
    return functools.partial(loopback_limits, names.address)


@pytest.fixture
def fetch(limits: Callable[..., Limits]) -> Callable[..., list[Outcome]]:
    """All outcomes of some URLs, in the URLs' order."""

    def run(urls: Sequence[str], known: Known | None = None, **changed: Any) -> list[Outcome]:
        return asyncio.run(fetch_all(urls, limits(**changed), known))

    return run


@pytest.fixture
def tls_web(tmp_path: Path) -> Iterator[str]:
    """The URL of an image behind a certificate that its host signed itself."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "1", "-subj", "/CN=host.images.test"]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with web_server(tls=context) as server:
        yield server.url("/image/1").replace("http:", "https:")
