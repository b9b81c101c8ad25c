"""Costs against sums made by hand from the price page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.cloud.cost import GIB, Amount, Cost, epochs_to_pay, reading_cost, writing_cost
from dataprep.cloud.offers import COPY, DIRECT, Offer, Places, Reading, offers
from dataprep.cloud.prices import published_prices
from dataprep.cloud.region import verdict
from dataprep.storage.gcs_location import BucketLocation

ILSVRC2012_TRAIN_BYTES = 147_897_477_120
PRICES = published_prices()
EUROPE = BucketLocation(location="EUROPE-WEST4", location_type="region", storage_class="STANDARD")
US = BucketLocation(location="US", location_type="multi-region", storage_class="STANDARD")


def amount(num_bytes: int, storage_class: str = "standard", *, objects: int = 1, gets: int = 0) -> Amount:
    return Amount(storage_class=storage_class, num_bytes=num_bytes, objects=objects, gets=gets)


def read_usd(bucket: BucketLocation, where: str, *amounts: Amount) -> float:
    cost = reading_cost(amounts, bucket, verdict(bucket, where, PRICES), PRICES)
    assert cost is not None
    return cost.total


def offered(bucket: BucketLocation, *amounts: Amount) -> dict[str, Offer]:
    places = Places(bucket=bucket, where="us-central1-a", prices=PRICES)
    return {each.kind: each for each in offers(Reading(amounts=amounts), places)}


def epochs_of(found: dict[str, Offer]) -> int | None:
    return epochs_to_pay(found[COPY].once, far=found[DIRECT].read, near=found[COPY].read)


@pytest.mark.parametrize(
    ("bucket", "where", "usd"),
    [
        (US, "us-central1-a", 2.75),
        (EUROPE, "us-central1-a", 6.89),
        (EUROPE, "asia-northeast1-b", 11.02),
        (EUROPE, "europe-west4-a", 0.00),
    ],
)
def test_one_pass_over_imagenets_tar_costs_the_published_price(bucket, where, usd):
    assert read_usd(bucket, where, amount(ILSVRC2012_TRAIN_BYTES)) == pytest.approx(usd, abs=0.005)


@pytest.mark.parametrize(
    ("storage_class", "per_gib", "per_1000"),
    [("standard", 0, 0.0004), ("nearline", 0.01, 0.001), ("coldline", 0.02, 0.01), ("archive", 0.05, 0.05)],
)
def test_retrieval_and_requests_cost_as_the_class_of_the_object(storage_class, per_gib, per_1000):
    here = "europe-west4-a"
    assert read_usd(EUROPE, here, amount(3 * GIB, storage_class)) == pytest.approx(3 * per_gib)
    assert read_usd(EUROPE, here, amount(0, storage_class, gets=5000)) == pytest.approx(5 * per_1000)


def test_autoclass_has_no_retrieval_and_requests_of_standard():
    bucket = BucketLocation(location="US-CENTRAL1", location_type="region", autoclass=True)
    assert read_usd(bucket, "us-central1-a", amount(GIB, "archive", gets=1000)) == pytest.approx(0.0004)


def test_a_zonal_bucket_is_paid_by_the_gib_even_beside_the_reader():
    bucket = BucketLocation(location="us-east1", location_type="zone", data_locations=("us-east1-b",))
    assert read_usd(bucket, "us-east1-b", amount(100 * GIB, "rapid", gets=1000)) == pytest.approx(0.06 + 0.0002)


def test_a_path_without_a_price_has_no_cost():
    mars = BucketLocation(location="mars-north1", location_type="region")
    found = verdict(mars, "us-central1-a", PRICES)
    assert reading_cost([amount(GIB)], mars, found, PRICES) is None
    assert offered(mars, amount(GIB)) == {}


def test_writing_pays_for_replication_where_a_bucket_has_several_regions():
    assert writing_cost(1000, 0, EUROPE, GIB, PRICES).total == pytest.approx(0.005)
    assert writing_cost(1000, 1000, US, 10 * GIB, PRICES).total == pytest.approx(0.01 + 0.0004 + 0.2)
    asia = BucketLocation(location="ASIA1", location_type="dual-region")
    assert writing_cost(0, 0, asia, GIB, PRICES).total == pytest.approx(0.08)


@pytest.mark.parametrize(("storage_class", "epochs"), [("standard", 2), ("archive", 2)])
def test_the_cost_of_a_copy_is_recovered_from_the_second_epoch_on(storage_class, epochs):
    """A copy reads everything once; so does the first epoch, which has no objects to write."""
    found = offered(EUROPE, amount(100 * GIB, storage_class, objects=400))
    retrieval = 5.0 if storage_class == "archive" else 0.0
    assert found[COPY].once.total == pytest.approx(5.0 + retrieval + 0.4 * 0.005)
    assert found[COPY].kept == pytest.approx(2.0)
    assert epochs_of(found) == epochs


def test_the_cost_of_copying_many_small_objects_is_recovered_later():
    found = offered(US, amount(GIB, objects=1_281_167, gets=1_281_167))
    assert found[COPY].once.total == pytest.approx(0.02 + 1281.167 * 0.005)
    assert epochs_of(found) == pytest.approx(found[COPY].once.total / 0.02, abs=1)


@given(st.integers(0, 10**15), st.integers(0, 10**9), st.integers(1, 1000))
def test_cost_grows_with_what_is_read(num_bytes, gets, times):
    found = verdict(US, "us-central1-a", PRICES)
    cost = reading_cost([amount(num_bytes, "coldline", gets=gets)], US, found, PRICES)
    together = reading_cost([amount(num_bytes, "coldline", gets=gets)] * times, US, found, PRICES)
    assert together.total == pytest.approx(cost.times(times).total, rel=1e-9, abs=1e-12)
    assert min(cost.transfer, cost.retrieval, cost.operations) >= 0


# Prices of a file


@pytest.mark.parametrize(
    ("once", "far", "near", "epochs"), [(10, 5, 0, 2), (10, 5, 1, 3), (1, 5, 0, 1), (1, 1, 1, None)]
)
def test_a_copy_is_paid_back_after_the_epochs_that_save_its_cost(once, far, near, epochs):
    copy, afar, beside = (Cost(transfer=value, retrieval=0.0, operations=0.0) for value in (once, far, near))
    assert epochs_to_pay(copy, far=afar, near=beside) == epochs
