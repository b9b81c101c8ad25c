"""What only a folder on disk does: links, locks, crashes, and the system's refusals."""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dataprep.errors import ConflictError, StorageError, UsageError
from dataprep.storage import local
from dataprep.storage.checksums import crc32c_of_bytes
from dataprep.storage.folders import Folders
from dataprep.storage.local import LocalStorage, put_exclusively
from tests.support.refusals import refuse
from tests.support.storages import in_process, local_storage, publish, spool_files

storage = local_storage


# Crashes


def _die(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def _publish_and_die(root: Path, method: str) -> None:
    setattr(os, method, _die)
    publish(LocalStorage(root), "train/x", b"content")


@pytest.mark.parametrize(("method", "is_there"), [("link", False), ("unlink", True)])
def test_a_writer_killed_around_the_link_leaves_all_or_nothing(storage, method, is_there):
    assert in_process(_publish_and_die, storage.root, method) == -signal.SIGKILL
    assert (storage.stat("train/x") is not None) == is_there
    assert len(spool_files(storage)) == 1

    assert storage.remove_stale_spools() == 1
    publish(storage, "train/x", b"content")
    assert storage.read("train/x") == b"content"
    assert spool_files(storage) == []


def test_a_publisher_takes_nothing_from_outside_the_root(storage: LocalStorage, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"1")
    for spool in (tmp_path / "mine", storage.root / "../mine"):
        with pytest.raises(UsageError, match="mine is outside"):
            storage.publish(spool, "x", crc32c_of_bytes(b"1"))
    assert (tmp_path / "mine").read_bytes() == b"1"


def test_a_storage_whose_folder_was_removed_writes_nothing(storage: LocalStorage) -> None:
    build = storage.staged("_build/0123", lambda: None)
    with pytest.raises(StorageError, match="_build/0123: the folder of this build is gone, another one has finished"):
        build.spool_path("x")
    storage.create("_build/0123/plan.json", b"{}")
    spool = build.spool_path("x")
    assert spool.parent == storage.root / "_build/0123/tmp"
    assert build.create("_build/0123/receipts/0", b"0")
    storage.delete_tree("_build/0123")
    with pytest.raises(StorageError, match="is gone, another build has cleared up"):
        build.publish(spool, "train/x", crc32c_of_bytes(b""))
    with pytest.raises(StorageError, match="the folder of this build is gone"):
        build.create("_build/0123/receipts/1", b"1")
    assert not (storage.root / "_build/0123").exists()
    assert not (storage.root / "train").exists()


def test_an_object_is_durable_before_its_spool_file_goes(storage, monkeypatch):
    storage.create("train/first", b"")
    steps: list[str] = []
    real: dict[str, Callable[..., Any]] = {"link": os.link, "unlink": os.unlink, "fsync": os.fsync}

    def log(step: str, label: Callable[..., str]) -> Callable[..., Any]:
        def logged(*arguments: Any, **named: Any) -> Any:
            steps.append(label(*arguments))
            return real[step](*arguments, **named)

        return logged

    def name(descriptor: int) -> str:
        return f"fsync {Path(f'/proc/self/fd/{descriptor}').readlink().name[:5]}"

    spool = storage.spool_path("train/x")
    monkeypatch.setattr(os, "fsync", log("fsync", name))
    monkeypatch.setattr(os, "link", log("link", lambda _, target: f"link {target}"))
    monkeypatch.setattr(os, "unlink", log("unlink", lambda path: f"unlink {path[:2]}"))
    storage.publish(spool, "train/x", crc32c_of_bytes(b""))
    assert steps == ["fsync x-" + spool.name[2:5], "link x", "fsync train", "unlink x-"]


def test_a_name_that_keeps_appearing_and_disappearing_is_an_error(storage: LocalStorage) -> None:
    storage.create("y", b"")
    (storage.root / "x").symlink_to("nothing")
    with pytest.raises(StorageError, match="disappears, because another build is clearing up; run the same"):
        publish(storage, "x", b"1")


# Links


def test_links_inside_the_root_are_followed_and_loops_are_cut(storage: LocalStorage) -> None:
    storage.create("images/train2017/x", b"1")
    (storage.root / "train").mkdir()
    for number in range(2):
        (storage.root / f"train/train2017_{number}").symlink_to("../images/train2017")
    (storage.root / "images/loop").symlink_to("..")
    (storage.root / "images/self").symlink_to("self")
    (storage.root / "images/nothing").symlink_to("nowhere")
    (storage.root / "train2017.zip").symlink_to("images/train2017/x")
    shutil.rmtree(storage.root / "_build")
    assert [info.name for info in storage.list()] == [
        "images/train2017/x",
        "train/train2017_0/x",
        "train/train2017_1/x",
        "train2017.zip",
    ]
    assert storage.read("train/train2017_1/x") == b"1"
    assert storage.read_range("train2017.zip", 0, 1) == b"1"


def test_deleting_a_tree_removes_links_and_not_what_they_point_to(storage: LocalStorage, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/x").write_bytes(b"1")
    storage.create("_build/y", b"2")
    (storage.root / "_build/link").symlink_to(tmp_path / "precious")
    (storage.root / "tree").symlink_to(tmp_path / "precious")
    storage.delete_tree("_build")
    storage.delete_tree("tree")
    assert list(storage.root.iterdir()) == []
    assert (tmp_path / "precious/x").read_bytes() == b"1"


@pytest.mark.parametrize("code", [errno.ENOTEMPTY, errno.ENOENT])
def test_deleting_a_tree_that_others_still_change_does_what_it_can(storage, monkeypatch, code):
    storage.create("_build/a/x", b"1")

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "rmdir", refuse)
    storage.delete_tree("_build")
    assert list(storage.list()) == []


def test_the_root_may_be_a_link_and_is_one_place_by_any_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    by_link, by_path = LocalStorage(tmp_path / "link"), LocalStorage(tmp_path / "x/../real")
    assert by_link.url == by_path.url == str(tmp_path / "real")
    by_link.create("a/x", b"1")
    assert by_path.read("a/x") == b"1"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="cannot be a folder: its links lead in a circle"):
        LocalStorage(tmp_path / "loop")


