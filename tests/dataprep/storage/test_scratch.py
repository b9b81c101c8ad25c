"""Scratch files: what is written comes back, nothing stays behind, and a full disk is one line."""

import os
import subprocess
import sys
import tempfile

import pytest

from dataprep.errors import DataprepError, StorageError
from dataprep.storage.scratch import Extent, ScratchFile


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_pieces_come_back_and_no_file_is_seen(folder):
    scratch = ScratchFile("the list of samples")
    places = [scratch.append(data) for data in (b"abc", b"", bytes(1 << 20))]
    assert places == [Extent(0, 3), Extent(3, 0), Extent(3, 1 << 20)]
    assert [scratch.read(place) for place in reversed(places)] == [bytes(1 << 20), b"", b"abc"]
    assert list(folder.iterdir()) == []


def test_a_piece_that_is_not_there_is_an_error(folder):
    scratch = ScratchFile("the list of samples")
    with pytest.raises(ValueError, match="nothing was written yet"):
        scratch.read(Extent(0, 1))
    scratch.append(b"a")
    with pytest.raises(StorageError, match="input/output error"):
        scratch.read(Extent(0, 2))


def test_a_folder_that_cannot_be_written_is_named(folder, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    with pytest.raises(DataprepError, match=rf"{folder}.*choose another temporary folder with TMPDIR.*permission"):
        ScratchFile("the list of samples").append(b"a")


FILL = """
import sys
from pathlib import Path
from dataprep.errors import StorageError
from dataprep.storage.scratch import ScratchFile
from tests.support.small_disk import use_small_disk

use_small_disk(Path(sys.argv[1]), 2_000_000)
scratch = ScratchFile("the list of samples", int(sys.argv[2]))
try:
    for _ in range(30):
        scratch.append(bytes(1_000_000))
except StorageError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("expected_bytes", "words"), [(0, "needs more than 3,000,000 bytes"), (9_000_000, "needs about 9,000,000 bytes")]
)
def test_a_full_disk_says_how_much_is_needed_and_how_to_choose_another(tmp_path, expected_bytes, words):
    run = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path), str(expected_bytes)],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert not run.stderr
    assert run.stdout.startswith(f"{tmp_path}: no space left on device (")
    assert words in run.stdout
    assert run.stdout.endswith("choose another temporary folder with TMPDIR=FOLDER, and run the same command again\n")
