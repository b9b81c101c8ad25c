"""Requests to the web, the limits of fetching, and the outcomes, which docs/fetching.md explains to users."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, fields
from datetime import date
from enum import StrEnum
from typing import TYPE_CHECKING

from dataprep import __version__
from dataprep.errors import UsageError

if TYPE_CHECKING:
    from dataprep.web.addresses import Network


_TOKEN = re.compile(r"[A-Za-z_-]+")
_OTHER_TOKEN = re.compile(r"[A-Za-z0-9_-]+")  # RFC 9309 has no digits, and img2dataset one
_CONTACT = re.compile(r"(https?://|mailto:)[!-'*-~]+")


SIGNALS = (
    *("robots.txt", "X-Robots-Tag", "Content-Signal", "Content-Usage", "RSL"),
    *("ai.txt", "TDMRep", "PLUS", "XMP rights", "C2PA"),
)
"""Names of the signals of an opt-out, which `dataprep.web.consent` describes; a part of reasons that are stored."""


class Consent(StrEnum):
    """Policy about published opt-outs; robots.txt and X-Robots-Tag are obeyed by each."""

    ROBOTS = "robots"
    """Nothing else is."""
    PUBLISHED = "published"
    """Each published no to training is a no."""
    STRICT = "strict"
    """So is a permission under conditions, a signal that cannot be read, and a rule of robots.txt that forbids the URL
    to another agent that fetches for training."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why an image is not used."""

    signal: str
    """Name of the signal, one of SIGNALS."""
    text: str
    """What was said, as published, in one line."""
    url: str
    """Where it was said."""
    day: date
    """Day on which it was read, in UTC."""
    despite: tuple[str, ...] = ()
    """Other signals that allow the use."""

    def json(self) -> str:
        """Return all fields as JSON."""
        return json.dumps(dataclasses.asdict(self), default=str, ensure_ascii=False)

    @property
    def reason(self) -> str:
        """The reason for people, in one line."""
        others = f", though {' and '.join(self.despite)} allow it" if self.despite else ""
        return f"{self.signal} at {self.url} says {self.text}{others}"


class Status(StrEnum):
    """Result of a request. Values are stored in datasets, so new ones may be added but none renamed."""

    SUCCESS = "success"
    """Status 200, and a complete body that begins as an image does."""
    BAD_URL = "bad_url"
    """Not requested: scheme, user, host, port, length or characters do not fit a public web address."""
    REFUSED_ADDRESS = "refused_address"
    """Not requested: the host, or one of its name's addresses, is not public."""
    DNS = "dns"
    """The name has no address, or the name server did not answer in time."""
    CONNECT = "connect"
    """No connection: refused, unreachable, reset before an answer."""
    TLS = "tls"
    """No secure connection: expired or foreign certificate, failed handshake."""
    TIMEOUT = "timeout"
    """Connecting, a pause within the answer, or the complete answer took too long."""
    HOST_BUSY = "host_busy"
    """The row got no turn at its host in time, because of the limits for the host or a pause that the host demanded."""
    HOST_DOWN = "host_down"
    """Not requested, because the last requests to the host got no answer at all."""
    HTTP = "http"
    """An answer other than 200 or a redirect; its status is in `http_code`."""
    PROTOCOL = "protocol"
    """The answer is not HTTP."""
    REDIRECT = "redirect"
    """Redirects in a loop, too many redirects, or one without a target. A redirect to a refused address has
    REFUSED_ADDRESS."""
    ROBOTS = "robots"
    """robots.txt forbids the URL."""
    ROBOTS_UNAVAILABLE = "robots_unavailable"
    """Not requested: the server answered the request for robots.txt with 5xx or 429; its status is in `http_code`."""
    OPT_OUT = "opt_out"
    """The site, the answer's headers or the file say that the image is not for training; see `Consent`."""
    TOO_LARGE = "too_large"
    """The body has more bytes than the limit, on the wire or decompressed."""
    INCOMPLETE = "incomplete"
    """The connection ended before the body did."""
    ENCODING = "encoding"
    """The Content-Encoding was not requested, or the body does not decompress."""
    NOT_IMAGE = "not_image"
    """The body is empty, or does not begin like an image, e.g. HTML under a name in .jpg."""


@dataclass(frozen=True, slots=True)
class Request:
    """A URL to fetch, and the row that it belongs to."""

    key: int
    """Number by which the caller identifies the row."""
    url: str
    """URL as the table has it, which is hostile input."""
    head: bool = False
    """Whether to ask what is said of the image, by HEAD, and not to fetch it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a request; each request has exactly one."""

    key: int
    status: Status
    reason: str = ""
    """Explanation for people in one line; empty on success."""
    body: bytes | None = None
    """Complete image on success, and nothing of it after HEAD; else None."""
    final_url: str | None = None
    """URL at which the image was found after redirects; None unless successful."""
    http_code: int | None = None
    """Status code of the last answer; None if there was no answer."""
    evidence: Evidence | None = None
    """What was said, for ROBOTS and OPT_OUT."""


