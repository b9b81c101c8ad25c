"""A user's own pictures: any tree of files, on disk or in a bucket, or archives of it.

    tree ─▶ metadata, a row for each image ─▶ text files ─▶ splits, by top folders ─▶ labels ─▶ share of train for val

Splits are the top folders train, val and test; without them, all images are in train. A label comes from the class
folder directly below the split, or from a column of the metadata. All other columns become features, and so do text
files of the images if the user names a feature for them: `cat.txt` has the text about `cat.jpg`, as many tools write
captions. Text files are hostile input: their size is bounded, and their bytes must be UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeAlias

import msgspec

from dataprep.dataset.features import MAX_ANNOTATION_BYTES, Feature, Values, name_fault
from dataprep.dataset.paths import OTHER_PICTURES
from dataprep.dataset.records import ALL_FILES, SourceFile
from dataprep.dataset.spill import Codec, SpilledItems
from dataprep.errors import DataprepError, SourceError, UsageError
from dataprep.messages import counted, shell_words, shown
from dataprep.sources import keys
from dataprep.sources import pictures as own_pictures
from dataprep.sources import tree as trees
from dataprep.sources.base import READ_ALL, SPLIT_FOLDERS, SPLITS, OwnData, OwnDataset, Reading, SplitFacts
from dataprep.sources.tables import FILE_COLUMN, rows_of
from dataprep.storage.base import Storage, read_ahead
from dataprep.storage.errors import disk_errors

_DECODER = msgspec.msgpack.Decoder(tuple[bytes, int, bytes, bytes])
_TEXTS = msgspec.msgpack.Decoder(dict[str, str])
MAX_TEXT_BYTES = MAX_ANNOTATION_BYTES
"""Maximum size of a text file; the same limit as for all annotations of a picture."""
SUFFIX = "txt"
"""Suffix of text files if the user names none."""
_SUFFIX = re.compile(r"[a-z0-9_-]{1,32}")
_OTHER_FILES = keys.IMAGE_SUFFIXES | OTHER_PICTURES | keys.ARCHIVES | keys.PACKED


@dataclass(frozen=True, kw_only=True)
class Folder(OwnDataset):
    """Any tree of pictures."""

    reads_all_files: ClassVar[bool] = True

    def opened(self, root: Storage, reading: Reading = READ_ALL) -> own_pictures.OpenedDataset:
        return _FolderReader(root, self.own or OwnData(name=self.name), reading.progress).opened(self)


FOLDER = Folder(
    name="folder",
    description="Pictures of the user's own: a tree of files, or archives of it, with or without labels and metadata.",
    facts={name: SplitFacts(samples=None) for name in SPLITS},
)


class Text(NamedTuple):
    """The content of one text file."""

    name: str
    """Feature that holds it."""
    original: trees.Original
    content: str


def text_files(values: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the features that hold text files, each with the suffix of its files, sorted, from `NAME` or `NAME=SUFFIX`
    as the user wrote them. Raises UsageError if a name or suffix is invalid, or occurs twice."""
    found = []
    for value in values:
        name, _, suffix = value.partition("=")
        suffix = suffix.lower().lstrip(".") or SUFFIX
        fault = "" if name == own_pictures.LABEL_COLUMN else name_fault(name)
        if not _SUFFIX.fullmatch(suffix) or suffix in _OTHER_FILES:
            fault = f"no text file has the suffix {shown(suffix)}; expected one such as txt or caption"
        if fault:
            raise UsageError(f"`text_files` {value}: {fault}")
        found.append((name, suffix))
    for what, each in (("name", list(dict(found))), ("suffix", sorted({suffix for _, suffix in found}))):
        if len(each) < len(found):
            raise UsageError(f"`text_files`: the same {what} twice among {', '.join(values)}; expected each once")
    return tuple(sorted(found))


