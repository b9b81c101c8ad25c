"""Folders are reached component by component, and never through a link; files stay open for the next range."""

import contextlib
import gc
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dataprep.errors import UsageError
from dataprep.storage import ObjectInfo, open_originals
from dataprep.storage.checksums import crc32c_of_bytes
from dataprep.storage.folders import MAX_OPEN_FILES, MAX_OPEN_FOLDERS, Folders, OpenFiles, is_within, sync_file
from dataprep.storage.local import LocalStorage
from tests.support.descriptors import open_descriptors
from tests.support.storages import local_storage, publish

storage = local_storage


@pytest.mark.parametrize("link", ["_build", "_build/tmp"])
@pytest.mark.parametrize("inside", [True, False])
def test_nothing_is_spooled_or_removed_through_a_link(storage, tmp_path, link, inside):
    digits = "0123456789abcdef" * 2
    elsewhere = (storage.root if inside else tmp_path) / "elsewhere"
    (elsewhere / "tmp").mkdir(parents=True)
    for folder in (elsewhere, elsewhere / "tmp"):
        (folder / f"mine-{digits}").write_bytes(b"1")
    (storage.root / link).parent.mkdir(exist_ok=True, parents=True)
    (storage.root / link).symlink_to(elsewhere)
    spool = storage.root / link / f"mine-{digits}"
    calls: list[Callable[[], object]] = [
        storage.remove_stale_spools,
        lambda: storage.spool_path("x"),
        lambda: storage.create("x", b""),
        lambda: storage.replace("x", b"", None),
        lambda: storage.publish(spool, "x", crc32c_of_bytes(b"1")),
        lambda: storage.delete(f"{link}/mine-{digits}"),
        lambda: storage.delete_tree(f"{link}/tmp"),
        lambda: storage.place_folders(link, []),
    ]
    for call in calls:
        with pytest.raises(
            UsageError, match=f"/{link} is a link, and nothing below .* through a link; pass the folder"
        ):
            call()
    assert len([path for path in elsewhere.rglob("*") if path.is_file()]) == 2
    assert storage.stat("x") is None


def test_links_that_lead_out_of_the_root_are_refused(storage: LocalStorage, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"1")
    storage.create("a/y", b"2")
    (storage.root / "a/out").symlink_to(outside)
    (storage.root / "a/up").symlink_to("../..")
    calls: list[Callable[[str], object]] = [
        storage.stat,
        storage.read,
        storage.delete,
        lambda name: storage.read_range(name, 0, 1),
        lambda name: storage.create(name, b""),
        lambda name: publish(storage, name, b""),
        lambda name: storage.delete_tree(f"{name}/z"),
        lambda name: list(storage.list(name)),
    ]
    for name in ("a/out/x", "a/up/outside/x", "a/out/deep/er"):
        for call in calls:
            with pytest.raises(UsageError, match="pass the folder it points to instead"):
                call(name)
    with pytest.raises(UsageError, match=re.escape(str(storage.root / "a/out"))):
        list(storage.list())
    assert [path.name for path in outside.iterdir()] == ["x"]


def test_links_to_files_stay_in_the_root_too(storage: LocalStorage, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"private key")
    storage.create("a/x", b"shard")
    for name, target in (("out", "../../secret"), ("far", tmp_path / "secret"), ("in", "x"), ("top", "../a/in")):
        (storage.root / "a" / name).symlink_to(target)
    (storage.root / "a/absolute").symlink_to(storage.root / "a/x")
    for name in ("a/in", "a/top", "a/absolute"):
        assert storage.read(name) == storage.read_range(name, 0, 5) == b"shard"
        assert storage.stat(name) == ObjectInfo(name, 5, None)
    for name in ("a/out", "a/far"):
        for call in (storage.stat, storage.read, storage.open, lambda name: storage.read_range(name, 0, 1)):
            with pytest.raises(
                UsageError, match=f"/{name} is a link out of {storage.root}, to {tmp_path}/secret; pass"
            ):
                call(name)
    for call in (lambda: list(storage.list()), lambda: storage.sizes(["a/x", "a/out"])):
        with pytest.raises(UsageError, match=r"a/(out|far) is a link out of"):
            call()


