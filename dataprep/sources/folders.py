"""The files of an unpacked folder, on disk or in a bucket.

On disk the folder itself may be a link to a directory: users put originals on another volume that way. Its content may
come from a stranger's archive: links in it may lead to files of the same folder, never outside and never to
directories.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from dataprep.dataset.spill import Codec, SpilledItems
from dataprep.errors import SourceError
from dataprep.messages import shown
from dataprep.sources.keys import is_hidden, name_bytes, name_parts
from dataprep.storage.base import Storage

MAX_DEPTH = 64
"""Maximum depth of the folders of a tree that is listed."""
_WITHOUT = "or remove it; dataprep build folder leaves it out with `exclude` NAME"
_RENAME, _REPLACE = f"rename it, {_WITHOUT}", f"put the file in its place, {_WITHOUT}"
PassOver: TypeAlias = Callable[[str], bool]
"""Function that takes a file's name without folders and returns whether the file is left out."""


class FolderFile(NamedTuple):
    parts: tuple[str, ...]
    """Components of the file's path below the folder."""
    num_bytes: int


FILES = Codec(msgspec.msgpack.encode, msgspec.msgpack.Decoder(FolderFile).decode, "the list of files")


def folder_files(root: Storage, folder: str, *, depth: int) -> SpilledItems[FolderFile]:
    """List all files of a folder, sorted by the bytes of their paths, in bounded memory; none if it does not exist.
    Raises SourceError if a name is hostile or not UTF-8, or a file is deeper than `depth` or not a plain file, and
    UsageError if the folder is a link that the storage does not follow. A `depth` of 1 is the folder alone."""
    found = _on_disk(root, folder, depth) if root.is_local else _in_bucket(root, folder, depth)
    files = _sorted(found)
    for file in islice(files, 1 if root.is_local else 0):  # refuses such a link now, instead of with the first shard
        root.stat("/".join((folder, *file.parts)))
    return files


def tree_files(root: Storage, is_passed_over: PassOver = lambda _: False) -> SpilledItems[FolderFile]:
    """List all files below the source root except hidden ones, sorted by the bytes of their paths, in bounded memory.

    On disk a folder directly in the root may be a link to a folder anywhere. Raises SourceError if there is no such
    folder, a name is hostile or not UTF-8, or something is not a plain file. `is_passed_over` is asked whether to skip
    each file or folder that is hidden or would be refused."""
    found = _tree_on_disk(root, is_passed_over) if root.is_local else _in_bucket(root, "", MAX_DEPTH, is_passed_over)
    return _sorted(found)


def followed_links(root: Storage) -> list[str]:
    """Return warnings of links that lead out of a source on disk: a downloaded one may link to private pictures."""
    if not root.is_local or not Path(root.url).is_dir():
        return []
    links = sorted(path for path in Path(root.url).iterdir() if path.is_symlink() and not is_hidden((path.name,)))
    targets = [(path, path.resolve()) for path in links]
    return [
        f"warning: {shown(path.name)} is a link to {shown(str(target))}, which is read as a part of the source"
        for path, target in targets
        if target.exists() and not any(target.is_relative_to(each) for each in link_targets(Path(root.url)))
    ]


def _sorted(files: Iterator[FolderFile]) -> SpilledItems[FolderFile]:
    return SpilledItems(FILES, files).in_order(lambda file: "/".join(file.parts).encode())


def _tree_on_disk(root: Storage, is_passed_over: PassOver) -> Iterator[FolderFile]:
    top = Path(root.url)
    if not top.is_dir():
        what = "is a file, not a folder" if top.exists() else "no such folder"
        raise SourceError(f"{root.url}: {what}; check `source`")
    with os.scandir(top) as entries:
        for entry in entries:
            if not entry.is_dir():
                continue
            if is_hidden((entry.name,)):
                is_passed_over(entry.name)
                continue
            parts = _parts(root, "", entry.name)
            for file in _on_disk(root, entry.name, MAX_DEPTH, is_passed_over):
                yield FolderFile((*parts, *file.parts), file.num_bytes)
    yield from _on_disk(root, "", 1, is_passed_over, folders=False)


