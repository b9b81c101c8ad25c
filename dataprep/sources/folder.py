"""A user's own pictures: any tree of files, on disk or in a bucket, or archives of it.

    tree ─▶ splits, by top folders ─▶ metadata, one row per image ─▶ labels ─▶ a share of train becomes val

Splits are the top folders train, val and test; without them, all images are in train. A label comes from the class
folder directly below the split, or from a column of the metadata. All other columns become features.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from dataprep.dataset.features import Feature, Values, annotations_json, name_fault
from dataprep.dataset.records import NO_LABEL, Enumeration, SampleRef, SourceFile
from dataprep.errors import FormatError, SourceError, UsageError
from dataprep.formats.checked import MAX_CLASS_NAME_CHARS, check_class_folder
from dataprep.messages import shown
from dataprep.sources.archives import Progress
from dataprep.sources.base import SplitFacts
from dataprep.sources.columns import Columns
from dataprep.sources.keys import key_of
from dataprep.sources.metadata import rows_of
from dataprep.sources.own import SPLIT_FOLDERS, SPLITS, UNSTATED, OwnData, OwnDataset
from dataprep.sources.tree import Original, Tree, read_tree
from dataprep.storage.base import Storage

LABEL_COLUMN = "label"
"""Column of metadata that holds the class, unless the user names another."""
FOLDER_LABELS, NO_LABELS = "folder", "none"
ALL_FILES = "*"
"""Name in the plan's sources for files that have no common top folder."""
_SHOWN = 3
"""Maximum number of examples in a message."""


@dataclass(frozen=True, kw_only=True)
class Folder(OwnDataset):
    """Any tree of pictures."""

    def opened(self, root: Storage, progress: Progress | None = None) -> Folder:
        """Return the dataset with the splits, classes and features that are found in a storage."""
        return _FolderReader(root, self.own or OwnData(name=self.name), progress).opened(self)

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return nothing: no classes are published."""
        return ()

    def _find(
        self,
        root: Storage,
        split: str,
        *,
        allow_partial: bool,
        classes: tuple[str, ...] | None,
        progress: Progress | None,
    ) -> Enumeration:
        return self.opened(root, progress)._find(
            root, split, allow_partial=allow_partial, classes=classes, progress=progress
        )


@dataclass(frozen=True, kw_only=True)
class OpenedFolder(Folder):
    """A tree of pictures that was read."""

    found: Mapping[str, Enumeration]
    """Samples of each split."""

    def opened(self, root: Storage, progress: Progress | None = None) -> Folder:
        """Return this dataset, whose tree was read already."""
        return self

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return the classes that were found."""
        return next(iter(self.found.values())).classes

    def _find(
        self,
        root: Storage,
        split: str,
        *,
        allow_partial: bool,
        classes: tuple[str, ...] | None,
        progress: Progress | None,
    ) -> Enumeration:
        return self.found[split]


@dataclass(slots=True)
class _Picture:
    """One image of the tree, with the facts that are found so far."""

    original: Original
    inner: tuple[str, ...]
    """Path below the split."""
    row: bytes = b""
    """Row of metadata as encoded by `Columns.add`: decoded values would take several times the memory."""
    class_name: str = ""


