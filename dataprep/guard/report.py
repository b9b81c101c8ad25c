"""The report at the end of a guarded run: a value, as JSON and as lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from dataprep.cloud.region import describe
from dataprep.guard.escapes import Connection
from dataprep.guard.ledger import Account
from dataprep.guard.proxy import GuardProxy
from dataprep.messages import human_bytes, printable, usd

NOT_SEEN = (
    "gRPC past the proxy (DirectPath), gcsfuse mounts, and jobs on other machines or in containers",
    "transfers between buckets that servers make: rewrite, Storage Transfer, gcloud storage cp gs://a gs://b",
    "programs that ignore HTTPS_PROXY: they are listed as escaped if a sample of /proc shows their connection",
)
"""What no counter of the guard sees, in every report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketReport:
    """What was asked of one bucket."""

    bucket: str
    location: str
    verdict: str
    usd_per_gib: float | None
    """Price of the transfer; None if unknown."""
    requests: dict[str, int]
    """Number of requests that succeeded, by kind."""
    bytes_read: int
    refused: int
    """Number of reads that were refused."""
    usd: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardReport:
    """A guarded run."""

    reader: str | None
    """Zone or region of the reader; None if unknown."""
    max_usd: float | None
    allowed: tuple[str, ...]
    spent_usd: float
    budget_ended: bool
    buckets: tuple[BucketReport, ...]
    refusals: tuple[str, ...]
    """Messages of refused reads, each once."""
    tunnelled_bytes: dict[str, int]
    """Bytes to and from other hosts than Cloud Storage's, which are not priced."""
    unread_connections: dict[str, int]
    """Connections to hosts of Cloud Storage that failed because the guard could not read them."""
    not_priced: dict[str, int]
    """Requests to Cloud Storage whose transfer is not priced."""
    escaped: tuple[Connection, ...]
    """Connections that passed the guard by."""
    not_seen: tuple[str, ...] = field(default=NOT_SEEN)

    @property
    def bytes_read(self) -> int:
        """Bytes of objects that were read from all buckets."""
        return sum(each.bytes_read for each in self.buckets)

    @property
    def refused(self) -> int:
        """Number of refused reads."""
        return sum(each.refused for each in self.buckets)

    def document(self) -> dict[str, object]:
        """Return the report as one JSON object."""
        return asdict(self)


def report_of(proxy: GuardProxy, escaped: set[Connection]) -> GuardReport:
    """Return the report on what a proxy has seen so far."""
    ledger = proxy.ledger
    return GuardReport(
        reader=proxy.places.where,
        max_usd=ledger.budget.max_usd,
        allowed=ledger.budget.allowed,
        spent_usd=ledger.spent_usd,
        budget_ended=ledger.is_spent,
        buckets=tuple(_bucket(name, ledger.accounts[name]) for name in sorted(ledger.accounts)),
        refusals=tuple(proxy.refusals),
        tunnelled_bytes=dict(proxy.tunnelled),
        unread_connections=dict(proxy.unread),
        not_priced=dict(proxy.uncounted),
        escaped=tuple(sorted(escaped)),
    )


def report_lines(report: GuardReport) -> Iterator[str]:
    """Yield the report's lines for a terminal."""
    limit = "no limit" if report.max_usd is None else f"at most {usd(report.max_usd)}"
    yield f"guard: {usd(report.spent_usd)} spent, {limit}, read from {report.reader or 'an unknown place'}"
    for each in report.buckets:
        price = "unknown price" if each.usd_per_gib is None else f"${each.usd_per_gib:g}/GiB"
        counts = ", ".join(f"{count:,} {kind}" for kind, count in each.requests.items()) or "no requests"
        refused = f", {each.refused:,} refused" if each.refused else ""
        yield printable(
            f"  gs://{each.bucket} ({each.location}, {each.verdict}, {price}): {human_bytes(each.bytes_read)} read, "
            f"{counts}{refused}, {usd(each.usd)}"
        )
    for text in report.refusals[:10]:
        yield f"  {text}"
    for name, count in report.not_priced.items():
        yield printable(f"  not priced: {count:,} x {name}")
    for name, num_bytes in sorted(report.tunnelled_bytes.items()):
        yield printable(f"  other host: {name}, {human_bytes(num_bytes)}")
    for name, count in sorted(report.unread_connections.items()):
        yield printable(f"  failed: {count:,} connections to {name} that are no HTTP/1.1 or do not trust the guard")
    for escape in report.escaped:
        yield printable(f"  escaped: {escape.program} to {escape.address}, not counted")
    for text in report.not_seen:
        yield f"  never seen: {text}"


def _bucket(name: str, account: Account) -> BucketReport:
    found = account.placement
    return BucketReport(
        bucket=name,
        location=describe(found.bucket) if found.bucket else "unknown",
        verdict=found.verdict.kind,
        usd_per_gib=found.verdict.usd_per_gib,
        requests={kind.value: count for kind, count in account.requests.items() if count},
        bytes_read=account.bytes_read,
        refused=account.refused,
        usd=account.usd,
    )
