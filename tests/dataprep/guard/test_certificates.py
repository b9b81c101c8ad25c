"""Certificates that the clients of one run trust, checked by OpenSSL itself."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest

from dataprep.guard.certificates import MAX_HOSTS, Authority

HOST = "storage.googleapis.com"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def shake_hands(server: ssl.SSLContext, trusted: bytes, host: str) -> None:
    """Speak TLS with oneself."""
    near, far = socket.socketpair()
    client = ssl.create_default_context(cadata=trusted.decode())

    def answer() -> None:
        try:
            server.wrap_socket(far, server_side=True).close()
        except OSError:
            far.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with client.wrap_socket(near, server_hostname=host):
            pass
    finally:
        near.close()
        thread.join()


def test_clients_that_trust_the_authority_accept_its_hosts(authority):
    context = authority.context(HOST)
    assert context is not None
    assert authority.context(HOST) is context
    shake_hands(context, authority.pem(), HOST)


def test_each_certificate_is_for_one_host(authority):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(authority.context(HOST), authority.pem(), "www.googleapis.com")


def test_another_runs_authority_is_not_trusted(authority):
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        shake_hands(authority.context(HOST), Authority().pem(), HOST)


def test_the_authority_vouches_for_no_other_domain(authority, monkeypatch):
    assert authority.context("huggingface.co") is None
    assert authority.context("googleapis.com.example.org") is None
    forged = authority._issue("huggingface.co")
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree violation"):
        shake_hands(forged, authority.pem(), "huggingface.co")


def test_the_number_of_hosts_is_bounded(authority, monkeypatch):
    monkeypatch.setattr(authority, "_contexts", dict.fromkeys(map(str, range(MAX_HOSTS))))
    assert authority.context("one-more.storage.googleapis.com") is None
