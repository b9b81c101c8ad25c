"""The document of a comparison."""

import json

from loaders.bench.table import SCHEMA_VERSION, to_document
from tests.support.findings import bench_table


def test_a_comparison_becomes_json_with_every_row(tmp_path):
    table = bench_table()
    document = json.loads(json.dumps(to_document(table)))
    assert document["schema_version"] == SCHEMA_VERSION
    assert [row["loader"] for row in document["sections"][0]["rows"]] == [row.loader for row in table.sections[0].rows]
