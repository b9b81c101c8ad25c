"""Counts requests and bytes of every bucket, prices them, and decides whether a read may go on. Pure: no I/O, no clock.

A read is admitted in two steps: `refusal` before the request is sent, and `reserve` before its bytes flow, when their
number is known. What is reserved counts as spent until `settle` replaces it by what flowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dataprep.cloud.cost import GIB, Amount, reading_cost, writing_cost
from dataprep.cloud.placement import Placement
from dataprep.cloud.prices import Prices
from dataprep.cloud.region import check_place, describe, placement, region_of
from dataprep.cloud.tables import table
from dataprep.guard.requests import Kind, StorageRequest
from dataprep.messages import usd

MAX_BUCKETS = 1000
"""Maximum number of buckets in a ledger; reads of any more are refused."""
_STANDARD = "STANDARD"


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a command may read."""

    max_usd: float | None = None
    """Maximum cost of all requests and bytes together; None for no limit."""
    allowed: tuple[str, ...] = ()
    """Regions, dual-regions and multi-regions from which objects may be read, in lower case; empty for all."""

    @property
    def is_limited(self) -> bool:
        """Whether anything can be refused."""
        return self.max_usd is not None or bool(self.allowed)


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices of one storage class in one bucket, in USD."""

    byte: float
    read: float
    write: float


@dataclass(slots=True)
class Account:
    """What was asked of one bucket."""

    placement: Placement
    requests: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    """Number of requests that succeeded, by kind."""
    bytes_read: int = 0
    refused: int = 0
    usd: float = 0.0
    rates: dict[str, Rates | None] = field(default_factory=dict)
    """Prices by storage class; None if unknown."""


@dataclass(slots=True)
class Reservation:
    """Bytes of one answer that have not all flowed yet."""

    account: Account
    rates: Rates | None
    num_bytes: int

    @property
    def usd(self) -> float:
        """Price of the bytes; 0 if it is unknown."""
        return self.rates.byte * self.num_bytes if self.rates else 0.0


class OverBudgetError(Exception):
    """Raised when bytes would cost more than is left; its text is the reason."""


class Ledger:
    """The accounts of all buckets, under one budget.

    Args:
        budget: What may be read.
        prices: Prices to apply.
    """

    def __init__(self, budget: Budget, prices: Prices) -> None:
        self.budget = budget
        self.accounts: dict[str, Account] = {}
        self.spent_usd = 0.0
        self.reserved_usd = 0.0
        self.is_spent = False
        """Whether a read was refused because of its price."""
        self._prices = prices

    def account(self, bucket: str, found: Placement) -> Account | None:
        """Return the account of a bucket, with its place once that is known; None if there are MAX_BUCKETS others."""
        account = self.accounts.get(bucket)
        if account is None and len(self.accounts) < MAX_BUCKETS:
            account = self.accounts[bucket] = Account(found)
        elif account is not None and account.placement.bucket is None and found.bucket is not None:
            account.placement = found
            account.rates.clear()
        return account

    def refusal(self, request: StorageRequest, account: Account) -> str:
        """Return why a request must not be sent; an empty text if it may."""
        if not request.is_refusable or not self.budget.is_limited:
            return ""
        reason = "" if request.kind is not Kind.READ else self._wrong_place(account.placement)
        if not reason and self.budget.max_usd is not None:
            rates = self._rates(account, "")
            reason = self._over(account, rates, rates.read if rates else 0.0, known=request.kind is not Kind.READ)
        account.refused += bool(reason)
        return reason

    def count(self, request: StorageRequest, account: Account, storage_class: str = "") -> None:
        """Count a request that Cloud Storage has answered, and its price."""
        account.requests[request.kind] += 1
        rates = self._rates(account, storage_class)
        if rates is None:
            return
        if request.kind in (Kind.READ, Kind.LOOK):
            self._spend(account, rates.read)
        elif request.kind in (Kind.LIST, Kind.WRITE, Kind.COPY):
            self._spend(account, rates.write)

    def reserve(self, account: Account, num_bytes: int, storage_class: str = "") -> Reservation:
        """Reserve the price of bytes that are about to flow.

        Raises:
            OverBudgetError: They cost more than is left.
        """
        taken = Reservation(account, self._rates(account, storage_class), num_bytes)
        if self.budget.max_usd is not None:
            reason = self._over(account, taken.rates, taken.usd, known=False)
            if reason:
                account.refused += 1
                raise OverBudgetError(reason)
        self.reserved_usd += taken.usd
        return taken

    def settle(self, taken: Reservation, num_bytes: int) -> None:
        """Replace a reservation by the bytes that flowed."""
        self.reserved_usd -= taken.usd
        taken.account.bytes_read += num_bytes
        if taken.rates is not None:
            self._spend(taken.account, taken.rates.byte * num_bytes)

    def _over(self, account: Account, rates: Rates | None, cost: float, *, known: bool) -> str:
        """Return why an amount must not be spent; an empty text if it may.

        Args:
            account: The bucket.
            rates: The bucket's prices.
            cost: The amount, in USD.
            known: Whether an unknown price is no reason, as for metadata.
        """
        if rates is None and not known:
            return f"its price is not known, so --max-usd cannot hold: {account.placement.verdict.reason}"
        limit = self.budget.max_usd or 0.0
        taken = self.spent_usd + self.reserved_usd
        if taken + cost <= limit:
            return ""
        self.is_spent = True
        return f"the budget of {usd(limit)} is spent: {usd(taken)} so far, and this read costs {usd(cost)}"

    def _wrong_place(self, found: Placement) -> str:
        """Return why a bucket's objects must not be read from where they are; an empty text if they may."""
        if not self.budget.allowed:
            return ""
        shown = ", ".join(self.budget.allowed)
        if found.bucket is None:
            return f"only {shown} may be read, and {found.verdict.reason}"
        places = {found.bucket.location.lower(), *placement(found.bucket)[1]}
        return "" if places & set(self.budget.allowed) else f"only {shown} may be read"

    def _spend(self, account: Account, usd: float) -> None:
        account.usd += usd
        self.spent_usd += usd

    def _rates(self, account: Account, storage_class: str) -> Rates | None:
        bucket = account.placement.bucket
        name = (storage_class or (bucket.storage_class if bucket else "") or _STANDARD).upper()[:40]
        if name not in account.rates:
            account.rates[name] = _rates_of(account.placement, name, self._prices)
        return account.rates[name]


