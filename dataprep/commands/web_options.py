"""How the web is asked, as several commands take it: who asks, where to, how gently, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from dataprep.commands.options import Bytes
from dataprep.errors import UsageError

if TYPE_CHECKING:
    from dataprep.web.limits import Limits

_SECONDS = click.FloatRange(0, min_open=True)
_COUNT = click.IntRange(min=1)
_OPTIONS = (
    click.option(
        "--contact",
        required=True,
        metavar="ADDRESS",
        help="Where those who are asked find you: an https:// page or mailto:NAME@HOST; part of the user agent.",
    ),
    click.option(
        "--allow-network",
        "allow_networks",
        multiple=True,
        metavar="CIDR",
        help="Fetch from these addresses, too, which are not public; recorded. May be repeated.",
    ),
    click.option("--nameserver", "nameservers", multiple=True, metavar="ADDRESS", help="Ask it, not this machine's."),
    click.option(
        "--no-verify-tls", "verify_tls", is_flag=True, default=True, flag_value=False, help="Take any certificate."
    ),
    click.option("--in-flight", type=_COUNT, default=1024, show_default=True, help="URLs under way, of each worker."),
    click.option(
        "--host-connections", type=_COUNT, default=8, show_default=True, help="Requests to one host, of all workers."
    ),
    click.option(
        "--host-per-second", "host_per_s", type=_SECONDS, default=16, show_default=True, help="Likewise, in a second."
    ),
    click.option("--connect-seconds", "connect_s", type=_SECONDS, default=10, show_default=True),
    click.option(
        "--read-seconds", "read_s", type=_SECONDS, default=10, show_default=True, help="A pause in an answer."
    ),
    click.option("--answer-seconds", "answer_s", type=_SECONDS, default=30, show_default=True, help="A whole answer."),
    click.option(
        "--row-seconds",
        "row_s",
        type=_SECONDS,
        default=120,
        show_default=True,
        help="After these no further request of a row is begun: neither a redirect nor a retry.",
    ),
    click.option("--max-body", "body_bytes", type=Bytes(), default=20 << 20, show_default="20MiB"),
    click.option("--retries", type=click.IntRange(min=0), default=2, show_default=True, help="After a 429 or 503."),
)
_NAMES = (
    "contact", "nameservers", "verify_tls", "in_flight", "host_connections", "host_per_s", "connect_s", "read_s",
    "answer_s", "row_s", "body_bytes", "retries",
)  # fmt: skip


def web_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options; `take_limits` takes their values."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_limits(values: dict[str, Any]) -> Limits:
    """The limits of all workers together, taken out of a command's values.

    Raises:
        UsageError: A value is none, or the packages for fetching are not there.
    """
    try:
        from dataprep.web.addresses import parse_networks
        from dataprep.web.limits import Limits
    except ImportError as error:
        raise UsageError(f"laion needs packages for fetching ({error}): pip install 'dataprep[laion]'") from error
    networks = parse_networks(values.pop("allow_networks"))
    return Limits(allow_networks=networks, **{name: values.pop(name) for name in _NAMES})


def tell_networks(limits: Limits) -> None:
    """Say on stderr what is open beyond public addresses."""
    if limits.allow_networks:
        networks = ", ".join(str(network) for network in limits.allow_networks)
        click.echo(f"dataprep: fetching from {networks}, too (--allow-network); the manifest records it", err=True)


def count_lines(statuses: Mapping[str, int], reasons: Mapping[str, int]) -> list[str]:
    """How rows ended, for people."""
    rows = max(1, sum(statuses.values()))
    lines = [
        f"  {status.replace('_', ' ')}: {count:,} ({100 * count / rows:.1f} %)"
        for status, count in statuses.items()
        if count
    ]
    failures = sorted(((count, reason) for reason, count in reasons.items() if reason != "success"), reverse=True)
    lines += [f"    {reason}: {count:,}" for count, reason in failures[:8]]
    return lines
