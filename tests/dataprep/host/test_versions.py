"""Versions of the libraries on which bytes depend."""

import importlib.metadata

from dataprep.host.versions import CODECS, codec_versions


def test_versions_are_those_that_are_installed():
    found = codec_versions("numpy")
    assert list(found) == [*CODECS, "numpy"]
    assert found == {name: importlib.metadata.version(name) for name in found}


def test_a_package_without_metadata_is_unknown():
    assert codec_versions("no-such-package-anywhere")["no-such-package-anywhere"] == "unknown"
