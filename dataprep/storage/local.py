"""A folder on disk as a place for objects: create-only, durable, and never outside its root."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from dataprep.errors import ConflictError, StorageError, UsageError
from dataprep.storage.base import ObjectInfo
from dataprep.storage.checksums import crc32c_of_bytes, crc32c_of_file
from dataprep.storage.disk_errors import disk_errors
from dataprep.storage.messages import bad_range, conflict, ends_before, missing, spool_gone, unsettled
from dataprep.storage.names import check_name, check_prefix, shown
from dataprep.storage.open_files import OpenFiles
from dataprep.storage.spool import SpoolFolder

SPOOL_FOLDER = "_build/tmp"
# FAT, some network file systems and some containers refuse hard links.
NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
# A name that is taken, then free again, is one that another build is clearing up.
PLACE_TRIES = 3
# Folders known to lie inside the root: looking each time costs 20 us, as much as all else of a range read.
MAX_KNOWN_FOLDERS = 4096
_Walk: TypeAlias = "Iterator[ObjectInfo | _Walk]"


class LocalStorage:
    """A folder on disk, which need not exist yet. See `Storage` for what each call promises.

    Args:
        root: The folder.
        links_in_root: Whether links directly in it may lead to folders anywhere. Users put originals on other volumes
            that way; in a dataset, which may be a stranger's, a link must stay inside.

    Raises:
        UsageError: The folder's path is a loop of links.
    """

    is_local = True
    reads_in_flight = 1

    def __init__(self, root: Path, *, links_in_root: bool = False) -> None:
        self._links_in_root = links_in_root
        try:
            self.root = root.resolve()
        except (OSError, RuntimeError):
            raise UsageError(f"{shown(str(root))} cannot be a folder: its links lead in a circle") from None
        self.url = str(self.root)
        self._spools = SpoolFolder(self.root / SPOOL_FOLDER)
        self._files = OpenFiles()
        self._known_folders: set[str] = set()

    def __reduce__(self) -> tuple[Callable[[], LocalStorage], tuple[()]]:
        return functools.partial(LocalStorage, self.root, links_in_root=self._links_in_root), ()

    def url_of(self, name: str) -> str:
        """The object's path."""
        return f"{self.url}/{name}"

    def stat(self, name: str) -> ObjectInfo | None:
        """Its size; None for a folder, too."""
        path = self._path(name)
        with disk_errors(path):
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return ObjectInfo(name, status.st_size, None) if stat.S_ISREG(status.st_mode) else None

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Links are followed, to files anywhere and to folders inside the root; a loop of them is cut."""
        prefix = check_prefix(prefix)
        folder = self._path(prefix) if prefix else self.root
        pending = [self._entries(folder, f"{prefix}/" if prefix else "", ())]
        while pending:
            entry = next(pending[-1], None)
            if entry is None:
                pending.pop()
            elif isinstance(entry, ObjectInfo):
                yield entry
            else:
                pending.append(entry)

    def read(self, name: str) -> bytes:
        """The whole file in memory."""
        path = self._existing(name)
        with disk_errors(path):
            return path.read_bytes()

    def read_range(self, name: str, offset: int, num_bytes: int) -> bytes:
        """One pread where the system gives all at once; the file stays open for the next read."""
        path = self._located(name)
        if offset < 0 or num_bytes < 0:
            raise UsageError(bad_range(path, offset, num_bytes))
        with disk_errors(path), self._files.reading(path) as (descriptor, size):
            # Before reading, which allocates whatever a broken index asks for.
            if offset + num_bytes > size:
                raise StorageError(ends_before(path, offset, num_bytes, size))
            data = os.pread(descriptor, num_bytes, offset)
            while len(data) < num_bytes:
                more = os.pread(descriptor, num_bytes - len(data), offset + len(data))
                if not more:
                    raise StorageError(ends_before(path, offset, num_bytes, offset + len(data)))
                data += more
        return data

    def open(self, name: str) -> BinaryIO:
        """The file itself."""
        path = self._existing(name)
        with disk_errors(path):
            return path.open("rb")

    def spool_path(self, name: str) -> Path:
        """An empty file under `_build/tmp/`, locked until it is published or this process ends."""
        check_name(name)
        with disk_errors(self._spools.folder):
            return self._spools.create(name)

    def remove_stale_spools(self) -> int:
        """Remove spool files whose writers are dead, and folders that this leaves empty; the number of files."""
        with disk_errors(self._spools.folder):
            removed = self._spools.remove_stale()
        with contextlib.suppress(OSError):  # in use, or not there
            self._spools.folder.rmdir()
            self._spools.folder.parent.rmdir()
        return removed

    @contextlib.contextmanager
    def sending(self, spool: Path, name: str) -> Iterator[Callable[[int], None]]:
        """Nothing to send: the file lies where it will stay."""
        yield lambda num_bytes: None

    def publish(self, spool: Path, name: str, crc32c: str) -> None:
        """Hard link and unlink: killed in between, the object is whole and its spool file is stale."""
        try:
            self._place(spool, name, crc32c)
        except ConflictError:
            self._spools.discard(spool)
            raise

    def create(self, name: str, data: bytes) -> bool:
        """Spooled and published like anything else."""
        target = self._path(name)
        spool = self.spool_path(name)
        try:
            with disk_errors(target):
                spool.write_bytes(data)
            return self._place(spool, name, crc32c_of_bytes(data))
        finally:
            self._spools.discard(spool)

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """A rename, under a lock of the folder."""
        target = self._path(name)
        spool = self.spool_path(name)
        try:
            with disk_errors(target):
                spool.write_bytes(data)
                _sync(spool)
                _make_folder(target.parent)
                with _locked(target.parent):
                    if (target.read_bytes() if target.exists() else None) != expected:
                        return False
                    spool.rename(target)
                    _sync(target.parent)
            return True
        finally:
            self._spools.discard(spool)

    def replace_file(self, spool: Path, name: str, crc32c: str, expected: ObjectInfo) -> bool:
        """As `replace`."""
        target = self._path(name)
        try:
            with disk_errors(target):
                ours = (_sync(spool), crc32c)
                if not target.exists():
                    return False
                with _locked(target.parent):
                    theirs = (target.stat().st_size, crc32c_of_file(target))
                    if theirs == (expected.num_bytes, expected.crc32c) != ours:
                        spool.rename(target)
                        _sync(target.parent)
                        return True
            return theirs == ours
        finally:
            self._spools.discard(spool)

    def delete(self, name: str) -> None:
        """The folders above it stay."""
        path = self._path(name)
        with disk_errors(path):
            try:
                path.unlink(missing_ok=True)
            except NotADirectoryError:
                return

    def delete_tree(self, prefix: str) -> None:
        """Remove the folder itself as well; of a link the link alone."""
        path = self._path(check_prefix(prefix))
        with disk_errors(path):
            if path.is_symlink():
                path.unlink(missing_ok=True)
            elif path.is_dir():
                shutil.rmtree(path, onerror=_forgive_others)

    def _place(self, spool: Path, name: str, crc32c: str) -> bool:
        """Whether this call put the object in place; False where an equal one was there."""
        target = self._path(name)
        with disk_errors(target):
            for _ in range(PLACE_TRIES):
                try:
                    num_bytes = _sync(spool)
                    _make_folder(target.parent)
                    placed = _link(spool, target)
                    if not placed:
                        _check_same(target, num_bytes, crc32c)
                    _sync(target.parent)
                    self._spools.discard(spool)
                    return placed
                except FileNotFoundError:
                    continue
        raise StorageError(unsettled(str(target)) if spool.exists() else spool_gone(spool))

    def _existing(self, name: str) -> Path:
        if self.stat(name) is None:
            raise missing(self.url_of(name))
        return self._path(name)

    def _path(self, name: str) -> Path:
        return Path(self._located(name))

    def _located(self, name: str) -> str:
        """Its path as text: a Path costs 20 us, as much as all else of a range read."""
        path = f"{self.url}/{check_name(name)}"
        folder = path.rpartition("/")[0]
        if folder not in self._known_folders:
            self._check_inside(Path(folder))
        return path

    def _check_inside(self, folder: Path) -> None:
        """Refuse a folder that a link on the way leads out of the root; a file may be a link to anywhere."""
        try:
            resolved = folder.resolve()
            inside = resolved.is_relative_to(self.root) or self._is_below_link(folder, resolved)
        except (OSError, RuntimeError):
            return  # too long, or a loop of links: whoever opens it is told so by the system
        if not inside:
            raise UsageError(f"{folder} leads out of {self.root} through a link; pass the folder it points to instead")
        if len(self._known_folders) >= MAX_KNOWN_FOLDERS:
            self._known_folders.clear()
        self._known_folders.add(str(folder))

    def _is_below_link(self, folder: Path, resolved: Path) -> bool:
        """Whether a folder lies inside what a permitted link directly in the root points to."""
        parts = folder.relative_to(self.root).parts
        return self._links_in_root and bool(parts) and resolved.is_relative_to((self.root / parts[0]).resolve())

    def _entries(self, folder: Path, prefix: str, above: tuple[os.stat_result, ...]) -> _Walk:
        """A folder's objects, and an iterator like this one for each folder in it, in the order of full names."""
        with disk_errors(folder):
            try:
                here = folder.stat()
                entries = [] if any(os.path.samestat(here, one) for one in above) else list(os.scandir(folder))
            except (FileNotFoundError, NotADirectoryError):
                return
            found = [(name, size) for entry in entries for name, size in _measure(entry)]
        for name, num_bytes in sorted(found):
            if num_bytes is not None:
                yield ObjectInfo(f"{prefix}{name}", num_bytes, None)
                continue
            inner = folder / name
            if inner.is_symlink():
                self._check_inside(inner)
            yield self._entries(inner, f"{prefix}{name}", (*above, here))


