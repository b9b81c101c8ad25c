"""Places in `plan-input`: how a bucket's location is written, and what a bucket or a cache can serve."""

from __future__ import annotations

import pytest

from dataprep.cloud.prices import published_prices
from dataprep.cloud.region import placement
from dataprep.cloud.ways import Use
from dataprep.commands.plan_places import cache_gbps, first_requests_per_s, parse_location, priced_places
from dataprep.errors import UsageError
from dataprep.messages import usd

TIB = 2**40


@pytest.mark.parametrize(
    ("text", "kind", "regions"),
    [
        ("US", "multi-region", ()),
        ("nam4", "dual-region", ("us-central1", "us-east1")),
        ("us-central1+us-west1", "dual-region", ("us-central1", "us-west1")),
        ("europe-west4", "region", ("europe-west4",)),
        ("us-central1-a", "zone", ("us-central1",)),
    ],
)
def test_every_kind_of_location_can_be_written(text, kind, regions):
    assert placement(parse_location(text)) == (kind, regions)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mars", r"expected a multi-region \(US, EU, ASIA\), a dual-region \(ASIA1, EUR4, EUR5, EUR7, EUR8, NAM4, or"),
        ("us-central1a", "or a region or zone; did you mean us-central1-a?"),
        ("us-central1+mars", "is no zone or region"),
        ("us-central1+us-central1", "a dual-region is two regions of an area"),
        ("us-central1+europe-west4", "a dual-region is two regions of an area"),
        ("us-central1-a+us-west1", "a dual-region is two regions of an area"),
    ],
)
def test_other_texts_are_refused(text, said):
    with pytest.raises(UsageError, match=said):
        parse_location(text)


def test_a_hierarchical_namespace_serves_more_requests_for_a_higher_price():
    assert (first_requests_per_s(hns=False), first_requests_per_s(hns=True)) == (5_000, 40_000)
    flat, deep = (
        priced_places(bucket, "us-central1-a", 2**40, Use(passes=1), published_prices()).ways[0]
        for bucket in (parse_location("us-central1", hns=hns) for hns in (False, True))
    )
    assert deep.read.operations == pytest.approx(1.3 * flat.read.operations)


def test_the_bandwidth_of_a_cache_grows_with_what_it_holds():
    assert cache_gbps(TIB) == 100
    assert cache_gbps(10 * TIB) == 200


def test_the_document_says_with_what_the_prices_were_calculated():
    document = priced_places(
        parse_location("US"), "us-central1-a", 2**30, Use(passes=2, months=3), published_prices()
    ).document()
    assert (document["verdict"], document["passes"], document["months"]) == ("paid", 2, 3)
    assert document["prices_as_of"]["cache_prices.csv"] == "2026-09-20"


@pytest.mark.parametrize(
    ("place", "zone", "passes", "objects", "is_packed"),
    [
        ("us-central1", "europe-west4", 90, 1_281_167, True),
        ("US", "europe-west4", 90, 1_281_167, True),
        ("us-central1", "us-central1-a", 90, 1_281_167, True),
        ("us-central1", "us-central1-a", 1, 1_281_167, False),  # the packing reads each picture, too
        ("us-central1", "europe-west4", 1, 1_281_167, False),
        ("us-central1", "europe-west4", 90, 1000, False),
        ("us-central1", "europe-west4", 90, None, False),
    ],
)
def test_loose_pictures_are_priced_in_shards_where_that_saves_half(place, zone, passes, objects, is_packed):
    bucket, use, prices = parse_location(place), Use(passes=passes), published_prices()
    loose = priced_places(bucket, zone, 147_897_870_000, use, prices, objects=objects)
    shards = priced_places(bucket, zone, 147_897_870_000, use, prices)
    assert (loose.packed is not None) == is_packed == bool(loose.pack_line) == bool(loose.document()["packed"])
    if loose.packed is not None:
        cheapest, in_shards = (min(way.total for way in each.ways) for each in (loose, shards))
        assert loose.packed.total == pytest.approx(in_shards + objects * 0.0004 / 1000)
        assert loose.packed.total <= cheapest / 2
        assert f"cost {usd(loose.packed.total)} in place of {usd(cheapest)}: $0.51 for the requests" in loose.pack_line
        assert ("multi-region" in loose.pack_line) == (place == "US")
