"""Requests to the web and their outcomes, which docs/fetching.md explains to users."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Result of a request. Values are stored in datasets, so new ones may be added but none renamed."""

    SUCCESS = "success"
    """Status 200, and a whole body that begins as an image does."""
    BAD_URL = "bad_url"
    """Not requested: scheme, user, host, port, length or characters are not those of a public web address."""
    REFUSED_ADDRESS = "refused_address"
    """Not requested: the host, or one of its name's addresses, is not public."""
    DNS = "dns"
    """The name has no address, or the name server did not answer in time."""
    CONNECT = "connect"
    """No connection: refused, unreachable, reset before an answer."""
    TLS = "tls"
    """No secure connection: expired or foreign certificate, failed handshake."""
    TIMEOUT = "timeout"
    """Connecting, a pause within the answer, or the whole answer took too long."""
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
    """The answer's headers say noai, noimageai, noindex, noimageindex or none, or reserve text and data mining."""
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a request; each request has exactly one."""

    key: int
    status: Status
    reason: str = ""
    """Explanation for people in one line; empty on success."""
    body: bytes | None = None
    """Whole image on success, else None."""
    final_url: str | None = None
    """URL at which the image was found after redirects; None unless successful."""
    http_code: int | None = None
    """Status code of the last answer; None if there was no answer."""


class Failed(Exception):
    """Failure of a request inside this package; callers of `fetch_many` get an Outcome instead."""

    def __init__(self, status: Status, reason: str, http_code: int | None = None) -> None:
        super().__init__(status, reason, http_code)
        self.status, self.reason, self.http_code = status, reason, http_code

    def again(self, prefix: str = "") -> Failed:
        """Return a copy to raise: an exception that is raised again and again collects tracebacks."""
        return Failed(self.status, prefix + self.reason, self.http_code)
