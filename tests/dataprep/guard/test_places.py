"""Places of buckets in the emulator, and copies of what is in them."""

from __future__ import annotations

import asyncio
import json

import pytest

from dataprep.cloud.prices import published_prices
from dataprep.cloud.region import FREE, PAID, UNKNOWN
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.replicas import REPLICAS
from dataprep.guard.places import Places
from dataprep.storage import open_storage
from tests.support.guarded import HERE


@pytest.fixture
def places(placed) -> Places:
    return Places(HERE, published_prices())


def found_in(places: Places, *buckets: str):
    async def find():
        return await asyncio.gather(*(places.find(bucket) for bucket in buckets))

    return asyncio.run(find())


def test_many_readers_ask_for_a_place_once(places, placed):
    before = placed.stats()["requests"]
    found = found_in(places, *["guard-far"] * 20)
    assert {each.verdict.kind for each in found} == {PAID}
    assert placed.stats()["requests"] - before <= 1


@pytest.mark.parametrize(("bucket", "kind"), [("guard-dual", FREE), ("guard-hidden", UNKNOWN), ("no-such", UNKNOWN)])
def test_a_place_that_cannot_be_seen_is_unknown(places, bucket, kind):
    assert found_in(places, bucket)[0].verdict.kind == kind


def test_the_nearest_copy_of_the_dataset_around_an_object_is_named(places):
    here = {"url": "gs://guard-region/copy", "location": "US-CENTRAL1", "location_type": "region"}
    there = {"url": "gs://guard-far/set", "location": "EUROPE-WEST4", "location_type": "region"}
    for url in (here["url"], there["url"]):
        open_storage(url).create(MANIFEST, b"{}")
    open_storage(there["url"]).create(REPLICAS, json.dumps({"version": 1, "replicas": [here, there]}).encode())

    async def nearest(name: str) -> str:
        return await places.nearest_copy(await places.find("guard-far"), name)

    expected = "nearest copy: gs://guard-region/copy in us-central1, $0 per GiB"
    assert asyncio.run(nearest("set/train/00000.tar")) == expected
    assert asyncio.run(nearest("other/00000.tar")).startswith("no copy is listed; dataprep replicate gs://guard-far/")
