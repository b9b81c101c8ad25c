"""Hostile unpacked folders: links, pipes, names, and files that have no place there."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.support.hostile_case import OTHER_WNID, WNID, Case, jpeg


def _link_to_file(folder: Path) -> None:
    (folder / "evil.jpg").symlink_to("/etc/passwd")


def _link_to_file_above(folder: Path) -> None:
    root = folder.parents[1] if folder.name == WNID else folder.parent
    (root / "secret.jpg").write_bytes(jpeg())
    (folder / "evil.jpg").symlink_to(os.path.relpath(root / "secret.jpg", folder))


def _link_to_folder(folder: Path) -> None:
    (folder / "evil").symlink_to("/etc")


def _link_to_itself(folder: Path) -> None:
    (folder / "evil.jpg").symlink_to("evil.jpg")


def _link_to_nothing(folder: Path) -> None:
    (folder / "evil.jpg").symlink_to("absent.jpg")


def _loop(folder: Path) -> None:
    (folder / "evil").symlink_to("../" + folder.name)


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "evil.jpg")


def _socket(folder: Path) -> None:
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(folder)  # a socket's path may have 108 bytes only
        try:
            listener.bind("evil.jpg")
        finally:
            os.chdir(here)


def _device(folder: Path) -> None:
    (folder / "evil.jpg").symlink_to("/dev/zero")


def _deep(folder: Path) -> None:
    for _ in range(300):
        folder = folder / "d"
        folder.mkdir()


def _no_utf8(folder: Path) -> None:
    (folder / os.fsdecode(b"evil\xff.jpg")).write_bytes(jpeg())


def _line_end(folder: Path) -> None:
    (folder / "evil\nline.jpg").write_bytes(jpeg())


def _backslash(folder: Path) -> None:
    (folder / "..\\evil.jpg").write_bytes(jpeg())


def _other_case(folder: Path) -> None:
    (folder / "GOOD.jpg").write_bytes(jpeg())


def _other_suffix(folder: Path) -> None:
    (folder / "good.png").write_bytes(jpeg())


def _script(folder: Path) -> None:
    (folder / "run.sh").write_text("#!/bin/sh\n")


def _large(folder: Path) -> None:
    with (folder / "evil.jpg").open("wb") as stream:
        stream.truncate(2**40)


_BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "link-to-file": (_link_to_file, "leads outside"),
    "link-to-file-above": (_link_to_file_above, "leads outside"),
    "link-to-folder": (_link_to_folder, "link"),
    "link-to-itself": (_link_to_itself, "cannot be read"),
    "link-to-nothing": (_link_to_nothing, "cannot be read"),
    "loop-of-folders": (_loop, "link"),
    "pipe": (_pipe, "device, pipe or socket"),
    "socket": (_socket, "device, pipe or socket"),
    "device": (_device, "device, pipe or socket"),
    "deep": (_deep, "unexpected folder"),
    "name-no-utf8": (_no_utf8, "not UTF-8"),
    "name-line-end": (_line_end, "line end"),
    "name-backslash": (_backslash, "backslash"),
    "other-case": (_other_case, "two images have the key"),
    "other-suffix": (_other_suffix, "two images have the key"),
    "script": (_script, "by its name it is neither an image"),
    "terabyte": (_large, "for one image"),
}


def _write(folder: str, spoil: Callable[[Path], None], root: Path) -> None:
    path = root / folder
    path.mkdir(parents=True)
    (path / "good.jpg").write_bytes(jpeg())
    spoil(path)


def _cases() -> Iterator[Case]:
    for name, (spoil, words) in _BAD.items():
        write = partial(_write, "train2017", spoil)
        yield Case(name=f"folder-coco-{name}", dataset="coco-dup5", split="train", write=write, words=words)
        write = partial(_write, f"train/{WNID}", spoil)
        yield Case(name=f"folder-train-{name}", dataset="imagenet", split="train", write=write, words=words)
        write = partial(_write, f"val/{WNID}", spoil)
        yield Case(name=f"folder-val-{name}", dataset="imagenet", split="val", write=write, words=words)
    for name, folder, words in (
        ("class-of-no-wnid", "train/dogs", "class 'dogs'"),
        ("image-outside-classes", "train", "outside the class folders"),
    ):
        write = partial(_write, folder, _nothing)
        yield Case(name=f"folder-train-{name}", dataset="imagenet", split="train", write=write, words=words)
    yield Case(
        name="folder-val-without-labels",
        dataset="imagenet",
        split="val",
        write=partial(_write, "val", _nothing),
        words="no labels",
    )
    yield Case(
        name="folder-train-cut-class-tar",
        dataset="imagenet",
        split="train",
        write=_write_cut_class_tar,
        words="end marker",
    )
    yield Case(
        name="folder-coco-litter",
        dataset="coco-dup5",
        split="train",
        write=partial(_write, "train2017", _litter),
        outcome="harmless",
        samples=2,
    )


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