def test_files_that_are_not_regular_are_no_objects(storage: LocalStorage) -> None:
    storage.create("a/x", b"1")
    os.mkfifo(storage.root / "a/fifo")
    assert storage.stat("a/fifo") is None
    assert [info.name for info in storage.list("a")] == ["a/x"]
    for read in (storage.read, storage.open, lambda name: storage.read_range(name, 0, 1)):
        with pytest.raises(FileNotFoundError):
            read("a/fifo")


# Reading


def test_short_reads_are_completed(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(100_000)
    storage.create("x", content)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, count, at: pread(descriptor, min(count, 997), at))
    assert storage.read_range("x", 10, 50_000) == content[10:50_010]


def test_a_file_truncated_while_it_is_read_is_an_error(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.create("x", bytes(1000))
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, count, at: pread(descriptor, min(count, max(0, 600 - at)), at))
    with pytest.raises(StorageError, match="bytes 0 to 1,000 were requested, but it ends at 600"):
        storage.read_range("x", 0, 1000)


# Refusals of the system


def test_sizes_are_those_of_files_that_exist_and_each_folder_is_listed_once(storage, monkeypatch):
    for name in ("train/a", "train/b", "c"):
        publish(storage, name, name.encode())
    (storage.root / "train/folder").mkdir()
    (storage.root / "five").write_bytes(b"12345")
    (storage.root / "train/link").symlink_to("../five")
    (storage.root / "train/broken").symlink_to("nowhere")
    listed = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or scandir(path))
    names = ("train/a", "train/folder", "train/link", "train/broken", "train/none", "c", "c/d", "nowhere/e")
    assert storage.sizes(names) == {"train/a": 7, "train/link": 5, "c": 1}
    assert len(listed) == 2


def test_sizes_behind_a_link_out_of_the_root_are_refused(storage, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a").write_bytes(b"1")
    storage.root.mkdir(exist_ok=True)
    (storage.root / "train").symlink_to(tmp_path / "other")
    with pytest.raises(UsageError, match="is a link out of"):
        storage.sizes(["train/a"])


def _publish_without_links_or_exclusive_renames(folder: Path) -> None:
    refuse({"link": errno.EPERM, "linkat": errno.EPERM, "renameat2": errno.EINVAL})
    storage = LocalStorage(folder / "root")
    with pytest.raises(
        StorageError, match=r"neither hard links nor a rename that replaces nothing.*choose a folder on"
    ):
        storage.create("x", b"1")
    assert storage.stat("x") is None


def _publish_without_links(folder: Path) -> None:
    refuse({"link": errno.EPERM, "linkat": errno.EPERM})
    storage = LocalStorage(folder / "root")
    assert storage.create("x", b"1")
    assert not storage.create("x", b"1")
    with pytest.raises(ConflictError, match="another object exists there already"):
        storage.create("x", b"2")
    assert storage.read("x") == b"1"
    assert not list((storage.root / "_build/tmp").iterdir())


def test_without_hard_links_a_rename_replaces_nothing(tmp_path: Path) -> None:
    assert in_process(_publish_without_links, tmp_path) == 0


def test_where_nothing_can_be_put_in_place_safely_the_error_says_so(tmp_path: Path) -> None:
    assert in_process(_publish_without_links_or_exclusive_renames, tmp_path) == 0


@pytest.fixture
def folders(tmp_path):
    """Descriptors of two folders, `from` and `to`; `from` holds the file x."""
    below = Folders(tmp_path)
    with below.opened("from", make=True) as source, below.opened("to", make=True) as target:
        (tmp_path / "from/x").write_bytes(b"ours")
        yield source, target


@pytest.fixture(params=[True, False], ids=["links", "no links"])
def has_links(request, monkeypatch):
    def refuse_links(*_, **__):
        raise OSError(errno.EPERM, "no hard links")

    if not request.param:
        monkeypatch.setattr(os, "link", refuse_links)
    return request.param


def test_a_file_is_moved_only_to_a_name_that_is_free(folders, tmp_path, has_links):
    source, target = folders
    assert put_exclusively("x", source, "y", target)
    assert (tmp_path / "to/y").read_bytes() == b"ours"
    assert (tmp_path / "from/x").exists() == has_links
    (tmp_path / "from/x").unlink(missing_ok=True)
    (tmp_path / "from/x").write_bytes(b"second")
    assert not put_exclusively("x", source, "y", target)
    assert (tmp_path / "to/y").read_bytes() == b"ours"


@pytest.mark.usefixtures("has_links")
def test_other_errors_are_passed_on(folders):
    with pytest.raises(FileNotFoundError):
        put_exclusively("nothing", folders[0], "y", folders[1])


@pytest.mark.parametrize("has_links", [False], indirect=True)
def test_without_links_and_exclusive_renames_the_system_supports_neither(folders, has_links, monkeypatch):
    monkeypatch.setattr(local, "_renameat2", lambda: None)
    with pytest.raises(OSError) as caught:
        put_exclusively("x", folders[0], "y", folders[1])
    assert caught.value.errno == errno.EOPNOTSUPP