def described(found: Placement, bucket: str) -> str:
    """Describe a bucket, its place and its price:  `gs://b in us-east1, read from europe-west4-a at $0.05 per GiB`."""
    place = describe(found.bucket) if found.bucket else "an unknown place"
    price = found.verdict.usd_per_gib
    shown = "an unknown price" if price is None else f"${price:g} per GiB"
    return f"gs://{bucket} in {place}, read from {found.where or 'an unknown place'} at {shown}"


def allowed_places(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of allowed places in lower case; a zone is replaced by its region.

    Raises:
        UsageError: A name is neither a zone or region nor the code of a dual-region or multi-region.
    """
    codes = {row["code"] for row in table("dual_regions.csv")}
    checked = (name.lower() if name.lower() in codes else region_of(check_place(name)) for name in names)
    return tuple(dict.fromkeys(checked))


def _rates_of(found: Placement, storage_class: str, prices: Prices) -> Rates | None:
    """Return the prices of one storage class; None if the price of the transfer is unknown."""
    if found.bucket is None:
        return None

    def cost(num_bytes: int, gets: int) -> float | None:
        amount = Amount(storage_class=storage_class.lower(), num_bytes=num_bytes, objects=1, gets=gets)
        priced = None if found.bucket is None else reading_cost([amount], found.bucket, found.verdict, prices)
        return None if priced is None else priced.total

    per_gib, per_1000 = cost(GIB, 0), cost(0, 1000)
    if per_gib is None or per_1000 is None:
        return None
    inserts = writing_cost(1000, 0, found.bucket, 0, prices).operations
    return Rates(per_gib / GIB, per_1000 / 1000, inserts / 1000)
