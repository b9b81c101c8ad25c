"""Versions of the libraries on which bytes depend."""

import importlib.metadata
from pathlib import Path

from dataprep.host.versions import CODECS, codec_versions, machine_document, processor_name


def test_versions_are_those_that_are_installed():
    found = codec_versions("numpy")
    assert list(found) == [*CODECS, "numpy"]
    assert found == {name: importlib.metadata.version(name) for name in found}


def test_a_package_without_metadata_is_unknown():
    assert codec_versions("no-such-package-anywhere")["no-such-package-anywhere"] == "unknown"


def test_the_processor_is_named():
    (names,) = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    }
    assert processor_name() == machine_document(0.0)["processor"] == names
