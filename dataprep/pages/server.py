"""Serves one page that changes, to the browsers of this machine only."""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from dataprep.errors import UsageError

_ADDRESS = "127.0.0.1"
_HOSTS = frozenset({_ADDRESS, "localhost"})
"""Names under which a browser may ask. A web site that lets its own name point here asks with that name."""
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_REQUEST_S = 10.0
"""Time in which a client must send its request."""


class PageServer:
    """A page at an address of this machine, from when the server is made until it is closed.

    Args:
        page: Page to show first.
        port: Port; 0 for any free one.

    Raises:
        UsageError: The port cannot be opened.
    """

    def __init__(self, page: str, port: int) -> None:
        self.page = page
        try:
            self._http = _Server((_ADDRESS, port), self)
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror or error}; choose another one, or 0 for any") from error
        self.url = f"http://{_ADDRESS}:{self._http.server_port}/"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), name="dataprep-page", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the port."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Server(ThreadingHTTPServer):
    block_on_close = False  # a browser may hold a connection open

    def __init__(self, address: tuple[str, int], shown: PageServer) -> None:
        self.shown = shown
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that goes away is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_S

    def do_GET(self) -> None:
        if _name(self.headers.get("Host", "")) not in _HOSTS:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "this page is for browsers of this machine")
        elif self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            body = self.server.shown.page.encode()
            self.send_response(HTTPStatus.OK)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line for each request is of no use."""

    def version_string(self) -> str:
        """Return what the server calls itself: no versions."""
        return "dataprep"


def _name(host: str) -> str | None:
    """Return the name in a `Host` header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
