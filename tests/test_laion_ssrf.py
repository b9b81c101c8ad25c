"""`dataprep build laion` without --allow-network, on a machine where every address in the world answers: it reaches the
public site that it may, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from tests.support.laion_trap import CONTROLS, PORTS, PUBLIC, SITES

APART = ["unshare", "--map-root-user", "--net"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    tools = shutil.which("unshare") and shutil.which("ip")
    if not tools or subprocess.run([*APART, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespace can be made here; tests/dataprep/web/test_ssrf.py asks for the same URLs")
    folder = tmp_path_factory.mktemp("trap")
    words = [*APART, sys.executable, "-m", "tests.support.laion_trap", str(folder)]
    run = subprocess.run(words, capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_the_trap_answers_at_every_address(found):
    assert found["control"] == dict.fromkeys(CONTROLS, len(PORTS))


def test_no_address_but_the_public_one_is_connected_to(found):
    assert found["code"] == 0, found["stderr"]
    assert set(found["reached"]) == {PUBLIC}


def test_every_row_says_why(found):
    assert found["asked"] == sum(found["ends"].values()) >= 500
    assert found["wrong"] == []
    assert found["ends"]["refused address"] >= 200
    assert found["ends"][""] >= SITES
