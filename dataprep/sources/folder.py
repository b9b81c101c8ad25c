"""A user's own pictures: any tree of files, on disk or in a bucket, or archives of it.

    tree ─▶ splits, by top folders ─▶ metadata, one row per image ─▶ labels ─▶ a share of train becomes val

Splits are the top folders train, val and test; without them, all images are in train. A label comes from the class
folder directly below the split, or from a column of the metadata. All other columns become features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dataprep.dataset.records import SourceFile
from dataprep.errors import SourceError, UsageError
from dataprep.messages import shown
from dataprep.sources.archives import Progress
from dataprep.sources.base import SplitFacts
from dataprep.sources.keys import key_of
from dataprep.sources.metadata import rows_of
from dataprep.sources.own import SPLIT_FOLDERS, SPLITS, UNSTATED, OwnData, OwnDataset
from dataprep.sources.pictures import (
    FOLDER_LABELS,
    LABEL_COLUMN,
    NO_LABELS,
    SHOWN_EXAMPLES,
    OpenedDataset,
    Picture,
    PictureReader,
    examples,
)
from dataprep.sources.tree import Original, Tree, read_tree
from dataprep.storage.base import Storage

ALL_FILES = "*"
"""Name in the plan's sources for files that have no common top folder."""


@dataclass(frozen=True, kw_only=True)
class Folder(OwnDataset):
    """Any tree of pictures."""

    def opened(
        self,
        root: Storage,
        progress: Progress | None = None,
        *,
        unpack_to: Storage | None = None,
        splits: tuple[str, ...] = (),
    ) -> OpenedDataset:
        """Return the dataset with the splits, classes and features that are found in a storage."""
        return _FolderReader(root, self.own or OwnData(name=self.name), progress).opened(self)


@dataclass(slots=True)
class _Picture(Picture):
    """One image of the tree, with the facts that are found so far."""

    original: Original
    inner: tuple[str, ...]
    """Path below the split."""

    @property
    def key(self) -> str:
        return key_of(self.inner)

    @property
    def shown(self) -> str:
        return shown("/".join(self.original.parts))

    @property
    def place(self) -> tuple[str, int, int]:
        return self.original.source, self.original.offset, self.original.num_bytes


class _FolderReader(PictureReader[_Picture]):
    """Reads a tree, step by step."""

    columns_of = "the metadata"

    def opened(self, dataset: Folder) -> OpenedDataset:
        """Return the dataset with everything that is found in the tree."""
        tree = read_tree(self._root, self._own, self._progress)
        self._note_passed_over(tree)
        splits = self._by_split(tree)
        self._read_metadata(tree, [picture for pictures in splits.values() for picture in pictures])
        classes = self._label(splits)
        splits = self._with_val(splits)
        found = {
            name: self._enumeration(name, sorted(splits[name], key=lambda picture: picture.key), classes)
            for name in SPLITS
            if name in splits
        }
        for name, enumeration in found.items():
            enumeration.sources.extend(self._sources(tree, splits[name]))
        return self._dataset(dataset, found, found)

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
        outside = [
            _Picture(image, image.parts)
            for image in tree.images
            if image.parts[0] not in splits or len(image.parts) == 1
        ]
        if outside:
            raise SourceError(
                f"{self._root.url}: {len(outside):,} images outside of {', '.join(splits)}, which are splits by their "
                f"names: {examples(outside)}; move them into a split, or give the folder of one split as --source"
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
        without = [picture for picture in pictures if picture.original.parts not in kept]
        if without:
            files = ", ".join(file.url for file in tree.metadata[:SHOWN_EXAMPLES])
            raise SourceError(
                f"{files}: no row for {len(without):,} of {len(pictures):,} images: {examples(without)}; expected one "
                "for each: add rows, or move these images away"
            )
        self._take_columns()
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
        self._check_features()
        return self._checked_classes(picture.class_name for picture in pictures)

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
            listed = ", ".join(names[:SHOWN_EXAMPLES]) + (", ..." if len(names) > SHOWN_EXAMPLES else "")
            self._notes.append(f"{len(names):,} classes, one per folder: {listed} (--label-from none for no labels)")
            return FOLDER_LABELS
        if depths == {2}:
            self._notes.append(
                f"warning: no labels: all images are in the one folder {names[0]}; with --label-from folder it is the "
                "only class"
            )
            return NO_LABELS
        odd = [picture for picture in pictures if len(picture.inner) != 2]
        self._notes.append(
            f"warning: no labels: {len(odd):,} of {len(pictures):,} images are not in a class folder directly below "
            f"their split, {examples(odd)}; if folders are classes, give the folder above them as --source"
        )
        return NO_LABELS

    def _label_by_folder(self, pictures: list[_Picture]) -> None:
        odd = [picture for picture in pictures if len(picture.inner) != 2]
        if odd:
            raise SourceError(
                f"{self._root.url}: {len(odd):,} of {len(pictures):,} images do not lie directly in a class folder: "
                f"{examples(odd)}; expected CLASS/IMAGE or SPLIT/CLASS/IMAGE: give the folder above the classes as "
                "--source, move them, or build without labels by --label-from none"
            )
        for picture in pictures:
            picture.class_name = picture.inner[0]

    def _sources(self, tree: Tree, pictures: list[_Picture]) -> list[SourceFile]:
        """Return the archives, the metadata files, and one entry for all other files of a split."""
        packed = {source.name for source in tree.sources}
        loose = [picture.original for picture in pictures if picture.original.source not in packed]
        if not loose:
            return tree.sources
        tops = {original.parts[0] if len(original.parts) > 1 else ALL_FILES for original in loose}
        name = tops.pop() if len(tops) == 1 else ALL_FILES
        return [*tree.sources, SourceFile(name, sum(original.num_bytes for original in loose))]


FOLDER = Folder(
    name="folder",
    description="Pictures of the user's own: a tree of files, or archives of it, with or without labels and metadata.",
    citation="",
    licence=UNSTATED,
    origin=UNSTATED,
    facts={name: SplitFacts(samples=None) for name in SPLITS},
    default_splits=(),
)
