"""What a hostile case is, and the harmless originals around it."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from tests.support.raw_tar import member, tar

WNID, OTHER_WNID = "n01440764", "n01443537"
TRAIN, VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT, BBOX = "ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_bbox_val_v3.tgz"
VAL_LABELS = 5
"""Images that the harmless label files know."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One set of hostile original files."""

    name: str
    dataset: Literal["coco-dup5", "imagenet"]
    split: Literal["train", "val"]
    write: Callable[[Path], None]
    outcome: Literal["refused", "rejected", "harmless"] = "refused"
    words: str = ""
    key: str = ""
    samples: int = 0


@cache
def jpeg(shade: int = 128) -> bytes:
    """A valid image of 32x24 pixels."""
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (32, 24), (shade, 255 - shade, 90)).save(out, "JPEG")
    return out.getvalue()


def class_image(number: int = 1, wnid: str = OTHER_WNID) -> bytes:
    """A good member of a class tar."""
    return member(f"{wnid}_{number}.JPEG".encode(), jpeg(number))


def good_class() -> bytes:
    """A good member of the train tar, of one image."""
    return member(f"{WNID}.tar".encode(), tar(class_image(1, WNID)))


def val_image(number: int) -> bytes:
    """A good member of the val tar."""
    return member(f"ILSVRC2012_val_{number:08d}.JPEG".encode(), jpeg(number))


def write_inner(root: Path, class_tar: bytes) -> None:
    """A train tar of a good class tar and this one."""
    write_outer(root, member(f"{OTHER_WNID}.tar".encode(), class_tar))


def write_outer(root: Path, *members: bytes) -> None:
    """A train tar of a good class tar and these members."""
    (root / TRAIN).write_bytes(tar(good_class(), *members))


def write_val(root: Path, data: bytes) -> None:
    """A val tar of these bytes, with labels."""
    (root / VAL).write_bytes(data)
    write_boxes(root)


def write_boxes(root: Path) -> None:
    """Good labels for the first images."""
    names = [f"ILSVRC2012_val_{number:08d}" for number in range(1, VAL_LABELS + 1)]
    xml = "<annotation><filename>{}</filename><object><name>{}</name></object></annotation>"
    files = [member(f"val/{name}.xml".encode(), xml.format(name, WNID).encode()) for name in names]
    (root / BBOX).write_bytes(gzip.compress(tar(*files), mtime=0))