def _measure(entry: os.DirEntry[str]) -> Iterator[tuple[str, int | None]]:
    """Its name and bytes; of a folder its name with a slash and None; nothing for what is no object."""
    try:
        status = entry.stat()
    except FileNotFoundError:
        return  # removed since, or a link to nothing
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return
    if stat.S_ISDIR(status.st_mode):
        yield f"{entry.name}/", None
    elif stat.S_ISREG(status.st_mode):
        yield entry.name, status.st_size


def _check_same(target: Path, num_bytes: int, crc32c: str) -> None:
    """Raises ConflictError where the object that stands there has other bytes."""
    theirs = (target.stat().st_size, crc32c_of_file(target))
    if theirs != (num_bytes, crc32c):
        raise ConflictError(conflict(str(target), (num_bytes, crc32c), theirs))


def _sync(path: Path) -> int:
    """Make a file, or the names in a folder, durable; its size in bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some network file systems sync no folders.
            if error.errno != errno.EINVAL or not stat.S_ISDIR(status.st_mode):
                raise
        return status.st_size
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone among all who lock this folder; where the file system has no locks for folders, not alone."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    missing_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing_folders):
        path.mkdir(exist_ok=True)
        _sync(path.parent)


def _link(spool: Path, target: Path) -> bool:
    """Whether the spool file was put in place; False where something stands there already."""
    try:
        target.hardlink_to(spool)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        if target.exists():
            return False
        spool.rename(target)
    return True


def _forgive_others(_function: Callable[..., Any], _path: str, error: Any) -> None:
    """Another build may remove the same files, or still write some: then those stay."""
    if error[1].errno not in (errno.ENOENT, errno.ENOTEMPTY):
        raise error[1]
