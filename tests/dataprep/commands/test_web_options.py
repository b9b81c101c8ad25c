"""Options for fetching become limits, and how rows ended becomes lines."""

import pytest

from dataprep.commands.build_laion import WebRequest, count_lines, limits_of, network_lines
from dataprep.errors import UsageError


def called(**options):
    return limits_of(WebRequest(contact="mailto:me@example.org", **options))


def test_every_option_becomes_a_limit():
    limits = called(in_flight=5, max_body="1MiB", verify_tls=False, allow_network="10.1.0.0/16")
    assert (limits.in_flight, limits.body_bytes, limits.verify_tls) == (5, 1 << 20, False)
    assert [str(network) for network in limits.allow_networks] == ["10.1.0.0/16"]
    assert called().verify_tls


@pytest.mark.parametrize("option", [{"in_flight": 0}, {"row_seconds": 0}, {"answer_seconds": float("nan")}])
def test_limits_that_allow_nothing_are_refused(option):
    with pytest.raises(UsageError, match=f"`{next(iter(option))}` must be "):
        called(**option)


def test_allowed_networks_that_are_not_public_are_reported():
    assert list(network_lines(called())) == []
    (line,) = network_lines(called(allow_network=["10.1.0.0/16"]))
    assert line == "fetching from 10.1.0.0/16, too (`allow_network`); the manifest records it"


def test_rows_are_counted_by_status_and_the_commonest_failures_by_reason():
    reasons = {"success": 6, "timeout": 1} | {f"http {code}": code - 400 for code in range(401, 412)}
    lines = count_lines({"success": 6, "failed_to_download": 2, "failed_to_resize": 0}, reasons)
    assert lines[:2] == ["  success: 6 (75.0 %)", "  failed to download: 2 (25.0 %)"]
    assert lines[2] == "    http 411: 11"
    assert len(lines) == 2 + 8
