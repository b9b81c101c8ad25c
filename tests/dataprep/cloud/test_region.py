"""Every kind of bucket against every zone that has TPUs, each verdict and price written by hand from the price page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.cloud.prices import Prices, published_prices, table
from dataprep.cloud.region import (
    CACHED,
    CO_LOCATED,
    FREE,
    PAID,
    UNKNOWN,
    area_of,
    can_cache,
    check_place,
    describe,
    is_ai_zone,
    region_of,
    unknown_regions,
    verdict,
)
from dataprep.errors import UsageError
from dataprep.storage.gcs_location import BucketLocation

ZONES = (
    "us-central1-a us-central1-b us-central1-c us-central1-ai1a us-central2-b us-east1-d us-east5-a us-east5-b "
    "us-south1-a us-south1-ai1b us-west1-c us-west4-a europe-west4-a europe-west4-b asia-east1-c asia-northeast1-b "
    "southamerica-west1-a"
).split()
# For each zone in turn: `=` co-located, `f` free, or the price in cents per GiB.
EXPECTED = {
    # regions
    ("us-central1", "region", ()): "= = = = 2 2 2 2 2 2 2 2 5 5 8 8 14",
    ("us-central2", "region", ()): "2 2 2 2 = 2 2 2 2 2 2 2 5 5 8 8 14",
    ("us-east1", "region", ()): "2 2 2 2 2 = 2 2 2 2 2 2 5 5 8 8 14",
    ("us-east5", "region", ()): "2 2 2 2 2 2 = = 2 2 2 2 5 5 8 8 14",
    ("us-south1", "region", ()): "2 2 2 2 2 2 2 2 = = 2 2 5 5 8 8 14",
    ("us-west4", "region", ()): "2 2 2 2 2 2 2 2 2 2 2 = 5 5 8 8 14",
    ("us-east99", "region", ()): "2 2 2 2 2 2 2 2 2 2 2 2 5 5 8 8 14",
    ("northamerica-northeast1", "region", ()): "2 2 2 2 2 2 2 2 2 2 2 2 5 5 8 8 14",
    ("europe-west4", "region", ()): "5 5 5 5 5 5 5 5 5 5 5 5 = = 8 8 14",
    ("europe-north1", "region", ()): "5 5 5 5 5 5 5 5 5 5 5 5 2 2 8 8 14",
    ("asia-east1", "region", ()): "8 8 8 8 8 8 8 8 8 8 8 8 8 8 = 8 14",
    ("asia-northeast1", "region", ()): "8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 = 14",
    ("asia-southeast2", "region", ()): "10 10 10 10 10 10 10 10 10 10 10 10 10 10 10 10 14",
    ("australia-southeast1", "region", ()): "10 10 10 10 10 10 10 10 10 10 10 10 10 10 10 10 14",
    ("me-west1", "region", ()): "11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 14",
    ("africa-south1", "region", ()): "11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 14",
    ("southamerica-west1", "region", ()): "14 14 14 14 14 14 14 14 14 14 14 14 14 14 14 14 =",
    ("southamerica-east1", "region", ()): "14 14 14 14 14 14 14 14 14 14 14 14 14 14 14 14 14",
    # multi-regions: no region inside them reads them for nothing
    ("US", "multi-region", ()): "2 2 2 2 2 2 2 2 2 2 2 2 5 5 8 8 14",
    ("EU", "multi-region", ()): "5 5 5 5 5 5 5 5 5 5 5 5 2 2 8 8 14",
    ("ASIA", "multi-region", ()): "8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 14",
    # predefined dual-regions
    ("NAM4", "dual-region", ()): "f f f f 2 f 2 2 2 2 2 2 5 5 8 8 14",
    ("EUR4", "dual-region", ()): "5 5 5 5 5 5 5 5 5 5 5 5 f f 8 8 14",
    ("EUR5", "dual-region", ()): "5 5 5 5 5 5 5 5 5 5 5 5 2 2 8 8 14",
    ("EUR7", "dual-region", ()): "5 5 5 5 5 5 5 5 5 5 5 5 2 2 8 8 14",
    ("EUR8", "dual-region", ()): "5 5 5 5 5 5 5 5 5 5 5 5 2 2 8 8 14",
    ("ASIA1", "dual-region", ()): "8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 f 14",
    # configurable ones, which say US as the multi-region does
    ("US", "dual-region", ("US-CENTRAL1", "US-WEST1")): "f f f f 2 2 2 2 2 2 f 2 5 5 8 8 14",
    ("US", "dual-region", ("US-EAST5", "US-SOUTH1")): "2 2 2 2 2 2 f f f f 2 2 5 5 8 8 14",
    ("EU", "dual-region", ("EUROPE-WEST1", "EUROPE-WEST4")): "5 5 5 5 5 5 5 5 5 5 5 5 f f 8 8 14",
    ("ASIA", "dual-region", ("ASIA-EAST1", "ASIA-SOUTHEAST1")): "8 8 8 8 8 8 8 8 8 8 8 8 8 8 f 8 14",
    ("CA", "dual-region", ("NORTHAMERICA-NORTHEAST1", "NORTHAMERICA-NORTHEAST2")): "2 2 2 2 2 2 2 2 2 2 2 2 5 5 8 8 14",
    ("AU", "dual-region", ("AUSTRALIA-SOUTHEAST1", "AUSTRALIA-SOUTHEAST2")): (
        "10 10 10 10 10 10 10 10 10 10 10 10 10 10 10 10 14"
    ),
    ("DE", "dual-region", ("EUROPE-WEST3", "EUROPE-WEST10")): "5 5 5 5 5 5 5 5 5 5 5 5 2 2 8 8 14",
    # zonal ones: the zone itself, another zone of its region, elsewhere
    ("us-central1", "zone", ("us-central1-a",)): "= f f f 2 2 2 2 2 2 2 2 5 5 8 8 14",
    ("us-central1-a", "zone", ()): "= f f f 2 2 2 2 2 2 2 2 5 5 8 8 14",
    ("us-east5", "zone", ("us-east5-b",)): "2 2 2 2 2 2 f = 2 2 2 2 5 5 8 8 14",
    ("europe-west4", "zone", ("europe-west4-b",)): "5 5 5 5 5 5 5 5 5 5 5 5 f = 8 8 14",
}
KINDS = {"=": CO_LOCATED, "f": FREE}
PRICES = published_prices()


def bucket(location: str, location_type: str = "", data_locations: tuple[str, ...] = ()) -> BucketLocation:
    return BucketLocation(location=location, location_type=location_type, data_locations=data_locations)


def test_at_least_150_pairs_of_bucket_and_zone_are_judged():
    assert len(EXPECTED) * len(ZONES) >= 150
    assert all(len(cells.split()) == len(ZONES) for cells in EXPECTED.values())


@pytest.mark.parametrize("shape", EXPECTED, ids=lambda shape: "-".join([*shape[:2], *shape[2]]))
@pytest.mark.parametrize("case", [str.upper, str.lower])
def test_every_kind_of_bucket_is_judged_from_every_tpu_zone(shape, case):
    location, location_type, stated = shape
    asked = bucket(case(location), location_type, tuple(case(place) for place in stated))
    for zone, cell in zip(ZONES, EXPECTED[shape].split(), strict=True):
        found = verdict(asked, case(zone), PRICES)
        expected = (KINDS[cell], 0.0) if cell in KINDS else (PAID, int(cell) / 100)
        assert (found.kind, found.usd_per_gib) == expected, (zone, found)


@pytest.mark.parametrize("place", ["us-central1-a", "US-CENTRAL1"])
def test_a_region_is_as_good_as_a_zone_of_it(place):
    assert verdict(bucket("us-central1", "region"), place, PRICES).kind == CO_LOCATED
    assert verdict(bucket("NAM4", "dual-region"), place, PRICES).kind == FREE


UNSURE = {
    "the code alone": (bucket("US"), "us-central1-a", "dual-region or a multi-region: no locationType"),
    "a configurable one without its regions": (
        bucket("US", "dual-region"),
        "us-central1-a",
        "which regions the dual-region US has: customPlacementConfig.dataLocations is missing",
    ),
    "an unknown code": (bucket("EUR99", "dual-region"), "us-central1-a", "dual-region EUR99"),
    "no location": (bucket("", "region"), "us-central1-a", "location is missing"),
    "a bucket on Mars": (bucket("mars-north1", "region"), "us-central1-a", "no price is published"),
    "a reader on Mars": (bucket("US", "multi-region"), "mars-north1-a", "no price is published"),
    "no reader": (bucket("US", "multi-region"), None, "where the reader is; give `zone` or `tpu`"),
}


@pytest.mark.parametrize("name", UNSURE)
def test_an_unknown_verdict_names_what_is_missing(name):
    asked, where, text = UNSURE[name]
    found = verdict(asked, where, PRICES)
    assert (found.kind, found.usd_per_gib) == (UNKNOWN, None)
    assert text in found.reason


def test_a_region_that_is_not_known_is_still_its_own():
    assert verdict(bucket("mars-north1", "region"), "mars-north1-b", PRICES).kind == CO_LOCATED


def test_locations_without_a_type_are_classified_where_possible():
    assert verdict(bucket("EUROPE-WEST4"), "europe-west4-a", PRICES).kind == CO_LOCATED
    assert verdict(bucket("nam4"), "us-east1-d", PRICES).kind == FREE
    assert verdict(bucket("us", "", ("us-east1", "us-west1")), "us-west1-c", PRICES).kind == FREE


def test_a_verdict_on_an_unconfirmed_area_says_so():
    found = verdict(bucket("northamerica-south1", "region"), "us-central1-a", PRICES)
    assert found.kind == PAID
    assert "not confirmed" in found.reason


def test_a_price_for_one_pair_precedes_that_of_the_areas():
    prices = Prices({**PRICES.usd, ("transfer_per_gib", "us", "us-central1"): 0.001})
    assert verdict(bucket("US", "multi-region"), "us-central1-a", prices).usd_per_gib == 0.001
    assert verdict(bucket("US", "multi-region"), "us-east1-d", prices).usd_per_gib == 0.02
    free = Prices({**PRICES.usd, ("transfer_per_gib", "us-east1", "us-central1"): 0.0})
    assert verdict(bucket("us-east1", "region"), "us-central1-a", free).kind == FREE


def test_places_are_described_in_words():
    assert describe(bucket("nam4", "dual-region")) == "the dual-region NAM4 (us-central1, us-east1)"
    assert describe(bucket("us", "multi-region")) == "the multi-region US"
    assert describe(bucket("EUROPE-WEST4", "region")) == "europe-west4"
    assert describe(bucket("us-east1", "zone", ("us-east1-b",))) == "the zone us-east1-b"


@pytest.mark.parametrize(
    ("zone", "region"),
    [
        ("us-central1-ai1a", "us-central1"),
        ("EUROPE-WEST10-A", "europe-west10"),
        ("us-central1", "us-central1"),
        ("us", "us"),
    ],
)
def test_a_zone_without_its_last_part_is_its_region(zone, region):
    assert region_of(zone) == region


def test_a_misspelt_zone_is_refused_with_the_nearest():
    assert check_place(" US-Central1-A ") == "us-central1-a"
    with pytest.raises(UsageError, match=r"'us-central1a' is not a zone or region.*did you mean us-central1-a"):
        check_place("us-central1a")
    with pytest.raises(UsageError, match=r"expected e\.g\. us-central1-a"):
        check_place("--zone")


@pytest.mark.parametrize(
    ("places", "notes"),
    [
        (("us-central1-a", "EUROPE-WEST4", "us-central2-b", "me-west1"), []),
        (
            ("us-cental1", "us-central1-a"),
            ["us-cental1 is not a region that dataprep knows; did you mean us-central1?"],
        ),
        (("europe-west44-b",), ["europe-west44 is not a region that dataprep knows; did you mean europe-west4?"]),
        (("us-cental2-b", "us-cental2"), ["us-cental2 is not a region that dataprep knows; did you mean us-central2?"]),
        (("moon-crater7",), ["moon-crater7 is not a region that dataprep knows"]),
    ],
)
def test_a_region_that_no_table_has_is_noted_once_with_the_nearest(places, notes):
    assert unknown_regions(places) == notes


def test_the_regions_of_all_tables_are_known():
    rows = [*table("dual_regions.csv"), *table("ai_zones.csv"), *table("tpu_zones.csv")]
    places = [place for row in rows for place in row.get("regions", row.get("zone", "")).split()]
    places += [row["prefix"] for row in table("regions.csv") if row["prefix"][-1].isdigit()]
    assert len(places) > 50
    assert unknown_regions(places) == []


def test_areas_follow_from_the_first_part_of_a_name():
    found = {place: area_of(place) for place in ("us-east9", "europe-west12", "asia-southeast2", "me-central1", "x")}
    assert list(found.values()) == ["north-america", "europe", "indonesia", "middle-east", None]


PLACES = st.sampled_from([*ZONES, "US", "eu", "NAM4", "asia", "", "mars-north1-a", "us-central1"]) | st.text(
    max_size=12
)


@given(
    location=PLACES,
    kind=st.sampled_from(["", "region", "zone", "dual-region", "multi-region", "other"]),
    stated=st.lists(PLACES, max_size=3),
    where=PLACES | st.none(),
)
def test_any_location_gets_a_verdict_with_its_price(location, kind, stated, where):
    found = verdict(bucket(location, kind, tuple(stated)), where, PRICES)
    assert found.reason
    assert {CO_LOCATED: found.usd_per_gib == 0, FREE: found.usd_per_gib == 0, UNKNOWN: found.usd_per_gib is None}.get(
        found.kind, (found.usd_per_gib or 0) > 0
    )


@given(st.sampled_from(ZONES), st.sampled_from(ZONES))
def test_prices_between_regions_are_symmetric(one, other):
    prices = [
        verdict(bucket(region_of(of), "region"), to, PRICES).usd_per_gib for of, to in ((one, other), (other, one))
    ]
    assert prices[0] == prices[1]


@pytest.mark.parametrize(("location", "kind"), [("US", "multi-region"), ("US-CENTRAL1", "region")])
def test_a_cache_in_the_readers_zone_decides(location, kind):
    bucket = BucketLocation(location=location, location_type=kind, caches=("us-central1-a",))
    found = verdict(bucket, "US-central1-a", published_prices())
    assert (found.kind, found.usd_per_gib, found.is_free) == (CACHED, 0.0006, False)
    assert found.reason.startswith("us-central1-a has a Rapid Cache of ")
    assert verdict(bucket, "us-central1-b", published_prices()).kind != CACHED
    assert verdict(bucket, "us-central1-a", Prices({})).kind != CACHED, "a cache without a price is not counted"


@pytest.mark.parametrize(
    ("location", "kind", "place", "possible"),
    [
        ("US", "multi-region", "us-central1-a", None),
        ("US", "multi-region", "europe-west4-a", False),
        ("NAM4", "", "us-east1-d", True),
        ("NAM4", "", "us-east5-a", False),
        ("US-CENTRAL1", "region", "us-central1-ai1a", True),
        ("US-CENTRAL1", "region", "us-central1", False),
        ("us-central1-a", "zone", "us-central1-a", False),
    ],
)
def test_a_cache_lies_in_a_zone_of_the_bucket(location, kind, place, possible):
    assert can_cache(BucketLocation(location=location, location_type=kind), place) is possible


def test_ai_zones_are_known_by_their_names():
    assert all(is_ai_zone(row["zone"]) and not is_ai_zone(row["parent"]) for row in table("ai_zones.csv"))
    assert all(region_of(row["zone"]) == region_of(row["parent"]) for row in table("ai_zones.csv"))
    assert [zone for zone in ZONES if is_ai_zone(zone)] == ["us-central1-ai1a", "us-south1-ai1b"]
