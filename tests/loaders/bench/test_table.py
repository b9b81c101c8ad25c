"""The table as JSON, and next to an earlier one: verdicts by all rounds, and nothing that differed is silent."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from loaders.bench.table import compare, read_table, verdict
from tests.support.findings import bench_table

rounds = st.lists(st.floats(1, 1e6), min_size=1, max_size=7)


def section_with(rates, section):
    ordered = sorted(rates)
    return replace(
        section,
        images_per_s=ordered[len(ordered) // 2],
        slowest_images_per_s=ordered[0],
        fastest_images_per_s=ordered[-1],
        rounds_images_per_s=tuple(rates),
    )


@given(rounds, rounds)
def test_faster_is_every_round_against_every_round_and_the_ways_are_mirrored(before, now):
    (section,) = bench_table().sections
    old, new = section_with(before, section), section_with(now, section)
    mirrored = {"faster": "slower", "slower": "faster", "within the spread": "within the spread"}
    assert verdict(new, old) == mirrored[verdict(old, new)]
    assert (verdict(old, new) == "faster") == all(a > b for a in now for b in before)
    assert verdict(old, old) == "within the spread"


def test_a_table_beside_itself_has_ratios_of_one_and_no_difference():
    found = compare(bench_table(), bench_table())
    assert found["differences"] == found["unmatched"] == []
    (row,) = found["rows"]
    assert (row["ratio"], row["verdict"]) == (1.0, "within the spread")


def test_everything_that_differs_is_said():
    table = bench_table()
    (section,) = table.sections
    machine = {**table.machine, "cores": 96, "codecs": {**table.machine["codecs"], "pillow": "0.1"}}
    settings = {**table.settings, "image_size": 999}
    elsewhere = replace(section, url="gs://other/place")
    other = replace(table, sections=(elsewhere,), settings=settings, machine=machine)
    found = compare(other, table)
    said = "\n".join(found["differences"])
    for text in ("machine cores: 96 before", "version of pillow: 0.1 before", "setting image_size: 999 before"):
        assert text in said
    assert f"data url: gs://other/place before, {section.url} now" in said
    found = compare(replace(other, sections=(elsewhere, section)), table)
    assert len(found["rows"]) == 1
    assert found["unmatched"] == ["gs://other/place train: only before"]


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
