"""Image folder: every image is a separate file, as torchvision's ImageFolder reads them.

A shard is a named group of images in the order of writing; its bytes, size and digests cover its files, one after the
other. The build stores each file itself, under the name that `image_file` returns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from dataprep.dataset.features import NO_FEATURES, Features, annotations_json, values_of
from dataprep.dataset.records import Placement, Sample
from dataprep.errors import FormatError
from dataprep.formats.base import DatasetInfo, ShardFormat, ShardWriter, StoredSample, check_class_folder, is_key

FOLDERLESS = "images"
"""Folder of images that have neither a class nor a folder: ImageFolder ignores images in its root."""
REPEATED = "images"
"""Folder that replaces the split's folder if links show each image several times; the links point into it."""
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,10}")


class ImageFolderFormat(ShardFormat):
    """Folders that torchvision's ImageFolder reads: `<split>/<class>/<file>`."""

    name = "imagefolder"
    one_file_per_image = True

    def shard_file(self, dataset: str, split: str, index: int, total: int) -> str:
        """Return a name that no file has, e.g. `train/#00003-of-00256`: a shard is not a file."""
        return f"{split}/#{index:05d}-of-{total:05d}"

    def stored_files(self, shard_file: str) -> tuple[str, ...]:
        """Return nothing: the files of a shard are listed in the index."""
        return ()

    def image_root(self, split: str, stored: int) -> str:
        """Return the split's own folder, or the one that links point into if more than one pass is stored."""
        return REPEATED if stored > 1 else split

    def passes_written(self, stored: int) -> int:
        """Return 1: the other passes are links."""
        return 1

    def open_writer(
        self, stream: BinaryIO, *, has_classes: bool, features: Features = NO_FEATURES
    ) -> ImageFolderWriter:
        """Return a writer at the start of an empty stream, which takes the shard's bytes."""
        return ImageFolderWriter(stream)

    def read_shard(
        self, stream: BinaryIO, *, classes: tuple[str, ...], features: Features = NO_FEATURES
    ) -> Iterator[StoredSample]:
        """Raise FormatError: the keys of an image folder are in its index, not in its shards."""
        raise FormatError("image folders have no shard files; read the images listed in the index")

    def metadata_files(self, info: DatasetInfo) -> dict[str, bytes]:
        return {}


class ImageFolderWriter(ShardWriter):
    """Writes the images of a shard one after the other, for the shard's digests; each image is one record."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream, lambda sample: (b"", b""), has_classes=False)

    def write(self, sample: Sample) -> Placement:
        """Append one image, and return its place in its own file."""
        self._stream.write(sample.image)
        return Placement(0, len(sample.image), 0, len(sample.image))


def image_file(split: str, sample_key: str, class_name: str, suffix: str) -> str:
    """Return the path of an image relative to the dataset's root, e.g. `train/train2017/000000000009.jpg`, below the
    folder of its split or REPEATED.

    The folder is the class, or the key's own folder where there are no classes. With classes, only the part of the key
    after its last slash is kept, so keys of one class must differ in it. Raises FormatError if the key, the class or
    the suffix could lead out of the split's folder.
    """
    if not is_key(sample_key) or not _SUFFIX.fullmatch(suffix):
        raise FormatError(
            f"file {sample_key[:200]!r} with suffix {suffix[:20]!r}, expected a key of [A-Za-z0-9_/=-] and a "
            "suffix such as .jpg; correct the source that made this sample"
        )
    folder, _, basename = sample_key.rpartition("/")
    if class_name:
        check_class_folder(class_name)
        folder = class_name
    return f"{split}/{folder or FOLDERLESS}/{basename}{suffix}"


def image_suffix(dataset: str) -> str:
    """Return the suffix of image files in datasets of a class, as in the originals. Readers derive a file's name from
    it and the key, because the index of a build has no file names."""
    return ".JPEG" if dataset in ("imagenet", "imagenet-21k", "imagenet-fake") else ".jpg"


def numbering_fault(classes: Sequence[str], counts: Sequence[int]) -> str:
    """Return why readers that number the folders of a split, with so many images of each class, give other labels than
    the dataset; empty if they do not, or if it has no classes."""
    present = [(name, label) for label, name in enumerate(classes[: len(counts)]) if counts[label]]
    folders = sorted(name for name, _ in present)
    if all(folders[at] == name == classes[at] for at, (name, _) in enumerate(present)):
        return ""
    absent = [name for name, count in zip(classes, counts, strict=False) if not count]
    if folders == [name for name, _ in present]:
        examples = ", ".join(absent[:3]) + (", ..." if len(absent) > 3 else "")
        why = f"{len(absent):,} of {len(classes):,} classes have no image and so no folder ({examples})"
    else:
        label_of, at = dict(present), {name: number for number, name in enumerate(folders)}
        name = next(name for name in classes if name in at and at[name] != label_of[name])
        why = f"the classes are not in alphabetical order ({name} is {label_of[name]:,} here, and {at[name]:,} there)"
    return (
        f"{why}: torchvision's ImageFolder, which numbers folders, gives other labels than dataset.json; compare class "
        "names, or choose another format"
    )


def metadata_file(split: str) -> str:
    return f"{split}/metadata.jsonl"


def metadata_line(file: str, annotations: bytes, class_name: str) -> bytes:
    """Return the line of one image: its annotations, its file relative to the folder of the split, and its class, if
    any. Hugging Face's ImageFolder takes no labels from folders that have metadata."""
    document = json.loads(annotations) | {"file_name": file} | ({"label": class_name} if class_name else {})
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def annotations_of(line: bytes, features: Features) -> tuple[str, bytes]:
    """Return the file that a line describes, and its annotations. Raises FormatError for a malformed line."""
    try:
        document = json.loads(line)
        file, class_name = document.pop("file_name"), document.pop("label", "")
        annotations = annotations_json(features, values_of(features, document))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{line[:80]!r}, expected the annotations of an image") from error
    if not isinstance(file, str) or line != metadata_line(file, annotations, class_name and file.rpartition("/")[0]):
        raise FormatError(f"{line[:80]!r}, expected the annotations of an image as a build writes them")
    return file, annotations


def repeat_links(folders: Sequence[str], count: int, *, split: str = "train") -> list[tuple[str, str]]:
    """Return (link, target) pairs that make each image appear `count` times. Targets are relative to the link's folder.

    The long-sequence MAE recipe uses COCO this way, five times: `train/train2017_0`, `train/train2017_1`, … all point
    to `../images/train2017`.
    No folder may be inside another.
    """
    target = f"../{REPEATED}/"
    return [(f"{split}/{name}_{repeat}", target + name) for name in folders for repeat in range(count)]
