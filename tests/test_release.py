"""`make release` makes the same bytes at any time, and sees what a package lacks or should not have."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from dataprep import __version__
from scripts import release, sbom, wheel
from tests.test_setup import pins_of


def archive(path: Path, names: list[str], *, mtime: int = 7, mode: int = 0o640) -> Path:
    """An sdist with these files, each containing its own name."""
    with tarfile.open(path, "w:gz") as packed:
        for name in names:
            member = tarfile.TarInfo(f"{release.NAME}/{name}")
            member.size, member.mtime, member.mode, member.uname = len(name), mtime, mode, str(mtime)
            packed.addfile(member, io.BytesIO(name.encode()))
    return path


def packed_wheel(path: Path, names: list[str], version: str = __version__) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        for name in names:
            packed.writestr(name, "")
        packed.writestr(f"{release.NAME}.dist-info/METADATA", f"Name: tpu-dataprep\nVersion: {version}\n")
    return path


def test_an_sdist_has_the_same_bytes_whenever_and_by_whomever_it_is_made(tmp_path):
    one = archive(tmp_path / "one.tar.gz", ["a/b.py", "setup.py"])
    other = archive(tmp_path / "other.tar.gz", ["setup.py", "a/b.py"], mtime=99, mode=0o600)
    made = [release.normalise(each, tmp_path / f"made-{each.name}", 1_700_000_000) for each in (one, other)]
    assert made[0].read_bytes() == made[1].read_bytes()
    with tarfile.open(made[0]) as packed:
        assert [member.name for member in packed] == [f"{release.NAME}/a/b.py", f"{release.NAME}/setup.py"]
        assert {(each.mtime, each.mode, each.uid, each.uname) for each in packed} == {(1_700_000_000, 0o644, 0, "")}
        assert packed.extractfile(f"{release.NAME}/a/b.py").read() == b"a/b.py"


def test_different_bytes_of_two_runs_are_named(tmp_path):
    for name, data in (("first", b"1"), ("again", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same").write_bytes(b"0")
        (tmp_path / name / "other").write_bytes(data)
    with pytest.raises(SystemExit, match=r"two runs made different bytes: other; compare .*first and .*again"):
        release.compare(tmp_path / "first", tmp_path / "again")


def test_an_sdist_without_a_licence_or_with_tests_is_refused(tmp_path):
    whole = archive(tmp_path / "whole.tar.gz", [*release.SDIST_NEEDS])
    assert release.faults_of_sdist(whole) == []
    names = [*release.SDIST_NEEDS[:-1], "tests/test_a.py"]
    assert release.faults_of_sdist(archive(tmp_path / "faulty.tar.gz", names)) == [
        f"faulty.tar.gz has no {release.SDIST_NEEDS[-1]}",
        "faulty.tar.gz contains tests/test_a.py, which no user needs",
    ]


def test_a_wheel_without_an_extension_or_with_sources_is_refused(tmp_path):
    assert release.faults_of_wheel(packed_wheel(tmp_path / "whole.whl", [*release.WHEEL_NEEDS])) == []
    names = [*release.WHEEL_NEEDS[1:], "benchmarks/build.py", "loaders/decode/_jpeg.c"]
    assert release.faults_of_wheel(packed_wheel(tmp_path / "faulty.whl", names, version="0.0.1")) == [
        f"faulty.whl has no {release.WHEEL_NEEDS[0]}",
        "faulty.whl contains benchmarks/build.py, which no user needs",
        "faulty.whl contains loaders/decode/_jpeg.c, which no user needs",
        f"faulty.whl is version 0.0.1, expected {__version__}",
    ]


def test_a_release_of_changed_files_is_refused(monkeypatch):
    monkeypatch.setattr(release, "git", lambda *words: " M setup.py\n?? new.py\n")
    with pytest.raises(SystemExit, match=r"^make release: 2 files are not as in the last commit; commit or remove"):
        release.commit_time()


def test_the_bill_of_materials_has_the_pins_of_every_extra_and_the_library_in_the_wheels():
    document = json.loads(sbom.bom_text(sbom.make_bom(1_700_000_000)))
    components = {each["name"]: each for each in document["components"]}
    pins = pins_of("constraints.txt", ".".join(map(str, sys.version_info[:2])))
    jpeg = components.pop("libjpeg-turbo")
    assert (jpeg["version"], jpeg["pedigree"]["ancestors"][0]["hashes"][0]["content"]) == (
        wheel.WHEEL_LIBJPEG,
        wheel.SOURCE_SHA256,
    )
    assert {name: each["version"] for name, each in components.items()} == {name: pins[name] for name in components}
    extras = {each["value"] for component in components.values() for each in component.get("properties", [])}
    assert extras == {*sbom.extras_of(sbom.ROOT / "setup.cfg")} - {""}
    assert not {"pytest", "sphinx", "twine"} & set(components)
    assert "py4j" in components, "what Spark needs is listed though Spark is not installed here"
    assert (components["numpy"]["scope"], components["torch"]["scope"]) == ("required", "optional")
    assert document["metadata"]["timestamp"].startswith("2023-11-14")
    assert sbom.bom_text(sbom.make_bom(1_700_000_000)) == sbom.bom_text(sbom.make_bom(1_700_000_000))
