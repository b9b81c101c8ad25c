"""Hostile unpacked folders: links, pipes, names, and files that have no place there."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from tests.support.hostile_case import OTHER_WNID, WNID, Case, jpeg


def _socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(folder):  # its path may have 108 bytes only
        listener.bind("evil.jpg")


def _link_to_file_above(folder: Path) -> None:
    root = folder.parents[1] if folder.name == WNID else folder.parent
    (root / "secret.jpg").write_bytes(jpeg())
    (folder / "evil.jpg").symlink_to(os.path.relpath(root / "secret.jpg", folder))


def _large(folder: Path) -> None:
    with (folder / "evil.jpg").open("wb") as stream:
        stream.truncate(2**40)


def _link(target: str, name: str = "evil.jpg") -> Callable[[Path], object]:
    return lambda folder: (folder / name).symlink_to(target)


def _file(name: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / os.fsdecode(name)).write_bytes(jpeg())


_BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "link-to-file": (_link("/etc/passwd"), "leads outside"),
    "link-to-file-above": (_link_to_file_above, "leads outside"),
    "link-to-folder": (_link("/etc", "evil"), "link"),
    "link-to-itself": (_link("evil.jpg"), "cannot be read"),
    "link-to-nothing": (_link("absent.jpg"), "cannot be read"),
    "loop-of-folders": (lambda folder: (folder / "evil").symlink_to(f"../{folder.name}"), "link"),
    "pipe": (lambda folder: os.mkfifo(folder / "evil.jpg"), "device, pipe or socket"),
    "socket": (_socket, "device, pipe or socket"),
    "device": (_link("/dev/zero"), "device, pipe or socket"),
    "deep": (lambda folder: folder.joinpath(*"d" * 300).mkdir(parents=True), "unexpected folder"),
    "name-no-utf8": (_file(b"evil\xff.jpg"), "not UTF-8"),
    "name-line-end": (_file("evil\nline.jpg"), "line end"),
    "name-backslash": (_file("..\\evil.jpg"), "backslash"),
    "other-case": (_file("GOOD.jpg"), "two images have the key"),
    "other-suffix": (_file("good.png"), "two images have the key"),
    "script": (lambda folder: (folder / "run.sh").write_text("#!/bin/sh\n"), "by its name it is neither an image"),
    "terabyte": (_large, "for one image"),
}


def _write(folder: str, spoil: Callable[[Path], object], root: Path) -> None:
    path = root / folder
    path.mkdir(parents=True)
    (path / "good.jpg").write_bytes(jpeg())
    spoil(path)


def _case(
    split: Literal["coco", "train", "val"], name: str, folder: str, spoil: Callable[[Path], object], words: str
) -> Case:
    dataset, of = ("coco-dup5", "train") if split == "coco" else ("imagenet", split)
    write = partial(_write, folder, spoil)
    return Case(name=f"folder-{split}-{name}", dataset=dataset, split=of, write=write, words=words)


def _cases() -> Iterator[Case]:
    for name, (spoil, words) in _BAD.items():
        yield _case("coco", name, "train2017", spoil, words)
        yield _case("train", name, f"train/{WNID}", spoil, words)
        yield _case("val", name, f"val/{WNID}", spoil, words)
    yield _case("train", "class-of-no-wnid", "train/dogs", _nothing, "class 'dogs'")
    yield _case("train", "image-outside-classes", "train", _nothing, "outside the class folders")
    yield _case("val", "without-labels", "val", _nothing, "no labels")
    yield replace(_case("train", "cut-class-tar", "", _nothing, "end marker"), write=_write_cut_class_tar)
    yield replace(_case("coco", "litter", "train2017", _litter, ""), outcome="harmless", samples=2)


def _nothing(_: Path) -> None:
    """The name of the folder is what is wrong."""


def _write_cut_class_tar(root: Path) -> None:
    (root / "train").mkdir()
    (root / "train" / f"{OTHER_WNID}.tar").write_bytes(b"")


def _litter(folder: Path) -> None:
    (folder / ".DS_Store").write_bytes(b"mac")
    (folder / "Thumbs.db").write_bytes(b"windows")
    (folder / "README").write_bytes(b"read me")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "run.sh").write_bytes(b"#!/bin/sh\n")
    (folder / "linked.jpg").symlink_to("good.jpg")


FOLDER_CASES = tuple(_cases())
