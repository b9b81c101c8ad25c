"""Names become addresses that were checked, and sockets are made for those alone."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import pytest

from dataprep.web.addresses import Network
from dataprep.web.caches import Cache
from dataprep.web.outcomes import Failed, Status
from dataprep.web.resolver import CheckedResolver, checked_socket
from tests.support.name_server import NameServer, name_server

LOOPBACK: tuple[Network, ...] = (ipaddress.ip_network("127.0.0.0/8"),)
ANSWERS: dict[str, Sequence[str]] = {
    "public.test": ["8.8.8.8", "2606:4700::1111"],
    "mixed.test": ["8.8.8.8", "10.0.0.1"],
    "loopback.test": ["127.0.0.7"],
}


def cache() -> Cache:
    return Cache(100, 60.0)


def resolve(
    server: NameServer, *names: str, allow_networks: tuple[Network, ...] = ()
) -> list[set[str] | tuple[Status, str]]:
    """Look names up one after the other; their addresses, or how each failed."""

    async def run() -> list[set[str] | tuple[Status, str]]:
        resolver = CheckedResolver(allow_networks, (server.address,), cache())
        found: list[set[str] | tuple[Status, str]] = []
        for name in names:
            try:
                results = await resolver.resolve(name, 443)
            except Failed as failed:
                found.append((failed.status, failed.reason))
            else:
                assert {(result["hostname"], result["port"]) for result in results} == {(name, 443)}
                found.append({result["host"] for result in results})
        await resolver.close()
        return found

    return asyncio.run(run())


@pytest.fixture
def server():
    with name_server(lambda name, _: ANSWERS.get(name, [])) as running:
        yield running


def test_public_addresses_of_a_name_are_found(server: NameServer):
    assert resolve(server, "public.test") == [{"8.8.8.8", "2606:4700::1111"}]


def test_a_name_is_refused_whole_where_one_address_is(server: NameServer):
    ((status, reason),) = resolve(server, "mixed.test")
    assert status is Status.REFUSED_ADDRESS
    assert reason.startswith("mixed.test: ")
    assert "10.0.0.1" in reason


def test_an_allowed_network_may_be_connected_to(server: NameServer):
    ((status, _),) = resolve(server, "loopback.test")
    assert status is Status.REFUSED_ADDRESS
    assert resolve(server, "loopback.test", allow_networks=LOOPBACK) == [{"127.0.0.7"}]


def test_a_name_without_an_address_is_a_failure_of_dns(server: NameServer):
    ((status, _),) = resolve(server, "nothing.test")
    assert status is Status.DNS


def test_a_name_is_looked_up_once_and_whole(server: NameServer):
    assert resolve(server, *["public.test"] * 3) == [{"8.8.8.8", "2606:4700::1111"}] * 3
    assert max(server.asked.values()) < 3, "a busy machine may answer so late that it is asked once more"
    assert {name for name, _ in server.asked} == {"public.test"}


@pytest.mark.parametrize(
    ("address", "allow_networks", "refused"),
    [
        ("8.8.8.8", (), False),
        ("127.0.0.1", (), True),
        ("127.0.0.1", LOOPBACK, False),
        ("169.254.169.254", LOOPBACK, True),
    ],
)
def test_a_socket_is_made_for_allowed_addresses_alone(address: str, allow_networks: tuple[Network, ...], refused: bool):
    info = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, 80))
    if refused:
        with pytest.raises(PermissionError, match=address.replace(".", r"\.")):
            checked_socket(info, allow_networks)
    else:
        checked_socket(info, allow_networks).close()
