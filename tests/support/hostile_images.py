"""Hostile images inside sound archives and folders: the build lists each as rejected."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from dataprep.demo.images import png_of
from tests.support.hostile_case import WNID, Case, jpeg, val_image, write_boxes, write_outer
from tests.support.raw_tar import member, tar
from tests.support.raw_zip import Entry, zip_file


def _jpeg_of(width: int, height: int) -> bytes:
    """A JPEG whose frame header lies."""
    data = jpeg()
    frame = data.index(b"\xff\xc0")
    return data[: frame + 5] + struct.pack(">HH", height, width) + data[frame + 9 :]


def _png_of(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG, white and of one bit a pixel; `rows` is the compressed content."""
    return png_of(struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0), rows)


def _images() -> dict[str, tuple[bytes, str]]:
    """An image file, and the reason for which it is rejected."""
    row = b"\0" + b"\xff" * 2500
    return {
        "empty": (b"", "empty"),
        "truncated": (jpeg()[:-30], "truncated|undecodable"),
        "header-only": (jpeg()[:300], "truncated|undecodable"),
        "two-bytes": (b"\xff\xd8", "undecodable"),
        "text": (b"<html>404 Not Found</html>", "undecodable"),
        "zeros": (bytes(5000), "undecodable"),
        "bomb-jpeg": (_jpeg_of(65_500, 65_500), "too-large"),
        "bomb-png-header": (_png_of(2**31 - 1, 2**31 - 1), "too-large"),
        "bomb-png-whole": (_png_of(20_000, 20_000, zlib.compress(row * 20_000, 9)), "too-large"),
        "png-without-content": (_png_of(100, 100), "truncated|undecodable"),
    }


def _write_coco_zip(data: bytes, root: Path) -> None:
    entries = [Entry(name=b"train2017/good.jpg", data=jpeg()), Entry(name=b"train2017/evil.jpg", data=data)]
    (root / "train2017.zip").write_bytes(zip_file(entries))


def _write_coco_folder(data: bytes, root: Path) -> None:
    (root / "train2017").mkdir()
    (root / "train2017" / "good.jpg").write_bytes(jpeg())
    (root / "train2017" / "evil.jpg").write_bytes(data)


def _write_train(data: bytes, root: Path) -> None:
    evil = member(f"{WNID[:-1]}5.tar".encode(), tar(member(b"evil.JPEG", data)))
    write_outer(root, evil)


def _write_val(data: bytes, root: Path) -> None:
    evil = member(b"ILSVRC2012_val_00000002.JPEG", data)
    (root / "ILSVRC2012_img_val.tar").write_bytes(tar(val_image(1), evil))
    write_boxes(root)


def _cases() -> Iterator[Case]:
    for name, (data, reason) in _images().items():
        for place, dataset, split, write, key in (
            ("zip", "coco-dup5", "train", _write_coco_zip, "train2017/evil"),
            ("folder", "coco-dup5", "train", _write_coco_folder, "train2017/evil"),
            ("tar", "imagenet", "train", _write_train, f"{WNID[:-1]}5/evil"),
            ("val", "imagenet", "val", _write_val, "ILSVRC2012_val_00000002"),
        ):
            yield Case(
                name=f"image-{place}-{name}",
                dataset=dataset,  # type: ignore[arg-type]
                split=split,  # type: ignore[arg-type]
                write=partial(write, data),
                outcome="rejected",
                words=reason,
                key=key,
                samples=2,
            )


IMAGE_CASES = tuple(_cases())
