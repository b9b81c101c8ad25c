"""Words for findings: rates, and the sentences about loaders and predictions."""

import math
from dataclasses import replace

import pytest

from loaders.bench.table import OURS
from loaders.report.page import bench_page
from loaders.report.wording import bench_sentence, change_rates, rate
from tests.support.findings import bench_table, diagnosis
from tests.support.pages import Page


@pytest.mark.parametrize(
    ("keep", "sentence"),
    [
        ({OURS, "webdataset"}, "dataprep loads 1,562 images/s, 2.53 times webdataset, the fastest of the others."),
        ({OURS}, "dataprep loads 1,562 images/s; no other loader was measured."),
        ({"grain", "torchvision"}, "grain loads 604 images/s, the fastest of those that were measured."),
        (set(), "No loader could be measured."),
    ],
)
def test_the_sentence_compares_our_loader_with_the_fastest_other(keep, sentence):
    (section,) = bench_table().sections
    section = replace(section, rows=tuple(row for row in section.rows if row.loader in keep))
    assert bench_sentence(section) == sentence
    assert sentence in Page(bench_page(replace(bench_table(), sections=(section,)))).text


def test_a_change_has_the_rates_that_are_known_of_it():
    found = diagnosis()
    workers, resize, _ = found.fixes
    assert change_rates(found, workers) == {"predicted": "1,830", "tried": "1,790", "applied": "1,738"}
    assert change_rates(found, resize) == {"predicted": "1,240"}
    assert change_rates(replace(found, applied=None), workers) == {"predicted": "1,830", "tried": "1,790"}


@pytest.mark.parametrize(
    ("images_per_s", "text"), [(1840.4, "1,840"), (10, "10"), (3.21, "3.2"), (0.034, "0.034"), (math.inf, "no limit")]
)
def test_rates_are_written_with_separators(images_per_s, text):
    assert rate(images_per_s) == text
