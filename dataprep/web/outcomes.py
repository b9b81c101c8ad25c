"""Requests to the web and their outcomes, which docs/fetching.md explains to users."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """End of a request. Values are stored in datasets, so new ones may be added and none renamed."""

    SUCCESS = "success"
    """Status 200, and a whole body that begins as an image does."""
    BAD_URL = "bad_url"
    """Never asked: scheme, user, host, port, length or characters are not those of a public web address."""
    REFUSED_ADDRESS = "refused_address"
    """Never asked: the host, or one of its name's addresses, is not public."""
    DNS = "dns"
    """The name has no address, or the name server did not answer in time."""
    CONNECT = "connect"
    """No connection: refused, unreachable, reset before an answer."""
    TLS = "tls"
    """No secure connection: expired or foreign certificate, failed handshake."""
    TIMEOUT = "timeout"
    """Connecting, a pause within the answer, or the whole answer took too long."""
    HOST_BUSY = "host_busy"
    """The row's turn at this host did not come in time, because of the host's limits or the pause that it asked for."""
    HOST_DOWN = "host_down"
    """Not asked, because the host's last requests got no answer at all."""
    HTTP = "http"
    """Answer other than 200 and a redirect; the code is in `http_code`."""
    PROTOCOL = "protocol"
    """The answer is not HTTP."""
    REDIRECT = "redirect"
    """Redirects in a loop, too many of them, or one that leads nowhere; one to a refused place has that status."""
    ROBOTS = "robots"
    """robots.txt forbids the URL, or the server failed when asked for robots.txt."""
    OPT_OUT = "opt_out"
    """The answer's header says noai, noimageai, noindex, noimageindex or none, or reserves text and data mining."""
    TOO_LARGE = "too_large"
    """The body has more bytes than the limit, on the wire or decompressed."""
    INCOMPLETE = "incomplete"
    """The connection ended before the body did."""
    ENCODING = "encoding"
    """The Content-Encoding was not asked for, or the body does not decompress."""
    NOT_IMAGE = "not_image"
    """The body is empty, or begins as no image does: HTML behind a name in .jpg."""


@dataclass(frozen=True, slots=True)
class Request:
    """A URL to fetch, and the row that it belongs to."""

    key: int
    """Number that the caller knows the row by."""
    url: str
    """URL as the table has it, which is hostile input."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a request; each has exactly one."""

    key: int
    status: Status
    reason: str = ""
    """Explanation for people in one line; empty on success."""
    body: bytes | None = None
    """Whole image on success, else None."""
    final_url: str | None = None
    """URL at which the image was found after redirects; None unless successful."""
    http_code: int | None = None
    """Status code of the answer that decided; None where there was no answer."""


class Failed(Exception):
    """Failure of a request inside this package; callers of `fetch_many` get an Outcome instead."""

    def __init__(self, status: Status, reason: str, http_code: int | None = None) -> None:
        super().__init__(status, reason, http_code)
        self.status, self.reason, self.http_code = status, reason, http_code

    def again(self, prefix: str = "") -> Failed:
        """Return a copy to raise: an exception that is raised again and again collects tracebacks."""
        return Failed(self.status, prefix + self.reason, self.http_code)
