"""Ways to read ImageNet's archive ninety times: the published figures, and what holds for all amounts."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.cloud.cost import Amount
from dataprep.cloud.offers import CACHE, COPY, DIRECT, Places, Reading, copy_commands, is_loose, offers, storage_notes
from dataprep.cloud.prices import Prices, published_prices
from dataprep.storage.gcs_location import BucketLocation

PRICES = published_prices()
US = BucketLocation(location="US", location_type="multi-region", storage_class="STANDARD")
HERE = "us-central1-a"
IMAGENET = Amount(storage_class="standard", num_bytes=147_897_477_120, objects=551, gets=70_524)


def by_kind(bucket=US, where=HERE, amount=IMAGENET, prices=PRICES, passes=90, months=1):
    places = Places(bucket=bucket, where=where, prices=prices, passes=passes, months=months)
    return {offer.kind: offer for offer in offers(Reading(amounts=(amount,)), places)}


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
    cold = BucketLocation(location="US", location_type="multi-region", storage_class="COLDLINE")
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
        (BucketLocation(location="US-CENTRAL1", location_type="region"), "us-central1-ai1a", {DIRECT, CACHE}),
        (BucketLocation(location="EUROPE-WEST4", location_type="region"), HERE, {DIRECT, COPY}),
        (BucketLocation(location="mars-north1", location_type="region"), HERE, set()),
        (
            BucketLocation(location="us-central1", location_type="zone", data_locations=("us-central1-b",)),
            HERE,
            {DIRECT, COPY},
        ),
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
