"""The bounds of fetching, in one value: time, bytes, connections, and how gently a host is asked."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, fields

from dataprep import __version__
from dataprep.errors import UsageError
from dataprep.web.addresses import Network

_TOKEN = re.compile(r"[A-Za-z_-]+")
_CONTACT = re.compile(r"(https?://|mailto:)[!-'*-~]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one call of `fetch_many` may take.

    A row ends at most `row_s + answer_s` seconds after it was begun, however its host behaves.

    Raises:
        UsageError: A limit is not positive, or the contact is none.
    """

    contact: str
    """Where a site's owner finds out who asks and why: an http(s) page, or mailto:; part of the User-Agent."""
    agent: str = "dataprep"
    """The name in the User-Agent, which robots.txt and X-Robots-Tag may address; letters, - and _."""
    allow_networks: tuple[Network, ...] = ()
    """Beyond public addresses; link-local and metadata addresses stay refused."""
    nameservers: tuple[str, ...] = ()
    """Addresses, with a port if need be; empty: those of the machine."""
    verify_tls: bool = True
    """False takes any certificate: more rows succeed, and no digest vouches for them but the table's."""

    in_flight: int = 1_024
    """Rows under way at once, those that wait for their host's turn or for the caller included."""
    memory_bytes: int = 1 << 30
    """Of bodies held, arriving ones included."""
    body_bytes: int = 20 << 20
    """Of one body, before and after decompression."""
    redirects: int = 5

    connect_s: float = 10.0
    """Until a connection stands, TLS included."""
    read_s: float = 10.0
    """Until the next bytes of an answer."""
    answer_s: float = 30.0
    """From asking to the last byte of one answer."""
    row_s: float = 120.0
    """After this no further request of a row is begun: neither a redirect's, nor a retry, nor one that waited."""

    host_connections: int = 8
    """Requests to one host name at once."""
    host_per_s: float = 16.0
    """Requests begun to one host name in a second; less where its robots.txt has a Crawl-delay."""
    retries: int = 2
    """After 429, or 503 with a Retry-After."""
    retry_after_s: float = 10.0
    """The longest Retry-After that a row waits for; its host is left alone that long in any case."""
    host_failures: int = 16
    """Requests to a host in a row without any answer, after which its remaining rows are not tried."""

    def __post_init__(self) -> None:
        if not _CONTACT.fullmatch(self.contact):
            raise UsageError(
                f"contact {self.contact!r} is no address; sites must be able to reach whoever fetches: "
                "give an https:// page or mailto:name@example.org"
            )
        if not _TOKEN.fullmatch(self.agent):
            raise UsageError(f"agent {self.agent!r} has other characters than letters, - and _; choose another name")
        for field in fields(self):
            value = getattr(self, field.name)
            if (
                isinstance(value, int | float)
                and value <= 0
                and field.name not in ("redirects", "retries", "verify_tls")
            ):
                raise UsageError(f"{field.name} is {value}; it must be positive")
        if self.memory_bytes < self.body_bytes:
            raise UsageError(
                f"memory_bytes is {self.memory_bytes:,}, less than one body of {self.body_bytes:,}; raise it"
            )

    @property
    def user_agent(self) -> str:
        return f"{self.agent}/{__version__} (+{self.contact})"

    def divided(self, workers: int) -> Limits:
        """One worker's part, so that `workers` of them together keep a host's limits and the memory.

        A host is asked by up to `workers` connections even where that is more than `host_connections`.
        """
        return dataclasses.replace(
            self,
            memory_bytes=max(self.memory_bytes // workers, self.body_bytes),
            host_connections=max(self.host_connections // workers, 1),
            host_per_s=self.host_per_s / workers,
        )
