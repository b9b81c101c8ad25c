"""The table of metrics: names by Prometheus' conventions, and texts that say what to do."""

import re

from loaders.engine.durations import BOUNDS_S
from loaders.metrics.table import BUCKETS_S, LOADER_LABELS, METRICS
from tests.support.markdown import ROOT

DOCUMENT = (ROOT / "docs/metrics.md").read_text()


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


def test_the_document_queries_metrics_that_exist():
    """Queries add `_sum` and `_bucket` to the names of histograms."""
    kinds = {metric.shown_name: metric.kind for metric in METRICS}
    names = set(re.findall(r"dataprep_loader_\w+", DOCUMENT))
    assert len(names) > 3
    for name in names:
        parts = re.fullmatch(r"(\w+?)(_sum|_bucket)?", name)
        assert kinds[parts[1]] == ("histogram" if parts[2] else "counter"), name
    labels = {metric.shown_name + "_sum": metric.labels for metric in METRICS}
    for name, given in re.findall(r"(dataprep_loader_\w+)\{(.*?)\}", DOCUMENT):
        assert set(re.findall(r"(\w+)=", given)) <= set(labels[name])
