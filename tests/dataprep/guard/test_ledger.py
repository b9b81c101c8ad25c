"""Prices of reads, and the moment at which they end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.cloud.cost import GIB
from dataprep.cloud.placement import Placement
from dataprep.cloud.prices import published_prices
from dataprep.cloud.region import UNKNOWN, Verdict, verdict
from dataprep.errors import UsageError
from dataprep.guard.ledger import MAX_BUCKETS, Account, Budget, Ledger, OverBudgetError, allowed_places, described
from dataprep.guard.requests import Kind, StorageRequest
from dataprep.storage.gcs_location import BucketLocation

READ = StorageRequest(Kind.READ, "data", "a")
HERE = "us-central1-a"


def placed(location: str, kind: str = "region") -> Placement:
    bucket = BucketLocation(location=location, location_type=kind, storage_class="STANDARD")
    return Placement("gs://data", HERE, bucket, verdict(bucket, HERE, published_prices()))


def unknown() -> Placement:
    return Placement("gs://data", HERE, None, Verdict(UNKNOWN, None, "it is not known where the bucket is"))


def opened(location: str, budget: Budget, kind: str = "region") -> tuple[Ledger, Account]:
    ledger = Ledger(budget, published_prices())
    account = ledger.account("data", placed(location, kind))
    assert account is not None
    return ledger, account


@pytest.mark.parametrize(
    ("location", "kind", "usd_per_gib"),
    [("US-CENTRAL1", "region", 0.0), ("NAM4", "dual-region", 0.0), ("US-EAST1", "region", 0.02),
     ("US", "multi-region", 0.02), ("EUROPE-WEST4", "region", 0.05), ("ASIA-EAST1", "region", 0.08)],
)  # fmt: skip
def test_bytes_and_requests_cost_what_the_tables_say(location, kind, usd_per_gib):
    ledger, account = opened(location, Budget(), kind)
    ledger.count(READ, account)
    ledger.settle(ledger.reserve(account, GIB), GIB)
    reads = published_prices().find("class_b_per_1000", "standard", kind) / 1000
    assert account.usd == ledger.spent_usd == pytest.approx(usd_per_gib + reads)
    assert account.bytes_read == GIB
    assert account.requests[Kind.READ] == 1


def test_other_storage_classes_cost_their_retrieval():
    ledger, account = opened("US-CENTRAL1", Budget())
    ledger.settle(ledger.reserve(account, GIB, "NEARLINE"), GIB)
    assert ledger.spent_usd == pytest.approx(published_prices().find("retrieval_per_gib", "nearline", "region"))


def test_answers_under_way_count_as_spent():
    ledger, account = opened("US-EAST1", Budget(max_usd=0.03))
    first = ledger.reserve(account, GIB)
    with pytest.raises(OverBudgetError, match=r"the budget of \$0\.03 is spent: \$0\.02 so far, and this read"):
        ledger.reserve(account, GIB)
    assert ledger.is_spent
    ledger.settle(first, GIB // 4)  # the client closed the connection early
    ledger.reserve(account, GIB)


@given(st.lists(st.tuples(st.integers(0, GIB), st.integers(0, GIB)), max_size=30), st.floats(0, 0.5))
def test_no_order_of_reads_costs_more_than_the_budget(sizes, max_usd):
    ledger, account = opened("EUROPE-WEST4", Budget(max_usd=max_usd))
    taken = []
    for size, sent in sizes:
        try:
            taken.append((ledger.reserve(account, size), min(size, sent)))
        except OverBudgetError:
            break
    for reservation, sent in taken:
        ledger.settle(reservation, sent)
    assert ledger.spent_usd <= max_usd + 1e-9
    assert abs(ledger.reserved_usd) < 1e-9


def test_when_the_budget_is_spent_checkpoints_can_still_be_stored():
    ledger, account = opened("US-CENTRAL1", Budget(max_usd=0.0))
    assert "the budget of $0.00 is spent" in ledger.refusal(READ, account)
    assert "the budget" in ledger.refusal(StorageRequest(Kind.LIST, "data"), account)
    assert ledger.refusal(StorageRequest(Kind.WRITE, "data", "a"), account) == ""
    assert account.refused == 2


@pytest.mark.parametrize(
    ("location", "kind", "is_allowed"),
    [("US-CENTRAL1", "region", True), ("US-EAST1", "region", False), ("NAM4", "dual-region", True),
     ("US", "multi-region", False)],
)  # fmt: skip
def test_objects_are_read_from_allowed_places_only(location, kind, is_allowed):
    ledger, account = opened(location, Budget(allowed=("us-central1",)), kind)
    assert ledger.refusal(READ, account) == ("" if is_allowed else "only us-central1 may be read")
    assert ledger.refusal(StorageRequest(Kind.LOOK, "data"), account) == ""


def test_a_bucket_in_an_unknown_place_is_refused_under_a_limit_only():
    for budget, reason in ((Budget(max_usd=1), "its price is not known"), (Budget(allowed=("us",)), "only us may")):
        ledger = Ledger(budget, published_prices())
        account = ledger.account("data", unknown())
        assert account is not None
        assert reason in ledger.refusal(READ, account)
        assert not ledger.is_spent
    free = Ledger(Budget(), published_prices())
    assert free.refusal(READ, Account(unknown())) == ""


def test_the_number_of_buckets_is_bounded():
    ledger = Ledger(Budget(), published_prices())
    for number in range(MAX_BUCKETS):
        ledger.account(f"b{number}", unknown())
    assert ledger.account("one-more", unknown()) is None
    assert ledger.account("b1", unknown()) is not None


def test_allowed_places_are_regions_or_codes():
    assert allowed_places(["us-central1-a", "NAM4", "US", "us-central1"]) == ("us-central1", "nam4", "us")
    with pytest.raises(UsageError, match="'mars' is no zone or region"):
        allowed_places(["mars"])


def test_a_description_names_place_and_price():
    assert described(placed("EUROPE-WEST4"), "data") == (
        "gs://data in europe-west4, read from us-central1-a at $0.05 per GiB"
    )
    assert described(unknown(), "data") == "gs://data in an unknown place, read from us-central1-a at an unknown price"