def test_a_link_that_appears_while_a_path_is_walked_leads_nowhere(storage, tmp_path, monkeypatch):
    for folder in (storage.root / "a/b", tmp_path / "outside/b"):
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(folder.parent.name.encode())
    open_file, walked = os.open, []

    def swap(path, flags, mode=0o777, *, dir_fd=None):
        walked.append(path)
        if len(walked) == step:
            (storage.root / "a").rename(storage.root / "away")
            (storage.root / "a").symlink_to(tmp_path / "outside")
        return open_file(path, flags, mode, dir_fd=dir_fd)

    for step in range(1, 5):
        walked.clear()
        with monkeypatch.context() as patched, contextlib.suppress(UsageError):
            patched.setattr(os, "open", swap)
            assert storage.read("a/b/x") == b"a"
        assert len(walked) >= step
        (storage.root / "a").unlink()
        (storage.root / "away").rename(storage.root / "a")


def test_originals_may_be_links_to_other_disks_only_in_the_root(tmp_path: Path) -> None:
    for name in ("disk/deep/x", "disk.tar", "source/own/y", "other/z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    source = tmp_path / "source"
    (source / "linked").symlink_to("../disk")
    (source / "linked.tar").symlink_to(tmp_path / "disk.tar")
    (tmp_path / "disk/again").symlink_to("deep/x")
    (tmp_path / "disk/out").symlink_to("../other/z")
    (source / "own/out").symlink_to("../../other/z")
    storage = open_originals(str(source))
    assert [storage.read(name) for name in ("linked/deep/x", "linked/again")] == [b"disk/deep/x"] * 2
    assert storage.read_range("linked.tar", 0, 8) == b"disk.tar"
    assert {info.name for info in storage.list("linked/deep")} == {"linked/deep/x"}
    for name in ("linked/out", "own/out"):
        with pytest.raises(UsageError, match=f"out is a link out of .*, to {tmp_path}/other/z"):
            storage.read(name)


def test_a_snapshot_of_the_hub_leads_to_its_own_blobs(tmp_path: Path) -> None:
    repository = tmp_path / "datasets--me--pets"
    for name in ("blobs/0a1b", "snapshots/5f/data/own", "refs/main"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_bytes(name.encode())
    (repository / "snapshots/5f/data/x").symlink_to("../../../blobs/0a1b")
    (repository / "snapshots/5f/data/y").symlink_to("../../../refs/main")
    storage = open_originals(str(repository / "snapshots/5f"))
    assert storage.read("data/x") == b"blobs/0a1b"
    with pytest.raises(UsageError, match="data/y is a link out of"):
        storage.read("data/y")


def test_missing_folders_are_made_only_when_asked(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "new/root")
    with pytest.raises(FileNotFoundError), folders.opened("a/b"):
        pass
    assert not (tmp_path / "new").exists()
    with folders.opened("a/b", make=True) as descriptor:
        os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    assert (tmp_path / "new/root/a/b/x").exists()
    with folders.around(tmp_path / "new/root/a/b/x") as descriptor:
        assert os.listdir(descriptor) == ["x"]


def test_a_folder_that_must_exist_is_not_made(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "root")
    with pytest.raises(FileNotFoundError), folders.opened("build/tmp", make=True, required="build"):
        pass
    assert not (tmp_path / "root").exists()
    (tmp_path / "root/build").mkdir(parents=True)
    with folders.opened("build/tmp", make=True, required="build"):
        assert (tmp_path / "root/build/tmp").is_dir()


def test_a_file_in_the_path_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with pytest.raises(NotADirectoryError), Folders(tmp_path).opened("a/b", make=True):
        pass


@pytest.mark.parametrize("path", ["../x", "a/../../x"])
def test_a_path_outside_the_root_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(UsageError, match="is outside"), Folders(tmp_path / "root").around(tmp_path / "root" / path):
        pass


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    (tmp_path / "link").symlink_to("elsewhere")
    open_before = open_descriptors(str(tmp_path))
    for name in ("a/b/c", "a/b", "link/x"):
        with contextlib.suppress(UsageError), folders.opened(name, make=True):
            pass
    assert open_descriptors(str(tmp_path)) == open_before


@pytest.mark.parametrize(
    ("name", "folder", "within"),
    [("a/b", "a", True), ("a", "a", True), ("ab", "a", False), ("a", "a/b", False), ("a", "", False), ("", "", False)],
)
def test_a_name_lies_within_a_folder_by_whole_components(name: str, folder: str, within: bool) -> None:
    assert is_within(name, folder) is within


def test_a_file_is_made_durable_and_measured_but_never_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"123")
    (tmp_path / "link").symlink_to("x")
    with Folders(tmp_path).opened("") as folder:
        assert sync_file("x", folder) == 3
        with pytest.raises(OSError):
            sync_file("link", folder)


# Open files


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
