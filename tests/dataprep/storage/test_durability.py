"""What is said to be written has reached the disk: errors of writing, short writes, and fsync of files and folders."""

import errno
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep.builder.shard import SYNC_BYTES, WritebackFile
from dataprep.errors import StorageError
from dataprep.storage import ObjectInfo
from dataprep.storage.checksums import crc32c_of_bytes
from dataprep.storage.copies import copy_object
from dataprep.storage.local import LocalStorage
from loaders.fetch.cache import DiskCache
from tests.support.refusals import refuse
from tests.support.storages import in_process, local_storage

storage = local_storage
LIMIT_BYTES = 1_000_000


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The system calls that make names and contents durable, or that need it, as they are made."""
    made: list[str] = []

    def path_of(descriptor: int | None) -> Path:
        return Path("" if descriptor is None else f"/proc/self/fd/{descriptor}").resolve()

    def log(call: str, describe: Callable[..., str]) -> None:
        real: Callable[..., Any] = getattr(os, call)

        def logged(*arguments: Any, **options: Any) -> Any:
            result = real(*arguments, **options)
            made.append(f"{call} {describe(*arguments, **options)}")
            return result

        monkeypatch.setattr(os, call, logged)

    log("fsync", lambda descriptor: path_of(descriptor).name.partition("-")[0])
    log("mkdir", lambda leaf, *_, dir_fd=None: Path(leaf).name)
    log("link", lambda _, leaf, **__: leaf)
    log("symlink", lambda _, leaf, **__: leaf)
    log("rename", lambda _, leaf, **__: leaf)
    return made


# Errors of writing


def _write_while_syncs_fail(folder: Path) -> None:
    refuse({"fdatasync": errno.EIO})
    path = folder / "spool"
    path.touch()
    with pytest.raises(OSError, match="Input/output error"), WritebackFile(path, lambda num_bytes: None) as file:
        file.write(bytes(SYNC_BYTES + 1))


def test_an_error_of_the_last_background_sync_is_raised(tmp_path: Path) -> None:
    assert in_process(_write_while_syncs_fail, tmp_path) == 0


def test_write_errors_are_checked_on_a_descriptor_opened_before_the_first_write(storage, monkeypatch):
    """The kernel reports an error once to each open descriptor: a file that is opened afterwards shows nothing."""
    spool = storage.spool_path("x")
    told = {int(path.name) for path in Path("/proc/self/fd").iterdir() if path.resolve() == spool}
    spool.write_bytes(b"1")
    fsync = os.fsync

    def fail_where_open_then(descriptor: int) -> None:
        if descriptor in told:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_where_open_then)
    with pytest.raises(StorageError, match="input/output error; check the disk"):
        storage.publish(spool, "x", crc32c_of_bytes(b"1"))
    with pytest.raises(StorageError, match="input/output error; check the disk"):
        storage.replace_file(spool, "x", crc32c_of_bytes(b"1"), ObjectInfo("x", 1, crc32c_of_bytes(b"0")))
    assert storage.stat("x") is None


# Short writes: the kernel takes what fits below a limit, and refuses only the next byte


def _limit_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))


def _write_back_short(folder: Path) -> None:
    path = folder / "spool"
    path.touch()
    _limit_files()
    with pytest.raises(OSError, match="File too large"), WritebackFile(path, lambda num_bytes: None) as file:
        file.write(bytes(LIMIT_BYTES + 1))


def _copy_short(folder: Path) -> None:
    (folder / "source").mkdir()
    (folder / "source/x").write_bytes(bytes(LIMIT_BYTES + 1))
    _limit_files()
    info = ObjectInfo("x", LIMIT_BYTES + 1, crc32c_of_bytes(bytes(LIMIT_BYTES + 1)))
    source, target = LocalStorage(folder / "source"), LocalStorage(folder / "target")
    with pytest.raises(StorageError, match="file too large"):
        copy_object(source, target, info, lambda num_bytes: None)
    assert target.stat("x") is None


def _cache_short(folder: Path) -> None:
    cache = DiskCache(folder / "cache", 10 * LIMIT_BYTES)
    _limit_files()
    cache.put("x", bytes(LIMIT_BYTES + 1))
    assert not list((folder / "cache").glob("*.piece"))


@pytest.mark.parametrize("write", [_write_back_short, _copy_short, _cache_short])
def test_a_partial_write_is_an_error(tmp_path: Path, write: Callable[[Path], None]) -> None:
    assert in_process(write, tmp_path) == 0


# Names


def test_a_replaced_object_is_durable_before_and_after_its_rename(storage: LocalStorage, steps: list[str]) -> None:
    storage.create("a/x.json", b"1")
    steps.clear()
    assert storage.replace("a/x.json", b"2", b"1")
    assert steps == ["fsync x.json", "rename x.json", "fsync a"]
    spool = storage.spool_path("y")
    spool.write_bytes(b"3")
    steps.clear()
    assert storage.replace_file(spool, "a/x.json", crc32c_of_bytes(b"3"), ObjectInfo("x", 1, crc32c_of_bytes(b"2")))
    assert steps == ["fsync y", "rename x.json", "fsync a"]


def test_each_new_folder_is_made_durable_in_the_one_around_it(tmp_path: Path, steps: list[str]) -> None:
    storage = LocalStorage(tmp_path / "new/root")
    storage.create("a/b/x", b"1")
    around = tmp_path.name.partition("-")[0]
    assert steps[:3] == ["mkdir new", f"fsync {around}", "mkdir root"]
    assert [step for step in steps if step.split()[1] not in ("_build", "tmp")][3:] == [
        *("fsync new", "fsync new", "fsync root", "fsync x", "mkdir a", "fsync root", "mkdir b", "fsync a"),
        *("link x", "fsync b"),
    ]


def test_a_folder_that_a_killed_process_made_is_made_durable(storage: LocalStorage, steps: list[str]) -> None:
    (storage.root / "a/b").mkdir(parents=True)
    steps.clear()
    storage.create("a/b/x", b"1")
    assert [step for step in steps if step != "mkdir b"].index("fsync a") < steps.index("link x")
    assert steps.index(f"fsync {storage.root.parent.name.partition('-')[0]}") < steps.index("link x")
    steps.clear()
    storage.create("a/b/y", b"1")
    assert steps == ["fsync y", "link y", "fsync b"]  # each once a process


def test_links_of_an_image_folder_are_durable_before_it_is_moved(storage: LocalStorage, steps: list[str]) -> None:
    storage.create("_build/folder/images/a/x.jpg", b"1")
    steps.clear()
    storage.place_folders("_build/folder", [("train/a_0", "../images/a"), ("train/a_1", "../images/a")])
    assert steps == [
        *("mkdir train", "fsync folder", "symlink a_0", "symlink a_1"),
        *("fsync images", "rename images", "fsync train", "rename train", "fsync root"),
    ]
    assert storage.read("train/a_1/x.jpg") == b"1"
    storage.place_folders("_build/folder", [])  # by another process, later
    assert [info.name for info in storage.list("train")] == ["train/a_0/x.jpg", "train/a_1/x.jpg"]


# File systems without hard links


def test_where_a_folder_cannot_be_renamed_its_files_are_moved(tmp_path, monkeypatch):
    """As an overlay refuses it for a folder of its lower layer, such as one in a container's image."""
    storage = LocalStorage(tmp_path)
    for name in ("train/a/1.jpg", "train/a/2.jpg", "train/b/sub/3.jpg"):
        storage.create(f"_build/folder/{name}", name.encode())

    def refuse(*_arguments, **_folders):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "rename", refuse)
    for _ in range(2):
        storage.place_folders("_build/folder", [("train/a_0", "a")])
    storage.take_away("_build/folder")
    assert [info.name for info in storage.list("_build")] == []
    found = {info.name: storage.read(info.name) for info in storage.list("train")}
    names = ("train/a/1.jpg", "train/a/2.jpg", "train/b/sub/3.jpg")
    assert found == {name: name.encode() for name in names} | {
        f"train/a_0/{leaf}": f"train/a/{leaf}".encode() for leaf in ("1.jpg", "2.jpg")
    }
