"""Places in `plan-input`: how a bucket's location is written, and what a bucket or a cache can serve."""

from __future__ import annotations

import pytest

from dataprep.cloud.prices import published_prices
from dataprep.cloud.region import placement
from dataprep.cloud.ways import Use
from dataprep.commands.plan_places import cache_gbps, first_requests_per_s, parse_location, priced_places
from dataprep.errors import UsageError

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
