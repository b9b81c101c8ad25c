"""What disks and buckets say in the same words: what was got, what was expected, and what to do next."""

import contextlib
import errno
import os
import resource
import stat
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import pytest

from dataprep.errors import AccessError, FullError, StorageError
from dataprep.storage import errors
from dataprep.storage.errors import disk_errors
from dataprep.storage.local import LocalStorage
from tests.support.small_disk import use_small_disk
from tests.support.storages import in_process, local_storage, spool_files

storage = local_storage
NOBODY = 65534


def test_a_missing_object_is_named_as_the_system_names_a_file():
    error = errors.missing("gs://bucket/x")
    assert (error.errno, error.filename) == (errno.ENOENT, "gs://bucket/x")
    assert "No such file" in str(error)


@pytest.mark.parametrize(
    ("code", "kind", "hint"),
    [
        (errno.ENOSPC, FullError, r"no space left on device \([\d,]+ bytes free in .+\); free some space and run"),
        (errno.EDQUOT, FullError, r"disk quota exceeded; free some of your quota, of bytes or of files \(quota -s"),
        (errno.EACCES, AccessError, "permission denied; give this user permission, or choose another folder"),
        (errno.EROFS, AccessError, "read-only file system; choose a folder that can be written"),
        (errno.EMFILE, StorageError, r"too many open files; raise the limit on open files \(ulimit -n\)"),
        (errno.ENAMETOOLONG, StorageError, "file name too long; most file systems take 255 bytes"),
        (errno.EFBIG, FullError, "file too large; the file system or a limit"),
        (errno.EISDIR, StorageError, "is a directory; a folder is where a file should be"),
        (errno.EIO, StorageError, "input/output error; check the disk and run the same command again: it continues"),
    ],
)
def test_each_error_of_the_disk_names_the_next_step(tmp_path, code, kind, hint):
    with pytest.raises(kind, match=hint) as caught, disk_errors(tmp_path / "a/b"):
        raise OSError(code, os.strerror(code))
    assert str(caught.value).startswith(f"{tmp_path}/a/b: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_stays_a_file_not_found_error(tmp_path: Path) -> None:
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


NOT_MOUNTED = 77


def _use_up_inodes(root: Path) -> None:
    if not use_small_disk(root, 8 << 20, inodes=60):
        raise SystemExit(NOT_MOUNTED)
    storage = LocalStorage(root)

    def create_many() -> None:
        for number in range(60):
            storage.create(f"{number}", b"")

    with pytest.raises(StorageError, match=r"no inodes left .* \(\d of 60 free in .*, and 8,[\d,]+ bytes\)") as told:
        create_many()
    assert "; remove files there, or choose a format of fewer files, and run the same command again" in str(told.value)
    for number in range(50):
        storage.delete(f"{number}")
    with pytest.raises(StorageError, match=r"no space left on device \([\d,]+ bytes free in .*\); free some space"):
        storage.create("large", bytes(9 << 20))


def test_a_disk_without_inodes_says_so_and_one_without_space_too(tmp_path: Path) -> None:
    code = in_process(_use_up_inodes, tmp_path)
    if code == NOT_MOUNTED:
        pytest.skip("this system mounts no tmpfs for its users")
    assert code == 0


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
    for folder in takewhile(lambda folder: folder.stat().st_mode & stat.S_ISVTX == 0, (tmp_path, *tmp_path.parents)):
        folder.chmod(0o755)  # up to /tmp: another user must get in
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
    for descriptor in held[-3:]:  # for the root, the file, and a folder in between
        os.close(descriptor)
    assert storage.read_range("x", 0, 1) == b"1"


def test_too_many_open_files_is_an_error_and_later_calls_succeed(tmp_path: Path) -> None:
    assert in_process(_run_out_of_descriptors, tmp_path) == 0


def test_a_file_or_a_folder_in_the_way_is_an_error(storage: LocalStorage) -> None:
    storage.create("a/x", b"1")
    with pytest.raises(StorageError, match="a file is where a folder should be: move it away"):
        storage.create("a/x/y", b"2")
    with pytest.raises(StorageError, match="a folder is where a file should be: move it away"):
        storage.create("a", b"3")
