"""What only a folder on disk does: links, locks, crashes, and the system's refusals."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dataprep.errors import AccessError, ConflictError, DataprepError, StorageError, UsageError
from dataprep.storage.checksums import crc32c_of_bytes
from dataprep.storage.disk_errors import disk_errors
from dataprep.storage.local import LocalStorage
from dataprep.storage.open_files import MAX_OPEN_FILES
from tests.support.small_disk import use_small_disk

NOBODY = 65534
SPAWN = get_context("spawn")


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "root")


def publish(storage: LocalStorage, name: str, data: bytes) -> None:
    spool = storage.spool_path(name)
    spool.write_bytes(data)
    storage.publish(spool, name, crc32c_of_bytes(data))


def spool_files(storage: LocalStorage) -> list[Path]:
    return list((storage.root / "_build/tmp").iterdir())


def in_process(function: Callable[..., None], *arguments: Any) -> int:
    """The exit code of a process of its own; negative for the signal that ended it."""
    process = SPAWN.Process(target=function, args=arguments)
    process.start()
    process.join(60)
    code = process.exitcode
    assert code is not None
    return code


# Crashes


def _die(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def _publish_and_die(root: Path, method: str) -> None:
    setattr(Path, method, _die)
    publish(LocalStorage(root), "train/x", b"content")


@pytest.mark.parametrize(("method", "is_there"), [("hardlink_to", False), ("unlink", True)])
def test_a_writer_killed_around_the_link_leaves_all_or_nothing(
    storage: LocalStorage, method: str, is_there: bool
) -> None:
    assert in_process(_publish_and_die, storage.root, method) == -signal.SIGKILL
    assert (storage.stat("train/x") is not None) == is_there
    assert len(spool_files(storage)) == 1

    assert storage.remove_stale_spools() == 1
    publish(storage, "train/x", b"content")
    assert storage.read("train/x") == b"content"
    assert spool_files(storage) == []


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
    folder = storage.root / "_build/tmp"
    (folder / "folder").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "precious")
    assert storage.remove_stale_spools() == 0
    assert (tmp_path / "precious").read_bytes() == b"1"


def test_a_spool_file_taken_before_it_was_locked_is_made_again(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_without_locks_no_spool_file_is_removed(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> NoReturn:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", refuse)
    storage.spool_path("x").write_bytes(b"1")
    assert LocalStorage(storage.root).remove_stale_spools() == 0
    assert len(spool_files(storage)) == 1


def test_an_object_is_durable_before_its_spool_file_goes(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create("train/first", b"")
    steps: list[str] = []
    real: dict[str, Callable[..., Any]] = {"link": Path.hardlink_to, "unlink": Path.unlink, "fsync": os.fsync}

    def log(step: str, label: Callable[[Any], str]) -> Callable[..., Any]:
        def logged(first: Any, *rest: Any, **named: Any) -> Any:
            steps.append(label(first))
            return real[step](first, *rest, **named)

        return logged

    def name(descriptor: int) -> str:
        return f"fsync {Path(f'/proc/self/fd/{descriptor}').readlink().name[:5]}"

    spool = storage.spool_path("train/x")
    monkeypatch.setattr(os, "fsync", log("fsync", name))
    monkeypatch.setattr(Path, "hardlink_to", log("link", lambda path: f"link {path.name}"))
    monkeypatch.setattr(Path, "unlink", log("unlink", lambda path: f"unlink {path.name[:2]}"))
    storage.publish(spool, "train/x", crc32c_of_bytes(b""))
    assert steps == ["fsync x-" + spool.name[2:5], "link x", "fsync train", "unlink x-"]


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV])
def test_a_file_system_without_hard_links_gets_renames(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: Path) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    publish(storage, "x", b"1")
    publish(storage, "x", b"1")
    with pytest.raises(ConflictError):
        publish(storage, "x", b"2")
    assert storage.read("x") == b"1"
    assert spool_files(storage) == []


def test_a_name_that_comes_and_goes_is_given_up(storage: LocalStorage) -> None:
    storage.create("y", b"")
    (storage.root / "x").symlink_to("nothing")
    with pytest.raises(StorageError, match="it comes and goes, another build is clearing up there; run the same"):
        publish(storage, "x", b"1")


# Links


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
            with pytest.raises(UsageError, match="through a link; pass the folder it points to instead"):
                call(name)
    with pytest.raises(UsageError, match=re.escape(str(storage.root / "a/out"))):
        list(storage.list())
    assert [path.name for path in outside.iterdir()] == ["x"]


def test_links_inside_the_root_are_followed_and_loops_are_cut(storage: LocalStorage, tmp_path: Path) -> None:
    (tmp_path / "big.zip").write_bytes(b"zip")
    storage.create("images/train2017/x", b"1")
    (storage.root / "train").mkdir()
    for number in range(2):
        (storage.root / f"train/train2017_{number}").symlink_to("../images/train2017")
    (storage.root / "images/loop").symlink_to("..")
    (storage.root / "images/self").symlink_to("self")
    (storage.root / "images/nothing").symlink_to("nowhere")
    (storage.root / "train2017.zip").symlink_to(tmp_path / "big.zip")
    shutil.rmtree(storage.root / "_build")
    assert [info.name for info in storage.list()] == [
        "images/train2017/x",
        "train/train2017_0/x",
        "train/train2017_1/x",
        "train2017.zip",
    ]
    assert storage.read("train/train2017_1/x") == b"1"
    assert storage.read_range("train2017.zip", 1, 2) == b"ip"


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
def test_deleting_a_tree_that_others_still_change_does_what_it_can(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
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


def test_what_is_no_regular_file_is_no_object(storage: LocalStorage) -> None:
    storage.create("a/x", b"1")
    os.mkfifo(storage.root / "a/fifo")
    assert storage.stat("a/fifo") is None
    assert [info.name for info in storage.list("a")] == ["a/x"]
    for read in (storage.read, storage.open, lambda name: storage.read_range(name, 0, 1)):
        with pytest.raises(FileNotFoundError):
            read("a/fifo")


# Reading


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_files_stay_open_for_the_next_range_but_not_too_many(storage: LocalStorage) -> None:
    (storage.root / "a").mkdir(parents=True)
    before = open_descriptors()
    for number in range(2 * MAX_OPEN_FILES):
        (storage.root / f"a/{number}").write_bytes(b"%d" % number)
    for _ in range(2):
        for number in range(2 * MAX_OPEN_FILES):
            assert storage.read_range(f"a/{number}", 0, len(str(number))) == b"%d" % number
            assert open_descriptors() <= before + MAX_OPEN_FILES
    assert open_descriptors() == before + MAX_OPEN_FILES


def test_a_file_that_was_replaced_is_opened_again(storage: LocalStorage) -> None:
    storage.create("x", b"old")
    assert storage.read_range("x", 0, 3) == b"old"
    (storage.root / "new").write_bytes(b"newer")
    (storage.root / "new").rename(storage.root / "x")
    assert storage.read_range("x", 0, 5) == b"newer"


def test_short_reads_are_completed(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(100_000)
    storage.create("x", content)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, count, at: pread(descriptor, min(count, 997), at))
    assert storage.read_range("x", 10, 50_000) == content[10:50_010]


def test_a_file_cut_while_it_is_read_is_an_error(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.create("x", bytes(1000))
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, count, at: pread(descriptor, min(count, max(0, 600 - at)), at))
    with pytest.raises(StorageError, match="bytes 0 to 1,000 were asked for, it ends at 600"):
        storage.read_range("x", 0, 1000)


# Refusals of the system


@pytest.mark.parametrize(
    ("code", "kind", "hint"),
    [
        (errno.ENOSPC, StorageError, r"no space left on device \([\d,]+ bytes free in .+\); free some space and run"),
        (errno.EDQUOT, StorageError, "disk quota exceeded .* free some of your quota and run the same command again"),
        (errno.EACCES, AccessError, "permission denied; give this user permission, or choose another folder"),
        (errno.EROFS, AccessError, "read-only file system; choose a folder that can be written"),
        (errno.EMFILE, StorageError, r"too many open files; raise the limit on open files \(ulimit -n\)"),
        (errno.ENAMETOOLONG, StorageError, "file name too long; most file systems take 255 bytes"),
        (errno.EFBIG, StorageError, "file too large; the file system or a limit"),
        (errno.EISDIR, StorageError, "is a directory; a folder stands where a file should"),
        (errno.EIO, StorageError, "input/output error; check the disk and run the same command again: it goes on"),
    ],
)
def test_each_refusal_says_what_to_do(tmp_path: Path, code: int, kind: type[DataprepError], hint: str) -> None:
    with pytest.raises(kind, match=hint) as caught, disk_errors(tmp_path / "a/b"):
        raise OSError(code, os.strerror(code))
    assert str(caught.value).startswith(f"{tmp_path}/a/b: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_passes_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), disk_errors(tmp_path):
        (tmp_path / "x").read_bytes()


def _fill_small_disk(root: Path) -> None:
    use_small_disk(root, 1 << 20)
    storage = LocalStorage(root)
    storage.create("small", bytes(100_000))
    with pytest.raises(StorageError, match=r"free some space and run the same|choose smaller"):
        storage.create("large", bytes(2 << 20))
    assert [info.name for info in storage.list()] == ["small"]
    assert spool_files(storage) == []
    storage.create("next", bytes(500_000))


def test_a_full_disk_is_an_error_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    assert in_process(_fill_small_disk, tmp_path) == 0


def _meet_permissions(root: Path) -> None:
    if os.getuid() == 0:
        os.setuid(NOBODY)
    storage = LocalStorage(root / "closed")
    calls: list[Callable[[], object]] = [
        lambda: storage.read("x"),
        lambda: storage.create("y", b""),
        lambda: storage.spool_path("y"),
        lambda: list(storage.list()),
    ]
    for call in calls:
        with pytest.raises(AccessError, match=r"closed.*permission denied; give this user permission"):
            call()


def test_a_folder_without_permission_is_an_access_error(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "closed")
    storage.create("x", b"1")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    storage.root.chmod(0)
    code = in_process(_meet_permissions, tmp_path)
    storage.root.chmod(0o755)
    assert code == 0


def _run_out_of_descriptors(root: Path) -> None:
    storage = LocalStorage(root)
    storage.create("x", b"1")
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    held = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.dup(0))
    for call in (lambda: storage.read_range("x", 0, 1), lambda: storage.create("y", b"")):
        with pytest.raises(StorageError, match="too many open files; raise the limit on open files"):
            call()
    os.close(held.pop())
    assert storage.read_range("x", 0, 1) == b"1"


def test_too_many_open_files_is_an_error_and_passes(tmp_path: Path) -> None:
    assert in_process(_run_out_of_descriptors, tmp_path) == 0


def test_a_file_or_a_folder_in_the_way_is_an_error(storage: LocalStorage) -> None:
    storage.create("a/x", b"1")
    with pytest.raises(StorageError, match="a file stands where a folder should: move it away"):
        storage.create("a/x/y", b"2")
    with pytest.raises(StorageError, match="a folder stands where a file should: move it away"):
        storage.create("a", b"3")
