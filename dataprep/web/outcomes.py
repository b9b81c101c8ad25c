"""What is asked of the web, and how each request ends; docs/fetching.md says it for users."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a request ended. Values are stored in datasets: they are added to, never renamed."""

    SUCCESS = "success"
    """200, and a whole body that begins as an image does."""
    BAD_URL = "bad_url"
    """Never asked: scheme, user, host, port, length or characters are not those of a public web address."""
    REFUSED_ADDRESS = "refused_address"
    """Never asked: the host is, or one of its name's addresses is, not a public one."""
    DNS = "dns"
    """The name has no address, or the name server did not say in time."""
    CONNECT = "connect"
    """No connection: refused, unreachable, reset before an answer."""
    TLS = "tls"
    """No secure connection: expired or foreign certificate, failed handshake."""
    TIMEOUT = "timeout"
    """Connecting, a pause within the answer, or the whole answer took too long."""
    HOST_BUSY = "host_busy"
    """The row's turn at this host did not come in time: its own limits, or the pause that it asked for."""
    HOST_DOWN = "host_down"
    """Not asked: the host's last requests got no answer at all."""
    HTTP = "http"
    """Any answer but 200 and a redirect; the code is in `http_code`."""
    PROTOCOL = "protocol"
    """The answer is not HTTP."""
    REDIRECT = "redirect"
    """A loop, too many, or one that leads nowhere. One that leads where nothing may be fetched has that status."""
    ROBOTS = "robots"
    """robots.txt forbids it, or the server failed when asked for it."""
    OPT_OUT = "opt_out"
    """The answer's head says noai, noimageai, noindex, noimageindex, none, or reserves text and data mining."""
    TOO_LARGE = "too_large"
    """More bytes than the limit, on the wire or decompressed."""
    INCOMPLETE = "incomplete"
    """The connection ended before the body did."""
    ENCODING = "encoding"
    """A Content-Encoding that was not asked for, or that does not decompress."""
    NOT_IMAGE = "not_image"
    """The body is empty, or begins as no image does: HTML behind a name in .jpg."""


@dataclass(frozen=True, slots=True)
class Request:
    """One row's URL."""

    key: int
    """The caller's own: a row's number."""
    url: str
    """As the table has it: hostile."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The one end of one request."""

    key: int
    status: Status
    reason: str = ""
    """One line, for a person; empty on success."""
    body: bytes | None = None
    """The whole image on success, else None."""
    final_url: str | None = None
    """Where it was found after redirects; None unless successful."""
    http_code: int | None = None
    """Of the last answer, where there was one that decided."""


class Failed(Exception):
    """How a request fails inside this package; callers of `fetch_many` get an Outcome instead."""

    def __init__(self, status: Status, reason: str, http_code: int | None = None) -> None:
        super().__init__(status, reason, http_code)
        self.status, self.reason, self.http_code = status, reason, http_code

    def again(self, prefix: str = "") -> Failed:
        """A new one that says the same: one that is raised time and again collects tracebacks."""
        return Failed(self.status, prefix + self.reason, self.http_code)
