"""Costs against sums made by hand from the price page: of one pass, of copies, and of reading ImageNet ninety times."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.cloud.cost import (
    CACHE,
    COPY,
    DIRECT,
    GIB,
    Amount,
    Cost,
    Offer,
    Places,
    Reading,
    copy_commands,
    copy_verdict,
    copying_cost,
    epochs_to_pay,
    is_loose,
    offers,
    reading_cost,
    storage_notes,
    writing_cost,
)
from dataprep.cloud.prices import Prices, published_prices
from dataprep.cloud.region import CO_LOCATED, PAID, UNKNOWN, verdict
from dataprep.storage.gcs_location import BucketLocation

PRICES = published_prices()


def bucket(location: str, kind: str = "region", *places: str, **more: object) -> BucketLocation:
    return BucketLocation(location=location, location_type=kind, data_locations=places, **more)


EUROPE = bucket("EUROPE-WEST4", storage_class="STANDARD")
US = bucket("US", "multi-region", storage_class="STANDARD")
MARS = bucket("mars-north1")
HERE = "us-central1-a"
IMAGENET = Amount(storage_class="standard", num_bytes=147_897_477_120, objects=551, gets=70_524)


def amount(num_bytes: int, storage_class: str = "standard", *, objects: int = 1, gets: int = 0) -> Amount:
    return Amount(storage_class=storage_class, num_bytes=num_bytes, objects=objects, gets=gets)


def read_usd(bucket: BucketLocation, where: str, *amounts: Amount) -> float:
    cost = reading_cost(amounts, bucket, verdict(bucket, where, PRICES), PRICES)
    assert cost is not None
    return cost.total


def offered(bucket: BucketLocation, amount: Amount, where: str = HERE, **more: object) -> dict[str, Offer]:
    places = Places(**{"bucket": bucket, "where": where, "prices": PRICES, **more})
    return {each.kind: each for each in offers(Reading(amounts=(amount,)), places)}


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
    assert read_usd(bucket, where, amount(IMAGENET.num_bytes)) == pytest.approx(usd, abs=0.005)


@pytest.mark.parametrize(
    ("storage_class", "per_gib", "per_1000"),
    [("standard", 0, 0.0004), ("nearline", 0.01, 0.001), ("coldline", 0.02, 0.01), ("archive", 0.05, 0.05)],
)
def test_retrieval_and_requests_cost_as_the_class_of_the_object(storage_class, per_gib, per_1000):
    here = "europe-west4-a"
    assert read_usd(EUROPE, here, amount(3 * GIB, storage_class)) == pytest.approx(3 * per_gib)
    assert read_usd(EUROPE, here, amount(0, storage_class, gets=5000)) == pytest.approx(5 * per_1000)


def test_autoclass_has_no_retrieval_and_requests_of_standard():
    auto = bucket("US-CENTRAL1", autoclass=True)
    assert read_usd(auto, HERE, amount(GIB, "archive", gets=1000)) == pytest.approx(0.0004)


def test_a_zonal_bucket_is_paid_by_the_gib_even_beside_the_reader():
    zonal = bucket("us-east1", "zone", "us-east1-b")
    assert read_usd(zonal, "us-east1-b", amount(100 * GIB, "rapid", gets=1000)) == pytest.approx(0.06 + 0.0002)


def test_a_path_without_a_price_has_no_cost():
    found = verdict(MARS, HERE, PRICES)
    assert reading_cost([amount(GIB)], MARS, found, PRICES) is None
    assert offered(MARS, amount(GIB)) == {}


def test_writing_pays_for_replication_where_a_bucket_has_several_regions():
    assert writing_cost(1000, 0, EUROPE, GIB, PRICES).total == pytest.approx(0.005)
    assert writing_cost(1000, 1000, US, 10 * GIB, PRICES).total == pytest.approx(0.01 + 0.0004 + 0.2)
    assert writing_cost(0, 0, bucket("ASIA1", "dual-region"), GIB, PRICES).total == pytest.approx(0.08)


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


@pytest.mark.parametrize(
    ("once", "far", "near", "epochs"), [(10, 5, 0, 2), (10, 5, 1, 3), (1, 5, 0, 1), (1, 1, 1, None)]
)
def test_a_copy_is_paid_back_after_the_epochs_that_save_its_cost(once, far, near, epochs):
    copy, afar, beside = (Cost(transfer=value, retrieval=0.0, operations=0.0) for value in (once, far, near))
    assert epochs_to_pay(copy, far=afar, near=beside) == epochs


def by_kind(bucket=US, where=HERE, amount=IMAGENET, **changed):
    return offered(bucket, amount, where, **{"passes": 90, "months": 1, **changed})


def filled(cached, *, passes):
    """What a cache costs whose filling is not counted, as in the published figure: every pass is a hit."""
    return cached.ingest + cached.kept + cached.read.total * passes / (passes - 1)


def test_imagenet_for_90_epochs_costs_what_is_published():
    found = by_kind()
    assert found[DIRECT].read.transfer == pytest.approx(248, abs=0.1)
    assert filled(found[CACHE], passes=90) == pytest.approx(22, abs=0.5)
    assert found[COPY].once.total + found[COPY].kept == pytest.approx(5.5, abs=0.02)


def test_the_parts_of_a_cache_are_those_of_the_price_page():
    gib, cached = IMAGENET.num_bytes / 2**30, by_kind()[CACHE]
    assert cached.place == HERE
    assert cached.read.transfer == pytest.approx(89 * gib * 0.0006)
    assert cached.read.operations == pytest.approx(89 * 70.524 * 0.0002)
    assert cached.kept == pytest.approx(gib * 0.0001233 * 730)
    assert cached.ingest == pytest.approx(gib * 0.0032)
    assert cached.once.transfer == pytest.approx(gib * 0.02), "it is filled by reading the bucket once"


def test_one_pass_through_an_empty_cache_is_no_hit():
    found = by_kind(passes=1, months=0)
    assert found[CACHE].read.total == 0
    assert found[CACHE].total == found[DIRECT].total + found[CACHE].ingest


def test_a_cache_pays_no_retrieval_of_what_it_holds():
    cold = bucket("US", "multi-region", storage_class="COLDLINE")
    found = by_kind(cold, amount=Amount(storage_class="coldline", num_bytes=2**30, objects=1, gets=1))
    assert found[DIRECT].read.retrieval == pytest.approx(90 * 0.02)
    assert found[CACHE].read.retrieval == 0
    assert found[CACHE].once.retrieval == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("bucket", "where", "kinds"),
    [
        (US, HERE, {DIRECT, CACHE, COPY}),
        (US, "us-central1", {DIRECT, COPY}),
        (US, "europe-west4-a", {DIRECT, COPY}),
        (bucket("US-CENTRAL1"), "us-central1-ai1a", {DIRECT, CACHE}),
        (EUROPE, HERE, {DIRECT, COPY}),
        (MARS, HERE, set()),
        (bucket("us-central1", "zone", "us-central1-b"), HERE, {DIRECT, COPY}),
    ],
)
def test_a_cache_is_possible_only_in_a_zone_of_the_buckets_location(bucket, where, kinds):
    found = by_kind(bucket, where)
    assert set(found) == kinds


def test_without_prices_of_caches_there_is_no_such_way():
    without = Prices({key: usd for key, usd in PRICES.usd.items() if not key[0].startswith("cache_")})
    assert set(by_kind(prices=without)) == {DIRECT, COPY}


@settings(max_examples=30)
@given(st.integers(0, 10**15), st.integers(1, 10**9), st.integers(1, 1000), st.floats(0, 100))
def test_costs_grow_with_passes_and_months(num_bytes, gets, passes, months):
    amount = Amount(storage_class="standard", num_bytes=num_bytes, objects=1, gets=gets)
    less = by_kind(passes=passes, months=months, amount=amount)
    more = by_kind(passes=passes + 1, months=months + 1, amount=amount)
    for kind, offer in less.items():
        assert offer.total <= more[kind].total


def test_each_offer_is_one_line_with_its_parts():
    assert [offer.line(months=2.5) for offer in by_kind().values()] == [
        "from us: $250.47 ($247.93 to read, $2.54 for requests)",
        "a Rapid Cache in us-central1-a: at most $24.23 ($2.78 for the first reading, $0.44 to write it into the "
        "cache, $12.40 to keep it for 2.5 months, then $7.36 to read, $1.26 for requests)",
        "a copy in us-central1: $8.05 ($2.76 to make it, $2.75 to keep it for 2.5 months, $0.00 to read, "
        "$2.54 for requests)",
    ]


def test_storage_elsewhere_is_noted_to_have_the_price_of_us_central1():
    assert storage_notes(by_kind().values()) == []
    far = by_kind(where="us-west4-a")
    assert storage_notes(far.values()) == ["storage in us-west4 is priced as in us-central1"]
    assert storage_notes([far[DIRECT]]) == []


def test_the_document_has_all_parts_and_sums():
    for offer in by_kind().values():
        document = json.loads(json.dumps(offer.document()))
        assert document["total"] == offer.total
        assert document["read"]["total"] == offer.read.total
        assert document["once"]["total"] == offer.once.total


def test_objects_smaller_than_a_read_are_loose():
    assert is_loose(2**21 - 1, 1)
    assert not is_loose(2**21, 1)


def test_a_copy_is_made_by_the_command_for_its_kind_of_data():
    commands = {
        kind: copy_commands("gs://b/x/", HERE, Reading(amounts=(), is_dataset=kind), once_usd=1.0)
        for kind in (True, False, None)
    }
    assert commands[True][1] == "dataprep replicate gs://b/x/ --to gs://NEW-BUCKET/x"
    assert commands[False][1] == "gcloud storage cp -r gs://b/x/ gs://NEW-BUCKET/"
    assert commands[None][1].endswith(" --max-usd 2     # if dataprep wrote the data; refused above $2")


EU1, US1, ASIA1, EU = bucket("europe-west1"), bucket("US-CENTRAL1"), bucket("ASIA-EAST1"), bucket("EU", "multi-region")
NAM4 = bucket("NAM4", "dual-region")
OWN = bucket("US", "dual-region", "US-CENTRAL1", "US-WEST1")


@pytest.mark.parametrize(
    ("source", "target", "usd"),
    [
        (EUROPE, EUROPE, 0),
        (EUROPE, bucket("europe-west4"), 0),
        (EUROPE, EU1, 0.02),
        (EUROPE, US1, 0.05),
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
        (NAM4, EUROPE, 0.05),
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
    plain = copying_cost(amounts, EUROPE, US1, PRICES)
    assert (plain.transfer, plain.retrieval) == pytest.approx((11 * 0.05, 0.01))
    assert plain.operations == pytest.approx(0.110 * 0.005)
    dual = copying_cost(amounts, EUROPE, NAM4, PRICES)
    assert dual.transfer == pytest.approx(11 * (0.05 + 0.02))
    assert dual.operations == pytest.approx(0.110 * 0.01)
    auto = copying_cost(amounts, bucket("EUROPE-WEST4", autoclass=True), US1, PRICES)
    assert auto.retrieval == 0
