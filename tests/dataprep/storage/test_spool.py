"""Files that are being written: locked by their writers, and removed when those are dead."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from dataprep.errors import DataprepError, StorageError
from dataprep.storage.gcs import GCSStorage
from dataprep.storage.local import LocalStorage
from dataprep.storage.spool import Extent, ScratchFile
from tests.support.storages import SPAWN, local_storage, run_python, spool_files

storage = local_storage


def _hold_a_spool_file(root: Path, connection: Connection) -> None:
    storage = LocalStorage(root)
    storage.spool_path("x").write_bytes(b"half")
    connection.send("written")
    connection.recv()


def test_only_spool_files_of_dead_writers_are_removed(storage: LocalStorage) -> None:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_hold_a_spool_file, args=(storage.root, theirs))
    process.start()
    assert ours.recv() == "written"
    mine = storage.spool_path("y")
    other_build = LocalStorage(storage.root)
    assert other_build.remove_stale_spools() == 0

    process.kill()
    process.join()
    assert other_build.remove_stale_spools() == 1
    assert spool_files(storage) == [mine]


def test_removing_stale_spool_files_leaves_links_and_folders(storage: LocalStorage, tmp_path: Path) -> None:
    assert storage.remove_stale_spools() == 0
    (tmp_path / "precious").write_bytes(b"1")
    folder, digits = storage.root / "_build/tmp", "0123456789abcdef" * 2
    (folder / f"folder-{digits}").mkdir(parents=True)
    (folder / f"link-{digits}").symlink_to(tmp_path / "precious")
    assert storage.remove_stale_spools() == 0
    assert (tmp_path / "precious").read_bytes() == b"1"


def test_removing_stale_spool_files_leaves_files_of_other_names(storage: LocalStorage) -> None:
    spool = storage.spool_path("x")
    folder, digits = spool.parent, spool.name[-32:-2] + "ab"
    others = ["thesis.tex", digits, f"-{digits}", f"x-{digits[1:]}", f"x-{digits.upper()}", f"{'x' * 49}-{digits}"]
    for name in [*others, f"x.tar-{digits}"]:
        (folder / name).write_bytes(b"1")
    assert storage.remove_stale_spools() == 1
    assert {path.name for path in folder.iterdir()} == {*others, spool.name}


def test_a_host_leaves_the_spool_files_of_other_hosts(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where locks are known to one host only, its files look as if their writers were dead."""
    import fcntl

    spool, uname = storage.spool_path("x.tar"), os.uname()
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    for name, removed in (("another", 0), (uname.nodename, 1)):
        fields = {field: getattr(uname, field) for field in ("sysname", "release", "version", "machine")}
        monkeypatch.setattr(os, "uname", lambda name=name, fields=fields: SimpleNamespace(nodename=name, **fields))
        assert LocalStorage(storage.root).remove_stale_spools() == removed
        assert spool.exists() is not bool(removed)


def test_a_spool_file_taken_before_it_was_locked_is_made_again(storage, monkeypatch):
    import fcntl

    flock, taken = fcntl.flock, []

    def take_first(descriptor: int, operation: int) -> None:
        if not taken:
            taken.append(spool_files(storage)[0])
            taken[0].unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", take_first)
    spool = storage.spool_path("x")
    assert spool.exists()
    assert spool not in taken


@pytest.mark.timeout(60)
def test_a_file_system_that_keeps_no_folders_is_an_error() -> None:
    with pytest.raises(StorageError, match=r"/proc/no-such/.*: no folder can be created here; choose another place"):
        LocalStorage(Path("/proc/no-such")).create("x", b"data")


def test_without_locks_no_spool_file_is_removed(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> NoReturn:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", refuse)
    storage.spool_path("x").write_bytes(b"1")
    assert LocalStorage(storage.root).remove_stale_spools() == 0
    assert len(spool_files(storage)) == 1


SPOOL = """
import os, signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from dataprep.storage import open_storage

def spool():
    path = open_storage("gs://bucket/data").spool_path("train/x.tar")
    path.write_bytes(b"half")
    return path

if __name__ == "__main__":
    print(spool())
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        print(pool.submit(spool).result())
    if os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_spool_files_are_removed_when_their_process_ends(tmp_path: Path) -> None:
    done = run_python(SPOOL, TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    spools = [Path(line) for line in done.stdout.split()]
    assert len({spool.parent for spool in spools}) == 2
    assert all(spool.is_relative_to(tmp_path) for spool in spools)
    assert list(tmp_path.iterdir()) == []


def test_spool_files_of_killed_processes_are_removed_by_the_next_build(tmp_path, monkeypatch):
    done = run_python(SPOOL, TMPDIR=str(tmp_path), DIE="1")
    assert done.returncode == -signal.SIGKILL
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/x").write_bytes(b"1")
    (tmp_path / "dataprep-spool-link").symlink_to("precious")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    storage = GCSStorage("gs://bucket/data")
    assert storage.remove_stale_spools() == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataprep-spool-link", "precious"]
    assert (tmp_path / "precious/x").read_bytes() == b"1"


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
from dataprep.storage.spool import ScratchFile
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
