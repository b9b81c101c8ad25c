"""Hostile zips in the place of COCO's."""

from __future__ import annotations

import bz2
import lzma
import stat
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.support.hostile_case import Case, jpeg
from tests.support.raw_zip import End, Entry, zip64_extra, zip_file

ZIP = "train2017.zip"


def _image(number: int = 1) -> Entry:
    return Entry(name=f"train2017/{number:012d}.jpg".encode(), data=jpeg(number))


def _named(name: bytes) -> Entry:
    return Entry(name=name, data=jpeg())


def _deflated(data: bytes) -> bytes:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return squeeze.compress(data) + squeeze.flush()


def _beside_a_good_one() -> dict[str, tuple[Entry, str]]:
    """A bad member, and what is said of it."""
    good = jpeg()
    name = b"train2017/evil.jpg"
    bomb = _deflated(bytes(2**24))
    full = 0xFFFFFFFF
    evil = partial(Entry, name=name, data=good)
    return {
        "name-climbs": (_named(b"../evil.jpg"), "climbs out"),
        "name-climbs-from-below": (_named(b"train2017/../../evil.jpg"), "climbs out"),
        "name-climbs-far": (_named(b"../" * 9000 + b"etc/evil.jpg"), "its name has 27,012 bytes"),
        "name-absolute": (_named(b"/etc/evil.jpg"), "absolute"),
        "name-drive": (_named(b"c:/evil.jpg"), "absolute"),
        "name-backslashes": (_named(b"..\\evil.jpg"), "backslash"),
        "name-nul": (_named(b"train2017/evil.jpg\0.txt"), "NUL"),
        "name-line-end": (_named(b"train2017/evil\r\n.jpg"), "line end"),
        "name-empty": (_named(b""), "no name"),
        "name-of-65535": (_named(b"train2017/" + b"y" * 65_521 + b".jpg"), "its name has 65,535 bytes"),
        "name-of-32000-folders": (_named(b"a/" * 32_000 + b"x.jpg"), "its name has 64,005 bytes"),
        "folder-of-others": (_named(b"val2017/evil.jpg"), "not directly in train2017/"),
        "no-folder": (_named(b"evil.jpg"), "not directly in train2017/"),
        "folder-too-deep": (_named(b"train2017/a/evil.jpg"), "not directly in train2017/"),
        "script": (_named(b"train2017/run.sh"), "by its name it is neither an image"),
        "link": (evil(data=b"/etc/passwd", mode=stat.S_IFLNK | 0o777), "symbolic link"),
        "device": (evil(data=b"", mode=stat.S_IFBLK | 0o600), "device or pipe"),
        "pipe": (evil(data=b"", mode=stat.S_IFIFO | 0o600), "device or pipe"),
        "socket": (evil(data=b"", mode=stat.S_IFSOCK | 0o600), "device or pipe"),
        "deflated": (evil(data=_deflated(good), method=8, num_bytes=len(good)), r"compressed \(method 8\)"),
        "bomb-deflated": (evil(data=bomb, method=8, num_bytes=2**24), r"compressed \(method 8\)"),
        "bomb-that-lies": (evil(data=bomb, method=8, num_bytes=100), r"compressed \(method 8\)"),
        "bomb-of-4-gigabytes": (evil(data=bomb, method=8, num_bytes=2**32 - 2), r"compressed \(method 8\)"),
        "bzip2": (evil(data=bz2.compress(good), method=12, num_bytes=len(good)), r"compressed \(method 12\)"),
        "lzma": (evil(data=lzma.compress(good), method=14, num_bytes=len(good)), r"compressed \(method 14\)"),
        "unheard-of-method": (evil(method=4242), r"compressed \(method 4242\)"),
        "encrypted": (evil(flags=1), "encrypted"),
        "encrypted-strongly": (evil(flags=0x41), "encrypted"),
        "directory-encrypted": (evil(flags=0x2000), "encrypted"),
        "sizes-differ": (evil(num_bytes=5), "stored with"),
        "size-past-the-end": (evil(num_bytes=2**31, packed_bytes=2**31), "overlapping or truncated"),
        "offset-past-the-end": (evil(header_offset=2**31), "no local header"),
        "offset-inside-the-first": (evil(header_offset=50), "overlapping or truncated|no local header"),
        "offset-of-the-first": (evil(header_offset=0), "overlapping or truncated|another name"),
        "local-name-differs": (evil(local_name=b"train2017/good.jpg"), "another name"),
        "local-method-differs": (evil(local_method=8), "method 8 in its local header"),
        "local-size-differs": (evil(local_packed_bytes=7), "7 bytes in its local header"),
        "local-signature": (evil(local_signature=b"XX\3\4"), "no local header"),
        "local-extra-too-long": (
            evil(data=b"", local_extra=b"e" * 65_535, num_bytes=2**20, packed_bytes=2**20),
            "truncated",
        ),
        "directory-signature": (evil(signature=b"XX\1\2"), "no directory entry"),
        "other-disk": (evil(disk=3), "another part"),
        "zip64-missing": (evil(num_bytes=full, packed_bytes=full), "zip64 sizes"),
        "zip64-too-short": (evil(num_bytes=full, packed_bytes=full, extra=zip64_extra(9)), "zip64 sizes"),
        "zip64-of-exabytes": (
            evil(num_bytes=full, packed_bytes=full, extra=zip64_extra(2**63, 2**63), local_packed_bytes=full),
            "overlapping or truncated",
        ),
        "zip64-offset-of-exabytes": (evil(header_offset=full, extra=zip64_extra(2**63)), "no local header"),
        "twice": (_image(1), "two images have the key"),
        "other-case": (_named(b"train2017/000000000001.JPG"), "two images have the key"),
        "other-suffix": (_named(b"train2017/000000000001.png"), "two images have the key"),
    }


