"""Resolves names to addresses that may be connected to.

A connection goes to exactly the addresses that were checked, because the name is not looked up again.
"""

from __future__ import annotations

import socket
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from dataprep.web.addresses import Network, refusal
from dataprep.web.caches import Cache
from dataprep.web.outcomes import Failed, Status

QUERY_S = 3.0
QUERIES = 2


class CheckedResolver(AbstractResolver):
    """Resolver that refuses a name if any of its addresses is refused: a mixed answer is an attack or a mistake."""

    def __init__(
        self, allow_networks: tuple[Network, ...], nameservers: tuple[str, ...], cache: Cache[list[ResolveResult]]
    ) -> None:
        servers = nameservers or None  # the machine's own
        self._resolver = aiohttp.AsyncResolver(timeout=QUERY_S, tries=QUERIES, nameservers=servers)
        self._allow_networks, self._cache = allow_networks, cache

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Look up all addresses of a name, and check each of them.

        Raises:
            Failed: DNS or REFUSED_ADDRESS.
        """
        results = await self._cache.get(host, lambda: self._look_up(host, family))
        return [{**result, "hostname": host, "port": port} for result in results]

    async def close(self) -> None:
        await self._resolver.close()

    async def _look_up(self, host: str, family: socket.AddressFamily) -> list[ResolveResult]:
        try:
            # A final dot makes a name absolute, so that the machine's search domains are not tried.
            results = await self._resolver.resolve(host.rstrip(".") + ".", 0, family)
        except OSError as error:
            raise Failed(Status.DNS, str(error.strerror or error)) from None
        for result in results:
            if reason := refusal(result["host"], self._allow_networks):
                raise Failed(Status.REFUSED_ADDRESS, f"{host}: {reason}")
        return results


def checked_socket(
    address_info: tuple[int, int, int, str, tuple[Any, ...]], allow_networks: tuple[Network, ...]
) -> socket.socket:
    """Create a socket. Every connection is made by this function, so none can lead to a refused address.

    Raises:
        PermissionError: The address may not be connected to.
    """
    family, kind, protocol, _, address = address_info
    if reason := refusal(str(address[0]), allow_networks):
        raise PermissionError(reason)
    return socket.socket(family, kind, protocol)
