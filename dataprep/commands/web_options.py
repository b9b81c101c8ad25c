"""Options for fetching from the web: contact, networks, limits and deadlines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

import click

from dataprep.commands.options import COUNT, COUNT_OR_NONE, Bytes, Finite, NamedDefaultOption
from dataprep.errors import UsageError, install_hint

if TYPE_CHECKING:
    from dataprep.web.requests import Limits

_SECONDS = Finite(0, min_open=True)
_COUNT = COUNT
_OPTIONS = (
    click.option(
        "--contact",
        required=True,
        metavar="ADDRESS",
        help="How site owners can reach you: an https:// page or mailto:NAME@HOST; part of the User-Agent.",
    ),
    click.option(
        "--allow-network",
        "allow_networks",
        multiple=True,
        metavar="CIDR",
        help="Network that is not public, to fetch from as well; recorded in the manifest; may be repeated.",
    ),
    click.option(
        "--nameserver",
        "nameservers",
        multiple=True,
        metavar="ADDRESS",
        help="Address of a name server to use instead of this machine's; may be repeated.",
    ),
    click.option(
        "--no-verify-tls", "verify_tls", is_flag=True, default=True, flag_value=False, help="Accept any certificate."
    ),
    click.option("--in-flight", type=_COUNT, default=1024, show_default=True, help="URLs in flight in each worker."),
    click.option(
        "--host-connections",
        type=_COUNT,
        default=8,
        show_default=True,
        help="Requests to one host at the same time, by all workers; at least one for each.",
    ),
    click.option(
        "--host-per-second",
        "host_per_s",
        type=_SECONDS,
        default=16,
        show_default=True,
        help="Requests to one host in a second, by all workers.",
    ),
    click.option(
        "--connect-seconds",
        "connect_s",
        type=_SECONDS,
        default=10,
        show_default=True,
        help="Longest time to connect, TLS included.",
    ),
    click.option(
        "--read-seconds", "read_s", type=_SECONDS, default=10, show_default=True, help="Longest pause within an answer."
    ),
    click.option(
        "--answer-seconds",
        "answer_s",
        type=_SECONDS,
        default=30,
        show_default=True,
        help="Longest time for a whole answer.",
    ),
    click.option(
        "--row-seconds",
        "row_s",
        type=_SECONDS,
        default=120,
        show_default=True,
        help="Time after which a row makes no further request: neither a redirect nor a retry.",
    ),
    click.option(
        "--max-body",
        "body_bytes",
        cls=NamedDefaultOption,
        type=Bytes(),
        default=20 << 20,
        show_default="20MiB",
        help="Largest answer that is read.",
    ),
    click.option(
        "--retries",
        type=COUNT_OR_NONE,
        default=2,
        show_default=True,
        help="Number of retries after a 429, or a 503 with Retry-After.",
    ),
)


class WebOptions(TypedDict):
    """Values of the options that `web_options` adds."""

    contact: str
    allow_networks: tuple[str, ...]
    nameservers: tuple[str, ...]
    verify_tls: bool
    in_flight: int
    host_connections: int
    host_per_s: float
    connect_s: float
    read_s: float
    answer_s: float
    row_s: float
    body_bytes: int
    retries: int


def web_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options, whose values are `WebOptions`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def limits_of(values: WebOptions) -> Limits:
    """Return the limits of all workers together.

    Raises:
        UsageError: A value is wrong, or the packages for fetching are not installed.
    """
    try:
        from dataprep.web.addresses import parse_networks
        from dataprep.web.requests import Limits
    except ImportError as error:
        raise UsageError(f"laion needs packages for fetching ({error}): {install_hint('laion')}") from error
    return Limits(
        contact=values["contact"],
        allow_networks=parse_networks(values["allow_networks"]),
        nameservers=values["nameservers"],
        verify_tls=values["verify_tls"],
        in_flight=values["in_flight"],
        host_connections=values["host_connections"],
        host_per_s=values["host_per_s"],
        connect_s=values["connect_s"],
        read_s=values["read_s"],
        answer_s=values["answer_s"],
        row_s=values["row_s"],
        body_bytes=values["body_bytes"],
        retries=values["retries"],
    )


def tell_networks(limits: Limits) -> None:
    """Print on stderr the networks that may be fetched from besides public ones."""
    if limits.allow_networks:
        networks = ", ".join(str(network) for network in limits.allow_networks)
        click.echo(f"dataprep: fetching from {networks}, too (--allow-network); the manifest records it", err=True)


def count_lines(
    statuses: Mapping[str, int], reasons: Mapping[str, int], examples: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
    """Describe the statuses and reasons of rows in lines.

    Args:
        statuses: Number of rows by status.
        reasons: Number of rows by reason.
        examples: Lines about some rows, by reason.
    """
    rows = max(1, sum(statuses.values()))
    lines = [
        f"  {status.replace('_', ' ')}: {count:,} ({100 * count / rows:.1f} %)"
        for status, count in statuses.items()
        if count
    ]
    failures = sorted(((count, reason) for reason, count in reasons.items() if reason != "success"), reverse=True)
    for count, reason in failures[:8]:
        lines.append(f"    {reason}: {count:,}")
        lines += [f"      {example}" for example in (examples or {}).get(reason, ())]
    return lines
