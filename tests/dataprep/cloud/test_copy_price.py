"""Copies between every kind of bucket: what they cost, and when they have paid."""

import pytest

from dataprep.cloud.cost import GIB, Amount, copy_verdict, copying_cost
from dataprep.cloud.prices import published_prices
from dataprep.cloud.region import CO_LOCATED, PAID, UNKNOWN
from dataprep.storage.gcs_location import BucketLocation

PRICES = published_prices()


def bucket(location: str, kind: str = "region", *places: str, **more: object) -> BucketLocation:
    return BucketLocation(location=location, location_type=kind, data_locations=places, **more)


EU4, EU1, US1, ASIA1 = bucket("EUROPE-WEST4"), bucket("europe-west1"), bucket("US-CENTRAL1"), bucket("ASIA-EAST1")
US, EU = bucket("US", "multi-region"), bucket("EU", "multi-region")
NAM4 = bucket("NAM4", "dual-region")
OWN = bucket("US", "dual-region", "US-CENTRAL1", "US-WEST1")
MARS = bucket("mars-north1")


@pytest.mark.parametrize(
    ("source", "target", "usd"),
    [
        (EU4, EU4, 0),
        (EU4, bucket("europe-west4"), 0),
        (EU4, EU1, 0.02),
        (EU4, US1, 0.05),
        (US1, ASIA1, 0.08),
        (US, US, 0),
        (US, US1, 0.02),
        (US1, US, 0.02),
        (US, EU, 0.05),
        (NAM4, NAM4, 0),
        (NAM4, US1, 0.02),  # out of a dual-region, into a region of its own
        (US1, NAM4, 0.02),
        (OWN, US, 0.02),  # both say US
        (OWN, OWN, 0),
        (NAM4, EU4, 0.05),
    ],
)
def test_a_copy_between_two_buckets_has_the_published_price(source, target, usd):
    found = copy_verdict(source, target, PRICES)
    assert (found.kind, found.usd_per_gib) == (PAID if usd else CO_LOCATED, usd)


def test_an_unknown_region_has_no_price():
    amounts = [Amount(storage_class="standard", num_bytes=GIB, objects=1, gets=0)]
    for pair in ((MARS, US1), (US1, MARS)):
        assert copy_verdict(*pair, PRICES).kind == UNKNOWN
        assert copying_cost(amounts, *pair, PRICES) is None


def test_the_price_of_a_copy_is_transfer_retrieval_inserts_and_replication():
    amounts = [
        Amount(storage_class="standard", num_bytes=10 * GIB, objects=100, gets=0),
        Amount(storage_class="nearline", num_bytes=GIB, objects=10, gets=0),
    ]
    plain = copying_cost(amounts, EU4, US1, PRICES)
    assert (plain.transfer, plain.retrieval) == pytest.approx((11 * 0.05, 0.01))
    assert plain.operations == pytest.approx(0.110 * 0.005)
    dual = copying_cost(amounts, EU4, NAM4, PRICES)
    assert dual.transfer == pytest.approx(11 * (0.05 + 0.02))
    assert dual.operations == pytest.approx(0.110 * 0.01)
    auto = copying_cost(amounts, bucket("EUROPE-WEST4", autoclass=True), US1, PRICES)
    assert auto.retrieval == 0
