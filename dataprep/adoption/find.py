"""Finds the data at a URL: the tool that wrote them, the shards, and the split of each.

Only names, sizes and the small files that describe a TFDS directory are read. An image folder is read as torchvision's
ImageFolder does: its folders are classes, and all files below them are images. Without class folders, the files in
the folder itself are images without a label.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import partial
from heapq import nsmallest
from itertools import accumulate, chain, pairwise
from pathlib import PurePosixPath
from typing import Annotated, NamedTuple, TypeVar

from msgspec import Meta, Struct, field

from dataprep.adoption.labels import MAX_CLASSES, NO_LABELS, crc32c_number
from dataprep.dataset.adopted import SHARD_NAMES, fits, is_in_class_folder, is_of_adoption, is_outside_classes
from dataprep.dataset.documents import Count, decode
from dataprep.dataset.features import is_text
from dataprep.dataset.hashes import name_hash
from dataprep.dataset.index import IndexRow
from dataprep.dataset.paths import HEAD_SPLIT, OTHER_PICTURES, READABLE_SUFFIXES, is_hidden_name, is_readable_image
from dataprep.dataset.records import NO_LABEL, Event
from dataprep.errors import SourceError, UsageError
from dataprep.formats import FORMATS
from dataprep.formats.example import FRAME_HEAD_BYTES, frame_length
from dataprep.formats.img2dataset import IMG2DATASET, is_ours
from dataprep.formats.tfds import DATASET_INFO, FEATURES, MAX_DESCRIPTION_BYTES
from dataprep.messages import counted, shell_words, shown
from dataprep.sources.archives import refuse_pointer
from dataprep.sources.image_tables import other_data
from dataprep.sources.keys import key_of
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.base import FORBIDDEN, Browsable, read_ahead, read_bounded
from dataprep.storage.checksums import crc32c_of

IMAGES_PER_SHARD = 2048
"""Number of images in each group of the index: about as many as in a shard of 256 MiB."""
FILES_OF_FOLDER = 128
"""Minimum number of files that a head takes from each of its class folders; listing one costs a request."""
NO_CLASS = ""
"""Name of the class of images outside class folders."""
_DIGESTS_IN_FLIGHT = 8
_LISTS_IN_FLIGHT = 64
T = TypeVar("T")
ADOPTABLE = ("auto", "imagefolder", "webdataset", "tfrecord")
_FETCH_AGAIN = "download it again"
_SPLIT_WORDS = ("train", "training", "val", "valid", "validate", "validation", "test", "testing")
_SPLIT_IN_NAME = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(_SPLIT_WORDS)})(?![A-Za-z0-9])")
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_COMPRESSED = re.compile(r"\.(?:tar\.\w+|tgz|tfrecords?\.\w+)\Z")
_TFRECORD = re.compile(r"\.tfrecords?(?:-\d+-of-\d+)?\Z")
_TFDS_FILE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


@dataclass(frozen=True, slots=True)
class FoundShard:
    """One file of samples, or some files of an image folder."""

    split: str
    number: int
    """Position of the shard in its split."""
    name: str
    num_bytes: int
    crc32c: str
    """CRC32C in base64; empty if the storage does not keep it."""
    samples: int | None
    """Number of samples according to a TFDS description; None if there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Data that other tools wrote."""

    kind: str
    """`imagefolder`, `webdataset`, `tfrecord`, `tfds`, or `img2dataset`."""
    format: str
    name: str
    licence: str = ""
    shards: tuple[FoundShard, ...]
    """Shards of all splits, one split after the other."""
    images: Mapping[str, FolderImages] = dataclass_field(default_factory=dict)
    pictures: tuple[str, ...] = ()
    """Names of pictures next to shards, which are left out."""
    classes: tuple[str, ...] | None = None
    """Names of the classes; None if they are known only from the labels."""

    @property
    def is_img2dataset(self) -> bool:
        """Whether sidecars of the shards have the statuses of img2dataset's rows."""
        return self.kind == IMG2DATASET

    @property
    def has_classes_in_root(self) -> bool:
        """Whether a folder created in the root would count as a class."""
        return any(images.root_depth == 0 and images.has_classes for images in self.images.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptRequest:
    """The data to adopt, and the place of the index."""

    url: str
    index_url: str | None = None
    """URL for the index; None writes it next to the data."""
    splits: tuple[tuple[str, str], ...] = ()
    """Names of splits, each with the pattern of its files; empty to find splits by the files' names."""
    format: str = "auto"
    labels: str | None = None
    """Field that holds the label, `none` for no labels, or None for the usual fields."""
    class_names: tuple[str, ...] = ()
    """Name of each class, for labels that are integers."""
    shuffled: bool = False
    """Whether the samples are in random order already."""
    digest: bool = False
    """Whether to read every image for its CRC32C."""
    overwrite: bool = False
    heads: tuple[int, ...] = ()
    """Ascending numbers of images of a folder's split `train` that the index lists first; see `head_files`."""


def find(storage: Storage, request: AdoptRequest, head: HeadFiles | None = None) -> Found:
    """Find the data at a storage by the names of the files. Raises UsageError if no file can be adopted, the choice is
    ambiguous without further options, or class names do not fit the data, and SourceError if a TFDS description cannot
    be read, or names files that do not exist.

    Args:
        head: The part of a folder's files that `head_files` lists; None: all files.
    """
    found, names = _found(storage, request, head), request.class_names
    if not names:
        return found
    if request.labels == NO_LABELS:
        raise UsageError(f"`class_names` cannot be used with `labels` {NO_LABELS}; leave one out")
    if found.images:
        raise UsageError("`class_names`: the classes of an image folder are its folders; leave it out")
    if found.classes is not None and len(found.classes) != len(names):
        raise UsageError(
            f"`class_names`: {len(names):,} names, but the data have {counted(len(found.classes), 'class')}"
        )
    return replace(found, classes=names)


def _found(storage: Storage, request: AdoptRequest, head: HeadFiles | None) -> Found:
    splits, labels = request.splits, request.labels
    for split, _ in splits:
        _check_split(split)
    listing = _listing(storage) if head is None else head.files
    if not listing:
        raise UsageError(f"{storage.url}: no files found; check the URL, which names a folder, not a pattern of files")
    format_name = _format_of(storage, listing) if request.format == "auto" else request.format
    name = storage.url.rstrip("/").rpartition("/")[2] or "data"
    if FORMATS[format_name].one_file_per_image:
        return _find_folder(storage, name, listing, request, head)
    if format_name == "tfrecord" and any(info.name == DATASET_INFO for info in listing):
        return _find_tfds(storage, listing, splits, labels)
    files = [info for info in listing if SHARD_NAMES[format_name].search(info.name)]
    if not files and format_name == "tfrecord":  # the user names the files
        files = [info for info in listing if any(fits(info.name, pattern) for _, pattern in splits)]
        files = files if files and _has_record(storage, files[0]) else []
    if not files:
        raise UsageError(f"{storage.url}: no file of format {format_name}, as in {_examples(listing)}; check `format`")
    by_split = assign_splits(storage, files, splits)
    for info in files:
        refuse_pointer(storage, info.name, info.num_bytes)
    shards = tuple(_shard(split, n, info) for split, infos in by_split.items() for n, info in enumerate(infos))
    is_img2dataset = any(info.name.endswith("_stats.json") for info in listing)
    kind = IMG2DATASET if is_img2dataset else format_name
    classes = () if labels == NO_LABELS else None
    pictures = tuple(info.name for info in listing if is_readable_image(info.name) and not is_hidden_name(info.name))
    return Found(kind=kind, format=format_name, name=name, shards=shards, pictures=pictures, classes=classes)


def assign_splits(
    storage: Storage, files: Sequence[ObjectInfo], splits: Sequence[tuple[str, str]]
) -> dict[str, list[ObjectInfo]]:
    """Assign files to splits: by the patterns, else by the last usual name of a split in each file's name, else all to
    `train`. Raises UsageError if a pattern matches no file, two match one, or only some files have a split in their
    names."""
    found: dict[str, list[ObjectInfo]] = {split: [] for split, _ in splits}
    nameless: list[ObjectInfo] = []
    for info in files:
        names = {split for split, pattern in splits if fits(info.name, pattern)}
        if not splits:
            names = set(_SPLIT_IN_NAME.findall(info.name)[-1:])
        if len(names) > 1:
            raise UsageError(
                f"{storage.url_of(info.name)}: `split` {' and '.join(sorted(names))}; expected one of them"
            )
        for name in names:
            found.setdefault(name, []).append(info)
        if not names and not splits:
            nameless.append(info)
    empty = [f"{split}={pattern}" for split, pattern in splits if not found[split]]
    if empty:
        given = f"`split` {', '.join(empty)}"
        raise UsageError(f"{storage.url}: no file for {given}; the files are {_examples(files)}")
    if nameless and found:
        raise UsageError(
            f"{storage.url}: files of {', '.join(sorted(found))}, and others whose names have no split "
            f"({_examples(nameless)}); assign them with `split` NAME=PATTERN"
        )
    return dict(sorted(found.items())) if found else {"train": nameless}


def folder_splits(storage: Storage, listing: Iterable[ObjectInfo], splits: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the folder of each split of an image folder; the root is `train` if no folder has a split's name. Raises
    UsageError if some folders have names of splits and others do not."""
    if splits:
        return {split: "" if pattern in (".", "./") else pattern.strip("/") for split, pattern in splits}
    folders = sorted(_folders_below(listing, ""))
    named = [folder for folder in folders if folder in _SPLIT_WORDS]
    if named and len(named) < len(folders):
        others = ", ".join(shown(folder) for folder in folders if folder not in named[:5])
        raise UsageError(
            f"{storage.url}: folders {', '.join(named)} next to others ({others[:200]}); name the splits: "
            f"`split` {shell_words(named[0])}={named[0]}, or `split` train=. if all of them are classes"
        )
    return {folder: folder for folder in named} or {"train": ""}


@dataclass(frozen=True, slots=True)
class FolderImages:
    files: Sequence[tuple[int, ObjectInfo]]
    """Files in ImageFolder's order, each with the position of its class; files of heads come first, head by head."""
    root_depth: int
    """Number of path components of the split's folder."""
    skipped: Counter[str]
    """Number of files that were left out, by suffix, or because they are hidden or in no class folder."""
    heads: tuple[int, ...] = ()
    """Ascending numbers of leading files that are heads."""

    @property
    def has_classes(self) -> bool:
        """Whether the files are in class folders."""
        return self.files[0][0] != NO_LABEL

    def bounds(self) -> list[int]:
        """Return the first file of each group of the index, and the number of files; no group crosses a head."""
        cuts = [0, *self.heads, len(self.files)]
        firsts = chain.from_iterable(range(first, stop, IMAGES_PER_SHARD) for first, stop in pairwise(cuts))
        return [*firsts, len(self.files)]


class HeadFiles(NamedTuple):
    """The first files of some class folders, as a bucket lists them."""

    files: list[ObjectInfo]
    classes: tuple[str, ...]
    """Names of all class folders."""


def head_files(storage: Browsable, images: int) -> HeadFiles | None:
    """List the first files of the class folders of a folder of pictures: about `images` of the split HEAD_SPLIT.

    Returns:
        None if there may be no other files, there is no such split, a folder does not begin with pictures, or splits
        differ in their class folders.
    """
    top = [folder for folder in storage.folders() if not is_hidden_name(folder)]
    named = [folder for folder in top if folder in _SPLIT_WORDS]
    if named and (len(named) < len(top) or HEAD_SPLIT not in named):
        return None
    folders = {folder: storage.folders(folder) for folder in named} or {"": top}
    classes = {split: {name for name in names if not is_hidden_name(name)} for split, names in folders.items()}
    own, widest = classes[HEAD_SPLIT if named else ""], max(classes.values(), key=len)
    if not own or any(not names <= widest for names in classes.values()):
        return None
    root = f"{HEAD_SPLIT}/" if named else ""
    chosen, of_folder = _head(own, images)
    first = partial(storage.first, most=of_folder + 1)
    found = list(read_ahead(first, [f"{root}{folder}" for folder in sorted(chosen)], _LISTS_IN_FLIGHT))
    begins = [any(is_in_class_folder(info.name) and not _fault(info) for info in files[:of_folder]) for files in found]
    if not all(begins) or not any(len(files) > of_folder for files in found):
        return None
    return HeadFiles([info for files in found for info in files[:of_folder]], tuple(sorted(widest)))


def _head(folders: Collection[str], images: int) -> tuple[frozenset[str], int]:
    """Return the class folders of a head of about `images` images, and the number of files that it takes from each.

    Folders are chosen by a hash of their names, so that the choice does not depend on their order.
    """
    number = max(1, min(len(folders), images // FILES_OF_FOLDER))
    chosen = nsmallest(number, folders, key=name_hash)
    return frozenset(chosen), -(-images // number)


def find_folder_images(
    storage: Storage,
    listing: Sequence[ObjectInfo],
    folders: Mapping[str, str],
    heads: Sequence[int],
    head: HeadFiles | None,
) -> tuple[dict[str, FolderImages], tuple[str, ...]]:
    """Find the images of each split, and the sorted classes.

    A split without class folders has images without a label. If the index begins with heads, each folder is a class,
    also one without an image: a head does not look into all of them. Raises UsageError if a split has no image, or has
    classes that the others do not have.

    Args:
        folders: Folder of each split, below the root; empty for the root itself.
        heads: Ascending numbers of images with which the index of HEAD_SPLIT begins.
        head: The listed part of a folder, if only the last head was listed.
    """
    splits = {split: _class_folders(listing, folder) for split, folder in folders.items()}
    classes_of = {split: by_class.keys() - {NO_CLASS} for split, (by_class, _) in splits.items()}
    for split, folder in folders.items():
        by_class, skipped = splits[split]
        if not by_class:
            known = ", ".join(f".{suffix}" for suffix in sorted(READABLE_SUFFIXES))
            raise UsageError(
                f"{storage.url_of(folder) if folder else storage.url}: no image (found "
                f"{left_out(skipped) or 'no file'}); expected {known}, in class folders as in <class>/x.jpg or without "
                "classes; check the URL"
            )
    widest = max(classes_of, key=lambda split: len(classes_of[split]))
    for split, names in classes_of.items():
        if not names <= classes_of[widest]:
            other = ", ".join(shown(name) for name in sorted(names - classes_of[widest])[:3])
            raise UsageError(
                f"{storage.url}: {split} has class folders that {widest} does not have ({other}): labels would have "
                f"different meanings; adopt one of them, `split` {shell_words(widest)}={folders[widest] or '.'}"
            )
    files = {
        split: [(name, info) for name in sorted(by_class) for info in by_class[name]]
        for split, (by_class, _) in splits.items()
    }
    classes = tuple(sorted(classes_of[widest])) if head is None else head.classes
    cuts: dict[str, tuple[int, ...]] = {}
    if heads and classes_of.get(HEAD_SPLIT):
        ranks = _ranks_in_folder(listing, folders[HEAD_SPLIT])
        files[HEAD_SPLIT], cuts[HEAD_SPLIT] = _heads_first(files[HEAD_SPLIT], ranks, heads, classes, head)
        if cuts[HEAD_SPLIT] and head is None:
            classes = tuple(sorted(set().union(*(_folders_below(listing, folder) for folder in folders.values()))))
    for name in classes:
        if not is_text(name):
            raise UsageError(f"{storage.url}: class folder {shown(name)} is not UTF-8, expected text; rename it")
    position = {name: number for number, name in enumerate(classes)} | {NO_CLASS: NO_LABEL}
    images = {}
    for split, (_, skipped) in splits.items():
        for _, info in files[split]:
            refuse_pointer(storage, info.name, info.num_bytes)
        labelled = [(position[name], info) for name, info in files[split]]
        depth = folders[split].count("/") + bool(folders[split])
        images[split] = FolderImages(labelled, depth, skipped, cuts.get(split, ()))
    return images, classes


def _folders_below(listing: Iterable[ObjectInfo], root: str) -> set[str]:
    """Return the names of the folders in a folder, except hidden ones."""
    prefix = f"{root}/" if root else ""
    names = (info.name.removeprefix(prefix).partition("/") for info in listing if info.name.startswith(prefix))
    folders = {folder for folder, slash, _ in names if slash}
    return {folder for folder in folders if not is_hidden_name(folder)}


def _ranks_in_folder(listing: Sequence[ObjectInfo], root: str) -> dict[str, tuple[str, int]]:
    """Return the class folder of each file below a split's folder, and how many of its files are listed before it."""
    prefix = f"{root}/" if root else ""
    seen: Counter[str] = Counter()
    ranks = {}
    for info in listing:
        folder, slash, _ = info.name.removeprefix(prefix).partition("/")
        if slash and info.name.startswith(prefix) and not is_hidden_name(folder):
            ranks[info.name] = (folder, seen[folder])
            seen[folder] += 1
    return ranks


def _heads_first(
    files: list[tuple[str, ObjectInfo]],
    ranks: Mapping[str, tuple[str, int]],
    heads: Sequence[int],
    classes: Sequence[str],
    head: HeadFiles | None,
) -> tuple[list[tuple[str, ObjectInfo]], tuple[int, ...]]:
    """Return the files, those of the heads first, head by head, and the number of files up to the end of each head."""
    folders = {folder for folder, _ in ranks.values()} if head is None else classes
    bounds = [_head(folders, images) for images in heads]
    if head is None:  # a head must not hold all files
        bounds = [
            (chosen, most) for chosen, most in bounds if any(f in chosen and n >= most for f, n in ranks.values())
        ]

    def head_of(file: tuple[str, ObjectInfo]) -> int:
        folder, rank = ranks[file[1].name]
        return next((n for n, (chosen, most) in enumerate(bounds) if folder in chosen and rank < most), len(bounds))

    numbers = list(map(head_of, files))
    ordered = [files[at] for at in sorted(range(len(files)), key=numbers.__getitem__)]
    sizes = Counter(numbers)
    return ordered, tuple(accumulate(sizes[number] for number in range(len(bounds))))


def left_out(skipped: Counter[str]) -> str:
    """Describe the skipped files by kind, the most frequent first."""
    text = ", ".join(f"{count:,} {kind}" for kind, count in skipped.most_common(5))
    pictures = [kind for kind in skipped if kind.removeprefix(".") in OTHER_PICTURES]
    return f"{text}; {', '.join(pictures)} is not read: convert such files to JPEG or PNG" if pictures else text


def folder_rows(
    storage: Storage, images: FolderImages, shard: int, *, labels: bool, digest: bool
) -> Iterator[IndexRow | Event]:
    """Yield the rows of one group of images; an empty file, or one whose name no loader can read, becomes an Event."""
    first, stop = images.bounds()[shard : shard + 2]
    files = images.files[first:stop]
    readable = [(label, info, _fault(info)) for label, info in files]
    sound = [info for _, info, fault in readable if not fault] if digest else []
    digests = read_ahead(partial(_digest, storage), sound, max(_DIGESTS_IN_FLIGHT, storage.reads_in_flight))
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
    """Return the images of each class folder, in torchvision's order, and the numbers of other files.

    If no class folder has an image, the images in the folder itself are of NO_CLASS.
    """
    prefix = f"{folder}/" if folder else ""
    found: dict[str, list[ObjectInfo]] = {}
    loose: list[ObjectInfo] = []
    skipped: Counter[str] = Counter()
    for info in listing:
        if not info.name.startswith(prefix):
            continue
        inner = info.name[len(prefix) :]
        if is_in_class_folder(inner):
            found.setdefault(inner.partition("/")[0], []).append(info)
        elif is_outside_classes(inner):
            loose.append(info)
        else:
            skipped[_kind(inner)] += 1
    if loose and found:
        skipped["in no class folder"] += len(loose)
    elif loose:
        found[NO_CLASS] = loose
    for files in found.values():
        files.sort(key=lambda info: info.name.rpartition("/")[::2])
    return found, skipped


def _kind(name: str) -> str:
    """Return the reason that a file is left out: its kind or its place."""
    if is_hidden_name(name):
        return "hidden or of the system"
    return PurePosixPath(name).suffix.lower() or "without suffix"


def _fault(info: ObjectInfo) -> str:
    """Return the reason that a loader could not read a file; empty if it can."""
    if not info.num_bytes:
        return "it has no bytes"
    if any(character in info.name for character in FORBIDDEN):
        return "its name holds a backslash, NUL or line end; rename it"
    return "" if is_text(info.name) else "its name is not UTF-8; rename it"


def _digest(storage: Storage, info: ObjectInfo) -> int:
    try:
        return crc32c_of(storage.read(info.name))
    except FileNotFoundError as error:
        raise SourceError(
            f"{storage.url_of(info.name)}: it was removed while it was read; run the same command again"
        ) from error


class _TfdsSplit(Struct, rename="camel"):
    """A split in a `dataset_info.json`; integers are texts there, as in all JSON from protobuf."""

    name: str
    filepath_template: str | None = None
    shard_lengths: list[Count] = []


class _Redistribution(Struct):
    license: str = ""


class _DatasetInfo(Struct, rename="camel"):
    """The part of a `dataset_info.json` that is read."""

    name: str
    file_format: str | None = None
    redistribution_info: _Redistribution = field(default_factory=_Redistribution)
    splits: list[_TfdsSplit] = []


class _ClassLabel(Struct, rename="camel"):
    num_classes: Annotated[int, Meta(ge=0, le=MAX_CLASSES)] | None = None


class _Feature(Struct, rename="camel"):
    class_label: _ClassLabel | None = None


class _FeaturesDict(Struct):
    features: dict[str, _Feature] = {}


class _Features(Struct, rename="camel"):
    """The part of a `features.json` that is read."""

    features_dict: _FeaturesDict = field(default_factory=_FeaturesDict)


def _find_folder(
    storage: Storage, name: str, listing: Sequence[ObjectInfo], request: AdoptRequest, head: HeadFiles | None
) -> Found:
    labels = request.labels
    if labels not in (None, NO_LABELS):
        raise UsageError(f"`labels` {labels}: the label of an image folder is the folder; expected {NO_LABELS}")
    folders = folder_splits(storage, listing, request.splits)
    images, classes = find_folder_images(storage, listing, folders, request.heads, head)
    return Found(
        kind="imagefolder",
        format="imagefolder",
        name=name,
        shards=tuple(shard for split, found in images.items() for shard in _folder_shards(split, found)),
        images=images,
        classes=() if labels == NO_LABELS else classes,
    )


def _format_of(storage: Storage, listing: Sequence[ObjectInfo]) -> str:
    names = [info.name for info in listing]
    if DATASET_INFO in names and "state.json" not in names:
        return "tfrecord"
    found = [name for name, pattern in SHARD_NAMES.items() if any(map(pattern.search, names))]
    if "tfrecord" in found and not any(map(_TFRECORD.search, names)):  # train-00000-of-01024 may be anything
        first = next(info for info in listing if SHARD_NAMES["tfrecord"].search(info.name))
        found = [name for name in found if name != "tfrecord" or _has_record(storage, first)]
    if len(found) > 1:
        raise UsageError(f"{storage.url}: {' and '.join(found)} files exist; choose one with `format`")
    if not found and not any(map(is_readable_image, names)) and (other := other_data(storage)):
        raise UsageError(f"{storage.url}: nothing to adopt: {other}")
    nested = [name for name in names if name.endswith(f"/{DATASET_INFO}")]
    if nested:
        folder = nested[-1].removesuffix(f"/{DATASET_INFO}")
        raise UsageError(f"{storage.url}: a TFDS directory is in a folder below; pass {storage.url_of(folder)}")
    compressed = next((name for name in names if _COMPRESSED.search(name)), None)
    if compressed and not found:
        raise UsageError(
            f"{storage.url_of(compressed)}: compressed; only plain tars and TFRecords can be read in parts: "
            "uncompress it first, such as with gunzip"
        )
    return found[0] if found else "imagefolder"


def _has_record(storage: Storage, info: ObjectInfo) -> bool:
    """Return whether a file begins with the frame of a TFRecord, whose length has a checksum."""
    if info.num_bytes < FRAME_HEAD_BYTES:
        return False
    refuse_pointer(storage, info.name, info.num_bytes)
    return frame_length(storage.read_range(info.name, 0, FRAME_HEAD_BYTES)) is not None


def _find_tfds(
    storage: Storage, listing: Sequence[ObjectInfo], splits: Sequence[tuple[str, str]], labels: str | None
) -> Found:
    """Find the splits, shard names and lengths of a TFDS directory in its dataset_info.json."""
    info = _read_description(storage, DATASET_INFO, _DatasetInfo)
    file_format = info.file_format or "tfrecord"
    if file_format != "tfrecord":
        raise UsageError(f"{storage.url}: a TFDS directory of {file_format} files; only tfrecord can be adopted")
    sizes = {found.name: found for found in listing}
    shards = []
    for split in sorted(info.splits, key=lambda split: split.name):
        for number, samples in enumerate(split.shard_lengths):
            name = _tfds_file(split, info.name, number)
            if name not in sizes:
                raise SourceError(f"{storage.url_of(name)}: not found, but {DATASET_INFO} lists it; download it again")
            shards.append(_shard(_check_split(split.name), number, sizes[name], samples))
    if splits:
        known = {shard.name: shard for shard in shards}
        chosen = assign_splits(storage, [sizes[name] for name in known], splits)
        shards = [
            replace(known[info.name], split=split, number=n)
            for split, some in chosen.items()
            for n, info in enumerate(some)
        ]
    if not shards:
        raise SourceError(f"{storage.url_of(DATASET_INFO)}: no split with shards; prepare the dataset again")
    return Found(
        kind="tfds",
        format="tfrecord",
        name=info.name,
        licence=info.redistribution_info.license,
        shards=tuple(shards),
        classes=() if labels == NO_LABELS else _tfds_classes(storage, sizes, labels or "label"),
    )


def _tfds_file(split: _TfdsSplit, dataset: str, number: int) -> str:
    total = len(split.shard_lengths)
    digits = max(5, len(str(total)))
    values = {
        "DATASET": dataset,
        "SPLIT": split.name,
        "FILEFORMAT": "tfrecord",
        "SHARD_X_OF_Y": f"{number:0{digits}d}-of-{total:0{digits}d}",
        "SHARD_INDEX": f"{number:0{digits}d}",
        "NUM_SHARDS": f"{total:0{digits}d}",
    }
    template = split.filepath_template or _TFDS_FILE
    return re.sub(r"\{([A-Z_]+)\}", lambda match: values.get(match[1], match[0]), template)


def _tfds_classes(storage: Storage, sizes: Mapping[str, ObjectInfo], feature: str) -> tuple[str, ...] | None:
    """Return names from `<feature>.labels.txt`, else numbers below the count in features.json, else None."""
    names = f"{feature.replace('/', '-')}.labels.txt"
    if names in sizes:
        return tuple(_read_small(storage, names).decode("utf-8", "replace").removesuffix("\n").split("\n"))
    if FEATURES not in sizes:
        return None
    features = _read_description(storage, FEATURES, _Features).features_dict.features
    found = features.get(feature)
    count = found.class_label.num_classes if found and found.class_label else None
    return tuple(str(label) for label in range(count)) if count else None


def _read_description(storage: Storage, name: str, kind: type[T]) -> T:
    """Read a description of a TFDS directory; class names in it are never imported. Raises SourceError."""
    where = f"{storage.url_of(name)}: not as TFDS writes it"
    data = _read_small(storage, name)
    return decode(data, kind, where=where, advice=_FETCH_AGAIN, error=SourceError, lax=True)


def _read_small(storage: Storage, name: str) -> bytes:
    """Read a small file that was listed. Raises SourceError."""
    data = read_bounded(storage, name, MAX_DESCRIPTION_BYTES, advice=_FETCH_AGAIN, error=SourceError)
    if data is None:
        raise SourceError(f"{storage.url_of(name)}: it was removed while it was read; {_FETCH_AGAIN}")
    return data


def _check_split(name: str) -> str:
    if not _SPLIT_NAME.fullmatch(name):
        raise UsageError(f"split {shown(name)}, expected a name of letters, digits, _ and -")
    return name


def _shard(split: str, number: int, info: ObjectInfo, samples: int | None = None) -> FoundShard:
    return FoundShard(split, number, info.name, info.num_bytes, info.crc32c or "", samples)


def _folder_shards(split: str, images: FolderImages) -> Iterator[FoundShard]:
    """Yield the groups of images in the index, named like the shards of a build."""
    bounds = images.bounds()
    for number, (first, stop) in enumerate(pairwise(bounds)):
        files = images.files[first:stop]
        num_bytes = sum(info.num_bytes for _, info in files)
        yield FoundShard(split, number, f"{split}/#{number:05d}-of-{len(bounds) - 1:05d}", num_bytes, "", len(files))


def _listing(storage: Storage) -> list[ObjectInfo]:
    """List the files, except files that an adoption writes next to data, and files of a running retry."""
    listing = [info for info in storage.list() if not is_of_adoption(info.name)]
    info = next((info for info in listing if info.name == DATASET_INFO), None)
    if info is not None and info.num_bytes <= MAX_DESCRIPTION_BYTES and is_ours(storage.read(DATASET_INFO)):
        return [info for info in listing if info.name not in (DATASET_INFO, FEATURES)]
    return listing


def _examples(infos: Sequence[ObjectInfo]) -> str:
    names = ", ".join(shown(info.name) for info in infos[:3])
    return f"{names} and {len(infos) - 3:,} more" if len(infos) > 3 else names
