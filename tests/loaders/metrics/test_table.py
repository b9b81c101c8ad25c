"""The table of metrics: names by Prometheus' conventions, and texts that say what to do."""

import re

from loaders.engine.durations import BOUNDS_S
from loaders.metrics.table import BUCKETS_S, LOADER_LABELS, METRICS
from tests.support.markdown import ROOT

DOCUMENT = (ROOT / "docs/loaders.md").read_text()


def test_names_follow_the_conventions_of_prometheus():
    names = [metric.shown_name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"dataprep_loader_[a-z]+(_[a-z]+)*", metric.shown_name)
        assert metric.shown_name.endswith("_total") == (metric.kind == "counter")
        assert metric.shown_name.endswith("_seconds") == (metric.kind == "histogram")
        assert not set(metric.labels) & set(LOADER_LABELS)


def test_every_text_says_more_than_the_name():
    for metric in METRICS:
        assert len(re.findall(r"[.:]( |$)", metric.text)) >= 1
        assert "\n" not in metric.text
        assert len(metric.text) > 60


def test_buckets_are_counted_exactly():
    assert set(BUCKETS_S) < set(BOUNDS_S)
    assert sorted(BUCKETS_S) == list(BUCKETS_S)


def test_the_document_has_a_row_for_every_metric():
    rows = [f"| `{metric.shown_name}` | {metric.kind} | {metric.text} |" for metric in METRICS]
    assert "\n".join(rows) in DOCUMENT
