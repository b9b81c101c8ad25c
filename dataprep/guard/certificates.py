"""A certificate authority for one run: its key never leaves this process, and it can vouch for googleapis.com only.

Clients of Cloud Storage speak TLS to a fixed host. The guard answers in its place, with a certificate that the
command's environment makes its clients trust, and nothing else does.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509 import CertificateBuilder, Name

DOMAIN = "googleapis.com"
HTTP_1, HTTP_2 = "http/1.1", "h2"
"""Names of protocols in the TLS handshake."""
LIFETIME = timedelta(days=60)
"""Longest run whose clients still trust the certificates."""
MAX_HOSTS = 256
"""Maximum number of hosts with a certificate; buckets have hosts of their own."""


class Authority:
    """An authority, and the certificates that it has issued.

    Args:
        now: The present time; certificates are valid from a day earlier, for clocks that differ.
    """

    def __init__(self, now: datetime | None = None) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        self._now = now or datetime.now(UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dataprep guard of this run")])
        self._contexts: dict[str, ssl.SSLContext] = {}
        only_here = x509.NameConstraints(permitted_subtrees=[x509.DNSName(DOMAIN)], excluded_subtrees=None)
        signs = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        self._certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(only_here, critical=True)
            .add_extension(signs, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def pem(self) -> bytes:
        """Return the authority's own certificate."""
        from cryptography.hazmat.primitives.serialization import Encoding

        return self._certificate.public_bytes(Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext | None:
        """Return what answers as a host below DOMAIN; None for other hosts, or for too many."""
        if host not in self._contexts:
            if not host.endswith(f".{DOMAIN}") or len(self._contexts) >= MAX_HOSTS:
                return None
            self._contexts[host] = self._issue(host)
        return self._contexts[host]

    def _issue(self, host: str) -> ssl.SSLContext:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            self._builder(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, DOMAIN)]), key.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols([HTTP_1, HTTP_2])  # the second only for clients that speak no other: gRPC
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        # OpenSSL reads keys from files only; mkstemp's are readable by this user alone.
        handle, path = tempfile.mkstemp(prefix="dataprep-guard-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secret + certificate.public_bytes(Encoding.PEM))
            context.load_cert_chain(path)
        finally:
            Path(path).unlink()
        return context

    def _builder(self, subject: Name, public_key: EllipticCurvePublicKey) -> CertificateBuilder:
        from cryptography import x509

        identifier = x509.SubjectKeyIdentifier.from_public_key(public_key)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - timedelta(days=1))
            .not_valid_after(self._now + LIFETIME)
            .add_extension(identifier, critical=False)
        )
