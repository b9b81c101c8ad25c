"""Which URL opens what, and what that costs."""

import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.errors import UsageError
from dataprep.storage import open_storage
from dataprep.storage.gcs import GCSStorage
from dataprep.storage.local import LocalStorage


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}", "file://localhost{}", "FILE://{}/"])
def test_a_path_and_a_file_url_are_a_folder(tmp_path: Path, form: str) -> None:
    storage = open_storage(form.format(tmp_path))
    assert isinstance(storage, LocalStorage)
    assert storage.url == str(tmp_path)


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage("a/../b").url == str(tmp_path / "b")
    assert open_storage(".").url == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_file_urls_are_decoded(tmp_path: Path) -> None:
    assert open_storage(f"file://{tmp_path}/a%20b").url == f"{tmp_path}/a b"
    assert open_storage(f"{tmp_path}/a%20b").url == f"{tmp_path}/a%20b"
    assert open_storage(f"file://{tmp_path}/a?b#c").url == f"{tmp_path}/a?b#c"
    assert open_storage("gs://bucket/a%20b").url == "gs://bucket/a%20b"


@pytest.mark.parametrize("url", ["gs://bucket", "gs://bucket/", "GS://bucket"])
def test_a_gs_url_is_a_bucket(url: str) -> None:
    storage = open_storage(url)
    assert isinstance(storage, GCSStorage)
    assert storage.url == "gs://bucket"


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        (
            "ftp://host/x",
            "'ftp://host/x': ftp:// is not known, expected a path or one of file://, gs://, hf://, s3://, ",
        ),
        ("gcs://bucket/x", r"gcs:// is not known, .* did you mean gs://\?"),
        ("files:///x", r"files:// is not known, .* did you mean file://\?"),
        ("://x", ":// is not known"),
        ("file://host/x", "names the host 'host'; expected file:///path, with three slashes"),
        ("", "'' is not a path; expected a folder, file:///path or gs://bucket/prefix"),
        ("a\0b", "is not a path"),
        ("file://", "'' is not a path"),
    ],
)
def test_other_urls_are_refused(url: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        open_storage(url)


FOLDER_SCRIPT = """
import sys
from dataprep.storage import open_storage
storage = open_storage(sys.argv[1])
assert [info.name for info in storage.list()] == ["x"]
assert storage.read_range("x", 1, 1) == b"1"
heavy = ("google.auth", "google.api_core", "google.cloud.storage", "google_crc32c", "obstore", "requests", "pyarrow")
print(sorted(name for name in sys.modules if name.startswith(heavy)))
"""


def test_a_folder_needs_no_cloud_library(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"012")
    command = [sys.executable, "-c", FOLDER_SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=800)
    assert done.stdout == "[]\n"