class TextFiles:
    """Reads text files and joins them with their pictures."""

    def __init__(
        self, root: Storage, own: OwnData, texts: SpilledItems[trees.Original], problems: keys.Problems
    ) -> None:
        self._root, self._texts, self._problems = root, texts, problems
        self._names = {suffix: name for name, suffix in own.text_files}
        self._defaults = {name: text for name, text in own.defaults if name in self._names.values()}
        self._without = {name: own_pictures.Examples() for name in self._names.values()}
        self._odd = own_pictures.Examples()
        self._num_pictures = 0

    def joined(self, pictures: SpilledItems[_Picture]) -> Iterator[tuple[_Picture, dict[str, str]]]:
        """Yield each picture with the contents of its files, by feature; call `refuse_odd` afterwards."""
        waiting = self._contents()
        text = next(waiting, None)
        for stem, same in groupby(pictures.in_order(_stem), _stem):
            found: dict[str, Text] = {}
            while text is not None and (at := trees.stem_bytes(text.original)) <= stem:
                if at < stem:
                    self._odd.add(text.original)
                elif text.name in found:
                    self._problems.note(
                        f"{self._root.url}: {found[text.name].original.shown} and {text.original.shown} are text files "
                        "of one picture; remove one"
                    )
                else:
                    found[text.name] = text
                text = next(waiting, None)
            for picture in same:
                self._num_pictures += 1
                yield picture, self._values(picture, found)
        for odd in chain([text] if text is not None else [], waiting):
            self._odd.add(odd.original)

    def refuse_odd(self) -> None:
        """Refuse pictures without a text, and text files without a picture."""
        for suffix, name in self._names.items():
            without = self._without[name]
            if without.count:
                self._problems.note(
                    f"{self._root.url}: no .{suffix} file for {without.count:,} of {self._num_pictures:,} images: "
                    f"{without}; expected one of the same name for each: add them, or give the text of images that "
                    f"have none with `default` {shell_words(name)}=TEXT"
                )
        if self._odd.count:
            self._problems.note(
                f"{self._root.url}: no image for {self._odd.count:,} of {len(self._texts):,} text files: "
                f"{self._odd}; expected one of the same name for each: put the images back, move these files away, "
                "or leave them out with `exclude` NAME"
            )

    def _values(self, picture: _Picture, found: dict[str, Text]) -> dict[str, str]:
        values = dict(self._defaults)
        for name, without in self._without.items():
            if name in found:
                values[name] = found[name].content
            elif name not in values:
                without.add(picture)
        return values

    def _contents(self) -> Iterator[Text]:
        """Yield the files in the order of their stems; over a network many are read at a time. The text of a refused
        file is empty."""
        texts = self._texts.in_order(trees.stem_bytes)
        for text, error in read_ahead(self._read, texts, self._root.reads_in_flight):
            if error is not None:
                self._problems.add(error)
            yield text

    def _read(self, text: trees.Original) -> tuple[Text, SourceError | None]:
        name = self._names[text.parts[-1].lower().rpartition(".")[2]]
        try:
            return Text(name, text, self._content(text).rstrip("\r\n")), None
        except SourceError as error:
            return Text(name, text, ""), error

    def _content(self, text: trees.Original) -> str:
        where = f"{self._root.url}: {text.shown}"
        if text.num_bytes > MAX_TEXT_BYTES:
            raise SourceError(
                f"{where}: {text.num_bytes:,} bytes, expected the text of one image, of at most {MAX_TEXT_BYTES:,}; "
                "shorten it"
            )
        try:
            data = self._root.read_range(text.source, text.offset, text.num_bytes) if text.num_bytes else b""
            return data.decode("utf-8-sig")
        except FileNotFoundError as error:
            raise SourceError(f"{where}: gone since the source was listed; put it back") from error
        except UnicodeDecodeError as error:
            raise SourceError(f"{where}: not UTF-8; save the file as UTF-8") from error


@dataclass(slots=True)
class _Picture:
    """One image of the tree, with the facts found so far."""

    original: trees.Original
    inner: tuple[str, ...]
    """Path below the split."""
    row: bytes = b""
    texts: bytes = b""
    """Contents of its text files, packed."""

    @property
    def key(self) -> str:
        return keys.key_of(self.inner)

    @property
    def shown(self) -> str:
        return self.original.shown

    @property
    def place(self) -> tuple[str, int, int, int | None]:
        return self.original.source, self.original.offset, self.original.num_bytes, None


def _encode(picture: _Picture) -> bytes:
    above = len(picture.original.parts) - len(picture.inner)
    return msgspec.msgpack.encode((trees.ORIGINALS.encode(picture.original), above, picture.row, picture.texts))


def _decode(data: bytes) -> _Picture:
    packed, above, row, texts = _DECODER.decode(data)
    original = trees.ORIGINALS.decode(packed)
    return _Picture(original, original.parts[above:], row, texts)