class Failed(Exception):
    """Failure of a request inside this package; callers of `fetch_many` get an Outcome instead."""

    def __init__(
        self, status: Status, reason: str, http_code: int | None = None, evidence: Evidence | None = None
    ) -> None:
        super().__init__(status, reason, http_code)
        self.status, self.reason, self.http_code, self.evidence = status, reason, http_code, evidence

    def again(self, prefix: str = "") -> Failed:
        """Return a copy to raise: an exception that is raised again and again collects tracebacks."""
        return Failed(self.status, prefix + self.reason, self.http_code, self.evidence)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of one call of `fetch_many`.

    A row ends at most `row_s + answer_s` seconds after it began, whatever its host does. Raises UsageError if a limit
    is not positive, or the contact is neither a page nor an address.
    """

    contact: str
    """Page (http or https) or mailto: address where a site's owner learns who fetches and why; part of the
    User-Agent."""
    agent: str = "dataprep"
    """Name in the User-Agent, to which robots.txt and X-Robots-Tag may refer; made of letters, - and _."""
    consent: Consent = Consent.PUBLISHED
    agents: tuple[str, ...] = ()
    """Other agents, as robots.txt names them; a URL that is forbidden to one of them is not fetched."""
    allow_networks: tuple[Network, ...] = ()
    """Networks that may be fetched from although they are not public; link-local and metadata addresses stay
    refused."""
    nameservers: tuple[str, ...] = ()
    """Addresses of name servers, with a port if needed; empty for the machine's own."""
    verify_tls: bool = True
    """Whether certificates are checked. Without the check more rows succeed, but only the table's hashes can verify
    them."""

    in_flight: int = 1_024
    """Maximum number of rows in flight, including those that wait for a turn at their host or for the caller."""
    memory_bytes: int = 1 << 30
    """Memory for all bodies, including those that are still arriving."""
    body_bytes: int = 20 << 20
    """Largest size of one body, before and after decompression."""
    redirects: int = 5

    connect_s: float = 10.0
    """Longest time until a connection is established, including TLS."""
    read_s: float = 10.0
    """Longest pause between two reads of an answer."""
    answer_s: float = 30.0
    """Longest time from a request to the last byte of its answer."""
    row_s: float = 120.0
    """Time after which no further request of a row begins, be it a redirect, a retry or one that waited for its
    turn."""

    host_connections: int = 8
    """Maximum number of concurrent requests to one host name."""
    host_per_s: float = 16.0
    """Maximum rate of requests to one host name; lower if its robots.txt has a Crawl-delay."""
    address_connections: int = 32
    """Maximum number of concurrent requests to the names that share an address."""
    address_per_s: float = 64.0
    """Maximum rate of requests to the names that share an address."""
    retries: int = 2
    """Number of retries after 429, or 503 with a Retry-After."""
    retry_after_s: float = 10.0
    """Longest Retry-After for which a row waits; for longer ones the row fails. The host gets no request meanwhile."""
    host_failures: int = 16
    """Number of consecutive requests without an answer after which the host's remaining rows are skipped."""
    workers: int = 1
    """Number of workers that share these limits; each multiplies a site's Crawl-delay by this number."""

    def __post_init__(self) -> None:
        if not _CONTACT.fullmatch(self.contact):
            raise UsageError(
                f"contact {self.contact!r} is not an address; sites must be able to reach the person who fetches: "
                "give an https:// page or mailto:name@example.org"
            )
        if not _TOKEN.fullmatch(self.agent):
            raise UsageError(f"agent {self.agent!r} has other characters than letters, - and _; choose another name")
        for agent in self.agents:
            if not _OTHER_TOKEN.fullmatch(agent):
                raise UsageError(f"agent {agent!r}: expected a name as robots.txt has it, such as CCBot")
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
        """Return the limits of one of `workers` workers, so that all workers together stay within a host's limits and
        the memory.

        A host gets up to `workers` connections, even if that is more than `host_connections`.
        """
        return dataclasses.replace(
            self,
            memory_bytes=max(self.memory_bytes // workers, self.body_bytes),
            host_connections=max(self.host_connections // workers, 1),
            host_per_s=self.host_per_s / workers,
            address_connections=max(self.address_connections // workers, 1),
            address_per_s=self.address_per_s / workers,
            workers=self.workers * workers,
        )
