"""A folder on disk as a place for objects: create-only, durable, and never outside its root."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import io
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from dataprep.errors import ConflictError, StorageError, UsageError
from dataprep.host.heartbeat import beat
from dataprep.messages import quoted
from dataprep.storage import base, errors
from dataprep.storage.checksums import crc32c_of_bytes, crc32c_of_file
from dataprep.storage.folders import OPEN_FOLDER, Folders, Links, OpenFiles, sync_file, sync_folder
from dataprep.storage.spool import SpoolFolder, take_lock

SPOOL_FOLDER = "tmp"
# A name that is taken and then free again means that another build is removing the file.
PLACE_TRIES = 3
STREAM_BUFFER_BYTES = 128 * 2**10
# Removing a large image folder takes a minute. A process suspended while it removes would make others wait forever.
ALONE_WAIT_S = 120.0
ALONE_POLL_S = 0.05
_Walk: TypeAlias = "Iterator[base.ObjectInfo | _Walk]"
# FAT, some network file systems and some containers refuse hard links.
NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
# The file system or the kernel has no rename that keeps an existing file.
NO_EXCLUSIVE_RENAME = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
RENAME_NOREPLACE = 1


class _BeatingFile(io.FileIO):
    """File whose reads count as progress of this process."""

    def readinto(self, buffer: Any) -> int | None:
        beat()
        return super().readinto(buffer)


class LocalStorage:
    """A folder on disk, which need not exist yet. See `Storage` for the contract of each call.

    Args:
        links: Links that are followed when files are read. Users keep originals on other volumes that way; in a
            dataset, which may be a stranger's, a link must stay inside. Nothing is written or removed through a link.
        build: Folder of a build below the root, for its spool files. It must exist, and nothing can be written once it
            is gone. By default spool files are in `_build`, which is created.
        advice: What to do about a link that is not followed, for the error.

    Raises:
        UsageError: The folder's path is a loop of links.
    """

    is_local = True
    reads_in_flight = 1

    def __init__(self, root: Path, *, links: Links = "inside", build: str = "", advice: str = "") -> None:
        self._build = base.check_prefix(build)
        try:
            self.root = root.resolve()
            is_loop = os.path.islink(self.root)  # noqa: PTH114 - Python 3.13 resolves a loop to itself
        except (OSError, RuntimeError):
            is_loop = True
        if is_loop:
            raise UsageError(f"{quoted(str(root))} cannot be a folder: its links lead in a circle")
        self.url = str(self.root)
        self._folders = Folders(self.root, links, advice)
        self._spools = SpoolFolder(self._folders, f"{self._build or '_build'}/{SPOOL_FOLDER}", self._build)
        self._still_ours: Callable[[], None] = _always
        self._files = OpenFiles(self._folders)

    def __reduce__(self) -> tuple[Callable[[], LocalStorage], tuple[()]]:
        links, advice = self._folders.links, self._folders.advice
        return functools.partial(LocalStorage, self.root, links=links, build=self._build, advice=advice), ()

    def url_of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def stat(self, name: str) -> base.ObjectInfo | None:
        """Return the file's size; None also for a folder."""
        with errors.disk_errors(self._located(name)):
            try:
                status = self._folders.status(name)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return _info(name, status) if stat.S_ISREG(status.st_mode) else None

    def stats(self, names: Sequence[str]) -> Sequence[base.ObjectInfo | None]:
        """Stat one file after the other."""
        found: list[base.ObjectInfo | None] = []
        for name in names:
            path = self._located(name)
            with errors.disk_errors(path):
                try:
                    status = os.stat(path)  # noqa: PTH116  a Path costs more than the call
                except (FileNotFoundError, NotADirectoryError):
                    found.append(None)
                    continue
            found.append(_info(name, status) if stat.S_ISREG(status.st_mode) else None)
        return found

    def sizes(self, names: Collection[str]) -> dict[str, int]:
        """Return the sizes of the files that exist, by name. Each folder is listed once, so that network file systems
        answer for many files at a time."""
        by_folder: dict[str, set[str]] = {}
        for name in names:
            folder, _, last = name.rpartition("/")
            by_folder.setdefault(folder, set()).add(last)
        found: dict[str, int] = {}
        nothing_there = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        for folder, wanted in by_folder.items():
            place = f"{folder}/" if folder else ""
            with errors.disk_errors(f"{self.url}/{place}"), nothing_there, self._listed(folder) as entries:
                for entry in entries:
                    if entry.name in wanted:
                        for name, status in self._measured(entry, place):
                            if status is not None:
                                found[f"{place}{name}"] = status.st_size
        return found

    def list(self, prefix: str = "", first: str = "") -> Iterator[base.ObjectInfo]:
        """List files, following the same links as reads; a loop of links is cut."""
        pending = [self._entries(base.check_prefix(prefix), (), first)]
        while pending:
            entry = next(pending[-1], None)
            if entry is None:
                pending.pop()
            elif isinstance(entry, base.ObjectInfo):
                yield entry
            else:
                pending.append(entry)

    def read(self, name: str, max_bytes: int | None = None) -> bytes:
        with self.open(name) as file:
            num_bytes = os.fstat(file.fileno()).st_size
            if max_bytes is not None and num_bytes > max_bytes:
                raise base.TooLargeError(errors.too_large(self.url_of(name), num_bytes, max_bytes))
            with errors.disk_errors(self._located(name)):
                return file.read()

    def read_range(
        self, name: str, offset: int, num_bytes: int, version: int = base.NO_VERSION, file_bytes: int | None = None
    ) -> bytes:
        """Read with one pread, if the system returns everything at once; the file stays open for the next read.

        The file's version is compared before and after, so that all bytes are from one version.
        """
        path = self._located(name)
        if offset < 0 or num_bytes < 0:
            raise UsageError(errors.bad_range(path, offset, num_bytes))
        with errors.disk_errors(path), self._files.reading(name) as (descriptor, status):
            size = status.st_size
            if version and base.file_version(status) != version:
                raise base.ChangedError(path)
            # Checked before reading, which would allocate whatever a broken index requests.
            if file_bytes is not None and size != file_bytes:
                raise base.OtherSizeError(errors.other_size(path, size, file_bytes))
            data = _pread(path, descriptor, size, offset, num_bytes)
            if version and base.file_version(os.fstat(descriptor)) != version:
                raise base.ChangedError(path)
        return data

    @contextlib.contextmanager
    def reading(self, name: str, version: int = base.NO_VERSION) -> Iterator[Callable[[int, int], bytes]]:
        """Open a file to read ranges; its version is compared before the first and after the last of them."""
        path = self._located(name)
        with errors.disk_errors(path), self._files.reading(name) as (descriptor, status):
            if version and base.file_version(status) != version:
                raise base.ChangedError(path)
            yield functools.partial(_pread, path, descriptor, status.st_size)
            if version and base.file_version(os.fstat(descriptor)) != version:
                raise base.ChangedError(path)

    def open(self, name: str) -> BinaryIO:
        path = self._located(name)
        with errors.disk_errors(path):
            try:
                descriptor = self._folders.open(name)
            except (FileNotFoundError, NotADirectoryError):
                raise errors.missing(path) from None
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise errors.missing(path)
            return io.BufferedReader(_BeatingFile(descriptor), STREAM_BUFFER_BYTES)

    def spool_path(self, name: str) -> Path:
        """Create an empty file in the build's `tmp/`, locked until it is published or this process ends."""
        base.check_name(name)
        try:
            with errors.disk_errors(self._spools.folder):
                return self._spools.create(name)
        except FileNotFoundError:
            self._still_ours()
            raise StorageError(errors.build_gone(f"{self.url}/{self._build}")) from None

    def remove_stale_spools(self) -> int:
        """Remove spool files whose writers are dead, and folders that become empty; return the number of files."""
        with errors.disk_errors(self._spools.folder):
            removed = self._spools.remove_stale()
        aside = self._spools.folder
        for folder in (aside, aside.parent):
            with contextlib.suppress(OSError), self._folders.around(folder) as outer:  # in use, or absent
                os.rmdir(folder.name, dir_fd=outer)
        return removed

    def staged(self, root: str, still_ours: Callable[[], None]) -> LocalStorage:
        """Return a storage that links files from `root/tmp/`; once that folder is renamed, nothing can be linked."""
        other = LocalStorage(self.root, links=self._folders.links, build=root, advice=self._folders.advice)
        other._still_ours = still_ours
        return other

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the root; on a file system without locks for folders no other process is excluded."""
        with errors.disk_errors(self.root), self._folders.opened("", make=True) as descriptor:
            until_s = time.monotonic() + ALONE_WAIT_S
            while take_lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) is False:
                if time.monotonic() > until_s:
                    raise StorageError(
                        f"{self.url}: another process is removing or beginning a dataset there; wait until it has "
                        "finished, or end it if it is suspended, then run the same command again"
                    )
                time.sleep(ALONE_POLL_S)
            yield

    @contextlib.contextmanager
    def sending(self, spool: Path, name: str, expected_bytes: int = 0) -> Iterator[Callable[[int], None]]:
        """Send nothing: the file is already on its disk."""
        yield lambda num_bytes: None

    def publish(self, spool: Path, name: str, crc32c: str) -> None:
        """Link the file to its name and unlink the spool file, which is only stale if the process dies in between."""
        try:
            self._place(spool, name, crc32c)
        except ConflictError:
            self._spools.discard(spool)
            raise

    def create(self, name: str, data: bytes) -> bool:
        return self.create_last(name, data, _always)

    def create_last(self, name: str, data: bytes, before: Callable[[], None]) -> bool:
        spool = self.spool_path(name)
        try:
            with errors.disk_errors(self._target(name)):
                spool.write_bytes(data)
            before()
            return self._place(spool, name, crc32c_of_bytes(data))
        finally:
            self._spools.discard(spool)

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Replace the file by a rename, under a lock of the folder."""
        target = self._target(name)
        spool = self.spool_path(name)
        try:
            with errors.disk_errors(target):
                spool.write_bytes(data)
                self._sync(spool)
                with self._opened_for(target) as folder, _locked(folder):
                    if (self.read(name) if self.stat(name) else None) != expected:
                        return False
                    self._rename(spool, target, folder)
            return True
        finally:
            self._spools.discard(spool)

    def replace_file(self, spool: Path, name: str, crc32c: str, expected: base.ObjectInfo) -> bool:
        target = self._target(name)
        try:
            with errors.disk_errors(target):
                ours = (self._sync(spool), crc32c)
                if not target.exists():
                    return False
                with self._opened_for(target) as folder, _locked(folder):
                    theirs = (target.stat().st_size, crc32c_of_file(target))
                    if theirs == (expected.num_bytes, expected.crc32c) != ours:
                        self._rename(spool, target, folder)
                        return True
            return theirs == ours
        finally:
            self._spools.discard(spool)

    def delete(self, name: str) -> None:
        """Remove the file but not the folders above it; of a link, remove only the link."""
        path = self._target(name)
        nothing_there = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with errors.disk_errors(path), nothing_there, self._folders.around(path) as folder:
            os.unlink(path.name, dir_fd=folder)

    def delete_tree(self, prefix: str) -> None:
        """Remove the folder and everything below it; of a link, remove only the link."""
        path = self._target(base.check_prefix(prefix))
        nothing_there = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with errors.disk_errors(path), nothing_there, self._folders.around(path) as folder:
            if path.is_symlink():
                os.unlink(path.name, dir_fd=folder)
            elif path.is_dir():
                shutil.rmtree(path.name, onerror=_forgive_others, dir_fd=folder)

    def place_folders(self, aside: str, links: Iterable[tuple[str, str]]) -> None:
        """Create links below a folder, then move its content, if it exists, to the root, durably.

        A folder in it is renamed if the root has no folder of that name; otherwise its files are moved one by one.
        Raises ConflictError if the name of a file is taken by another one.

        Args:
            links: Name of each link below that folder, and the relative path that it leads to.
        """
        with errors.disk_errors(self._target(aside)), contextlib.suppress(FileNotFoundError):
            for name, leads_to in links:
                link, taken = self._target(f"{aside}/{name}"), contextlib.suppress(FileExistsError)
                with self._folders.around(link, make=True, required=aside) as folder, taken:
                    os.symlink(leads_to, link.name, dir_fd=folder)
            self._move_all(aside, "")
        with errors.disk_errors(self.root), self._folders.opened("") as root:
            sync_folder(root)

    def _move_all(self, aside: str, place: str) -> None:
        with self._folders.opened(aside) as outer, self._folders.opened(place) as target:
            for leaf in sorted(os.listdir(outer)):  # noqa: PTH208  a descriptor has no Path
                name, goal = f"{aside}/{leaf}", f"{place}/{leaf}" if place else leaf
                with contextlib.suppress(FileNotFoundError):  # another process was quicker
                    if stat.S_ISDIR(os.stat(leaf, dir_fd=outer, follow_symlinks=False).st_mode):
                        self._move_folder(name, goal, outer, target)
                    else:
                        if not put_exclusively(leaf, outer, leaf, target):
                            self._check_moved(name, goal)
                        os.unlink(leaf, dir_fd=outer)  # a second name of the same file would change with it
            if place:  # the root is synced at the end
                sync_folder(target)

    def _move_folder(self, name: str, goal: str, outer: int, target: int) -> None:
        """Rename a folder, which never replaces a folder with content; if that is refused, move its files."""
        leaf = name.rpartition("/")[2]
        with self._folders.opened(name) as folder:
            sync_folder(folder)
        try:
            os.rename(leaf, leaf, src_dir_fd=outer, dst_dir_fd=target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.EXDEV):
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(leaf, dir_fd=target)
            self._move_all(name, goal)

    def _check_moved(self, name: str, goal: str) -> None:
        """Raise ConflictError unless the goal is the same file, or a link that leads to the same path."""
        ours, theirs = self._target(name), self._target(goal)
        if ours.is_symlink() or theirs.is_symlink():
            same = ours.is_symlink() and theirs.is_symlink() and ours.readlink() == theirs.readlink()
        else:
            same = theirs.is_file() and ours.read_bytes() == theirs.read_bytes()
        if not same:
            raise ConflictError(
                f"{theirs}: it does not belong to this build, but a file of the dataset has this name; move it away "
                "and run the same command again"
            )

    def delete_exactly(self, info: base.ObjectInfo) -> bool:
        """Remove the file by its name: a disk keeps no generations, and callers use `alone`."""
        existed = self.stat(info.name) is not None
        self.delete(info.name)
        return existed

    def take_away(self, prefix: str) -> None:
        """Rename the folder within the folder above it, then remove it.

        An overlay refuses to rename a folder of its lower layer, such as one in a container's image; such a folder is
        removed in place.
        """
        path = self._target(base.check_prefix(prefix))
        gone = f"{prefix.rstrip('/')}-removed-{uuid.uuid4().hex}"
        nothing_there = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with errors.disk_errors(path), nothing_there, self._folders.around(path) as folder:
            try:
                os.rename(path.name, Path(gone).name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                gone = prefix
        self.delete_tree(gone)

    def prune(self, folders: Iterable[str]) -> None:
        """Remove empty folders with rmdir, which removes no folder that has content."""
        for name in sorted(folders, key=lambda name: name.count("/"), reverse=True):
            path = self._target(name)
            with contextlib.suppress(OSError, UsageError), self._folders.around(path) as folder:
                os.rmdir(path.name, dir_fd=folder)

    def _place(self, spool: Path, name: str, crc32c: str) -> bool:
        """Give the spool file its name; False if an equal object has it already."""
        target = self._target(name)
        with errors.disk_errors(target):
            for _ in range(PLACE_TRIES):
                try:
                    num_bytes = self._sync(spool)
                    with self._opened_for(target) as folder, self._folders.around(spool) as aside:
                        placed = put_exclusively(spool.name, aside, target.name, folder)
                        if not placed:
                            _check_same(target, num_bytes, crc32c)
                        sync_folder(folder)
                    self._spools.discard(spool)
                    return placed
                except FileNotFoundError:
                    continue
        self._still_ours()
        raise StorageError(errors.unsettled(str(target)) if spool.exists() else errors.spool_gone(spool))

    def _opened_for(self, target: Path) -> contextlib.AbstractContextManager[int]:
        return self._folders.around(target, make=True, required=self._build)

    def _sync(self, spool: Path) -> int:
        """Make the written part of a file durable and return its size in bytes."""
        num_bytes = self._spools.sync(spool)
        if num_bytes is not None:
            return num_bytes
        with self._folders.around(spool) as folder:
            return sync_file(spool.name, folder)

    def _rename(self, spool: Path, target: Path, folder: int) -> None:
        with self._folders.around(spool) as aside:
            os.rename(spool.name, target.name, src_dir_fd=aside, dst_dir_fd=folder)
        sync_folder(folder)

    def _target(self, name: str) -> Path:
        """Return the path of a file to write or remove; `Folders` makes sure that no link is on the way."""
        return self.root / base.check_name(name)

    def _located(self, name: str) -> str:
        """Return the object's path as text: a Path would cost 20 us, as much as the rest of a range read."""
        return f"{self.url}/{base.check_name(name)}"

    @contextlib.contextmanager
    def _listed(self, folder: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        descriptor = self._folders.open(folder, OPEN_FOLDER)
        try:
            with os.scandir(descriptor) as entries:
                yield entries
        finally:
            os.close(descriptor)

    def _entries(self, folder: str, above: tuple[os.stat_result, ...], first: str) -> _Walk:
        """Yield a folder's objects, and for each folder in it an iterator like this one, in the order of full names.

        Objects whose full names come before `first` are left out, most of them without a look at their size.
        """
        place = f"{folder}/" if folder else ""
        found: list[tuple[str, os.stat_result | None]] = []
        with errors.disk_errors(f"{self.url}/{place}"):
            try:
                here = self._folders.status(folder)
                if any(os.path.samestat(here, one) for one in above):
                    return
                with self._listed(folder) as entries:
                    for entry in sorted(entries, key=attrgetter("name")):
                        inside = f"{place}{entry.name}/"
                        if inside >= first[: len(inside)]:  # else all names in this folder come before the first
                            found += self._measured(entry, place)
            except (FileNotFoundError, NotADirectoryError):
                return
        for name, status in sorted(found, key=itemgetter(0)):
            if status is None:
                yield self._entries(f"{place}{name[:-1]}", (*above, here), first)
            elif f"{place}{name}" >= first:
                yield _info(f"{place}{name}", status)

    def _measured(self, entry: os.DirEntry[str], place: str) -> Iterator[tuple[str, os.stat_result | None]]:
        """Yield a file's name and status; for a folder its name with a slash, and None; nothing for other entries."""
        try:
            is_link = entry.is_symlink()
            status = self._folders.status(f"{place}{entry.name}") if is_link else entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return  # removed since, or a link to nothing
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            return
        if stat.S_ISDIR(status.st_mode):
            yield f"{entry.name}/", None
        elif stat.S_ISREG(status.st_mode):
            yield entry.name, status


def _pread(path: str, descriptor: int, size: int, offset: int, num_bytes: int) -> bytes:
    """Read a range of an open file of `size` bytes. Raises StorageError if it ends before."""
    if offset + num_bytes > size:
        raise StorageError(errors.ends_before(path, offset, num_bytes, size))
    data = os.pread(descriptor, num_bytes, offset)
    while len(data) < num_bytes:
        more = os.pread(descriptor, num_bytes - len(data), offset + len(data))
        if not more:
            raise StorageError(errors.ends_before(path, offset, num_bytes, offset + len(data)))
        data += more
    beat()
    return data


def _info(name: str, status: os.stat_result) -> base.ObjectInfo:
    return base.ObjectInfo(
        name,
        status.st_size,
        None,
        written_ns=status.st_mtime_ns,
        changed_ns=max(status.st_mtime_ns, status.st_ctime_ns),
        version=base.file_version(status),
    )


def _check_same(target: Path, num_bytes: int, crc32c: str) -> None:
    theirs = (target.stat().st_size, crc32c_of_file(target))
    if theirs != (num_bytes, crc32c):
        raise ConflictError(errors.conflict(str(target), (num_bytes, crc32c), theirs))


def _always() -> None:
    """Do nothing: a storage that is not staged cannot lose the right to write."""


@contextlib.contextmanager
def _locked(folder: int) -> Iterator[None]:
    """Lock a folder; on a file system without locks for folders no other process is excluded."""
    with contextlib.suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_EX)
    yield  # closing the folder's descriptor unlocks it


def _forgive_others(_function: Callable[..., Any], _path: str, error: Any) -> None:
    """Ignore errors of files that another build removes at the same time, or still writes (those are kept)."""
    if error[1].errno not in (errno.ENOENT, errno.ENOTEMPTY):
        raise error[1]


def put_exclusively(source: str, source_folder: int, target: str, target_folder: int) -> bool:
    """Give a file a name that must be free, by a hard link, or by a rename that replaces nothing; False if it is taken.

    Each name is in the folder with the descriptor after it. Raises OSError with EOPNOTSUPP if the file system can do
    neither.
    """
    try:
        os.link(source, target, src_dir_fd=source_folder, dst_dir_fd=target_folder, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        return _rename_exclusively(source, source_folder, target, target_folder)
    return True


def _rename_exclusively(source: str, source_folder: int, target: str, target_folder: int) -> bool:
    rename = _renameat2()
    code = errno.ENOSYS
    if rename is not None:
        arguments = source_folder, os.fsencode(source), target_folder, os.fsencode(target), RENAME_NOREPLACE
        if rename(*arguments) == 0:
            return True
        code = ctypes.get_errno()
    if code == errno.EEXIST:
        return False
    if code in NO_EXCLUSIVE_RENAME:
        code = errno.EOPNOTSUPP
    raise OSError(code, os.strerror(code), target)


@functools.lru_cache(maxsize=1)
def _renameat2() -> Callable[..., int] | None:
    """Return the C library's renameat2; None if it has none."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
        function.restype = ctypes.c_int
    return function
