"""The files of an unpacked folder, on disk or in a bucket.

On disk the folder itself may be a link to a directory: users put originals on another volume that way. Its content may
come from a stranger's archive: links in it may lead to files of the same folder, never outside and never to
directories.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from dataprep.dataset.spilled_items import Codec, SpilledItems
from dataprep.errors import SourceError
from dataprep.messages import shown
from dataprep.sources.keys import is_hidden, name_bytes, name_parts
from dataprep.storage.base import Storage

MAX_DEPTH = 64
"""Maximum depth of the folders of a tree that is listed."""


class FolderFile(NamedTuple):
    """One file below a folder."""

    parts: tuple[str, ...]
    """Components of the file's path below the folder."""
    num_bytes: int


_DECODER = msgspec.msgpack.Decoder(tuple[tuple[str, ...], int])
FILES = Codec(
    lambda file: msgspec.msgpack.encode((list(file.parts), file.num_bytes)),
    lambda data: FolderFile(*_DECODER.decode(data)),
    "the list of files",
)


def folder_files(root: Storage, folder: str, *, depth: int) -> SpilledItems[FolderFile]:
    """List all files of a folder, sorted by the bytes of their paths, in bounded memory; none if there is no such
    folder.

    Args:
        root: The source root.
        folder: Name below the root.
        depth: Number of directory levels to read; 1 is the folder alone.

    Raises:
        SourceError: A name is hostile or no UTF-8, something lies deeper than `depth`, or is no plain file.
        UsageError: The folder is a link that the storage does not follow.
    """
    found = _on_disk(root, folder, depth) if root.is_local else _in_bucket(root, folder, depth)
    files = _sorted(found)
    for file in islice(files, 1 if root.is_local else 0):  # refuses such a link now, and not with the first shard
        root.stat("/".join((folder, *file.parts)))
    return files


def tree_files(root: Storage) -> SpilledItems[FolderFile]:
    """List all files below the source root except hidden ones, sorted by the bytes of their paths, in bounded memory.

    On disk a folder directly in the root may be a link to a folder anywhere.

    Raises:
        SourceError: There is no such folder, a name is hostile or not UTF-8, or something is not a plain file.
    """
    found = _tree_on_disk(root) if root.is_local else _in_bucket(root, "", MAX_DEPTH)
    return _sorted(found)


def _sorted(files: Iterator[FolderFile]) -> SpilledItems[FolderFile]:
    return SpilledItems(FILES, files).in_order(lambda file: "/".join(file.parts).encode())


def _tree_on_disk(root: Storage) -> Iterator[FolderFile]:
    top = Path(root.url)
    if not top.is_dir():
        what = "is a file, not a folder" if top.exists() else "no such folder"
        raise SourceError(f"{root.url}: {what}; check --source")
    with os.scandir(top) as entries:
        for entry in entries:
            if not entry.is_dir():
                continue
            parts = _parts(root, "", entry.name)
            if not is_hidden(parts):
                for file in _on_disk(root, entry.name, MAX_DEPTH):
                    yield FolderFile((*parts, *file.parts), file.num_bytes)
    yield from _on_disk(root, "", 1, folders=False)


def _in_bucket(root: Storage, folder: str, depth: int) -> Iterator[FolderFile]:
    prefix = f"{folder}/" if folder else ""
    for info in root.list(prefix):
        if info.name.endswith("/"):  # what consoles create for an empty folder
            continue
        parts = _parts(root, folder, info.name.removeprefix(prefix))
        if is_hidden(parts):
            continue
        if len(parts) > depth:
            raise _error(root, folder, parts, "in an unexpected folder; move it elsewhere")
        yield FolderFile(parts, info.num_bytes)


def _on_disk(root: Storage, folder: str, depth: int, *, folders: bool = True) -> Iterator[FolderFile]:
    """Yield the files of a folder; without `folders`, only those directly in it."""
    top = Path(root.url_of(folder))
    if not top.is_dir():
        return
    inside = top.resolve()
    pending: list[tuple[str, ...]] = [()]
    while pending:
        above = pending.pop()
        try:
            with os.scandir(top.joinpath(*above)) as entries:
                for entry in entries:
                    parts = (*above, *_parts(root, folder, entry.name))
                    if is_hidden(parts) or (not folders and entry.is_dir()):
                        continue
                    info = _stat(root, folder, parts, entry, inside)
                    if stat.S_ISREG(info.st_mode):
                        yield FolderFile(parts, info.st_size)
                    elif len(parts) < depth:
                        pending.append(parts)
                    else:
                        raise _error(root, folder, parts, "an unexpected folder; move it elsewhere")
        except OSError as error:
            raise SourceError(f"{top}: cannot be listed: {error.strerror or error}; check its permissions") from error


def _stat(root: Storage, folder: str, parts: tuple[str, ...], entry: os.DirEntry[str], inside: Path) -> os.stat_result:
    """Stat a file or folder; refuse a link that leads outside, and anything else."""
    try:
        info = entry.stat()
    except OSError as error:
        raise _error(root, folder, parts, f"cannot be read: {error.strerror}") from error
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
        raise _error(root, folder, parts, "a device, pipe or socket; expected a file")
    if entry.is_symlink():
        if stat.S_ISDIR(info.st_mode):
            raise _error(root, folder, parts, "a link to a folder; expected a folder")
        if not Path(entry.path).resolve().is_relative_to(inside):
            raise _error(root, folder, parts, "a link that leads outside the folder; expected a file")
    return info


def _parts(root: Storage, folder: str, name: str) -> tuple[str, ...]:
    try:
        parts = name_parts(name)
        if not name.isascii():
            name_bytes(name).decode()
    except SourceError as error:
        raise _error(root, folder, (name,), str(error)) from error
    except UnicodeDecodeError as error:
        raise _error(root, folder, (name,), "its name is no UTF-8; rename it") from error
    return parts


def _error(root: Storage, folder: str, parts: tuple[str, ...], what: str) -> SourceError:
    return SourceError(f"{root.url_of(folder)}: {shown('/'.join(parts))}: {what}")
