"""What is refused before Spark starts; starting it is tested in tests/cluster/test_spark.py."""

import os
import sys
from itertools import chain, repeat

import pytest

from dataprep.errors import UsageError
from pipelines.spark.options import SparkOptions
from pipelines.spark.session import open_context, refuse_unreachable, settled
from tests.support.job_service import free_port


@pytest.fixture
def java(tmp_path):
    """A folder with a program of Java's name."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").touch(mode=0o755)
    return tmp_path


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(UsageError, match=r"--runner spark needs PySpark .*: pip install '.*\[spark\]'"):
        open_context(SparkOptions("yarn"))


def test_a_master_is_needed(java):
    with pytest.raises(UsageError, match=r"needs --master URL after --, .*; or run the command with spark-submit"):
        refuse_unreachable(SparkOptions(), {"JAVA_HOME": str(java)})
    refuse_unreachable(SparkOptions(settings={"spark.master": "yarn"}), {"JAVA_HOME": str(java)})


def test_a_missing_java_is_named_with_the_place_that_was_searched(tmp_path, java):
    options = SparkOptions("yarn")
    with pytest.raises(UsageError, match="no java in PATH; install a Java 17 runtime"):
        refuse_unreachable(options, {"PATH": str(tmp_path / "none")})
    with pytest.raises(UsageError, match=f"no java in JAVA_HOME={tmp_path}/none; install"):
        refuse_unreachable(options, {"JAVA_HOME": f"{tmp_path}/none", "PATH": str(java / "bin")})
    refuse_unreachable(options, {"PATH": str(java / "bin")})


def test_an_address_at_which_nothing_listens_is_refused_at_once(java):
    master = f"spark://127.0.0.1:{free_port()}"
    with pytest.raises(UsageError, match=f"nothing answers at {master} .*Connection refused.*; start it first"):
        refuse_unreachable(SparkOptions(master), {"PATH": os.fspath(java / "bin")})


def test_a_number_is_settled_when_it_no_longer_grows():
    assert settled(chain([0, 2, 2, 4, 4, 6], repeat(8)).__next__, reads=3, wait_s=0) == 8
