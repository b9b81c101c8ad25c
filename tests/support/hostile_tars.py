"""Hostile tars: ImageNet's class tars, the tar around them, and the flat one of the split val."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from tests.support import raw_tar
from tests.support.hostile_case import (
    OTHER_WNID,
    TRAIN,
    VAL,
    Case,
    class_image,
    good_class,
    jpeg,
    val_image,
    write_boxes,
    write_inner,
    write_outer,
    write_val,
)
from tests.support.raw_tar import END, gnu_name, header, member, pax, tar

Where = Literal["inner", "outer", "val"]
_LONG = b"y" * 100_000

# What stands in the place of a good member; {} is the container's own ending.
_BAD_NAMES: dict[str, tuple[bytes, str]] = {
    "climbs": (b"../evil%s", "climbs out"),
    "climbs-from-below": (b"a/../../evil%s", "climbs out"),
    "climbs-far": (b"../" * 25 + b"evil%s", "climbs out"),
    "climbs-at-the-end": (b"evil%s/..", "climbs out"),
    "climbs-within": (b"a/../evil%s", "climbs out"),
    "absolute": (b"/tmp/evil%s", "absolute"),
    "absolute-twice": (b"//tmp/evil%s", "absolute"),
    "drive": (b"C:/evil%s", "absolute"),
    "backslashes": (b"..\\..\\evil%s", "backslash"),
    "share": (b"\\\\host\\evil%s", "backslash"),
    "line-end": (b"evil\nroot::0:0%s", "line end"),
    "empty": (b"", "no name"),
    "dot": (b".", "no name"),
}

_TYPES = {
    "hard-link": (b"1", "a hard link"),
    "symbolic-link": (b"2", "a symbolic link"),
    "character-device": (b"3", "a character device"),
    "block-device": (b"4", "a block device"),
    "pipe": (b"6", "a named pipe"),
    "gnu-sparse": (b"S", "a sparse file"),
    "volume-part": (b"M", "several volumes"),
    "volume-label": (b"V", "unknown type 'V'"),
    "dump-directory": (b"D", "unknown type 'D'"),
    "unheard-of": (b"\xff", "unknown type"),
}


def _headers(ending: bytes) -> dict[str, tuple[bytes, str]]:
    """Members whose headers lie, and what is said of them."""
    name = b"evil" + ending
    data = member(name, jpeg())
    return {
        "checksum": (header(name, checksum=b"000001\0 "), "not a tar header"),
        "checksum-no-number": (header(name, checksum=b"abcdef\0 "), "not a number"),
        "size-no-number": (header(name, size_field=b"0000000009x\0"), "not a number"),
        "size-negative": (header(name, size_field=b"-0000000001\0"), "not a number"),
        "size-negative-base-256": (header(name, size_field=b"\xff" * 12), "not a number"),
        "size-of-exabytes": (header(name, size_field=b"\x80" + b"\x7f" * 11), "only .* follow"),
        "size-past-the-end": (header(name, 2**32), "only .* follow"),
        "size-of-gigabytes-in-pax": (pax((b"size", b"9" * 15)) + data, "only .* follow"),
        "size-in-pax-no-number": (pax((b"size", b"-1")) + data, "an impossible size"),
        "size-in-pax-endless": (pax((b"size", b"1" * 5000)) + data, "an impossible size"),
        "directory-with-content": (member(b"d/", b"x" * 600, b"5"), "directory with 600 bytes"),
        "noise": (bytes(range(256)) * 2, "not a tar header|not a number"),
        "pax-climbs": (pax((b"path", b"../../evil" + ending)) + data, "climbs out"),
        "pax-absolute": (pax((b"path", b"/etc/evil" + ending)) + data, "absolute"),
        "pax-nul": (pax((b"path", b"a\0b" + ending)) + data, "NUL"),
        "pax-empty-path": (pax((b"path", b"")) + data, "an impossible path"),
        "pax-path-for-all": (pax((b"path", b"../evil" + ending), kind=b"g") + data, "an impossible path"),
        "pax-size-for-all": (pax((b"size", b"5"), kind=b"g") + data, "an impossible size"),
        "pax-sparse-0.0": (pax((b"GNU.sparse.size", b"99999999999")) + data, "sparse"),
        "pax-sparse-0.1": (pax((b"GNU.sparse.map", b"0,1" * 9)) + data, "sparse"),
        "pax-sparse-1.0": (pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0")) + data, "sparse"),
        "pax-length-zero": (member(b"x", b"0 path=a\n", b"x") + data, "cannot be read"),
        "pax-length-too-long": (member(b"x", b"99 path=a\n", b"x") + data, "cannot be read"),
        "pax-length-too-short": (member(b"x", b"5 path=a\n", b"x") + data, "cannot be read"),
        "pax-length-missing": (member(b"x", b"path=a\n", b"x") + data, "cannot be read"),
        "pax-no-equals": (member(b"x", b"8 patha\n", b"x") + data, "cannot be read"),
        "pax-of-a-terabyte": (header(b"x", size_field=b"\x80" + (2**40).to_bytes(11, "big"), kind=b"x"), "extension"),
        "pax-of-two-mebibytes": (pax((b"comment", b"c" * 2**21)) + data, "extension header"),
        "pax-chain": (pax((b"comment", b"c")) * 20 + data, "extension header 9"),
        "pax-without-member": (pax((b"path", b"a" + ending)), "without its member"),
        "gnu-name-of-a-gigabyte": (header(b"L", 2**30, b"L"), "extension header"),
        "gnu-name-climbs": (gnu_name(b"../" * 99 + b"evil" + ending) + data, "climbs out"),
        "name-of-100000-in-pax": (pax((b"path", _LONG + ending)) + data, "its name has 100,00. bytes"),
        "name-of-100000-from-gnu": (gnu_name(_LONG + ending) + data, "its name has 100,00. bytes"),
        "name-of-50000-folders": (pax((b"path", b"a/" * 50_000 + b"x" + ending)) + data, "its name has 100,00. bytes"),
        "prefix-climbs": (member(name, jpeg(), prefix=b"../.."), "climbs out"),
    }


def _not_tars() -> dict[str, bytes]:
    """Files that are none."""
    return {
        "empty": b"",
        "511-bytes": bytes(511),
        "one-zero-block": bytes(512),
        "text": b"<html>404 Not Found</html>\n" * 40,
        "zip": b"PK\3\4" + bytes(1020),
        "gzip": gzip.compress(b"x" * 5000, mtime=0).ljust(1024, b"\1"),
        "jpeg": jpeg() * 2,
    }


def _ends(good: bytes, ending: bytes) -> dict[str, tuple[bytes, str]]:
    """Archives whose end is wrong."""
    whole = tar(good)
    return {
        "no-end-marker": (good, "end marker"),
        "half-an-end-marker": (good + bytes(512), "inside its end marker"),
        "lone-zero-block": (good + bytes(512) + member(b"evil" + ending) + END, "more data follow"),
        "two-archives": (whole + whole, "more data follow"),
        "hidden-data": (good + END + b"evil" * 300, "more data follow"),
        "megabytes-of-zeros": (good + bytes(2**20 + 2048), "bytes follow its end marker"),
    }


def _cuts(whole: bytes, used: int) -> Iterator[tuple[str, bytes]]:
    """An archive cut at every kind of place, up to the middle of its end marker."""
    for at in sorted(
        {1, 100, 511, 512, 513, 700, 1024, used // 2, used - 512, used - 1, used, used + 512, used + 1000}
    ):
        yield f"cut-at-{at}", whole[:at]


def _put(where: Where, raw: bytes, root: Path) -> None:
    """Write the originals in which these bytes stand beside a good member."""
    if where == "inner":
        write_inner(root, tar(class_image(1), raw))
    elif where == "outer":
        write_outer(root, raw)
    else:
        write_val(root, tar(val_image(1), raw))


def _replace(where: Where, data: bytes, root: Path) -> None:
    """Write the originals of which one tar is these bytes."""
    if where == "inner":
        write_inner(root, data)
    elif where == "outer":
        (root / TRAIN).write_bytes(data)
    else:
        write_val(root, data)


def _case(where: Where, name: str, write: Callable[[Path], None], words: str) -> Case:
    return Case(
        name=f"tar-{where}-{name}",
        dataset="imagenet",
        split="val" if where == "val" else "train",
        write=write,
        words=words,
    )


def _cases() -> Iterator[Case]:
    wheres: tuple[Where, ...] = ("inner", "outer", "val")
    for where in wheres:
        ending = b".tar" if where == "outer" else b".JPEG"
        for name, (raw_name, words) in _BAD_NAMES.items():
            raw = member(raw_name.replace(b"%s", ending), jpeg())
            yield _case(where, f"name-{name}", partial(_put, where, raw), words)
        for name, (kind, words) in _TYPES.items():
            raw = header(b"evil" + ending, kind=kind, link=b"/etc/passwd")
            yield _case(where, f"type-{name}", partial(_put, where, raw), words)
        for name, (raw, words) in _headers(ending).items():
            yield _case(where, name, partial(_put, where, raw), words)
        for name, data in _not_tars().items():
            yield _case(where, f"is-{name}", partial(_replace, where, data), "end marker|not a tar header|not a number")
        good = {"inner": class_image(1) + class_image(2), "outer": good_class(), "val": val_image(1) + val_image(2)}[
            where
        ]
        for name, (data, words) in _ends(good, ending).items():
            yield _case(where, f"end-{name}", partial(_replace, where, data), words)
        for name, data in _cuts(tar(good), len(good)):
            yield _case(where, name, partial(_replace, where, data), "truncated|end marker|only .* follow")
    yield from _special_cases()


def _special_cases() -> Iterator[Case]:
    inside = tar(class_image(1))
    deep = inside
    for _ in range(8):
        deep = tar(member(b"deeper.tar", deep))
    duplicates: dict[str, tuple[Where, bytes, str]] = {
        "image-twice": ("inner", tar(class_image(1), class_image(1)), "two images have the key"),
        "image-in-other-case": (
            "inner",
            tar(class_image(1), member(f"{OTHER_WNID.upper()}_1.jpeg".encode(), jpeg())),
            "two images have the key",
        ),
        "image-with-other-suffix": (
            "inner",
            tar(class_image(1), member(f"{OTHER_WNID}_1.png".encode(), jpeg())),
            "two images have the key",
        ),
        "val-image-twice": ("val", tar(val_image(1), val_image(1)), "two images have the key"),
        "nested": ("inner", deep, "by its name it is neither an image"),
        "script": (
            "inner",
            tar(class_image(1), member(b"run.sh", b"#!/bin/sh\n")),
            "by its name it is neither an image",
        ),
        "image-in-folder": ("inner", tar(member(b"other/x.JPEG", jpeg())), "in a folder"),
        "val-without-label": ("val", tar(val_image(9)), "no label"),
        "val-of-unknown-name": ("val", tar(member(b"photo.JPEG", jpeg())), "no label"),
    }
    for name, (where, data, words) in duplicates.items():
        yield _case(where, name, partial(_replace, where, data), words)
    again = member(f"{OTHER_WNID}.tar".encode(), inside)
    yield _case("outer", "class-twice", partial(_put, "outer", again + again), "occurs twice")
    yield _case("outer", "class-of-no-wnid", partial(_put, "outer", member(b"dogs.tar", inside)), "no class tar")
    yield _case("outer", "image-among-classes", partial(_put, "outer", class_image(1)), "no class tar")
    yield _case("inner", "image-of-200-mebibytes", _write_large_image, "at most 134,217,728 for one image")
    yield _case("outer", "is-a-folder", lambda root: (root / TRAIN).mkdir(), "not found")
    yield _case("val", "is-a-folder", lambda root: (root / VAL).mkdir(), "not found")
    yield Case(
        name="tar-litter",
        dataset="imagenet",
        split="train",
        write=_write_litter,
        outcome="harmless",
        samples=3,
    )


def _write_large_image(root: Path) -> None:
    """Holes on disk, but a member of 200 MiB all the same."""
    image_bytes = 200 * 2**20
    inner = header(f"{OTHER_WNID}_1.JPEG".encode(), image_bytes)
    inner_bytes = len(inner) + image_bytes + raw_tar.RECORD
    with (root / TRAIN).open("wb") as stream:
        stream.write(good_class() + header(f"{OTHER_WNID}.tar".encode(), inner_bytes) + inner)
        stream.truncate(stream.tell() + image_bytes + raw_tar.RECORD + len(END) + 512)


def _write_litter(root: Path) -> None:
    """What is passed over, and names that look odd and are none the worse."""
    write_boxes(root)
    write_outer(
        root,
        member(b"./._n01443537.tar", b"mac"),
        member(b".DS_Store", b"mac"),
        member(
            f"./{OTHER_WNID}.tar".encode(),
            tar(
                member(b"./", b"", b"5"),
                member(b"README.txt", b"read me"),
                member(b"__MACOSX/._x.JPEG", b"mac"),
                pax((b"comment", b"c"), kind=b"g") + class_image(1),
                gnu_name(b"z" * 300 + b".JPEG") + member(b"z", jpeg()),
            ),
        ),
    )


TAR_CASES = tuple(_cases())
