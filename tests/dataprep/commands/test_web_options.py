"""Options for fetching become limits, and how rows ended becomes lines."""

import ipaddress

import click
import pytest
from click.testing import CliRunner

from dataprep.commands.web_options import WebOptions, count_lines, limits_of, tell_networks, web_options


def called(*arguments):
    found = []

    @click.command()
    @web_options
    def command(**values):
        found.append(limits_of(values))
        assert set(values) == set(WebOptions.__annotations__)

    run = CliRunner().invoke(command, ["--contact", "mailto:me@example.org", *arguments], standalone_mode=False)
    if run.exception:
        raise run.exception
    return found[0]


def test_every_option_becomes_a_limit():
    limits = called("--in-flight", "5", "--max-body", "1MiB", "--no-verify-tls", "--allow-network", "10.1.0.0/16")
    assert (limits.in_flight, limits.body_bytes, limits.verify_tls) == (5, 1 << 20, False)
    assert [str(network) for network in limits.allow_networks] == ["10.1.0.0/16"]
    assert called().verify_tls


@pytest.mark.parametrize("arguments", [["--in-flight", "0"], ["--row-seconds", "0"], ["--answer-seconds", "nan"]])
def test_limits_that_allow_nothing_are_refused(arguments):
    with pytest.raises(click.BadParameter):
        called(*arguments)


def test_allowed_networks_that_are_not_public_are_reported(capsys):
    tell_networks(called())
    assert capsys.readouterr().err == ""
    tell_networks(called("--allow-network", str(ipaddress.ip_network("10.1.0.0/16"))))
    assert "fetching from 10.1.0.0/16, too (--allow-network)" in capsys.readouterr().err


def test_rows_are_counted_by_status_and_the_commonest_failures_by_reason():
    reasons = {"success": 6, "timeout": 1} | {f"http {code}": code - 400 for code in range(401, 412)}
    lines = count_lines({"success": 6, "failed_to_download": 2, "failed_to_resize": 0}, reasons)
    assert lines[:2] == ["  success: 6 (75.0 %)", "  failed to download: 2 (25.0 %)"]
    assert lines[2] == "    http 411: 11"
    assert len(lines) == 2 + 8
