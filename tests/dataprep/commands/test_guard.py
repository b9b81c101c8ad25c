"""`dataprep guard`: options, report and exit codes."""

from __future__ import annotations

import json
import sys

from tests.support.builds import dataprep

WORDS = "print('hello'); raise SystemExit({})"


def guarded(*options: str, code: int = 0):
    return dataprep("guard", *options, "--", sys.executable, "-c", WORDS.format(code))


def test_the_commands_output_and_code_pass_and_the_report_goes_to_stderr(gcs):
    run = guarded("--zone", "us-central1-a", "--max-usd", "5", code=3)
    assert (run.returncode, run.stdout) == (3, "hello\n")
    assert run.stderr.startswith("guard: $0.00 spent, at most $5.00, read from us-central1-a\n  never seen: gRPC")


def test_json_is_all_of_stdout(gcs):
    run = guarded("--json", "--allow", "NAM4")
    report = json.loads(run.stdout)
    assert (report["exit_code"], report["allowed"], report["reader"]) == (0, ["nam4"], None)
    assert run.stderr == "hello\n"


def test_a_limit_without_a_place_is_wrong_usage(gcs):
    run = guarded("--max-usd", "5")
    assert run.returncode == 2
    assert run.stderr.startswith("dataprep: a limit of $5.00 needs prices")
