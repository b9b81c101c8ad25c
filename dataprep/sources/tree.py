"""Lists a tree of a user's files: images, metadata, text files, archives, and files that are skipped.

Archives directly in the root are read as if they were unpacked there, into a folder with the archive's name unless
everything in the archive is in such a folder already. Hidden files are ignored; other files that are not images are
skipped and counted. Pictures in formats that cannot be read are refused, because the dataset would lack them.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, takewhile
from typing import BinaryIO, NamedTuple

import msgspec

from dataprep.dataset.paths import OTHER_PICTURES, READABLE_SUFFIXES
from dataprep.dataset.records import SourceFile
from dataprep.dataset.spill import Codec, SpilledItems
from dataprep.errors import SourceError
from dataprep.formats.tars import damaged
from dataprep.messages import shell_words, shown
from dataprep.sources.archives import ArchiveReader, Progress, archive_members, refuse_pointer
from dataprep.sources.base import MAX_IMAGE_BYTES, MAX_SAMPLES, SPLIT_FOLDERS, OwnData, member_parts
from dataprep.sources.folders import tree_files
from dataprep.sources.image_tables import other_data
from dataprep.sources.keys import ARCHIVES, PACKED, PAPERS, Problems, is_hidden, name_bytes
from dataprep.sources.pictures import SHOWN_EXAMPLES, Examples
from dataprep.sources.tables import FILE_NAMES, MetadataFile
from dataprep.storage.base import Storage

_HIDDEN = "hidden or of the system"
_IS_PACKED = "a compressed archive, in which images cannot be read in place"
_TEXTS = frozenset({"caption", "txt"})
"""Suffixes that tools give to the text files of pictures."""
_TABLES = frozenset({"csv", "jsonl", "parquet", "tsv"})
"""Suffixes of tables, which are read next to pictures only if they are named like metadata."""
_PATTERN = re.compile(r"[.*?\[]")
"""Characters that make a value of `exclude` a pattern of names instead of a suffix."""
MAX_METADATA_BYTES = 2**30
"""Maximum size of a metadata file; one in an archive or a bucket is held in memory."""
_DECODER = msgspec.msgpack.Decoder(tuple[bytes, str, int, int])


class Original(NamedTuple):
    parts: tuple[str, ...]
    """Path below the root, as if archives were unpacked."""
    source: str
    """File that holds it, relative to the root."""
    offset: int
    num_bytes: int

    @property
    def shown(self) -> str:
        """Path of the file, as messages show it."""
        return shown("/".join(self.parts))

    @property
    def is_loose(self) -> bool:
        """Whether it is a separate file, not in an archive."""
        return self.source == "/".join(self.parts)


def path_bytes(image: Original) -> bytes:
    """Return the path of an image as bytes, even if it is not UTF-8."""
    return name_bytes("/".join(image.parts))


def stem_bytes(file: Original) -> bytes:
    """Return the path of a file without its suffix as bytes."""
    path = path_bytes(file)
    above, slash, name = path.rpartition(b"/")
    return above + slash + (name.rpartition(b".")[0] or name)


def is_text(name: str, own: OwnData) -> bool:
    """Return whether a file is the text file of an image, by its name without folder in lower case."""
    stem, _, suffix = name.rpartition(".")
    return stem not in PAPERS and any(suffix == each for _, each in own.text_files)


def is_passed_over(name: str, own: OwnData) -> bool:
    """Return whether the user excludes a file, by its suffix or by a pattern of its name without folder, in lower
    case."""
    suffix = name.rpartition(".")[2] if "." in name else ""
    return any(fnmatchcase(name, each) if _PATTERN.search(each) else suffix == each for each in own.pass_over)


def _encode(image: Original) -> bytes:
    return msgspec.msgpack.encode((path_bytes(image), image.source, image.offset, image.num_bytes))


def _decode(data: bytes) -> Original:
    path, source, offset, num_bytes = _DECODER.decode(data)
    return Original(tuple(path.decode("utf-8", "surrogateescape").split("/")), source, offset, num_bytes)


ORIGINALS = Codec(_encode, _decode, "the list of images")


@dataclass(slots=True)
class Tree:
    root: Storage
    own: OwnData
    problems: Problems
    images: SpilledItems[Original] = field(default_factory=lambda: SpilledItems(ORIGINALS))
    metadata: list[MetadataFile] = field(default_factory=list)
    texts: SpilledItems[Original] = field(default_factory=lambda: SpilledItems(ORIGINALS))
    """Text files of the images."""
    empty: Examples = field(default_factory=Examples)
    """Images of 0 bytes."""
    passed_over: Counter[str] = field(default_factory=Counter)
    """Number of other files, by suffix."""
    sources: list[SourceFile] = field(default_factory=list)
    """Archives, and metadata files outside of archives."""
    unused_text: Original | None = None
    """A skipped file that seems to be the text file of an image."""
    unused_table: Original | None = None
    """The first skipped table."""
    unused_archive: str = ""
    """Name of the first archive that was skipped because it is in a folder."""
    _last: tuple[Original, bool] | None = None
    """The last image or skipped text file, and whether it is a text file."""

    def read_archive(self, name: str, progress: Progress | None) -> None:
        """List an archive as if it were unpacked here."""
        with ArchiveReader(self.root, name, progress=progress) as reader:
            if name.lower().rpartition(".")[2] in PACKED:
                raise SourceError(f"{reader.archive}: {_IS_PACKED}; unpack it, and give the folder as `source`")
            stem, is_inside = name.rpartition(".")[0], True
            found = SpilledItems(ORIGINALS)
            for member in archive_members(reader, name):
                last = member.name.rstrip("/").rpartition("/")[2]
                if last != ".." and is_hidden((last,)):
                    self.passed_over[_HIDDEN] += 1
                    continue
                parts = member_parts(reader, member)
                if member.is_directory or is_hidden(parts):
                    self.passed_over[_HIDDEN] += not member.is_directory
                    continue
                if member.unreadable and self._is_wanted(parts[-1]):
                    raise damaged(reader, member.offset, member.unreadable, member=member.name)
                is_inside = is_inside and parts[0] == stem
                found.append(Original(parts, name, member.offset, member.num_bytes))
            prefix = () if self.own.archive or is_inside else (stem,)
            for original in found:
                self.take(original._replace(parts=(*prefix, *original.parts)), reader)
            self.sources.append(SourceFile(name, reader.num_bytes, version=reader.version))

    def take(self, original: Original, reader: ArchiveReader | None = None) -> None:
        """Add one file by its name; `reader` is that of its archive."""
        name = original.parts[-1].lower()
        suffix = name.rpartition(".")[2] if "." in name else ""
        if is_passed_over(name, self.own):
            self.passed_over[_kind(suffix)] += 1
        elif suffix in OTHER_PICTURES | PACKED:
            self.problems.add(self._unreadable(original, suffix))
        elif suffix in READABLE_SUFFIXES:
            self._take_image(original)
        elif name in FILE_NAMES:
            self._take_metadata(original, reader)
        elif is_text(name, self.own):
            self.texts.append(original)
        else:
            self._pass_over(original, suffix)

    def is_odd(self, name: str) -> bool:
        """Return whether a file is skipped because it is hidden, excluded by the user, or not a picture; count it if
        so."""
        suffix = name.rpartition(".")[2].lower() if "." in name else ""
        if is_hidden((name,)):
            self.passed_over[_HIDDEN] += 1
            return True
        is_other = suffix in OTHER_PICTURES | ARCHIVES | PACKED and not is_passed_over(name.lower(), self.own)
        if is_other or self._is_wanted(name):
            return False
        self.passed_over[_kind(suffix)] += 1
        return True

    def _is_wanted(self, name: str) -> bool:
        name = name.lower()
        is_known = name.rpartition(".")[2] in READABLE_SUFFIXES or name in FILE_NAMES or is_text(name, self.own)
        return is_known and not is_passed_over(name, self.own)

    def _pass_over(self, original: Original, suffix: str) -> None:
        self.passed_over[_kind(suffix)] += 1
        if suffix in _TABLES and self.unused_table is None:
            self.unused_table = original
        if suffix in ARCHIVES and original.is_loose and not self.unused_archive:
            self.unused_archive = original.source
        if suffix in _TEXTS:
            self._look_for_text(original, is_text=True)

    def _look_for_text(self, file: Original, *, is_text: bool) -> None:
        """Note a skipped text file that belongs to an image; sorted by name they follow each other."""
        before, was_text = self._last or (file, is_text)
        self._last = file, is_text
        if self.unused_text is None and is_text != was_text and stem_bytes(before) == stem_bytes(file):
            self.unused_text = file if is_text else before

    def _take_image(self, original: Original) -> None:
        if original.num_bytes > MAX_IMAGE_BYTES:
            self.problems.note(
                f"{self.root.url_of(original.source)}: {original.shown} has {original.num_bytes:,} bytes; at most "
                f"{MAX_IMAGE_BYTES:,} for one image: remove it"
            )
            return
        try:
            refuse_pointer(self.root, original.source, original.num_bytes, original.offset)
        except SourceError as error:
            self.problems.add(error)
            return
        if len(self.images) >= MAX_SAMPLES:
            raise SourceError(f"{self.root.url}: more than {MAX_SAMPLES:,} images; build its folders one by one")
        self.images.append(original)
        if not original.num_bytes:
            self.empty.add(original)
        self._look_for_text(original, is_text=False)

    def _take_metadata(self, original: Original, reader: ArchiveReader | None) -> None:
        """Add a metadata file; one in an archive is read now."""
        url = self.root.url_of(original.source) if reader is None else f"{reader.archive}/{original.parts[-1]}"
        if original.num_bytes > MAX_METADATA_BYTES:
            raise SourceError(f"{url}: {original.num_bytes:,} bytes, expected at most {MAX_METADATA_BYTES:,}; split it")
        if reader is not None:
            opened: Callable[[], BinaryIO] = partial(io.BytesIO, reader.read_apart(original.offset, original.num_bytes))
        else:
            refuse_pointer(self.root, original.source, original.num_bytes)
            self.sources.append(SourceFile(original.source, original.num_bytes))
            opened = partial(_opened, self.root, original.source)
        self.metadata.append(MetadataFile(original.parts[:-1], url, original.num_bytes, opened))

    def _unreadable(self, original: Original, suffix: str) -> SourceError:
        what, step = f"a picture of type {suffix}, which is not read", "convert such files to JPEG or PNG"
        if suffix in PACKED:
            what, step = _IS_PACKED, "unpack it"
        where = f"{self.root.url_of(original.source)}: {original.shown}"
        return SourceError(f"{where}: {what}; {step}, or leave them out with `exclude` {shell_words(suffix)}")


def unpack_command(*archives: str) -> str:
    """Return the command that unpacks the first few of some archives, each into its folder."""
    commands = []
    for archive in archives[:SHOWN_EXAMPLES]:
        words = ("unzip", archive, "-d") if archive.lower().endswith(".zip") else ("tar", "-xf", archive, "-C")
        commands.append(shell_words(*words, archive.rpartition("/")[0]))
    return " && ".join(commands)


def read_tree(root: Storage, own: OwnData, progress: Progress | None, problems: Problems) -> Tree:
    """List a tree, or the archive that the user names. Raises SourceError if it is damaged, hostile or empty."""
    tree = Tree(root, own, problems)
    if own.archive:
        tree.read_archive(own.archive, progress)
        _strip_common_folders(tree)
    else:
        for file in tree_files(root, tree.is_odd):
            source = "/".join(file.parts)
            name = file.parts[-1].lower()
            is_archive = len(file.parts) == 1 and name.rpartition(".")[2] in ARCHIVES
            if is_archive and not is_passed_over(name, own):
                tree.read_archive(source, progress)
            else:
                tree.take(Original(file.parts, source, 0, file.num_bytes))
    if not len(tree.images):
        problems.refuse()
        if other := "" if own.archive else other_data(root):
            raise SourceError(f"{root.url}: no image: {other}")
        raise SourceError(f"{root.url_of(own.archive) if own.archive else root.url}: {_no_image(tree)}")
    return tree


def _kind(suffix: str) -> str:
    return f".{suffix}" if suffix else "no suffix"


def _opened(root: Storage, name: str) -> BinaryIO:
    return root.open(name) if root.is_local else io.BytesIO(root.read(name, MAX_METADATA_BYTES))


def _no_image(tree: Tree) -> str:
    others = ", ".join(f"{count:,} {suffix}" for suffix, count in tree.passed_over.most_common(5))
    known = ", ".join(sorted(READABLE_SUFFIXES))
    found = f"no image (found {others or 'no file'}); expected one of {known}"
    if not tree.unused_archive:
        return f"{found}: check `source`"
    url = tree.root.url_of(tree.unused_archive)
    return (
        f"{found}. Archives in folders of `source` are not looked into: give `source` {shell_words(url)} for this one, "
        f"or `source` {shell_words(url.rpartition('/')[0])} for all in its folder"
    )


def _strip_common_folders(tree: Tree) -> None:
    """Remove folders that contain all files of an archive: `pets/cats/1.jpg` becomes `cats/1.jpg`."""
    pictures = (image.parts[:-2] for image in chain(tree.images, tree.texts))
    folders = chain(pictures, (file.folder for file in tree.metadata))
    common = next(folders, ())
    for folder in folders:
        common = tuple(
            ours for ours, _ in takewhile(lambda pair: pair[0] == pair[1], zip(common, folder, strict=False))
        )
    depth = sum(1 for _ in takewhile(lambda name: name.lower() not in SPLIT_FOLDERS, common))
    if not depth:
        return
    tree.images = _without_top(tree.images, depth)
    tree.texts = _without_top(tree.texts, depth)
    tree.metadata = [file._replace(folder=file.folder[depth:]) for file in tree.metadata]


def _without_top(files: SpilledItems[Original], depth: int) -> SpilledItems[Original]:
    """Return the files with paths that lack the first `depth` folders."""
    return SpilledItems(ORIGINALS, (file._replace(parts=file.parts[depth:]) for file in files))
