"""A page on a port of this machine: who may ask, what for, and when the port is free again."""

import http.client
import socket

import pytest

from dataprep.errors import UsageError
from dataprep.pages.server import PageServer


def asked(server, path="/", method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rstrip("/").rpartition(":")[2]), timeout=100)
    connection.request(method, path, headers={"Host": host} if host is not None else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def test_the_latest_page_is_served_and_kept_by_no_cache():
    with PageServer("<p>first</p>", 0) as server:
        assert asked(server)[1] == "<p>first</p>"
        server.page = "<p>später</p>"
        answer, body = asked(server)
    assert (answer.status, body) == (200, "<p>später</p>")
    assert (answer.headers["Cache-Control"], answer.headers["X-Frame-Options"]) == ("no-store", "DENY")
    assert answer.headers["Server"] == "dataprep"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8080", "LOCALHOST"])
def test_a_browser_of_this_machine_may_ask_by_any_of_its_names(host):
    with PageServer("<p>", 0) as server:
        assert asked(server, host=host)[0].status == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "[::1", ""])
def test_a_web_site_whose_name_points_here_is_refused(host):
    with PageServer("<p>secret</p>", 0) as server:
        answer, body = asked(server, host=host)
    assert answer.status == 421
    assert "secret" not in body


@pytest.mark.parametrize(("path", "method", "status"), [("/../etc/passwd", "GET", 404), ("/", "POST", 501)])
def test_nothing_else_is_served(path, method, status):
    with PageServer("<p>secret</p>", 0) as server:
        answer, body = asked(server, path, method)
    assert answer.status == status
    assert "secret" not in body


def test_a_client_that_sends_nothing_holds_nobody_up():
    with PageServer("<p>", 0) as server:
        port = int(server.url.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)):
            assert asked(server)[0].status == 200
            server.close()
            with PageServer("<p>", port):
                pass


def test_a_taken_port_is_named():
    with PageServer("<p>", 0) as server:
        port = int(server.url.rstrip("/").rpartition(":")[2])
        with pytest.raises(UsageError, match=rf"^--port {port}: Address already in use; choose another one, or 0"):
            PageServer("<p>", port)