def _whole_files() -> dict[str, tuple[bytes, str]]:
    """Files in the place of the zip, and what is said of them."""
    images = [_image(1), _image(2)]
    whole = zip_file(images)
    quine = [
        _image(1),
        *(Entry(name=b"train2017/%d.jpg" % i, header_offset=0, num_bytes=9, packed_bytes=9) for i in range(500)),
    ]
    return {
        "empty": (b"", "no end of a zip"),
        "text": (b"404 Not Found\n" * 100, "no end of a zip"),
        "zeros": (bytes(100_000), "no end of a zip"),
        "marks-only": (b"PK\5\6" * 20_000, "no end of a zip|does not end here|several parts"),
        "without-members": (zip_file([]), "0 images"),
        "count-too-high": (zip_file(images, End(entries=3)), "ends after 2 of 3"),
        "count-too-low": (zip_file(images, End(entries=1)), "more in its directory"),
        "count-of-millions": (zip_file(images, End(entries=2**40, zip64=True)), "1,099,511,627,776 members"),
        "directory-of-a-gigabyte": (zip_file(images, End(directory_bytes=2**30)), "does not end here"),
        "directory-too-small": (zip_file(images, End(directory_bytes=46)), "does not end here"),
        "directory-elsewhere": (zip_file(images, End(directory_offset=0)), "does not end here"),
        "several-disks": (zip_file(images, End(disk=2)), "several parts"),
        "comment-cut": (zip_file(images, End(comment=b"c" * 10, comment_bytes=99)), "no end of a zip"),
        "data-in-front": (zip_file(images, prepended=b"#!/bin/sh\n"), "does not end here"),
        "data-behind": (whole + b"evil" * 10, "no end of a zip"),
        "two-archives": (whole + whole, "does not end here"),
        "zip64-without-locator": (zip_file(images, End(zip64=True, with_locator=False)), "does not end here"),
        "zip64-record-elsewhere": (zip_file(images, End(zip64=True, locator_offset=2**60)), "said to be at"),
        "overlapping-bomb": (zip_file(quine), "overlapping or truncated|another name"),
    }


def _write(data: bytes, root: Path) -> None:
    (root / ZIP).write_bytes(data)


def _case(name: str, write: Callable[[Path], None], words: str) -> Case:
    return Case(name=f"zip-{name}", dataset="coco-dup5", split="train", write=write, words=words)


def _cases() -> Iterator[Case]:
    for name, (entry, words) in _beside_a_good_one().items():
        yield _case(name, partial(_write, zip_file([_image(1), entry, _image(2)])), words)
    for name, (data, words) in _whole_files().items():
        yield _case(f"is-{name}", partial(_write, data), words)
    whole = zip_file([_image(1), _image(2)])
    for at in sorted(
        {1, 21, 22, 40, 500, len(whole) // 2, len(whole) - 100, len(whole) - 23, len(whole) - 22, len(whole) - 1}
    ):
        yield _case(f"cut-at-{at}", partial(_write, whole[:at]), "no end of a zip")
    yield _case("is-a-folder", lambda root: (root / ZIP).mkdir(), "neither train2017.zip nor train2017/")
    yield _case("image-of-200-mebibytes", _write_large_image, "at most 134,217,728 for one image")
    yield Case(
        name="zip-litter",
        dataset="coco-dup5",
        split="train",
        write=partial(_write, _litter()),
        outcome="harmless",
        samples=4,
    )


def _write_large_image(root: Path) -> None:
    """Holes on disk, but a member of 200 MiB all the same."""
    image_bytes = 200 * 2**20
    marked = Entry(name=b"train2017/large.jpg", data=b"", num_bytes=image_bytes, packed_bytes=image_bytes)
    entry = zip_file([Entry(name=marked.name, local_packed_bytes=image_bytes, num_bytes=image_bytes)])
    head = entry[: entry.index(b"PK\1\2")]
    offset = len(head) + image_bytes
    tail = zip_file([marked], End(directory_offset=offset))
    with (root / ZIP).open("wb") as stream:
        stream.write(head)
        stream.seek(offset)
        stream.write(tail[tail.index(b"PK\1\2") :])


def _litter() -> bytes:
    """What is passed over, and what looks odd and is none the worse: descriptors, zip64, names that are no text."""
    return zip_file(
        [
            Entry(name=b"train2017/", mode=stat.S_IFDIR | 0o755),
            Entry(name=b"__MACOSX/train2017/._1.jpg", data=_deflated(b"mac"), method=8, num_bytes=3),
            Entry(name=b"train2017/.DS_Store", data=b"mac"),
            Entry(name=b"README.md", data=_deflated(b"read me"), method=8, num_bytes=7),
            Entry(name=b"train2017/1.jpg", data=jpeg(), flags=8, local_packed_bytes=0, after=b"PK\7\x08" + bytes(12)),
            Entry(name=b"train2017/2.jpg", data=jpeg(), local_extra=b"\x99\x99\x04\x00good"),
            Entry(
                name=b"train2017/3.jpg",
                data=jpeg(),
                num_bytes=0xFFFFFFFF,
                packed_bytes=0xFFFFFFFF,
                extra=zip64_extra(len(jpeg()), len(jpeg())),
                local_packed_bytes=0xFFFFFFFF,
            ),
            Entry(name=b"train2017/\xff\xfe.jpg", data=jpeg()),
        ],
        End(comment=b"PK\5\6 is how a zip ends", zip64=True),
    )


ZIP_CASES = tuple(_cases())
