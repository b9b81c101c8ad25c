"""Ways to read data, as text and JSON."""

from __future__ import annotations

import json

from dataprep.cloud.cost import Amount
from dataprep.cloud.prices import published_prices
from dataprep.cloud.ways import Use, ways
from dataprep.commands.region_ways import storage_notes, way_document, way_line
from dataprep.storage.gcs_location import BucketLocation

US = BucketLocation(location="US", location_type="multi-region")
IMAGENET = Amount(storage_class="standard", num_bytes=147_897_477_120, objects=551, gets=70_524)
WAYS = ways([IMAGENET], US, "us-central1-a", published_prices(), Use(passes=90))


def test_each_way_is_one_line_with_its_parts():
    assert [way_line(way, months=2.5) for way in WAYS] == [
        "from us: $250.47 ($247.93 to read, $2.54 for requests)",
        "a Rapid Cache in us-central1-a: at most $24.23 ($2.78 for the first reading, $0.44 to write it into the "
        "cache, $12.40 to keep it for 2.5 months, then $7.36 to read, $1.26 for requests)",
        "a copy in us-central1: $8.05 ($2.76 to make it, $2.75 to keep it for 2.5 months, $0.00 to read, "
        "$2.54 for requests)",
    ]


def test_storage_elsewhere_is_noted_to_have_the_price_of_us_central1():
    assert storage_notes(WAYS) == []
    far = ways([IMAGENET], US, "us-west4-a", published_prices(), Use(passes=90))
    assert storage_notes(far) == ["keeping data in us-west4 is priced as in us-central1"]
    assert storage_notes(far[:1]) == []


def test_the_document_has_all_parts_and_sums():
    for way in WAYS:
        document = json.loads(json.dumps(way_document(way)))
        assert document["total"] == way.total
        assert document["read"]["total"] == way.read.total
        assert document["once"]["total"] == way.once.total
