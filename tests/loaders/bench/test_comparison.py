"""Two tables side by side: verdicts by all rounds, and nothing that differed is silent."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from loaders.bench.comparison import compare, read_table, verdict
from loaders.bench.table import to_document
from tests.support.findings import bench_table

rounds = st.lists(st.floats(1, 1e6), min_size=1, max_size=7)


def row_of(rates, row):
    ordered = sorted(rates)
    return replace(
        row,
        images_per_s=ordered[len(ordered) // 2],
        slowest_images_per_s=ordered[0],
        fastest_images_per_s=ordered[-1],
        rounds_images_per_s=tuple(rates),
    )


@given(rounds, rounds)
def test_faster_is_every_round_against_every_round_and_the_ways_are_mirrored(before, now):
    row = bench_table().sections[0].rows[0]
    old, new = row_of(before, row), row_of(now, row)
    mirrored = {"faster": "slower", "slower": "faster", "within the spread": "within the spread"}
    assert verdict(new, old) == mirrored[verdict(old, new)]
    assert (verdict(old, new) == "faster") == all(a > b for a in now for b in before)
    assert verdict(old, old) == "within the spread"


def test_a_table_beside_itself_has_ratios_of_one_and_no_difference():
    table = bench_table()
    found = compare(table, table)
    assert found.differences == found.unmatched == ()
    assert len(found.rows) == sum(len(section.rows) for section in table.sections)
    assert {row.ratio for row in found.rows} == {1.0}
    assert {row.verdict for row in found.rows} == {"within the spread"}


def test_everything_that_differs_is_said():
    table = bench_table()
    section = table.sections[0]
    machine = {**table.machine, "cores": 96, "codecs": {**table.machine["codecs"], "pillow": "0.1"}}
    other = replace(
        table,
        sections=(replace(section, url="gs://other/place", rows=section.rows[:1]),),
        settings={**table.settings, "image_size": 999},
        machine=machine,
    )
    found = compare(other, replace(table, sections=(section,)))
    said = "\n".join(found.differences)
    for text in ("machine cores: 96 before", "version of pillow: 0.1 before", "setting image_size: 999 before"):
        assert text in said
    assert f"data url: gs://other/place before, {section.url} now" in said
    assert len(found.rows) == 1
    assert len(found.unmatched) == len(section.rows) - 1
    assert all(line.endswith("only now") for line in found.unmatched)


def test_what_is_written_is_read_back(tmp_path):
    (tmp_path / "bench.json").write_text(json.dumps(to_document(bench_table()) | {"comparison": {}}))
    assert read_table(tmp_path / "bench.json") == bench_table()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "give a file that dataprep bench --json wrote"),
        ('{"verdict": ""}', "schema_version"),
        ('{"schema_version": 7}', "schema_version 7, expected 1; measure it again"),
        ('{"schema_version": 1, "limit": "compute"}', "give a file that dataprep bench --json wrote"),
        (None, "No such file or directory; give a file"),
    ],
)
def test_other_files_are_refused_with_one_line(tmp_path, text, message):
    if text is not None:
        (tmp_path / "old.json").write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        read_table(tmp_path / "old.json")
    assert "\n" not in str(caught.value)
