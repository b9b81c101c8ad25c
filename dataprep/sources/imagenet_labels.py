"""Labels of ImageNet's validation images, which its tar does not hold.

They come from the first of these that exists: `ILSVRC2012_devkit_t12.tar.gz` (the ground truth),
`ILSVRC2012_bbox_val_v3.tgz` (one XML file an image), and Kaggle's files, `LOC_val_solution.csv` or the unpacked XML
files. Archives are read as streams; nothing is unpacked to disk.
"""

from __future__ import annotations

import csv
import re
import xml.parsers.expat
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources

from dataprep.errors import SourceError
from dataprep.formats.tars import Member, damaged, tar_members
from dataprep.messages import shown
from dataprep.sources.archives import GzipReader
from dataprep.sources.base import member_parts
from dataprep.sources.folders import folder_files
from dataprep.sources.keys import is_hidden
from dataprep.storage.base import Storage, read_ahead, read_bounded

DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
BBOX = "ILSVRC2012_bbox_val_v3.tgz"
KAGGLE_IMAGES = "Data/CLS-LOC/"
"""Folder of train/ and val/ in Kaggle's files, below the source or its folder ILSVRC."""
KAGGLE_CSV = "LOC_val_solution.csv"
KAGGLE_FOLDERS = ("", "ILSVRC/")
BOXES = "Annotations/CLS-LOC/val"
GROUND_TRUTH = ("data", "ILSVRC2012_validation_ground_truth.txt")
WNID = re.compile(r"n[0-9]{8}")
MAX_GROUND_TRUTH_BYTES = 2**19
"""Maximum size of the ground truth; its 50,000 lines have 200 kB."""
MAX_XML_BYTES = 2**18
_OBJECT_NAME = ["annotation", "object", "name"]
MAX_LABELS = 200_000
MAX_CSV_BYTES = 2**25
"""Maximum size of Kaggle's labels; their 50,000 lines have 2 MB."""


@cache
def published_ids() -> dict[str, int]:
    """Return the ILSVRC2012_ID of each of the 1,000 WNIDs, sorted by WNID."""
    text = resources.files("dataprep").joinpath("data/imagenet_wnids.txt").read_text()
    rows = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {wnid: int(number) for wnid, number in rows}


@dataclass(frozen=True, slots=True)
class ValLabels:
    """The class of every validation image."""

    archive: str
    """File or folder from which the labels were read, relative to the source root."""
    num_bytes: int
    wnids: dict[str, str]
    """Class by image, e.g. `ILSVRC2012_val_00000001`."""

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes that the file names, sorted."""
        return tuple(sorted(set(self.wnids.values())))


def read_val_labels(root: Storage) -> ValLabels | None:
    """Read the labels from the devkit, the bounding boxes or Kaggle's files; None if none of them exists. Raises
    SourceError if the file is damaged or hostile, or its labels make no sense."""
    if (info := root.stat(DEVKIT)) is not None:
        return _from_devkit(root, info.num_bytes)
    if (info := root.stat(BBOX)) is not None:
        return _from_boxes(root, info.num_bytes)
    for name in (f"{folder}{KAGGLE_CSV}" for folder in (*KAGGLE_FOLDERS, "Data/CLS-LOC/", "ILSVRC/Data/CLS-LOC/")):
        data = read_bounded(root, name, MAX_CSV_BYTES, advice="download it again", error=SourceError)
        if data is not None:
            return _from_csv(f"{root.url}/{name}", name, data)
    for name in (f"{folder}{BOXES}" for folder in KAGGLE_FOLDERS):
        if labels := _from_unpacked_boxes(root, name):
            return labels
    return None


def _from_csv(where: str, name: str, data: bytes) -> ValLabels:
    """Read Kaggle's labels: in each row an image, and for each box in it the class followed by coordinates."""
    wnids: dict[str, str] = {}
    try:
        rows = csv.reader(data.decode("utf-8-sig").splitlines(), strict=True)
        if (first := next(rows, [])) != ["ImageId", "PredictionString"]:
            raise SourceError(
                f"{where}: its first line is {shown(','.join(first))}, expected ImageId,PredictionString; "
                "download it again"
            )
        for row in rows:
            wnid = (row[1].split() or [""])[0] if len(row) == 2 else ""
            if not WNID.fullmatch(wnid) or row[0] in wnids or len(wnids) >= MAX_LABELS:
                raise SourceError(
                    f"{where} line {rows.line_num:,}: {shown(','.join(row))}: expected an image that occurs once and "
                    "a WNID; download it again"
                )
            wnids[row[0]] = wnid
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{where}: not a readable CSV file: {error}; download it again") from error
    return ValLabels(name, len(data), wnids)


