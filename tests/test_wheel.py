"""What `make wheel` rests on, without building one: the static option of setup.py, the pinned source, the tools."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from scripts import wheel
from scripts.check_python import SUPPORTED
from tests.support.markdown import ROOT

EXTENSIONS = {"dataprep.formats._check", "dataprep.formats._restart", "loaders.decode._jpeg"}
PRINT_EXTENSIONS = """
import json
import setuptools
from distutils.core import run_setup

found = run_setup("setup.py", stop_after="init")
names = "include_dirs", "libraries", "extra_objects", "define_macros", "optional", "py_limited_api"
print(json.dumps({each.name: {name: getattr(each, name) for name in names} for each in found.ext_modules}))
print(json.dumps(found.command_options.get("bdist_wheel", {})))
"""


def setup_with(**environment):
    """What setup.py says of its extensions, and of its wheels."""
    variables = {name: value for name, value in os.environ.items() if name != "DATAPREP_LIBJPEG"} | environment
    command = [sys.executable, "-W", "ignore", "-c", PRINT_EXTENSIONS]
    done = subprocess.run(command, cwd=ROOT, env=variables, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()[-2:]]


def test_an_install_uses_the_machines_library_and_goes_on_without_it():
    extensions, wheels = setup_with()
    assert set(extensions) == EXTENSIONS
    for name, each in extensions.items():
        libraries = [] if name == "dataprep.formats._check" else ["jpeg"]
        assert (each["libraries"], each["optional"], each["py_limited_api"]) == (libraries, True, False)
    assert wheels == {}


def test_a_wheel_contains_the_library_and_must_have_its_extensions():
    extensions, wheels = setup_with(DATAPREP_LIBJPEG="/folder")
    assert set(extensions) == EXTENSIONS
    for each in extensions.values():
        assert (each["include_dirs"], each["extra_objects"]) == (["/folder/include"], ["/folder/lib/libjpeg.a"])
        assert (each["libraries"], each["optional"], each["py_limited_api"]) == ([], False, True)
        assert ["Py_LIMITED_API", "0x030b0000"] in each["define_macros"]
    assert wheels["py_limited_api"][1] == "cp311"


def test_a_source_with_another_digest_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel, "WORK", tmp_path)
    archive = tmp_path / f"{wheel.SOURCE}-{wheel.SOURCE_VERSION}.crate"
    archive.write_bytes(b"something else")
    with pytest.raises(SystemExit, match=f"crate: sha256 [0-9a-f]{{64}}, expected {wheel.SOURCE_SHA256}; remove the"):
        wheel.unpack_source()


def test_missing_tools_are_named_with_the_packages_that_have_them(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for name in ("gcc", "unshare"):
        (tmp_path / name).symlink_to(shutil.which("true"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"^make wheel: cmake, nasm not found; Debian: apt-get install gcc cmake nasm"):
        wheel.check_tools("x86_64")
    expected = (
        r"^make wheel: aarch64-linux-gnu-gcc, cmake not found; Debian: apt-get install gcc-aarch64-linux-gnu cmake"
    )
    with pytest.raises(SystemExit, match=expected):
        wheel.check_tools("aarch64")


def test_interpreters_are_found_by_their_versions_and_a_missing_one_is_named():
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    (found,) = wheel.interpreters(this)
    assert found.endswith(f"python{this}")
    assert wheel.interpreters("/opt/python3.13") == ["/opt/python3.13"]
    with pytest.raises(SystemExit, match=r"^make wheel: no CPython 3\.10 found; name its path"):
        wheel.interpreters("3.10")


def test_without_cargo_the_archive_can_be_put_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel, "WORK", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=rf"^make wheel: cargo not found; install it, or copy .*\.crate to {tmp_path}"):
        wheel.unpack_source()


def test_wheels_serve_every_supported_python():
    assert tuple(wheel.PYTHONS.split()) == SUPPORTED
