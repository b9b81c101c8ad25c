"""Definition of a dataset: its published facts, or a user's statements about their own data, and how originals become
references.

A user's own data has no published facts to compare with: splits, classes and features are found in it, by
`Dataset.opened`.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from dataprep.arrays import NDArray, np, pa, pc
from dataprep.dataset.columns import binaries, call, from_numpy, repeated, strings, to_numpy
from dataprep.dataset.features import NO_FEATURES, Features
from dataprep.dataset.paths import BUILD, CHANGE, MAP
from dataprep.dataset.records import ALL_FILES, NO_LABEL, Enumeration, References, SampleRef, SourceFile
from dataprep.dataset.spill import SpilledReferences, spill_rows, spilled
from dataprep.errors import FormatError, SourceError, UsageError
from dataprep.formats.base import MAX_CLASS_NAME_CHARS, check_class_folder
from dataprep.formats.tars import ByteReader, Member, PlainFiles, damaged
from dataprep.messages import quoted, shown
from dataprep.sources.archives import ArchiveReader, Progress, archive_members
from dataprep.sources.keys import IMAGE_SUFFIXES, is_file_of_image, is_image, key_of, name_parts, refuse_duplicates
from dataprep.storage.base import NO_VERSION, ObjectInfo, Storage

if TYPE_CHECKING:
    from dataprep.sources.folders import FolderFile


MAX_IMAGE_BYTES = 128 * 2**20
"""Maximum size of an original image, which a build holds in memory. ImageNet's largest has 16 MB."""
MAX_SAMPLES = 100_000_000
"""Maximum number of samples of a split: bounds the temporary space that an archive of empty members can take,
some 100 bytes each with short names."""
HASH_CHUNK_BYTES = 2**22
UNSTATED = "unknown, not stated"
"""Licence or origin that the user has not stated."""
SPLITS = ("train", "val", "test")
SPLIT_FOLDERS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Split by the name of its top folder, in lower case."""
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}[a-z0-9]|[a-z]")
_RESERVED_SPLITS = frozenset({BUILD, CHANGE, MAP, "columns", "images", "index", "removed", "views"})
CLASS_NAME = re.compile(r"(?=.{3,200}\Z)(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*:[A-Za-z_]\w*", re.ASCII)
"""Name of a user-defined dataset class: `module:NAME`."""
_NO_LETTERS = re.compile(r"[^a-z0-9]+")
_PLAIN_IMAGE = rf"^[A-Za-z0-9-](_?[A-Za-z0-9-])*\.(?i:{'|'.join(sorted(IMAGE_SUFFIXES))})$"
"""Pattern, in RE2's syntax, of names whose key is the name without its suffix."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveFacts:
    """One original file as it was published."""

    name: str
    md5: str
    num_bytes: int | None = None
    """Exact size; None if it was not published."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitFacts:
    """Published facts about a split."""

    samples: int | None
    """Number of samples; None if the dataset has no fixed size."""
    class_samples: tuple[int, int] | None = None
    """Fewest and most images of one class."""
    archives: tuple[ArchiveFacts, ...] = ()
    repeats: int = 1
    """Passes over the images that make one epoch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Settings for reading original files when a dataset is opened."""

    progress: Progress | None = None
    """Called with a file's name, the bytes read and the total bytes."""
    unpack_to: Storage | None = None
    """Output. Image bytes without their own range in the originals are unpacked below its `_build/`
    (dataprep/sources/unpacked.py); None only measures them."""
    splits: tuple[str, ...] = ()
    """Splits whose images are unpacked; empty for all."""
    max_reject_ratio: float = 0.0
    """Maximum share of a split's rows whose image cannot be used; the build rejects these rows."""


