"""Files stay open for the next range, but not too many, and never one that was replaced."""

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.storage.folders import MAX_OPEN_FILES, MAX_OPEN_FOLDERS, Folders, OpenFiles
from dataprep.storage.local import LocalStorage
from tests.support.descriptors import open_descriptors


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "root")


def test_files_stay_open_for_the_next_range_but_not_too_many(storage: LocalStorage) -> None:
    (storage.root / "a").mkdir(parents=True)
    for number in range(2 * MAX_OPEN_FILES):
        (storage.root / f"a/{number}").write_bytes(b"%d" % number)
    for _ in range(2):
        for number in range(2 * MAX_OPEN_FILES):
            assert storage.read_range(f"a/{number}", 0, len(str(number))) == b"%d" % number
            assert open_descriptors(f"{storage.root}/") <= MAX_OPEN_FILES + 1
    assert open_descriptors(f"{storage.root}/") == MAX_OPEN_FILES + 1  # and their folder


def test_folders_stay_open_for_their_files_but_not_too_many(storage: LocalStorage) -> None:
    names = [f"a/{number}/x" for number in range(2 * MAX_OPEN_FOLDERS)]
    for name in names:
        (storage.root / name).parent.mkdir(parents=True)
        (storage.root / name).write_bytes(name.encode())
    for _ in range(2):
        for name in names:
            assert storage.read_range(name, 0, len(name)) == name.encode()
    assert open_descriptors(f"{storage.root}/") <= MAX_OPEN_FILES + MAX_OPEN_FOLDERS


def test_a_folder_that_was_replaced_is_opened_again(storage: LocalStorage) -> None:
    for folder in ("a", "new"):
        (storage.root / folder / "b").mkdir(parents=True)
        for name in "xy":
            (storage.root / folder / "b" / name).write_bytes(folder.encode())
    assert storage.read_range("a/b/x", 0, 1) == b"a"
    (storage.root / "a").rename(storage.root / "old")
    (storage.root / "new").rename(storage.root / "a")
    assert storage.read_range("a/b/y", 0, 3) == storage.read_range("a/b/x", 0, 3) == b"new"
    shutil.rmtree(storage.root / "a")
    (storage.root / "a").symlink_to("old")
    assert storage.read_range("a/b/y", 0, 1) == b"a"


def test_a_file_that_was_replaced_is_opened_again(storage: LocalStorage) -> None:
    storage.create("x", b"old")
    assert storage.read_range("x", 0, 3) == b"old"
    (storage.root / "new").write_bytes(b"newer")
    (storage.root / "new").rename(storage.root / "x")
    assert storage.read_range("x", 0, 5) == b"newer"


def test_a_file_in_use_is_closed_by_its_last_reader(tmp_path: Path) -> None:
    files = OpenFiles(Folders(tmp_path))
    (tmp_path / "x").write_bytes(b"first")
    with files.reading("x") as (descriptor, status):
        assert status.st_size == 5
        (tmp_path / "new").write_bytes(b"second")
        (tmp_path / "new").rename(tmp_path / "x")
        with files.reading("x") as (other, other_status):
            assert (os.pread(other, 9, 0), other_status.st_size) == (b"second", 6)
        assert os.pread(descriptor, 9, 0) == b"first"
    with pytest.raises(OSError):
        os.pread(descriptor, 9, 0)


def test_all_files_are_closed_with_their_owner(tmp_path: Path) -> None:
    files = OpenFiles(Folders(tmp_path))
    for number in range(5):
        (tmp_path / f"{number}").write_bytes(b"1")
        with files.reading(f"{number}"):
            pass
    assert open_descriptors(f"{tmp_path}/") == 5
    del files
    gc.collect()
    assert open_descriptors(f"{tmp_path}/") == 0


def test_python_ends_in_silence_while_threads_read(tmp_path: Path) -> None:
    for number in range(2 * MAX_OPEN_FILES):
        (tmp_path / f"{number}").write_bytes(b"1")
    program = f"""
import threading, time
from pathlib import Path
from dataprep.storage.folders import Folders, OpenFiles
files = OpenFiles(Folders(Path({str(tmp_path)!r})))
def read():
    while True:
        for number in range({2 * MAX_OPEN_FILES}):
            with files.reading(f"{{number}}"):
                pass
for _ in range(4):
    threading.Thread(target=read, daemon=True).start()
time.sleep(0.1)
"""
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("name", ["nothing", "folder", "x/below"])
def test_a_name_that_is_no_file_is_a_missing_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "x").write_bytes(b"1")
    with pytest.raises(FileNotFoundError), OpenFiles(Folders(tmp_path)).reading(name):
        pass
