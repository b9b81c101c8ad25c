"""Reads an image folder as torchvision's ImageFolder does: its folders are classes, and all files below them are
images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import PurePosixPath

from dataprep.adoption.rows import crc32c_number
from dataprep.dataset.adopted import is_in_class_folder, is_text
from dataprep.dataset.index import IndexRow
from dataprep.dataset.paths import OTHER_PICTURES, READABLE_SUFFIXES, is_hidden_name, is_readable_image
from dataprep.dataset.records import NO_LABEL, Event
from dataprep.errors import SourceError, UsageError
from dataprep.messages import shell_words, shown
from dataprep.sources.archives import refuse_pointer
from dataprep.sources.keys import key_of
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.base import FORBIDDEN
from dataprep.storage.checksums import crc32c_of

IMAGES_PER_SHARD = 2048
"""Number of images in each group of the index: about as many as in a shard of 256 MiB."""
_DIGESTS_IN_FLIGHT = 8


@dataclass(frozen=True, slots=True)
class FolderImages:
    """The images of one split."""

    files: Sequence[tuple[int, ObjectInfo]]
    """Files in ImageFolder's order, each with the position of its class."""
    root_depth: int
    """Number of path components of the split's folder."""
    skipped: Counter[str]
    """Number of files that were left out, by suffix, or because they are hidden or in no class folder."""

    @property
    def num_shards(self) -> int:
        return -(-len(self.files) // IMAGES_PER_SHARD)


def find_folder_images(
    storage: Storage, listing: Sequence[ObjectInfo], folders: Mapping[str, str]
) -> tuple[dict[str, FolderImages], tuple[str, ...]]:
    """Find the images of each split, and the sorted classes.

    Args:
        storage: Where the data are.
        listing: All files of the storage.
        folders: Folder of each split, below the root; empty for the root itself.

    Raises:
        UsageError: There is no image in a class folder, or a split has classes that the others do not have.
    """
    splits = {split: _class_folders(listing, folder) for split, folder in folders.items()}
    classes_of = {split: set(by_class) for split, (by_class, _) in splits.items()}
    for split, folder in folders.items():
        if not classes_of[split]:
            known = ", ".join(f".{suffix}" for suffix in sorted(READABLE_SUFFIXES))
            raise UsageError(
                f"{storage.url_of(folder) if folder else storage.url}: no image in a class folder, as in "
                f"<class>/x.jpg (found {left_out(splits[split][1]) or 'no file'}); expected {known}; check the URL and "
                "--split"
            )
    widest = max(classes_of, key=lambda split: len(classes_of[split]))
    classes = tuple(sorted(classes_of[widest]))
    for split, names in classes_of.items():
        if not names <= classes_of[widest]:
            other = ", ".join(shown(name) for name in sorted(names - classes_of[widest])[:3])
            raise UsageError(
                f"{storage.url}: {split} has class folders that {widest} has not ({other}): labels would have "
                f"different meanings; adopt one of them, --split {shell_words(widest)}={folders[widest] or '.'}"
            )
    for name in classes:
        if not is_text(name):
            raise UsageError(f"{storage.url}: class folder {shown(name)} is no UTF-8, expected text; rename it")
    position = {name: number for number, name in enumerate(classes)}
    images = {}
    for split, (by_class, skipped) in splits.items():
        for info in chain.from_iterable(by_class.values()):
            refuse_pointer(storage, info.name, info.num_bytes)
        files = [(position[name], info) for name in sorted(by_class) for info in by_class[name]]
        images[split] = FolderImages(files, folders[split].count("/") + bool(folders[split]), skipped)
    return images, classes


def left_out(skipped: Counter[str]) -> str:
    """Describe files that were left out, the most frequent kinds first."""
    text = ", ".join(f"{count:,} {kind}" for kind, count in skipped.most_common(5))
    pictures = [kind for kind in skipped if kind.removeprefix(".") in OTHER_PICTURES]
    return f"{text} ({', '.join(pictures)} is not read: convert such files to JPEG or PNG)" if pictures else text


def folder_rows(
    storage: Storage, images: FolderImages, shard: int, *, labels: bool, digest: bool
) -> Iterator[IndexRow | Event]:
    """Yield the rows of one group of images; an empty file, or one whose name no loader can read, becomes an Event."""
    files = images.files[shard * IMAGES_PER_SHARD : (shard + 1) * IMAGES_PER_SHARD]
    readable = [(label, info, _fault(info)) for label, info in files]
    digests = iter(_digests(storage, [info for _, info, fault in readable if not fault]) if digest else [])
    for label, info, fault in readable:
        key = key_of(info.name.split("/")[images.root_depth :])
        if fault:
            yield Event(key, "rejected", "empty" if not info.num_bytes else "name", f"{fault}: {shown(info.name)}")
            continue
        yield IndexRow(
            key=key,
            record_offset=0,
            record_bytes=info.num_bytes,
            image_offset=0,
            image_bytes=info.num_bytes,
            image_crc32c=next(digests) if digest else crc32c_number(info.crc32c),
            label=label if labels else NO_LABEL,
            height=None,
            width=None,
            file=info.name,
        )


def _class_folders(listing: Sequence[ObjectInfo], folder: str) -> tuple[dict[str, list[ObjectInfo]], Counter[str]]:
    """Return the images of each class folder, in torchvision's order, and the numbers of other files."""
    prefix = f"{folder}/" if folder else ""
    found: dict[str, list[ObjectInfo]] = {}
    skipped: Counter[str] = Counter()
    for info in listing:
        if not info.name.startswith(prefix):
            continue
        inner = info.name[len(prefix) :]
        if is_in_class_folder(inner):
            found.setdefault(inner.partition("/")[0], []).append(info)
        else:
            skipped[_kind(inner)] += 1
    for files in found.values():
        files.sort(key=lambda info: info.name.rpartition("/")[::2])
    return found, skipped


def _kind(name: str) -> str:
    """Return why a file is left out: what it is, or where."""
    if is_hidden_name(name):
        return "hidden or of the system"
    if is_readable_image(name):
        return "in no class folder"
    return PurePosixPath(name).suffix.lower() or "without suffix"


def _fault(info: ObjectInfo) -> str:
    """Return why a loader could not read a file; an empty text if it can."""
    if not info.num_bytes:
        return "it has no bytes"
    if any(character in FORBIDDEN for character in info.name):
        return "its name holds a backslash, NUL or line end; rename it"
    return "" if is_text(info.name) else "its name is no UTF-8; rename it"


def _digests(storage: Storage, infos: Sequence[ObjectInfo]) -> list[int]:
    with ThreadPoolExecutor(max(_DIGESTS_IN_FLIGHT, storage.reads_in_flight)) as threads:
        return list(threads.map(partial(_digest, storage), infos))


def _digest(storage: Storage, info: ObjectInfo) -> int:
    try:
        return crc32c_of(storage.read(info.name))
    except FileNotFoundError as error:
        raise SourceError(
            f"{storage.url_of(info.name)}: it was removed meanwhile; run the same command again"
        ) from error
