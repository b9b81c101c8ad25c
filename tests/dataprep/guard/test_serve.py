"""The guard of a Python process: `import dataprep.guard`."""

from __future__ import annotations

import os

import pytest

from dataprep.errors import UsageError
from dataprep.guard import open_guard
from tests.support.guarded import CLIENTS, HERE, LINES, NAME


def test_this_process_reads_under_a_guard_and_is_free_afterwards(placed, monkeypatch):
    emulator = os.environ["STORAGE_EMULATOR_HOST"]
    read = CLIENTS["google-cloud-storage"]
    with open_guard(allow=["us-central1"], zone=HERE) as guard:
        assert os.environ["STORAGE_EMULATOR_HOST"] != emulator
        assert read(f"gs://guard-dual/{NAME}") == len(LINES)
        assert CLIENTS["obstore"](f"gs://guard-dual/{NAME}") == len(LINES)
        assert guard.report().bytes_read == 2 * len(LINES)
        with pytest.raises(Exception, match="only us-central1 may be read"):
            read(f"gs://guard-far/{NAME}")
    assert guard.report().refused == 1
    assert os.environ["STORAGE_EMULATOR_HOST"] == emulator
    assert read(f"gs://guard-far/{NAME}") == len(LINES)


def test_a_guard_that_cannot_start_says_why(gcs, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    with pytest.raises(UsageError, match="HTTPS_PROXY is set to"):
        open_guard(zone=HERE)
    monkeypatch.delenv("HTTPS_PROXY")
    with pytest.raises(UsageError, match=r"give its zone or region, e\.g\. --zone us-central1-a"):
        open_guard(max_usd=1)