def _from_unpacked_boxes(root: Storage, folder: str) -> ValLabels | None:
    """Read the class of each image from the XML files of a folder; None if it has none."""
    files = [file for file in folder_files(root, folder, depth=1) if file.parts[0].endswith(".xml")]
    if not files:
        return None
    names = [f"{folder}/{file.parts[0]}" for file in files]
    found = read_ahead(partial(_class_in_file, root), names, 16)
    wnids = {file.parts[0].removesuffix(".xml"): wnid for file, wnid in zip(files, found, strict=True)}
    return ValLabels(folder, sum(file.num_bytes for file in files), wnids)


def _class_in_file(root: Storage, name: str) -> str:
    data = read_bounded(root, name, MAX_XML_BYTES, advice="download it again", error=SourceError)
    try:
        return _class_of_boxes(data or b"")
    except _AnnotationError as error:
        raise SourceError(f"{root.url_of(name)}: {error}") from error


def _from_devkit(root: Storage, num_bytes: int) -> ValLabels:
    reader = GzipReader(root, DEVKIT)
    ground_truth: bytes | None = None
    for member in tar_members(reader):
        if member_parts(reader, member)[-2:] != GROUND_TRUTH or member.is_directory:
            continue
        if ground_truth is not None:
            raise damaged(reader, member.offset, "it occurs twice; download it again", member=member.name)
        ground_truth = _content(reader, member, MAX_GROUND_TRUTH_BYTES)
    if ground_truth is None:
        raise SourceError(f"{reader.archive}: {'/'.join(GROUND_TRUTH)} is not in it; download it again")
    wnid_of_id = {number: wnid for wnid, number in published_ids().items()}
    wnids = {}
    for number, line in enumerate(ground_truth.split(), start=1):
        wnid = wnid_of_id.get(int(line)) if len(line) <= 6 and line.isdigit() else None
        if wnid is None:
            raise SourceError(
                f"{reader.archive}: ground truth line {number:,} is {line[:20].decode('latin-1')!a}, "
                f"expected the ILSVRC2012_ID of one of {len(wnid_of_id):,} classes; download it again"
            )
        wnids[val_name(number)] = wnid
    return ValLabels(DEVKIT, num_bytes, wnids)


def val_name(number: int) -> str:
    """Return the name, without extension, of the validation image with a number, counted from 1."""
    return f"ILSVRC2012_val_{number:08d}"


def _from_boxes(root: Storage, num_bytes: int) -> ValLabels:
    reader = GzipReader(root, BBOX)
    wnids: dict[str, str] = {}
    for member in tar_members(reader):
        parts = member_parts(reader, member)
        if member.is_directory or is_hidden(parts) or not parts[-1].endswith(".xml"):
            continue
        name = parts[-1].removesuffix(".xml")
        if name in wnids or len(wnids) >= MAX_LABELS:
            raise damaged(reader, member.offset, "it occurs twice; download it again", member=member.name)
        try:
            wnids[name] = _class_of_boxes(_content(reader, member, MAX_XML_BYTES))
        except _AnnotationError as error:
            raise damaged(reader, member.offset, str(error), member=member.name) from error
    if not wnids:
        raise SourceError(f"{reader.archive}: no annotation (.xml) in it; download it again")
    return ValLabels(BBOX, num_bytes, wnids)


class _AnnotationError(Exception):
    """An annotation without a readable class; caught in this module."""


def _class_of_boxes(text: bytes) -> str:
    """Return the WNID of an annotation's objects; ILSVRC2012 has one class an image."""
    path: list[str] = []
    names: list[str] = []

    def start(tag: str, _: dict[str, str]) -> None:
        path.append(tag)
        if path == _OBJECT_NAME:
            names.append("")

    def add(data: str) -> None:
        if path == _OBJECT_NAME:
            names[-1] += data

    def refuse_doctype(*_: object) -> None:
        # Entities can expand without bound, and real annotations declare none.
        raise _AnnotationError(f"it declares a document type, which no annotation needs; use {DEVKIT}")

    parser = xml.parsers.expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse_doctype
    parser.StartElementHandler, parser.EndElementHandler = start, lambda _: path.pop()
    parser.CharacterDataHandler = add
    try:
        parser.Parse(text, True)
    except (xml.parsers.expat.ExpatError, LookupError, ValueError) as error:  # the last two: encodings
        raise _AnnotationError(f"not readable XML: {error}; download it again") from error
    wnids = {name.strip() for name in names}
    if len(wnids) != 1 or not all(WNID.fullmatch(name) for name in wnids):
        shown_names = ", ".join(sorted(ascii(name[:20]) for name in wnids)[:3]) or "none"
        raise _AnnotationError(f"its objects are of class {shown_names}, expected one WNID; use {DEVKIT}")
    return wnids.pop()


def _content(reader: GzipReader, member: Member, limit: int) -> bytes:
    if member.num_bytes > limit:
        raise damaged(
            reader, member.offset, f"{member.num_bytes:,} bytes, at most {limit:,} are taken", member=member.name
        )
    data = reader.read(member.offset, member.num_bytes)
    if len(data) < member.num_bytes:
        raise damaged(reader, member.offset, "it is truncated; download it again", member=member.name)
    return data
