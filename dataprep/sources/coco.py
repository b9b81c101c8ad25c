"""COCO 2017: its images with annotations, and coco-dup5, the images alone, with five passes an epoch.

Original files: `train2017.zip`, `unlabeled2017.zip`, `val2017.zip` and `test2017.zip`, or the unpacked folders
`train2017/` and so on, also mixed. If both exist, the zip is used. `coco_files.py` knows the annotation files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from dataprep.dataset.features import Features
from dataprep.dataset.records import Enumeration
from dataprep.errors import SourceError, UsageError
from dataprep.formats.tars import damaged
from dataprep.messages import counted, not_one_of, shown
from dataprep.sources.archives import Progress
from dataprep.sources.base import ArchiveFacts, Dataset, RefCollector, SplitFacts, SplitRequest, unlike_published
from dataprep.sources.coco_files import KINDS, archive_of, find_json
from dataprep.sources.folders import folder_files
from dataprep.storage.base import Storage

if TYPE_CHECKING:
    from dataprep.sources.coco_annotations import CocoAnnotations

PARTS = {"train": {"train2017": 118_287, "unlabeled2017": 123_403}, "val": {"val2017": 5_000}}
"""Number of images of each original archive of coco-dup5, by split."""
SPLIT_PARTS = {
    "train": {"train2017": 118_287},
    "val": {"val2017": 5_000},
    "test": {"test2017": 40_670},
    "unlabeled": {"unlabeled2017": 123_403},
}
"""Number of images of each original archive of coco, by split."""
LABELLED = ("train", "val")
"""Splits with annotations."""
ANNOTATION_COUNTS = {
    "train": {"captions": 591_753, "instances": 860_001, "keypoints": 262_465, "panoptic": 118_287},
    "val": {"captions": 25_014, "instances": 36_781, "keypoints": 11_004, "panoptic": 5_000},
}
"""Number of annotations of each kind, by split."""
CATEGORY_COUNTS = {"instances": 80, "keypoints": 1, "panoptic": 133}
_Annotate = Callable[[str], bytes]
"""Returns the annotations of an image, given the name of its file."""


@dataclass(frozen=True, kw_only=True)
class Coco(Dataset):
    """A dataset of COCO's image archives, without labels."""

    parts: Mapping[str, Mapping[str, int]]
    """Number of images of each original archive, by split."""

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        return ()

    def _find(self, root: Storage, wanted: SplitRequest) -> Enumeration:
        return self._found(root, wanted, lambda _: b"").enumeration()

    def _found(self, root: Storage, wanted: SplitRequest, annotate: _Annotate) -> RefCollector:
        split = wanted.split
        found = RefCollector(root, split)
        problems = []
        for part, expected in self.parts[split].items():
            before = len(found.refs)
            where = _find_part(root, part, found, wanted.progress, annotate)
            count = len(found.refs) - before
            if not where:
                problems.append(f"neither {part}.zip nor {part}/ exists")
            elif count != expected:
                problems.append(f"{count:,} images in {where}, expected {expected:,}")
        if problems and not (wanted.allow_partial and len(found.refs)):
            hint = ", or build what exists with `allow_partial`" if len(found.refs) else ""
            raise SourceError(
                f"{root.url}: {self.name} {split}: {'; '.join(problems)}: check `source`, "
                f"download what is missing{hint}"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class AnnotatedCoco(Coco):
    """The images of COCO 2017 with their annotations."""

    annotations: tuple[str, ...] = ()
    """Kinds of annotations to take: some of KINDS, sorted."""

    @property
    def features(self) -> Features:
        from dataprep.sources.coco_annotations import coco_features  # not needed for images without annotations

        return coco_features(self.annotations)

    def with_annotations(self, kinds: Iterable[str]) -> Self:
        """Return the dataset with some kinds of annotations. Raises UsageError for an unknown kind."""
        chosen = tuple(sorted(set(kinds)))
        for kind in chosen:
            if kind not in KINDS:
                raise UsageError(not_one_of("annotations", kind, KINDS))
        return replace(self, annotations=chosen)

    def _find(self, root: Storage, wanted: SplitRequest) -> Enumeration:
        from dataprep.sources.coco_annotations import CocoAnnotations

        split, allow_partial = wanted.split, wanted.allow_partial
        (folder,) = self.parts[split]
        kinds = self.annotations if split in LABELLED else ()
        with CocoAnnotations(root, folder, kinds, self.features) as annotations:
            if allow_partial:
                self._refuse_other_categories(root, split, annotations)
            else:
                self._refuse_other_annotations(root, split, annotations)
            found = self._found(root, wanted, annotations.of)
            unused = annotations.unused()
            if unused and not allow_partial:
                what = f"annotations of {len(unused):,} images that do not exist, such as {shown(unused[0])}"
                raise unlike_published(f"{root.url}: {self.name} {split}", what)
            found.sources.extend(annotations.sources)
            notes = tuple(_notes(split, unused, annotations))
        return replace(found.enumeration(), features=dict(self.features), notes=notes)

    def _refuse_other_annotations(self, root: Storage, split: str, found: CocoAnnotations) -> None:
        """Refuse counts of annotations and categories that differ from the published ones."""
        problems = [
            f"{count:,} {kind}, expected {ANNOTATION_COUNTS[split][kind]:,}"
            for kind, count in found.counts.items()
            if count != ANNOTATION_COUNTS[split][kind]
        ]
        problems += [
            f"{len(names):,} categories of {kind}, expected {CATEGORY_COUNTS[kind]:,}"
            for kind, names in found.categories.items()
            if len(names) != CATEGORY_COUNTS[kind]
        ]
        if problems:
            raise unlike_published(f"{root.url}: {self.name} {split}", *problems)

    def _refuse_other_categories(self, root: Storage, split: str, found: CocoAnnotations) -> None:
        """Refuse categories of two splits that differ, because a label is a position among them."""
        from dataprep.sources.coco_annotations import category_names

        for kind, names in found.categories.items():
            for other in LABELLED:
                (folder,) = self.parts[other]
                others = names if other == split else category_names(root, kind, folder)
                if others is not None and others != names:
                    raise SourceError(
                        f"{root.url}: {kind} of {other} and {split} have different categories; expected the same in "
                        "both: correct one of the files, or give each split its own `source`"
                    )


def _notes(split: str, unused: Sequence[str], annotations: CocoAnnotations) -> Iterator[str]:
    """Yield lines about images without annotations, and annotations without images."""
    if unused:
        yield f"{split}: left out the annotations of {len(unused):,} images that do not exist"
    for kind, count in annotations.of_unlisted().items():
        yield f"warning: {split}: left out {count:,} {kind} of images that the annotation files do not list"
    if unlisted := annotations.unlisted():
        yield (
            f"warning: {split}: {counted(len(unlisted), 'image')} without annotations, because the annotation files do "
            f"not list them, such as {shown(unlisted[0])}"
        )


def found_kinds(root: Storage, splits: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds of annotations whose files exist for at least one of the splits. Raises SourceError if splits
    that should have annotations have none."""
    folders = [folder for split in splits if split in LABELLED for folder in SPLIT_PARTS[split]]
    found = tuple(kind for kind in KINDS if any(find_json(root, kind, folder) for folder in folders))
    if folders and not found:
        archive = archive_of("instances", folders[0])
        raise SourceError(
            f"{root.url}: no annotations of {' and '.join(folders)}: expected {archive}, or its files unpacked in "
            "annotations/; download it, or build the images alone with `annotations` none"
        )
    return found


def _find_part(root: Storage, part: str, found: RefCollector, progress: Progress | None, annotate: _Annotate) -> str:
    """Collect the images of one archive or folder; return its name, or an empty text if neither exists."""
    archive = f"{part}.zip"
    info = root.stat(archive)
    if info is not None:
        for reader, parts, member in found.images_in_archive(info, progress):
            if len(parts) != 2 or parts[0] != part:
                what = f"not directly in {part}/; expected COCO's {archive}"
                raise damaged(reader, member.offset, what, member=member.name)
            found.add(parts, archive, member, annotations=annotate(parts[-1]))
        return archive
    files = folder_files(root, part, depth=1)
    for file in found.images_in_folder(part, files):
        found.add_file(part, file, (part, *file.parts), annotations=annotate(file.parts[-1]))
    return f"{part}/" if len(files) else ""


_TRAIN = ArchiveFacts(name="train2017.zip", num_bytes=19_336_861_798, md5="cced6f7f71b7629ddf16f17bbcfab6b2")
_UNLABELED = ArchiveFacts(name="unlabeled2017.zip", num_bytes=20_126_613_414, md5="7ebc562819fdb32847aab79530457326")
_VAL = ArchiveFacts(name="val2017.zip", num_bytes=815_585_330, md5="442b8da7639aecaf257c1dceb8ba8c80")
_TEST = ArchiveFacts(name="test2017.zip", num_bytes=6_646_970_404, md5="77ad2c53ac5d0aea611d422c0938fb35")
_ANNOTATIONS = ArchiveFacts(
    name="annotations_trainval2017.zip", num_bytes=252_907_541, md5="f4bbac642086de4f52a3fdda2de5fa2c"
)
COCO_DUP5 = Coco(
    name="coco-dup5",
    description=(
        "The images of COCO 2017 train (118,287) and unlabeled (123,403), without annotations, for self-supervised "
        "pretraining: five passes make one epoch, of about the length of ImageNet's."
    ),
    citation=(
        "@inproceedings{lin2014microsoft, title={Microsoft {COCO}: Common Objects in Context}, author={Lin, Tsung-Yi "
        "and Maire, Michael and Belongie, Serge and Hays, James and Perona, Pietro and Ramanan, Deva and "
        "Doll{\\'a}r, Piotr and Zitnick, C. Lawrence}, booktitle={European Conference on Computer Vision}, "
        "pages={740--755}, year={2014}}"
    ),
    licence="Images: Flickr terms of use, each under its own licence; annotations: CC BY 4.0",
    origin="http://images.cocodataset.org/zips/",
    facts={
        "train": SplitFacts(samples=sum(PARTS["train"].values()), repeats=5, archives=(_TRAIN, _UNLABELED)),
        "val": SplitFacts(samples=sum(PARTS["val"].values()), archives=(_VAL,)),
    },
    default_splits=("train",),
    parts=PARTS,
)
COCO = AnnotatedCoco(
    name="coco",
    description=(
        "The images of COCO 2017 train (118,287) and val (5,000) with their captions, object instances, person "
        "keypoints and panoptic segments, as far as the files are there; test and unlabeled without annotations."
    ),
    citation=COCO_DUP5.citation,
    licence=COCO_DUP5.licence,
    origin="https://cocodataset.org/#download",
    facts={
        "train": SplitFacts(samples=118_287, archives=(_TRAIN, _ANNOTATIONS)),
        "val": SplitFacts(samples=5_000, archives=(_VAL, _ANNOTATIONS)),
        "test": SplitFacts(samples=40_670, archives=(_TEST,)),
        "unlabeled": SplitFacts(samples=123_403, archives=(_UNLABELED,)),
    },
    default_splits=LABELLED,
    parts=SPLIT_PARTS,
)
