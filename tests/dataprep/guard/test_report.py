"""The report: complete as JSON, readable as lines."""

from __future__ import annotations

import json

import msgspec

from dataprep.guard.escapes import Connection
from dataprep.guard.report import NOT_SEEN, BucketReport, GuardReport, report_lines

REPORT = GuardReport(
    reader="us-central1-a",
    max_usd=5.0,
    allowed=("us-central1",),
    spent_usd=0.0512,
    budget_ended=False,
    buckets=(
        BucketReport(
            bucket="data", location="europe-west4", verdict="paid", usd_per_gib=0.05,
            requests={"read": 1200, "look": 3}, bytes_read=1 << 30, refused=2, usd=0.0512,
        ),
    ),
    refusals=("refused by dataprep guard: gs://data in europe-west4: too expensive",),
    tunnelled_bytes={"huggingface.co": 2_500_000},
    unread_connections={"storage.googleapis.com": 1},
    not_priced={"copy by the server from gs://data": 4},
    escaped=(Connection("reader\x1b", "10.1.2.3:443"),),
)  # fmt: skip


def test_json_has_everything_and_is_read_back():
    text = json.dumps(REPORT.document())
    assert msgspec.json.decode(text, type=GuardReport) == REPORT
    assert (REPORT.bytes_read, REPORT.refused) == (1 << 30, 2)


def test_lines_name_what_was_read_what_was_not_priced_and_what_escaped():
    assert list(report_lines(REPORT)) == [
        "guard: $0.05 spent, at most $5.00, read from us-central1-a",
        "  gs://data (europe-west4, paid, $0.05/GiB): 1.1 GB read, 1,200 read, 3 look, 2 refused, $0.05",
        "  refused by dataprep guard: gs://data in europe-west4: too expensive",
        "  not priced: 4 x copy by the server from gs://data",
        "  other host: huggingface.co, 2.5 MB",
        "  failed: 1 connections to storage.googleapis.com that are no HTTP/1.1 or do not trust the guard",
        "  escaped: reader\N{REPLACEMENT CHARACTER} to 10.1.2.3:443, not counted",
        *(f"  never seen: {text}" for text in NOT_SEEN),
    ]
