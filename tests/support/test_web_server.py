"""The web on loopback leaves no socket open when it ends: that would be an error of the test that comes next."""

import gc
import socket
import sys
from contextlib import ExitStack

from tests.support.web_server import web_server


def test_connections_that_are_just_being_accepted_are_closed(monkeypatch):
    left_open = []
    monkeypatch.setattr(sys, "unraisablehook", left_open.append)
    for _ in range(5):
        with ExitStack() as clients:
            with web_server() as web:
                for _ in range(5):
                    clients.enter_context(socket.create_connection(("127.0.0.1", web.port)))
            gc.collect()
    assert [str(each.exc_value) for each in left_open] == []