def _in_bucket(
    root: Storage, folder: str, depth: int, is_passed_over: PassOver = lambda _: False
) -> Iterator[FolderFile]:
    prefix = f"{folder}/" if folder else ""
    for info in root.list(prefix):
        if info.name.endswith("/"):  # consoles create such an object for an empty folder
            continue
        name = info.name.removeprefix(prefix)
        try:
            parts = _parts(root, folder, name)
        except SourceError:
            if is_passed_over(name.rpartition("/")[2]):
                continue
            raise
        if is_hidden(parts):
            is_passed_over(next(part for part in parts if is_hidden((part,))))
            continue
        if len(parts) > depth:
            raise _error(root, folder, parts, "in an unexpected folder; move it elsewhere")
        yield FolderFile(parts, info.num_bytes)


def _on_disk(
    root: Storage, folder: str, depth: int, is_passed_over: PassOver = lambda _: False, *, folders: bool = True
) -> Iterator[FolderFile]:
    """Yield the files of a folder; without `folders`, only those directly in it."""
    top = Path(root.url_of(folder))
    if not top.is_dir():
        return
    inside = link_targets(top)
    pending: list[tuple[str, ...]] = [()]
    while pending:
        above = pending.pop()
        try:
            with os.scandir(top.joinpath(*above)) as entries:
                for entry in entries:
                    if is_hidden((entry.name,)) and "\\" not in entry.name:
                        if folders or not entry.is_dir():
                            is_passed_over(entry.name)
                        continue
                    if not folders and entry.is_dir():
                        continue
                    try:
                        parts = (*above, *_parts(root, folder, entry.name))
                        info = _stat(root, folder, parts, entry, inside)
                    except SourceError:
                        if not _leads_to_folder(entry) and is_passed_over(entry.name):
                            continue
                        raise
                    if stat.S_ISREG(info.st_mode):
                        yield FolderFile(parts, info.st_size)
                    elif len(parts) < depth:
                        pending.append(parts)
                    else:
                        raise _error(root, folder, parts, "an unexpected folder; move it elsewhere")
        except OSError as error:
            raise SourceError(f"{top}: cannot be listed: {error.strerror or error}; check its permissions") from error


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_dir()
    return False


def link_targets(folder: Path) -> tuple[Path, ...]:
    """Return the folders that a link in a folder may lead into.

    They are the folder itself and, for a snapshot in the cache of the Hub's tools, whose files are links, the blobs of
    the same repository: `datasets--NAME/snapshots/REVISION/x` leads to `datasets--NAME/blobs/`.
    """
    inside = folder.resolve()
    for above in (inside, *inside.parents):
        if above.parent.name == "snapshots" and (blobs := above.parent.parent / "blobs").is_dir():
            return (inside, *([] if blobs.is_symlink() else [blobs]))
    return (inside,)


def _stat(
    root: Storage, folder: str, parts: tuple[str, ...], entry: os.DirEntry[str], inside: tuple[Path, ...]
) -> os.stat_result:
    """Stat a file or folder; refuse links that lead outside, and everything else."""
    try:
        info = entry.stat()
    except OSError as error:
        raise _error(root, folder, parts, f"cannot be read: {error.strerror}; {_REPLACE}") from error
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
        raise _error(root, folder, parts, f"a device, pipe or socket; expected a file: {_REPLACE}")
    if entry.is_symlink():
        if stat.S_ISDIR(info.st_mode):
            raise _error(root, folder, parts, "a link to a folder; expected a folder")
        target = Path(entry.path).resolve()
        if not any(target.is_relative_to(each) for each in inside):
            raise _error(root, folder, parts, f"a link that leads outside the folder; expected a file: {_REPLACE}")
    return info


def _parts(root: Storage, folder: str, name: str) -> tuple[str, ...]:
    try:
        parts = name_parts(name)
        if not name.isascii():
            name_bytes(name).decode()
    except SourceError as error:
        raise _error(root, folder, (name,), f"{error}; {_RENAME}") from error
    except UnicodeDecodeError as error:
        raise _error(root, folder, (name,), f"its name is not UTF-8; {_RENAME}") from error
    return parts


def _error(root: Storage, folder: str, parts: tuple[str, ...], what: str) -> SourceError:
    return SourceError(f"{root.url_of(folder)}: {shown('/'.join(parts))}: {what}")
