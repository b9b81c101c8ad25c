"""No table, name server or web site leads a connection to where it must not go.

A listener stands on loopback, at every address of this machine, and counts who comes; an audit hook of the interpreter
sees each address that a socket is connected to, reachable or not.
"""

import asyncio
import contextlib
import ipaddress
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote

import pytest

from dataprep.web.client import checked_socket
from dataprep.web.requests import Consent, Limits, Outcome, Status
from tests.support.fetching import fetch_all
from tests.support.hostile_urls import ADDRESSES, BAD, HOSTS
from tests.support.name_server import name_server
from tests.support.web_server import WebServer, web_server

REFUSALS = (Status.REFUSED_ADDRESS, Status.BAD_URL)
OUTSIDE = "127.0.0.2"
"""Stands for the public web where a case needs a site that answers: the one address that is allowed there."""

_connected: list[str] = []


def _audit(event: str, args: tuple[object, ...]) -> None:
    if event == "socket.connect":
        _connected.append(str(args[1]))


sys.addaudithook(_audit)


class Trap:
    """Counts connections to one port on all of this machine's addresses."""

    def __init__(self) -> None:
        self._sockets = [socket.create_server(("0.0.0.0", 0))]
        self.port = self._sockets[0].getsockname()[1]
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):
                self._sockets.append(socket.create_server(("::", self.port), family=socket.AF_INET6))
        self.reached = 0
        for each in self._sockets:
            threading.Thread(target=self._count, args=(each,), daemon=True).start()

    def _count(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()
                self.reached += 1

    def close(self) -> None:
        for each in self._sockets:
            each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture(scope="module")
def listener() -> Iterator[Trap]:
    made = Trap()
    yield made
    made.close()


@pytest.fixture
def trap(listener: Trap) -> Iterator[Trap]:
    """The listener, which nobody may have reached when the test ends."""
    _connected.clear()
    yield listener
    assert listener.reached == 0
    assert not [address for address in _connected if OUTSIDE not in address]


@pytest.fixture
def outside() -> Iterator[WebServer]:
    with web_server(address=OUTSIDE) as server:
        yield server


def fetch(
    url: str,
    answer: Callable[[str, int], Sequence[str] | None] = lambda name, before: [],
    consent: Consent = Consent.ROBOTS,
) -> Outcome:
    """One outcome, with a name server that says what it is told; only `OUTSIDE` is allowed, if anything is."""
    allowed = (ipaddress.ip_network(OUTSIDE),) if "site.test" in url else ()
    with name_server(answer) as names:
        limits = Limits(
            contact="https://example.org/",
            nameservers=(names.address,),
            allow_networks=allowed,
            consent=consent,
            connect_s=60.0,
            read_s=60.0,
        )
        (outcome,) = asyncio.run(fetch_all([url], limits))
    return outcome


def host_of(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def test_the_trap_notices_a_connection(listener):
    before = listener.reached
    _connected.clear()
    with socket.create_connection(("127.0.0.1", listener.port)) as connection:
        connection.recv(1)
    while listener.reached == before:
        pass
    assert _connected
    listener.reached = 0


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_trapped_address_in_a_url_is_not_connected_to(trap, address):
    assert fetch(f"http://{host_of(address)}:{trap.port}/a.jpg").status is Status.REFUSED_ADDRESS


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_name_of_the_trap_is_not_connected_to(trap, address):
    outcome = fetch(f"http://name.test:{trap.port}/a.jpg", lambda name, before: [address])
    assert outcome.status is Status.REFUSED_ADDRESS
    assert "robots.txt: name.test: " in outcome.reason


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_name_of_the_trap_among_public_addresses_is_not_connected_to(trap, address):
    public = "2606:4700::1111" if ":" in address else "93.184.216.34"
    for answers in ([address, public], [public, address]):
        outcome = fetch(f"https://name.test:{trap.port}/a.jpg", lambda name, before, answers=answers: answers)
        assert outcome.status is Status.REFUSED_ADDRESS


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_redirect_to_the_trap_is_not_followed(trap, outside, address):
    target = quote(f"http://{host_of(address)}:{trap.port}/a.jpg", safe="")
    outcome = fetch(outside.url(f"/to/?{target}", "site.test"), lambda name, before: [OUTSIDE])
    assert outcome.status is Status.REFUSED_ADDRESS
    assert len(outside.heads) == 2


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_redirect_to_a_name_of_the_trap_is_not_followed(trap, outside, address):
    target = quote(f"//name.test:{trap.port}/a.jpg", safe="")
    answers = {"site.test": [OUTSIDE], "name.test": [address]}
    outcome = fetch(outside.url(f"/to/?{target}", "site.test"), lambda name, before: answers[name])
    assert outcome.status is Status.REFUSED_ADDRESS


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_host_disguised_as_another_is_not_connected_to(trap, scheme, host):
    assert fetch(f"{scheme}://{host}:{trap.port}/a.jpg").status in (*REFUSALS, Status.DNS)


@pytest.mark.parametrize("host", HOSTS)
def test_a_redirect_to_a_host_disguised_as_another_is_not_followed(trap, outside, host):
    target = quote(f"http://{host}:{trap.port}/a.jpg", safe="")
    outcome = fetch(
        outside.url(f"/to/?{target}", "site.test"), lambda name, before: [OUTSIDE] if name == "site.test" else []
    )
    assert outcome.status in (*REFUSALS, Status.DNS, Status.PROTOCOL)


@pytest.mark.parametrize(
    "scheme", ["ftp", "file", "gopher", "dict", "ldap", "ws", "wss", "tftp", "sftp", "jar", "unix"]
)
def test_other_schemes_are_refused_in_a_url_and_by_redirect(trap, outside, scheme):
    url = f"{scheme}://127.0.0.1:{trap.port}/a.jpg"
    assert fetch(url).status in REFUSALS
    outcome = fetch(outside.url(f"/to/?{quote(url, safe='')}", "site.test"), lambda name, before: [OUTSIDE])
    assert outcome.status in REFUSALS


@pytest.mark.parametrize("text", BAD, ids=[repr(text)[:40] for text in BAD])
def test_a_redirect_to_a_malformed_url_is_refused(trap, outside, text):
    """A text may be a path relative to its own site; on other sites it is no URL."""
    answers = {"site.test": [OUTSIDE]}
    target = quote(text, safe="", errors="surrogatepass")
    fetch(outside.url(f"/to/?{target}", "site.test"), lambda name, before: answers.get(name, []))


def test_a_name_that_changes_its_address_is_looked_up_once(trap, outside):
    asked = []

    def rebinding(name: str, before: int) -> list[str]:
        asked.append(before)
        return ["127.0.0.1"] if before else [OUTSIDE]

    # The trap's port is the site's: only the address tells them apart.
    outcome = fetch(outside.url("/redirect/1", "site.test"), rebinding)
    assert outcome.status is Status.SUCCESS
    assert set(asked) == {0}


def test_a_name_whose_address_changed_later_is_checked_again(trap, outside):
    url = outside.url("/image/1", "site.test")
    assert fetch(url, lambda name, before: [OUTSIDE]).status is Status.SUCCESS
    assert fetch(url, lambda name, before: ["127.0.0.1"]).status is Status.REFUSED_ADDRESS


def test_a_robots_txt_that_redirects_to_the_trap_is_not_followed(trap, outside):
    """A site's first answer is a redirect of robots.txt itself."""
    outside.robots_location = f"http://127.0.0.1:{trap.port}/robots.txt"
    outcome = fetch(outside.url("/image/1", "site.test"), lambda name, before: [OUTSIDE])
    assert outcome.status is Status.REFUSED_ADDRESS


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_socket_is_made_for_the_trap_whatever_led_to_it(trap, address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with pytest.raises(PermissionError, match="is"):
        checked_socket((family, socket.SOCK_STREAM, 0, "", (address, trap.port)), ())


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::1"])
def test_a_licence_at_the_trap_is_not_asked_for(trap, outside, address):
    outside.robots["site.test"] = f"License: http://{host_of(address)}:{trap.port}/rsl.xml\nUser-agent: *\nAllow: /\n"
    outcome = fetch(outside.url("/image/1", "site.test"), lambda name, before: [OUTSIDE], Consent.PUBLISHED)
    assert outcome.status is Status.SUCCESS
