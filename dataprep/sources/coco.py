"""coco-dup5: the labelled and the unlabelled images of COCO 2017, five passes of which make an epoch.

Original files: `train2017.zip` and `unlabeled2017.zip` (split train), `val2017.zip` (split val), or the unpacked
folders `train2017/`, `unlabeled2017/` and `val2017/`, also mixed. If both exist, the zip is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.dataset.records import Enumeration, SourceFile
from dataprep.errors import SourceError
from dataprep.formats.tars import Member, damaged
from dataprep.messages import shown
from dataprep.sources.archives import Progress, open_archive
from dataprep.sources.base import ArchiveFacts, Dataset, RefCollector, SplitFacts
from dataprep.sources.folders import folder_files
from dataprep.sources.keys import is_image
from dataprep.sources.zips import zip_members
from dataprep.storage.base import ObjectInfo, Storage

PARTS = {"train": {"train2017": 118_287, "unlabeled2017": 123_403}, "val": {"val2017": 5_000}}
"""Number of images of each original archive, by split."""


@dataclass(frozen=True, kw_only=True)
class Coco(Dataset):
    """A dataset of COCO's image archives, without labels."""

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return no classes: the images are used without annotations."""
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
        found = RefCollector(root, split)
        problems = []
        for part, expected in PARTS[split].items():
            before = len(found.refs)
            where = _find_part(root, part, found, progress)
            count = len(found.refs) - before
            if not where:
                problems.append(f"neither {part}.zip nor {part}/ exists")
            elif count != expected:
                problems.append(f"{count:,} images in {where}, expected {expected:,}")
        if problems and not (allow_partial and len(found.refs)):
            hint = ", or build what exists with --allow-partial" if len(found.refs) else ""
            raise SourceError(
                f"{root.url}: {self.name} {split}: {'; '.join(problems)}: check --source, fetch what is missing{hint}"
            )
        return found.enumeration()


def _find_part(root: Storage, part: str, found: RefCollector, progress: Progress | None) -> str:
    """Collect the images of one archive or folder; return its name, or an empty text if neither exists."""
    archive = f"{part}.zip"
    info = root.stat(archive)
    if info is not None:
        _find_in_zip(root, part, info, found, progress)
        return archive
    files = folder_files(root, part, depth=1)
    images = [file for file in files if _is_image(root, part, file.parts)]
    for file in images:
        source = "/".join((part, *file.parts))
        found.add((part, *file.parts), source, Member(file.parts[-1], 0, file.num_bytes))
    if files:
        found.sources.append(SourceFile(part, sum(file.num_bytes for file in images)))
    return f"{part}/" if files else ""


def _find_in_zip(root: Storage, part: str, info: ObjectInfo, found: RefCollector, progress: Progress | None) -> None:
    archive = info.name
    with open_archive(root, archive, progress=progress, info=info) as reader:
        for member in zip_members(reader):
            parts = found.image_parts(reader, member)
            if parts is None:
                continue
            if len(parts) != 2 or parts[0] != part:
                raise damaged(
                    reader, member.offset, f"not directly in {part}/; expected COCO's {archive}", member=member.name
                )
            found.add(parts, archive, member)
        found.sources.append(SourceFile(archive, reader.num_bytes))


def _is_image(root: Storage, folder: str, parts: tuple[str, ...]) -> bool:
    try:
        return is_image(parts)
    except SourceError as error:
        raise SourceError(f"{root.url_of(folder)}: {shown('/'.join(parts))}: {error}; move it elsewhere") from error


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
        "train": SplitFacts(
            samples=sum(PARTS["train"].values()),
            repeats=5,
            archives=(
                ArchiveFacts(name="train2017.zip", num_bytes=19_336_861_798, md5="cced6f7f71b7629ddf16f17bbcfab6b2"),
                ArchiveFacts(
                    name="unlabeled2017.zip", num_bytes=20_126_613_414, md5="7ebc562819fdb32847aab79530457326"
                ),
            ),
        ),
        "val": SplitFacts(
            samples=sum(PARTS["val"].values()),
            archives=(ArchiveFacts(name="val2017.zip", num_bytes=815_585_330, md5="442b8da7639aecaf257c1dceb8ba8c80"),),
        ),
    },
    default_splits=("train",),
)