READ_ALL = Reading()
"""Reads everything, and writes nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitRequest:
    split: str
    allow_partial: bool
    """Accept the existing files, even if counts and classes differ from the published ones."""
    classes: tuple[str, ...] | None = None
    """The class list, if another split's enumeration has it already."""
    progress: Progress | None = None
    """Called with an archive's name, the bytes read and the total bytes."""


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """A dataset that can be built: its facts, and the listing of its original files as references."""

    name: str
    """The name that users write."""
    description: str
    citation: str
    licence: str
    origin: str
    """Origin of the original files."""
    facts: Mapping[str, SplitFacts]
    """Published facts by split, in build order."""
    default_splits: tuple[str, ...]
    default_max_reject_ratio: float = 0.0
    recipe: ClassVar[str] = "archives"
    """Recipe of the build: a name in `dataprep.builder.recipe.RECIPES`."""
    generated: ClassVar[bool] = False
    """True if dataprep generates the originals, in any number that the user chooses."""
    is_published: ClassVar[bool] = True
    """False if everything about the data is found by reading it."""
    notes: tuple[str, ...] = ()
    """Messages for the user about the originals."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.facts)

    @property
    def features(self) -> Features:
        """Features that the dataset declares; features of a user's own data are found by reading it."""
        return NO_FEATURES

    def split_facts(self, split: str) -> SplitFacts:
        """Return the published facts of a split. Raises UsageError for a split that the dataset does not have."""
        if split not in self.facts:
            raise UsageError(f"`split` {split}: {self.name} has {' and '.join(self.facts)}")
        return self.facts[split]

    def repeats(self, split: str) -> int:
        """Return the number of passes over the stored images that make one epoch."""
        return self.split_facts(split).repeats

    def opened(self, root: Storage, reading: Reading = READ_ALL) -> Dataset:
        """Return the dataset with the splits and classes found in a storage; this dataset if they are published."""
        return self

    @abstractmethod
    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return the sorted class list; a label is a position in it. It is empty if the dataset has no classes.

        Args:
            allow_partial: Return the classes found in `root`; otherwise the published ones, without reading anything.
        """

    def enumerate(
        self,
        root: Storage,
        split: str,
        *,
        allow_partial: bool,
        classes: tuple[str, ...] | None = None,
        progress: Progress | None = None,
    ) -> Enumeration:
        """List references to all original images of a split, without reading an image. Raises SourceError if files are
        absent, damaged or hostile, or counts or classes differ from the published ones, and UsageError if the dataset
        has no such split.

        Args:
            allow_partial: Accept the existing files, even if counts and classes differ from the published ones.
            classes: The class list, if another split's enumeration has it already.
        """
        facts = self.split_facts(split)
        wanted = SplitRequest(split=split, allow_partial=allow_partial, classes=classes, progress=progress)
        found = self._find(root, wanted)
        if not len(found.refs):
            raise SourceError(f"{root.url}: no image of {self.name} {split}; check `source`")
        refuse_duplicates(f"{root.url}: {self.name} {split}", found.refs)
        if not allow_partial:
            self._refuse_other_counts(root, split, facts, found)
        return pinned(root, found)

    @abstractmethod
    def _find(self, root: Storage, wanted: SplitRequest) -> Enumeration:
        """List references for `enumerate`, which compares their counts afterwards."""

    def _refuse_other_counts(self, root: Storage, split: str, facts: SplitFacts, found: Enumeration) -> None:
        problems, refs = [], found.refs
        if facts.samples is not None and len(refs) != facts.samples:
            problems.append(f"{len(refs):,} images, expected {facts.samples:,}")
        if facts.class_samples is not None:
            fewest, most = facts.class_samples
            classes = self.classes(root, allow_partial=False)
            counts = class_counts(refs, len(classes))
            odd = np.flatnonzero((counts < fewest) | (counts > most))
            if len(odd):
                expected = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
                more = f" (and {len(odd) - 1:,} more classes)" if len(odd) > 1 else ""
                problems.append(f"class {classes[odd[0]]} has {counts[odd[0]]:,}, expected {expected}{more}")
        if problems:
            raise unlike_published(f"{root.url}: {self.name} {split}", *problems)

    def check_source(self, root: Storage, split: str, progress: Progress | None = None) -> Iterator[str]:
        """Compare the sizes and md5s of a split's archives with the published ones, reading each once, and yield a line
        for each. Raises SourceError if one differs, or none of the archives exists."""
        archives = self.split_facts(split).archives
        infos = [root.stat(archive.name) for archive in archives]
        if not any(infos):
            names = ", ".join(archive.name for archive in archives) or "no archive"
            raise SourceError(f"{root.url}: nothing to check: {self.name} {split} has published digests of {names}")
        for archive, info in zip(archives, infos, strict=True):
            if info is None:
                continue
            is_sized = archive.num_bytes in (None, info.num_bytes)
            found = _md5(root, archive.name, info.num_bytes, progress) if is_sized else "not computed"
            if found != archive.md5:
                raise SourceError(
                    f"{root.url_of(archive.name)}: {info.num_bytes:,} bytes, md5 {found}; published: "
                    f"{archive.num_bytes or '?'} bytes, md5 {archive.md5}. The file is damaged or a different edition; "
                    "download it again, or leave out `check_source`"
                )
            yield f"{archive.name}: md5 {found} as published"


def unlike_published(where: str, *problems: str) -> SourceError:
    """Return the error for originals that differ from what was published."""
    advice = "download the originals again, or build what exists with `allow_partial`"
    return SourceError(f"{where}: {'; '.join(problems)}: {advice}")


def pinned(root: Storage, found: Enumeration) -> Enumeration:
    """Return a list of originals with the version of each file, except for images with known checksums. Raises
    SourceError if the size of an image file differs from the listed one."""
    archives = {file.name: file.version for file in found.sources if file.version}
    refs = SpilledReferences()
    for batch in spilled(found.refs).batches():
        refs.add_rows(batch if found.is_checked else _pinned_rows(root, batch, archives))
    return replace(found, refs=refs)


def class_counts(refs: References, classes: int) -> NDArray[np.int64]:
    """Return the number of samples of each class; samples without a label are not counted."""
    counts = np.zeros(classes, np.int64)
    for batch in spilled(refs).batches():
        labels = to_numpy(batch.column("label"))
        counts += np.bincount(labels[labels >= 0], minlength=classes)
    return counts


@dataclass(slots=True)
class RefCollector:
    """Collects the references of one split, and enforces the limits on single images."""

    root: Storage
    split: str
    refs: SpilledReferences = field(default_factory=SpilledReferences)
    sources: list[SourceFile] = field(default_factory=list)

    def image_parts(self, reader: ByteReader, member: Member, *, within: str = "") -> tuple[str, ...] | None:
        """Return the path components of a member that is an image; None for a member to skip. Raises SourceError if the
        name is hostile or unknown, or the image cannot be read in place."""
        parts = member_parts(reader, member, within=within)
        try:
            if member.is_directory or not is_image(parts):
                return None
        except SourceError as error:
            raise damaged(reader, member.offset, str(error), member=member.name, within=within) from error
        if member.unreadable:
            raise damaged(reader, member.offset, member.unreadable, member=member.name, within=within)
        return parts

    def add_plain(self, folder: str, source: str, files: PlainFiles, label: int) -> bool:
        """Add files of a tar, with keys in a folder; return False, and add none, unless all have plain names of
        images."""
        count, names = len(files.names), binaries(files.names)
        is_plain = pc.all(pc.match_substring_regex(names, pattern=_PLAIN_IMAGE)).as_py()
        if not is_plain or files.sizes.max() > MAX_IMAGE_BYTES or len(self.refs) + count > MAX_SAMPLES:
            return False
        stems = pc.list_element(pc.split_pattern(names, "."), 0).cast(pa.string())
        keys = pc.binary_join_element_wise(repeated(strings([folder]), count), stems, *strings(["/"]))
        labels = from_numpy(np.full(count, label, np.int32))
        sources = repeated(strings([source]), count)
        columns = [keys, sources, from_numpy(files.offsets), from_numpy(files.sizes), labels]
        rows = pa.RecordBatch.from_arrays(columns, names=["key", "source", "offset", "num_bytes", "label"])
        self.refs.add_rows(spill_rows(rows))
        return True

    def images_in_archive(
        self, info: ObjectInfo, progress: Progress | None
    ) -> Iterator[tuple[ArchiveReader, tuple[str, ...], Member]]:
        """Yield the images of a tar, or the stored ones of a zip, each with the components of its path; the archive
        becomes a source. Raises SourceError if the archive is damaged or hostile, or an image cannot be read in place.
        """
        with ArchiveReader(self.root, info.name, progress=progress, info=info) as reader:
            for member in archive_members(reader, info.name):
                parts = self.image_parts(reader, member)
                if parts is not None:
                    yield reader, parts, member
            self.sources.append(SourceFile(info.name, reader.num_bytes, version=reader.version))

    def images_in_folder(self, folder: str, files: Iterable[FolderFile]) -> Iterator[FolderFile]:
        """Yield the images of a folder, which becomes a source if it has any. Raises SourceError for a file that is
        neither an image nor safe to skip."""
        images = num_bytes = 0
        for file in files:
            try:
                if not is_image(file.parts):
                    continue
            except SourceError as error:
                where = f"{self.root.url_of(folder)}: {shown('/'.join(file.parts))}"
                raise SourceError(f"{where}: {error}; move it elsewhere") from error
            yield file
            images, num_bytes = images + 1, num_bytes + file.num_bytes
        if images:
            self.sources.append(SourceFile(folder or ALL_FILES, num_bytes))

    def add_file(
        self, folder: str, file: FolderFile, key_parts: tuple[str, ...], label: int = NO_LABEL, annotations: bytes = b""
    ) -> None:
        source = "/".join(filter(None, (folder, *file.parts)))
        self.add(key_parts, source, Member(file.parts[-1], 0, file.num_bytes), label, annotations)

    def add(
        self,
        key_parts: tuple[str, ...],
        source: str,
        member: Member,
        label: int = NO_LABEL,
        annotations: bytes = b"",
        crc32c: int | None = None,
    ) -> None:
        if member.num_bytes > MAX_IMAGE_BYTES:
            where = f"{self.root.url_of(source)}: {shown(member.name)} at byte {member.offset:,}"
            raise SourceError(
                f"{where} has {member.num_bytes:,} bytes; at most {MAX_IMAGE_BYTES:,} for one image: remove it"
            )
        if len(self.refs) >= MAX_SAMPLES:
            raise SourceError(
                f"{self.root.url_of(source)}: over {MAX_SAMPLES:,} images in {self.split}; expected one dataset"
            )
        key = key_of(key_parts)
        self.refs.add(SampleRef(key, source, member.offset, member.num_bytes, label, annotations, crc32c))

    def enumeration(self, classes: tuple[str, ...] = ()) -> Enumeration:
        return Enumeration(self.refs, self.sources, classes)


def member_parts(reader: ByteReader, member: Member, *, within: str = "") -> tuple[str, ...]:
    """Split a member's name into path components. Raises SourceError for a hostile name; it says where."""
    try:
        parts = name_parts(member.name)
    except SourceError as error:
        raise damaged(reader, member.offset, str(error), member=member.name, within=within) from error
    if not parts and not member.is_directory:
        raise damaged(reader, member.offset, "it has no name", member=member.name, within=within)
    return parts


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnData:
    """Facts that a user states about their own data; every field may change a dataset's bytes."""

    name: str
    """Name of the dataset, in manifest, shards and TFDS: lower-case letters, digits and `-`."""
    licence: str = UNSTATED
    origin: str = UNSTATED
    label_from: str | None = None
    """`folder`, `none`, or the metadata column with the class; None chooses from the data."""
    val_fraction: float = 0.0
    """Share of train that becomes val."""
    split_seed: int = 0
    """Seed for the choice of val."""
    group_by: str | None = None
    """Column of the metadata; images with the same value in it stay in one split."""
    defaults: tuple[tuple[str, str], ...] = ()
    """Default value, by column of the metadata."""
    drop: tuple[str, ...] = ()
    """Columns of the metadata to leave out."""
    pass_over: tuple[str, ...] = ()
    """Files to leave out, in lower case: suffixes, and patterns of names such as `notes.txt` and `*.bak`."""
    text_files: tuple[tuple[str, str], ...] = ()
    """Features that hold the text files of pictures, each with the suffix of its files."""
    join_classes: bool = False
    """Whether to merge classes whose names differ only in case or Unicode form."""
    archive: str = ""
    """Name of the only file to read below the source, an archive or table, or folder of tables; empty for all files."""
    image_column: str | None = None
    """Column of a table with its images; None to find it."""
    key_from: str | None = None
    """`path`, `row`, or the column of a table that gives the keys; None for paths if a table has some, else rows."""

    def __post_init__(self) -> None:
        if not 0 <= self.val_fraction < 1:
            raise UsageError(f"`val_fraction` must be from 0 to below 1, got {self.val_fraction:g}")
        if self.group_by is not None and not self.val_fraction:
            raise UsageError("`group_by` keeps groups together when train is split: it needs `val_fraction`")

    def document(self) -> dict[str, object]:
        """Return the fields as JSON values; rarely used fields are left out if they are not given."""
        return _document(self, "image_column", "key_from", "text_files", "join_classes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """Settings of a conversion; every field may change the new dataset's bytes."""

    plan_hash: str
    """Plan of the dataset that is converted."""
    revision: int
    was_shuffled: bool
    """Whether its samples are in random order."""
    shuffle: bool = True
    """Whether samples are put into another random order."""
    fields: tuple[str, ...] = ()
    """Fields of its samples that become features."""
    defaults: tuple[tuple[str, str], ...] = ()
    """Value for samples without one, by field."""
    all_fields: bool = False
    """Whether all fields that every sample has become features."""
    view: str = ""
    """Digest of the view whose samples are converted; empty: all samples."""
    columns: tuple[tuple[str, str], ...] = ()
    """Columns that become features, each with its digest."""

    def document(self) -> dict[str, object]:
        """Return the fields as JSON values; `all_fields`, `view` and `columns` only if they are set."""
        return _document(self, "all_fields", "view", "columns")

    @property
    def is_shuffled(self) -> bool:
        """Whether the new dataset's samples are in random order."""
        return self.shuffle or self.was_shuffled


@dataclass(frozen=True, kw_only=True)
class NamedDataset(Dataset):
    """A dataset that the user may give a name, a licence and an origin."""

    own: OwnData | None = None
    """Facts that the user states; None for the class itself."""

    def described_by(self, own: OwnData) -> Self:
        """Return the dataset with the name, the licence and the origin that the user stated."""
        return replace(self, own=own, name=own.name, licence=own.licence, origin=own.origin)


@dataclass(frozen=True, kw_only=True)
class OwnDataset(NamedDataset):
    """A dataset of the user's own data: nothing about it is published."""

    citation: str = ""
    licence: str = UNSTATED
    origin: str = UNSTATED
    facts: Mapping[str, SplitFacts] = field(default_factory=dict)
    default_splits: tuple[str, ...] = ()
    identity: str = ""
    """Text that changes with everything that affects the listing, except the user's options and the files."""
    is_published: ClassVar[bool] = False
    reads_all_files: ClassVar[bool] = False
    """Whether any file below the source may belong to the dataset, and not only those that a table names."""

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def opened(self, root: Storage, reading: Reading = READ_ALL) -> Dataset:
        """Return the dataset with the splits, classes and features that are found in a storage."""

    def _find(self, root: Storage, wanted: SplitRequest) -> Enumeration:
        return self.opened(root, Reading(progress=wanted.progress))._find(root, wanted)


@dataclass(frozen=True, kw_only=True)
class FinishedDataset(OwnDataset):
    """A dataset that is known from its manifest only: it was converted, or its class is not part of dataprep."""

    def of_splits(self, repeats: Mapping[str, int]) -> Self:
        """Return the dataset with the splits of a manifest, each with the passes of an epoch."""
        return replace(self, facts={split: SplitFacts(samples=None, repeats=count) for split, count in repeats.items()})

    def opened(self, root: Storage, reading: Reading = READ_ALL) -> Dataset:
        """Raise UsageError: nothing is known about original files."""
        raise UsageError(f"{self.name}: only its manifest is known here, so it can be read, but not built")


FINISHED = FinishedDataset(name="dataset", description="Pictures that somebody's own dataset class has found.")
"""Placeholder for a class outside dataprep where the class itself is not needed."""


@dataclass(frozen=True, kw_only=True)
class Converted(FinishedDataset):
    """A dataset that was converted from another one."""

    recipe: ClassVar[str] = "converted"


CONVERTED = Converted(
    name="converted",
    description="A dataset that dataprep converted from another one, with the same keys, labels and annotations.",
)


def _document(settings: OwnData | Conversion, *rare: str) -> dict[str, object]:
    return {name: value for name, value in asdict(settings).items() if value or name not in rare}


def split_fault(split: str) -> str:
    """Return the reason that a split cannot have this name; empty if it can."""
    if split.lower() in _RESERVED_SPLITS or split.lower().endswith("-events"):
        return f"the name {quoted(split)} of a split is taken by another folder or file of a dataset"
    return ""


def class_fault(name: str) -> str:
    """Return the reason that a class cannot have this name; empty if it can."""
    try:
        check_class_folder(name)
    except FormatError as error:
        return str(error)
    most = f"expected at most {MAX_CLASS_NAME_CHARS:,}; rename the class in the source"
    return f"class name of {len(name):,} characters, {most}" if len(name) > MAX_CLASS_NAME_CHARS else ""


def name_fault(name: str, taken: frozenset[str]) -> str:
    """Return the reason that a user's own dataset cannot have this name; empty if it can."""
    if name in taken:
        return f"{quoted(name)} is the name of a dataset that dataprep builds"
    if not _NAME.fullmatch(name):
        return (
            f"name {quoted(name)}: expected lower-case letters, digits and '-', a letter first, at most 64 characters"
        )
    return ""


def name_from(url: str) -> str:
    """Make a name from the last part of a URL: `~/My Pictures` gives `my-pictures`."""
    last = url.rstrip("/").rpartition("/")[2].lower()
    for suffix in (".zip", ".tar"):
        last = last.removesuffix(suffix)
    name = _NO_LETTERS.sub("-", last).strip("-")[:60].strip("-")
    return name if name[:1].isalpha() else f"data-{name}".strip("-")


def _pinned_rows(root: Storage, rows: pa.RecordBatch, archives: Mapping[str, int]) -> pa.RecordBatch:
    files = call("dictionary_encode", rows.column("source"))
    names, numbers, num_bytes = (
        files.dictionary.to_pylist(),
        to_numpy(files.indices),
        to_numpy(rows.column("num_bytes")),
    )
    loose = [name for name in names if name not in archives]
    infos = dict(zip(loose, root.stats(loose), strict=True))
    versions, sizes = np.zeros(len(names), np.int64), np.full(len(names), -1, np.int64)
    for number, name in enumerate(names):
        info = infos.get(name)
        versions[number] = archives.get(name, NO_VERSION) if info is None else info.version
        if info is not None and is_file_of_image(name):
            sizes[number] = info.num_bytes
    odd = np.flatnonzero((sizes[numbers] >= 0) & (sizes[numbers] != num_bytes))
    if len(odd):
        number = numbers[odd[0]]
        raise SourceError(
            f"{root.url_of(names[number])} has {sizes[number]:,} bytes, it had {num_bytes[odd[0]]:,} a moment ago: "
            "wait until the originals are complete, and run the same command again"
        )
    position = rows.schema.get_field_index("version")
    return rows.set_column(position, rows.schema.field(position), from_numpy(versions[numbers]))


def _md5(root: Storage, name: str, num_bytes: int, progress: Progress | None) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    done = 0
    with root.open(name) as stream:
        while chunk := stream.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(name, done, num_bytes)
    return digest.hexdigest()
