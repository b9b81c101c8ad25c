"""Decides which URLs may be fetched and which addresses may be connected to: public ones only. All functions are pure.

Address blocks are those of the IANA special-purpose registries (RFC 6890 and its updates) and the published metadata
services of cloud providers. `ipaddress.is_global` alone is not enough: it calls multicast global, and changes between
releases of Python.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from urllib.parse import SplitResult, quote, urlsplit

import idna
from yarl import URL

from dataprep.errors import UsageError
from dataprep.web.requests import Failed, Status

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL_CHARACTERS = 8_192
"""Longest URL, in characters. Servers refuse longer ones: a request's first line may have 8 KiB, as a rule."""
MAX_HOST_CHARACTERS = 253

# Bad ports of the Fetch standard above 1,023: mail, chat, telephony and file servers, which would read the request as
# one of their own protocol. Below 1,024 only 80 and 443 belong to the web.
_BAD_PORTS = frozenset(
    [1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, *range(6665, 6670), 6679, 6697, 10080]
)

_NEVER = {
    "169.254.0.0/16": "link-local or metadata",
    "fe80::/10": "link-local",
    "168.63.129.16/32": "metadata",  # Azure: looks public
    "100.100.100.200/32": "metadata",  # Alibaba Cloud
    "192.0.0.192/32": "metadata",  # Oracle Cloud
    "fd00:ec2::254/128": "metadata",  # AWS
    "fd20:ce::254/128": "metadata",  # Google Cloud
}
_REFUSED = {
    "0.0.0.0/8": "this host",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by carriers",
    "127.0.0.0/8": "loopback",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "documentation",
    "192.88.99.0/24": "6to4",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "benchmarking",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "::1/128": "loopback",
    "::/128": "this host",
    "fc00::/7": "private",
    "ff00::/8": "multicast",
    "2001::/23": "reserved",  # Teredo, benchmarking, ORCHID
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "3fff::/20": "documentation",
}
_UNICAST_6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")

_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.(?!-)[a-z0-9_-]{1,63})+\.?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
# Characters that stay as they are in a path or query: RFC 3986's reserved ones, and existing escapes.
_KEPT = "%/:?@!$&'()*+,;=~[]"


def _networks(table: dict[str, str]) -> list[tuple[Network, str]]:
    return [(ipaddress.ip_network(text), name) for text, name in table.items()]


_NEVER_NETWORKS = _networks(_NEVER)
_REFUSED_NETWORKS = _networks(_REFUSED)


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse the values of `allow_network`. Raises UsageError if a value is not a network in CIDR notation, or is inside
    link-local or metadata addresses."""
    networks = []
    for text in texts:
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            raise UsageError(f"`allow_network`: {error}; expected a network as 10.1.0.0/16") from None
        for never, name in _NEVER_NETWORKS:
            if network.version == never.version and network.subnet_of(never):  # type: ignore[arg-type]
                raise UsageError(f"`allow_network`: {text} is {name}, which is never fetched from; leave it out")
        networks.append(network)
    return tuple(networks)


@lru_cache(maxsize=4096)  # 25 us, called at the look-up and again for each connection
def refusal(address: str, allow_networks: tuple[Network, ...] = ()) -> str | None:
    """Return why an address may not be connected to; None if it is public, or in one of `allow_networks`.

    If an IPv6 address contains an IPv4 address (mapped, NAT64), the latter decides; 6to4 and Teredo are refused.
    """
    try:
        parsed = _unwrapped(ipaddress.ip_address(address))
    except ValueError:
        return f"{address[:64]} is not an address"
    for network, name in _NEVER_NETWORKS:
        if parsed in network:
            return f"{address} is {name}"
    if any(parsed in network for network in allow_networks):
        return None
    for network, name in _REFUSED_NETWORKS:
        if parsed in network:
            return f"{address} is {name}"
    if (parsed.version == 6 and parsed not in _UNICAST_6) or not parsed.is_global:
        return f"{address} is not public"
    return None


def checked_url(text: str, allow_networks: tuple[Network, ...] = ()) -> URL:
    """Return a URL in the form in which it is sent, without its fragment; path and query keep their escapes.

    Raises:
        Failed: BAD_URL, or REFUSED_ADDRESS if the host is an address that may not be connected to.
    """
    parts = _split(text.strip())
    host, port = _host_and_port(parts.netloc)
    if not _is_name(host) and (reason := refusal(host, allow_networks)):
        raise Failed(Status.REFUSED_ADDRESS, reason)
    return URL.build(
        scheme=parts.scheme,
        host=f"[{host}]" if ":" in host else host,
        port=port,
        path=quote(parts.path or "/", safe=_KEPT),
        query_string=quote(parts.query, safe=_KEPT),
        encoded=True,
    )


def _unwrapped(address: Address) -> Address:
    if isinstance(address, IPv6Address):
        if address.scope_id:
            raise ValueError("scoped")
        if address.ipv4_mapped:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _split(text: str) -> SplitResult:
    if len(text) > MAX_URL_CHARACTERS:
        raise Failed(Status.BAD_URL, f"{len(text):,} characters; at most {MAX_URL_CHARACTERS:,}")
    if _CONTROL.search(text):
        raise Failed(Status.BAD_URL, "control characters")
    try:
        text.encode()
        parts = urlsplit(text)
    except ValueError as error:
        raise Failed(Status.BAD_URL, str(error)[:200]) from None
    if parts.scheme not in ("http", "https"):
        raise Failed(Status.BAD_URL, f"scheme {parts.scheme[:32]!r}; http or https expected")
    if "@" in parts.netloc:
        raise Failed(Status.BAD_URL, "a user name before the host")
    return parts


@lru_cache(maxsize=1024)  # rows of one host often follow each other
def _host_and_port(netloc: str) -> tuple[str, int | None]:
    parts = SplitResult("", netloc, "", "", "")
    return _host(parts), _port(parts)


def _host(parts: SplitResult) -> str:
    """Return the host in lower case and ASCII: an address in its canonical form, or a name with a dot."""
    host = parts.hostname or ""
    if "[" in parts.netloc:
        return _address(host, bracketed=True)
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True).decode()
        except (idna.IDNAError, UnicodeError):
            raise Failed(Status.BAD_URL, f"host {host[:64]!r} is not a domain name") from None
    # Resolvers read 2130706433, 0x7f.1 and 0177.0.0.1 as addresses; here only the dotted quad is one.
    if _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        return _address(host, bracketed=False)
    if len(host) > MAX_HOST_CHARACTERS or not _HOST.fullmatch(host):
        raise Failed(Status.BAD_URL, f"host {host[:64]!r}; a domain name with a dot, or an address expected")
    return host


def _address(host: str, *, bracketed: bool) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise Failed(Status.BAD_URL, f"host {host[:64]!r} is no address in its usual form") from None
    if bracketed != (address.version == 6) or "%" in host:
        raise Failed(Status.BAD_URL, f"host {host[:64]!r} is no address in its usual form")
    return str(address)


def _is_name(host: str) -> bool:
    return ":" not in host and not host.rpartition(".")[2].isdigit()


def _port(parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError:
        raise Failed(Status.BAD_URL, "the port is not a number up to 65,535") from None
    if port is None or port in (80, 443):
        return port
    if port < 1_024 or port in _BAD_PORTS:
        raise Failed(Status.BAD_URL, f"port {port}; 80, 443, or one from 1,024 that no other protocol uses expected")
    return port