class _FolderReader:
    """Reads a tree, step by step."""

    def __init__(self, root: Storage, own: OwnData, progress: Progress | None) -> None:
        self._root, self._own, self._progress = root, own, progress
        self._notes: list[str] = []
        self._columns = Columns(dict(own.defaults), frozenset(own.drop))
        self._all_columns: dict[str, Feature] = {}
        self._features: dict[str, Feature] = {}
        """All columns except that of the label."""

    def opened(self, dataset: Folder) -> OpenedFolder:
        """Return the dataset with everything that is found in the tree."""
        tree = read_tree(self._root, self._own, self._progress)
        self._note_passed_over(tree)
        splits = self._by_split(tree)
        self._read_metadata(tree, [picture for pictures in splits.values() for picture in pictures])
        classes = self._label(splits)
        splits = self._with_val(splits)
        labels = {name: label for label, name in enumerate(classes)}
        found = {name: self._enumeration(tree, name, splits[name], labels) for name in SPLITS if name in splits}
        values = {item.name: getattr(dataset, item.name) for item in fields(Folder)}
        values |= {"facts": {name: dataset.facts[name] for name in found}, "notes": tuple(self._notes)}
        return OpenedFolder(**values, found=found)

    def _note_passed_over(self, tree: Tree) -> None:
        if tree.passed_over:
            counts = ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(tree.passed_over.items()))
            self._notes.append(f"passed over, because they are not images: {counts}")

    # Splits

    def _by_split(self, tree: Tree) -> dict[str, list[_Picture]]:
        """Sort the images into splits by their top folders; all into train if no folder has the name of a split."""
        tops = {image.parts[0] for image in tree.images if len(image.parts) > 1}
        splits = {top: SPLIT_FOLDERS[top.lower()] for top in sorted(tops) if top.lower() in SPLIT_FOLDERS}
        if not splits:
            return {"train": [_Picture(image, image.parts) for image in tree.images]}
        outside = [image for image in tree.images if image.parts[0] not in splits or len(image.parts) == 1]
        if outside:
            raise SourceError(
                f"{self._root.url}: {len(outside):,} images outside of {', '.join(splits)}, which are splits by their "
                f"names: {_examples(outside)}; move them into a split, or give the folder of one split as --source"
            )
        found: dict[str, list[_Picture]] = {}
        for top, split in splits.items():
            if split in found:
                both = " and ".join(other for other in splits if splits[other] == split)
                raise SourceError(
                    f"{self._root.url}: {both} are both folders of the split {split}; rename or merge them"
                )
            found[split] = [_Picture(image, image.parts[1:]) for image in tree.images if image.parts[0] == top]
        return found

    def _with_val(self, splits: dict[str, list[_Picture]]) -> dict[str, list[_Picture]]:
        """Return the splits with a share of train as val, if the user requests it."""
        own = self._own
        if not own.val_fraction:
            return splits
        if "val" in splits or "train" not in splits:
            raise UsageError(
                f"--val-fraction {own.val_fraction:g}: {self._root.url} has the splits {', '.join(splits)}; it needs "
                "train, and no val"
            )
        val = [picture for picture in splits["train"] if in_val(own, self._group(picture))]
        chosen = set(map(id, val))
        train = [picture for picture in splits["train"] if id(picture) not in chosen]
        if not val or not train:
            raise UsageError(
                f"--val-fraction {own.val_fraction:g} leaves {len(train):,} images for train and {len(val):,} for val, "
                f"{'groups of ' + own.group_by if own.group_by else 'single images'}; choose another fraction"
            )
        return {**splits, "train": train, "val": val}

    def _group(self, picture: _Picture) -> str:
        """Return the text that decides an image's split: the value of its group, or its key."""
        column = self._own.group_by
        if column is None:
            return key_of(picture.inner)
        if column not in self._all_columns:
            known = ", ".join(sorted(self._all_columns)) or "no columns"
            raise UsageError(f"--group-by {column}: no such column in the metadata; it has {known}")
        return json.dumps(self._values(picture)[column], sort_keys=True, default=repr)

    def _values(self, picture: _Picture) -> Values:
        """Return the values of an image's row of metadata, by column."""
        return self._columns.values(picture.row, self._all_columns)

    # Metadata

    def _read_metadata(self, tree: Tree, pictures: list[_Picture]) -> None:
        """Read the rows of all files of metadata, and give each image the values of its row."""
        if not tree.metadata:
            self._refuse_options()
            return
        if len({file.url.lower().endswith(".csv") for file in tree.metadata}) > 1:
            raise SourceError(
                f"{self._root.url}: metadata both as CSV and in other formats; expected files of one kind"
            )
        kept: dict[tuple[str, ...], bytes] = {}
        known = {picture.original.parts for picture in pictures}
        for file in tree.metadata:
            for row in rows_of(file):
                if row.parts not in known:
                    raise SourceError(
                        f"{row.where}: {shown('/'.join(row.parts))} does not exist; expected an image for every row: "
                        "remove the row, or put the file back"
                    )
                if row.parts in kept:
                    raise SourceError(f"{row.where}: a second row for {shown('/'.join(row.parts))}; remove one")
                kept[row.parts] = self._columns.add(row)
        without = [picture.original for picture in pictures if picture.original.parts not in kept]
        if without:
            files = ", ".join(file.url for file in tree.metadata[:_SHOWN])
            raise SourceError(
                f"{files}: no row for {len(without):,} of {len(pictures):,} images: {_examples(without)}; expected one "
                "for each: add rows, or move these images away"
            )
        self._all_columns = self._columns.features()
        self._features = dict(self._all_columns)
        for picture in pictures:
            picture.row = kept.pop(picture.original.parts)

    def _refuse_options(self) -> None:
        """Refuse options about columns if there is no metadata."""
        own = self._own
        named = {"--default": own.defaults, "--drop": own.drop, "--group-by": own.group_by}
        if own.label_from not in (None, FOLDER_LABELS, NO_LABELS):
            named["--label-from"] = own.label_from
        for option, value in named.items():
            if value:
                raise UsageError(
                    f"{option}: {self._root.url} has no metadata.csv, metadata.jsonl or metadata.parquet with columns"
                )

    # Labels

    def _label(self, splits: Mapping[str, list[_Picture]]) -> tuple[str, ...]:
        """Set the class of each image, remove its column from the features, and return the sorted classes."""
        pictures = [picture for found in splits.values() for picture in found]
        source = self._own.label_from or self._label_source(pictures)
        if source == FOLDER_LABELS:
            self._label_by_folder(pictures)
        elif source != NO_LABELS:
            self._label_by_column(pictures, source)
        for name in self._features:
            if fault := name_fault(name):
                hint = f", or give --label-from {name}" if name == LABEL_COLUMN else ""
                raise SourceError(
                    f"{self._root.url}: a column of the metadata: {fault}; rename it, or leave it out with --drop "
                    f"{name}{hint}"
                )
        classes = tuple(sorted({picture.class_name for picture in pictures if picture.class_name}))
        self._check_classes(classes)
        return classes

    def _label_source(self, pictures: list[_Picture]) -> str:
        """Return the source of the labels if the user has not named one."""
        if LABEL_COLUMN in self._features:
            self._notes.append("classes from the column label of the metadata")
            return LABEL_COLUMN
        depths = {len(picture.inner) for picture in pictures}
        if depths == {1}:
            return NO_LABELS
        names = sorted({picture.inner[0] for picture in pictures if len(picture.inner) > 1})
        if depths == {2} and len(names) > 1:
            listed = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
            self._notes.append(f"{len(names):,} classes, one per folder: {listed} (--label-from none for no labels)")
            return FOLDER_LABELS
        if depths == {2}:
            self._notes.append(
                f"warning: no labels: all images are in the one folder {names[0]}; with --label-from folder it is the "
                "only class"
            )
            return NO_LABELS
        odd = [picture.original for picture in pictures if len(picture.inner) != 2]
        self._notes.append(
            f"warning: no labels: {len(odd):,} of {len(pictures):,} images are not in a class folder directly below "
            f"their split, {_examples(odd)}; if folders are classes, give the folder above them as --source"
        )
        return NO_LABELS

    def _label_by_folder(self, pictures: list[_Picture]) -> None:
        odd = [picture.original for picture in pictures if len(picture.inner) != 2]
        if odd:
            raise SourceError(
                f"{self._root.url}: {len(odd):,} of {len(pictures):,} images do not lie directly in a class folder: "
                f"{_examples(odd)}; expected CLASS/IMAGE or SPLIT/CLASS/IMAGE: give the folder above the classes as "
                "--source, move them, or build without labels by --label-from none"
            )
        for picture in pictures:
            picture.class_name = picture.inner[0]

    def _label_by_column(self, pictures: list[_Picture], column: str) -> None:
        feature = self._features.pop(column, None)
        if feature is None or feature.shape or feature.kind not in ("text", "int64", "bool"):
            known = ", ".join(self._features) or "none"
            what = "no such column" if feature is None else f"it has {feature.kind} values or lists"
            raise SourceError(
                f"{self._root.url}: --label-from {column}: {what} (columns: {known}); expected a column of texts, "
                "integers or truth values, folder, or none"
            )
        values = [self._values(picture)[column] for picture in pictures]
        width = 0
        if feature.kind == "int64":
            if min(values) < 0:
                raise SourceError(f"{self._root.url}: --label-from {column}: {min(values)}; expected integers from 0")
            width = len(str(max(values)))
        for picture, value in zip(pictures, values, strict=True):
            # With leading zeros the names are sorted like the numbers.
            picture.class_name = value if isinstance(value, str) else str(value).lower().zfill(width)

    def _check_classes(self, classes: Iterable[str]) -> None:
        for name in classes:
            try:
                check_class_folder(name)
                if len(name) > MAX_CLASS_NAME_CHARS:
                    raise FormatError(f"class name of {len(name):,} characters")
            except FormatError as error:
                raise SourceError(f"{self._root.url}: {error}") from error

    # References

    def _enumeration(self, tree: Tree, split: str, pictures: list[_Picture], labels: Mapping[str, int]) -> Enumeration:
        if labels and any(not picture.class_name for picture in pictures):
            odd = [picture.original for picture in pictures if not picture.class_name]
            raise SourceError(f"{self._root.url}: {len(odd):,} images of {split} have an empty label: {_examples(odd)}")
        refs = [self._ref(picture, labels) for picture in pictures]
        refs.sort(key=lambda ref: ref.key)
        return Enumeration(refs, self._sources(tree, pictures), tuple(labels), self._features)

    def _ref(self, picture: _Picture, labels: Mapping[str, int]) -> SampleRef:
        original, annotations = picture.original, b""
        if self._features:
            row = self._values(picture)
            values = {name: row[name] for name in self._features}
            try:
                annotations = annotations_json(self._features, values)
            except FormatError as error:
                raise SourceError(f"{self._root.url_of('/'.join(original.parts))}: {error}") from error
        label = labels.get(picture.class_name, NO_LABEL)
        key = key_of(picture.inner)
        return SampleRef(key, original.source, original.offset, original.num_bytes, label, annotations)

    def _sources(self, tree: Tree, pictures: list[_Picture]) -> list[SourceFile]:
        """Return the archives, the metadata files, and one entry for all other files of a split."""
        packed = {source.name for source in tree.sources}
        loose = [picture.original for picture in pictures if picture.original.source not in packed]
        if not loose:
            return tree.sources
        tops = {original.parts[0] if len(original.parts) > 1 else ALL_FILES for original in loose}
        name = tops.pop() if len(tops) == 1 else ALL_FILES
        return [*tree.sources, SourceFile(name, sum(original.num_bytes for original in loose))]


def in_val(own: OwnData, text: str) -> bool:
    """Return whether an image of train belongs to val. Only its group or key decides, so other images do not move
    it."""
    digest = hashlib.sha256(f"val/{own.split_seed}/{text}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") < own.val_fraction * 2**64


def _examples(images: Iterable[Original]) -> str:
    paths = ["/".join(image.parts) for image in images]
    return ", ".join(shown(path) for path in paths[:_SHOWN]) + (", ..." if len(paths) > _SHOWN else "")


FOLDER = Folder(
    name="folder",
    description="Pictures of the user's own: a tree of files, or archives of it, with or without labels and metadata.",
    citation="",
    licence=UNSTATED,
    origin=UNSTATED,
    facts={name: SplitFacts(samples=None) for name in SPLITS},
    default_splits=(),
)