_PICTURES = Codec(_encode, _decode, "the list of images")


class _Row(NamedTuple):
    path: bytes
    """Path of its image, below the root."""
    number: int
    """Position among all rows."""
    where: str
    """File and row, for messages."""
    values: bytes
    """Values as encoded by `Columns.add`."""


_OddRow: TypeAlias = tuple[int, str, str, bool]
"""Number of a row without its own image, file and row, path, and whether another row has the image."""
_ODD_ROWS = Codec(msgspec.msgpack.encode, msgspec.msgpack.Decoder(_OddRow).decode, "the metadata")
_ROWS = Codec(msgspec.msgpack.encode, msgspec.msgpack.Decoder(_Row).decode, "the metadata")


class _FolderReader(own_pictures.PictureReader[_Picture]):
    """Reads a tree, step by step."""

    columns_of = "the metadata"

    def opened(self, dataset: Folder) -> own_pictures.OpenedDataset:
        with self._problems.together():
            return self._opened(dataset)

    def _opened(self, dataset: Folder) -> own_pictures.OpenedDataset:
        tree = trees.read_tree(self._root, self._own, self._progress, self._problems)
        self._note_passed_over(tree)
        if tree.empty.count:
            self._notes.append(
                f"warning: {counted(tree.empty.count, 'image')} of 0 bytes, which a build rejects: {tree.empty}; "
                "remove or replace them, or allow rejections with `max_reject_ratio`"
            )
        folders = self._split_folders(tree)
        splits = self._by_split(folders, self._with_texts(tree, self._with_rows(tree)))
        classes = self._label(own_pictures.AllSplits(splits.values()))
        self._problems.refuse()
        splits = self._with_val(splits)
        found = {}
        for name in (name for name in SPLITS if name in splits):
            with self._problems.noted():
                pictures = self._collected(splits[name]).in_order(lambda picture: picture.key.encode())
                found[name] = self._enumeration(name, pictures, classes)
        self._problems.refuse()
        for name, enumeration in found.items():
            enumeration.sources.extend(self._sources(tree, splits[name]))
        return self._dataset(dataset, found, found)

    def _collected(self, pictures: Iterable[_Picture]) -> SpilledItems[_Picture]:
        return SpilledItems(_PICTURES, pictures)

    def _note_passed_over(self, tree: trees.Tree) -> None:
        if tree.passed_over:
            counts = ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(tree.passed_over.items()) if count)
            self._notes.extend([f"skipped: {counts}"] if counts else ())
        if tree.unused_table is not None:
            unpacked = "" if tree.unused_table.is_loose else "unpacked, "
            packed = sorted({image.source for image in tree.images if not image.is_loose} if not unpacked else ())
            if packed and self._root.is_local:
                unpacked = f"after {trees.unpack_command(*map(self._root.url_of, packed))}, "
            self._notes.append(
                f"{tree.unused_table.shown} is skipped: {unpacked}{_table_command(tree)} builds the pictures that it "
                "names; or call it metadata.csv, metadata.jsonl or metadata.parquet, with paths in a column "
                f"{FILE_COLUMN}, and its rows describe the pictures here"
            )
        if tree.unused_archive:
            self._notes.append(
                f"warning: nothing in {shown(tree.unused_archive)} is read, because only archives directly in `source` "
                f"are; unpack it there: {trees.unpack_command(tree.unused_archive)}"
            )
        if tree.unused_text is not None:
            name = tree.unused_text.parts[-1]
            suffix = name.lower().rpartition(".")[2]
            option = "caption" if suffix == SUFFIX else f"caption={suffix}"
            self._notes.append(
                f"some of these have the name of an image, as {shown(name)} does: `text_files` {shell_words(option)} "
                "makes their texts a feature"
            )

    # Splits

    def _split_folders(self, tree: trees.Tree) -> dict[str, str]:
        """Return the split of each top folder that is named like one; empty if all images are in train, or if the user
        says that all folders are classes."""
        tops = {image.parts[0] for image in tree.images if len(image.parts) > 1 and _is_split(image.parts[0])}
        splits = {top: SPLIT_FOLDERS[top.lower()] for top in sorted(tops)}
        if not splits:
            self._note_deeper_splits(tree)
            return {}
        outside = own_pictures.Examples(
            _Picture(image, image.parts)
            for image in tree.images
            if image.parts[0] not in splits or len(image.parts) == 1
        )
        if outside.count:
            may_be_classes = all(len(image.parts) == 2 for image in tree.images)
            if may_be_classes and self._own.label_from == own_pictures.FOLDER_LABELS:
                return {}
            classes = "; if these folders and the others are classes, add `label_from` folder" if may_be_classes else ""
            self._problems.note(
                f"{self._root.url}: {outside.count:,} images outside of {', '.join(splits)}, which are splits by "
                f"their names: {outside}; move them into a split, or give the folder of one split as `source`"
                f"{classes}"
            )
        for split in sorted(set(splits.values())):
            both = [other for other in splits if splits[other] == split]
            if len(both) > 1:
                self._problems.note(
                    f"{self._root.url}: {' and '.join(both)} are both folders of the split {split}; rename or "
                    "merge them"
                )
        return splits

    def _note_deeper_splits(self, tree: trees.Tree) -> None:
        """Warn if folders below one top folder are named like splits, as in `images/train`, which are not used."""
        seconds = {
            image.parts[:2]
            for image in tree.images
            if len(image.parts) > 2 and _is_split(image.parts[1]) and image.is_loose
        }
        tops = sorted({top for top, _ in seconds})
        names = sorted({name for _, name in seconds})
        if len({SPLIT_FOLDERS[name.lower()] for name in names}) > 1:
            source = f"dataprep build folder `source` {shell_words(self._root.url_of(tops[0]))}"
            self._notes.append(
                f"warning: all images are in train, because {' and '.join(names)} are not directly in `source` but in "
                f"{shown(tops[0])}; for splits: {source}"
            )

    def _by_split(
        self, folders: Mapping[str, str], pictures: SpilledItems[_Picture]
    ) -> Mapping[str, SpilledItems[_Picture]]:
        """Sort the images into splits; all into train if no folder is named like a split."""
        if not folders:
            return {"train": pictures}
        return {
            split: self._collected(
                replace(picture, inner=picture.inner[1:]) for picture in pictures if picture.inner[0] == top
            )
            for top, split in folders.items()
        }

    # Metadata

    def _with_rows(self, tree: trees.Tree) -> SpilledItems[_Picture]:
        """Read the rows of all metadata files, and return all images, each with its row."""
        if not tree.metadata:
            self._refuse_options(tree)
            return self._collected(_Picture(image, image.parts) for image in tree.images)
        if len({file.url.lower().endswith(".csv") for file in tree.metadata}) > 1:
            raise SourceError(
                f"{self._root.url}: metadata both as CSV and in other formats; keep the files of one kind"
            )
        before = self._problems.count
        rows, are_all = self._rows(tree)
        self._without_row, self._odd_rows = own_pictures.Examples(), SpilledItems(_ODD_ROWS)
        pictures = self._collected(
            self._joined(tree.images.in_order(trees.path_bytes), rows.in_order(attrgetter("path")))
        )
        odd = nsmallest(keys.SHOWN_PROBLEMS, self._odd_rows)
        if odd and len(self._odd_rows) == len(rows):
            _, where, path, _ = odd[0]
            self._problems.note(
                f"{where}: {path} does not exist, nor does the picture of any other row; expected paths relative to "
                f"the metadata file, such as those of the pictures here: {self._without_row}"
            )
        else:
            for _, where, path, is_second in odd:
                what = f"{path} does not exist; expected an image for every row: remove the row, or put the file back"
                what = f"a second row for {path}; remove one" if is_second else what
                self._problems.note(f"{where}: {what}")
            self._problems.count += len(self._odd_rows) - len(odd)
        if self._without_row.count and are_all and len(self._odd_rows) < len(rows):
            files = ", ".join(file.url for file in tree.metadata[: own_pictures.SHOWN_EXAMPLES])
            self._problems.note(
                f"{files}: no row for {self._without_row.count:,} of {len(tree.images):,} images: "
                f"{self._without_row}; expected one for each: add rows, or move these images away"
            )
        self._take_columns()
        self._are_typed = self._problems.count == before
        return pictures

    def _rows(self, tree: trees.Tree) -> tuple[SpilledItems[_Row], bool]:
        """Return the rows of all metadata files, and whether each could be read."""
        rows: SpilledItems[_Row] = SpilledItems(_ROWS)
        refused: list[str] = []

        def refuse(error: DataprepError) -> None:
            refused[:] = ["some"]
            self._problems.add(error)

        for file in tree.metadata:
            try:
                for row in rows_of(file, refuse):
                    rows.append(
                        _Row(keys.name_bytes("/".join(row.parts)), len(rows), row.where, self._columns.add(row))
                    )
            except SourceError as error:
                refuse(error)
        return rows, not refused

    def _joined(self, images: Iterable[trees.Original], rows: Iterable[_Row]) -> Iterator[_Picture]:
        """Yield all images, each with its row; note images without a row, and rows without their own image. Images and
        rows are in the order of their paths."""
        waiting = iter(rows)
        row = next(waiting, None)
        taken = b""
        for image in chain(images, [None]):
            path = None if image is None else trees.path_bytes(image)
            while row is not None and (path is None or row.path < path):
                path_shown = shown(row.path.decode("utf-8", "surrogateescape"))
                self._odd_rows.append((row.number, row.where, path_shown, row.path == taken))
                row = next(waiting, None)
            if image is None:
                return
            picture = _Picture(image, image.parts)
            if row is None or row.path != path:
                self._without_row.add(picture)
            else:
                picture.row, taken = row.values, row.path
                row = next(waiting, None)
            yield picture

    def _refuse_options(self, tree: trees.Tree) -> None:
        """Refuse options about columns if there is no metadata."""
        own = self._own
        named = {"default": list(dict(own.defaults)), "drop": own.drop, "group_by": [own.group_by]}
        if own.label_from not in (None, own_pictures.FOLDER_LABELS, own_pictures.NO_LABELS):
            named["label_from"] = [own.label_from]
        for option, columns in named.items():
            if any(column and column not in dict(own.text_files) for column in columns):
                raise UsageError(
                    f"`{option}`: {self._root.url} has no metadata.csv, metadata.jsonl or metadata.parquet with "
                    f"columns; a table of another name is read by {_table_command(tree)}"
                )

    # Text files

    def _with_texts(self, tree: trees.Tree, pictures: SpilledItems[_Picture]) -> SpilledItems[_Picture]:
        """Read the text files of all images, and return the images with their texts."""
        names = dict(self._own.text_files)
        if not names:
            return pictures
        both = sorted(names.keys() & self._all_columns.keys())
        if both:
            self._problems.note(
                f"{self._root.url}: `text_files` {both[0]}: the metadata has a column {both[0]}, too; choose "
                f"another name, or leave the column out with `drop` {shell_words(both[0])}"
            )
            return pictures
        files = TextFiles(self._root, self._own, tree.texts, self._problems)
        found = self._collected(
            replace(picture, texts=msgspec.msgpack.encode(texts)) for picture, texts in files.joined(pictures)
        )
        files.refuse_odd()
        self._all_columns = dict(sorted({**self._all_columns, **dict.fromkeys(names, Feature("text"))}.items()))
        self._features = dict(self._all_columns)
        return found

    def _values(self, picture: _Picture) -> Values:
        """Return the values of an image's row and text files, by column."""
        if not picture.texts:
            return super()._values(picture)
        texts: Values = _TEXTS.decode(picture.texts)
        if not picture.row:
            return texts
        columns = {name: feature for name, feature in self._all_columns.items() if name not in texts}
        return self._columns.values(picture.row, columns) | texts

    # Labels

    def _label(self, pictures: own_pictures.AllSplits[_Picture]) -> tuple[str, ...]:
        """Find the source of the classes, remove its column from the features, and return the sorted classes."""
        if not self._are_typed and self._own.label_from != own_pictures.FOLDER_LABELS:
            return ()
        source = self._own.label_from or self._label_source(pictures)
        with self._problems.noted():
            if source == own_pictures.FOLDER_LABELS:
                self._label_by_folder(pictures)
            elif source != own_pictures.NO_LABELS:
                self._label_by_column(pictures, source)
            self._check_features()
        return self._checked_classes(map(self._class_of, pictures))

    def _label_source(self, pictures: own_pictures.AllSplits[_Picture]) -> str:
        """Choose the source of the labels when the user has not named one."""
        if own_pictures.LABEL_COLUMN in self._features:
            suffix = dict(self._own.text_files).get(own_pictures.LABEL_COLUMN)
            source = "the column label of the metadata" if suffix is None else f"the text files .{suffix}"
            self._notes.append(f"classes from {source}")
            return own_pictures.LABEL_COLUMN
        self._note_near_labels()
        depths = {len(picture.inner) for picture in pictures}
        if depths == {1}:
            return own_pictures.NO_LABELS
        if depths == {2}:
            return self._folders_as_classes(sorted({picture.inner[0] for picture in pictures}))
        odd = own_pictures.Examples(picture for picture in pictures if len(picture.inner) != 2)
        self._notes.append(
            f"warning: no labels: {odd.count:,} of {len(pictures):,} images are not in a class folder directly below "
            f"their split, {odd}; if folders are classes, give the folder above them as `source`"
        )
        return own_pictures.NO_LABELS

    def _folders_as_classes(self, names: list[str]) -> str:
        """Choose whether folders with these names, which hold all images, are classes."""
        if len(names) == 1:
            self._notes.append(
                f"warning: no labels: all images are in one folder, {names[0]}; `label_from` folder makes it the only "
                "class"
            )
            return own_pictures.NO_LABELS
        self._notes.append(
            f"{len(names):,} classes, one per folder: {own_pictures.listed(names)} (`label_from` none for no labels)"
        )
        return own_pictures.FOLDER_LABELS

    def _label_by_folder(self, pictures: own_pictures.AllSplits[_Picture]) -> None:
        self._class_of = _folder_of
        odd = own_pictures.Examples(picture for picture in pictures if len(picture.inner) != 2)
        if odd.count:
            raise SourceError(
                f"{self._root.url}: {odd.count:,} of {len(pictures):,} images are not directly in a class folder: "
                f"{odd}; expected CLASS/IMAGE or SPLIT/CLASS/IMAGE: give the folder above the classes as "
                "`source`, move them, or build without labels with `label_from` none"
            )
        self._note_empty_folders({picture.inner[0] for picture in pictures})

    def _note_empty_folders(self, classes: set[str]) -> None:
        """Note folders without an image next to the class folders; archives and buckets have no empty folders."""
        if not self._root.is_local or self._own.archive:
            return
        root = Path(self._root.url)
        tops = [path for path in _folders(root) if path.name.lower() in SPLIT_FOLDERS]
        beside = [path for top in tops or [root] for path in _folders(top)]
        empty = sorted({path.name for path in beside} - classes)
        if empty:
            names = own_pictures.listed([*map(shown, empty)])
            self._notes.append(
                f"warning: {counted(len(empty), 'folder')} next to the classes without an image, so no class: {names}"
            )

    def _sources(self, tree: trees.Tree, pictures: Iterable[_Picture]) -> list[SourceFile]:
        """Return the archives, the metadata files, and one entry for all other files of a split."""
        packed = {source.name for source in tree.sources}
        tops: set[str] = set()
        num_bytes = 0
        for original in (picture.original for picture in pictures):
            if original.source not in packed:
                num_bytes += original.num_bytes
                if len(tops) < 2:
                    tops.add(original.parts[0] if len(original.parts) > 1 else ALL_FILES)
        if not tops:
            return tree.sources
        return [*tree.sources, SourceFile(tops.pop() if len(tops) == 1 else ALL_FILES, num_bytes)]


def _table_command(tree: trees.Tree) -> str:
    """Return the command that builds the pictures of the skipped table, or of any table."""
    command, table = "dataprep build table", tree.unused_table
    if table is None or not table.is_loose:
        return command
    if len(table.parts) == 1:
        return f"{command} `source` {shell_words(tree.root.url_of(table.source))}"
    return f"{command} `source` {shell_words(tree.root.url)} `table` {shell_words(table.source)}"


def _stem(picture: _Picture) -> bytes:
    return trees.stem_bytes(picture.original)


def _folders(root: Path) -> list[Path]:
    """Return the folders directly in a folder that are not hidden."""
    with disk_errors(root):
        return [path for path in root.iterdir() if path.is_dir() and not keys.is_hidden((path.name,))]


def _is_split(top: str) -> bool:
    return top.lower() in SPLIT_FOLDERS


def _folder_of(picture: _Picture) -> str:
    """Return the class folder of a picture; empty if it is not directly in one."""
    return picture.inner[0] if len(picture.inner) == 2 else ""
