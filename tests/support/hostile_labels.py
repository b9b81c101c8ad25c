"""Hostile label archives of ImageNet's split val: the devkit and the bounding boxes."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.support.hostile_case import BBOX, DEVKIT, OTHER_WNID, VAL, WNID, Case, val_image
from tests.support.raw_tar import header, member, tar

TRUTH = b"ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"


def _devkit(truth: bytes = b"449\n450\n") -> bytes:
    return gzip.compress(tar(member(TRUTH, truth)), mtime=0)


def _bomb() -> bytes:
    """A gzip file of a megabyte that unpacks to a gigabyte."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = squeeze.compress(bytes(2**20)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    start = header(b"ILSVRC2012_devkit_t12/bomb", 2**30)
    stored = b"\0" + struct.pack("<HH", len(start), len(start) ^ 0xFFFF) + start
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + stored + block * 1024


def _devkits() -> dict[str, tuple[bytes, str]]:
    """Files in the place of the devkit, and what is said of them."""
    good = _devkit()
    truth = member(TRUTH, b"449\n")
    named_long = b"\x1f\x8b\x08\x08" + bytes(5) + b"\xff" + b"n" * 2**20
    return {
        "empty": (b"", "truncated inside its content"),
        "text": (b"404 Not Found\n" * 99, "not a valid gzip"),
        "plain-tar": (tar(truth), "not a valid gzip"),
        "gzip-of-nothing": (gzip.compress(b"", mtime=0), "end marker"),
        "gzip-of-text": (gzip.compress(b"text" * 500, mtime=0), "not a tar header|not a number"),
        "gzip-name-without-end": (named_long, "truncated inside its content"),
        "bomb": (_bomb(), "only .* follow|unpacks to over"),
        "bit-flip": (good[:-6] + bytes([good[-6] ^ 1]) + good[-5:], "not a valid gzip"),
        "no-truth": (gzip.compress(tar(), mtime=0), "ground_truth.txt is not in it"),
        "truth-twice": (gzip.compress(tar(truth, truth), mtime=0), "occurs twice"),
        "truth-of-a-mebibyte": (_devkit(truth=b"1\n" * 2**19), "at most 524,288"),
        "truth-empty": (_devkit(truth=b""), "no label"),
        "truth-too-short": (_devkit(truth=b"449\n"), "no label"),
        "truth-of-words": (_devkit(truth=b"two\n"), "line 1 is 'two'"),
        "truth-zero": (_devkit(truth=b"449\n0\n"), "line 2 is '0'"),
        "truth-of-an-inner-node": (_devkit(truth=b"1001\n"), "line 1 is '1001'"),
        "truth-negative": (_devkit(truth=b"-1\n"), "line 1 is '-1'"),
        "truth-of-many-digits": (_devkit(truth=b"9" * 100_000), "line 1 is '99999"),
        "truth-no-text": (_devkit(truth=b"\xff\xfe\n"), "line 1 is"),
        "member-climbs": (gzip.compress(tar(member(b"../../evil", b""), truth), mtime=0), "climbs out"),
        "member-links": (
            gzip.compress(tar(header(TRUTH, kind=b"2", link=b"/etc/passwd")), mtime=0),
            "symbolic link",
        ),
        **{
            f"cut-at-{at}": (good[:at], "truncated inside its content" if at > 1 else "not a valid gzip")
            for at in (1, 9, 10, 50, len(good) // 2, len(good) - 9, len(good) - 1)
        },
    }


def _annotation(objects: str = f"<object><name>{WNID}</name></object>", before: str = "") -> bytes:
    return f"{before}<annotation><filename>x</filename>{objects}</annotation>".encode()


def _annotations() -> dict[str, tuple[bytes, str]]:
    """Contents of one XML file, and what is said of them."""
    doctype = '<!DOCTYPE a [<!ENTITY a "ha">]>'
    laughs = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 30))
    external = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    two = f"<object><name>{WNID}</name></object><object><name>{OTHER_WNID}</name></object>"
    return {
        "empty": (b"", "not readable XML"),
        "text": (b"404 Not Found", "not readable XML"),
        "cut": (_annotation()[:-5], "not readable XML"),
        "doctype": (_annotation(before=doctype), "document type"),
        "doctype-in-utf16": (_annotation(before=doctype).decode().encode("utf-16"), "document type"),
        "billion-laughs": (
            _annotation("<object><name>&l29;</name></object>", f'<!DOCTYPE a [<!ENTITY l0 "ha">{laughs}]>'),
            "document type",
        ),
        "external-entity": (_annotation("<object><name>&x;</name></object>", external), "document type"),
        "unknown-entity": (_annotation("<object><name>&x;</name></object>"), "not readable XML"),
        "no-object": (_annotation(""), "class none"),
        "two-classes": (_annotation(two), "expected one WNID"),
        "no-wnid": (_annotation("<object><name>../../etc</name></object>"), "expected one WNID"),
        "long-name": (_annotation(f"<object><name>{'n' * 100_000}</name></object>"), "expected one WNID"),
        "deep": (b"<a>" * 40_000, "not readable XML"),
        "deep-and-closed": (b"<a>" * 30_000 + b"</a>" * 30_000, "class none"),
        "of-a-mebibyte": (_annotation("<object/>" * 2**17), "at most 262,144"),
        "encoding-unheard-of": (b'<?xml version="1.0" encoding="evil"?><a/>', "not readable XML"),
        "nul": (b"<a>\0</a>", "not readable XML"),
    }


def _write(name: str, data: bytes, root: Path) -> None:
    (root / VAL).write_bytes(tar(val_image(1), val_image(2)))
    (root / name).write_bytes(data)


def _case(name: str, write: Callable[[Path], None], words: str) -> Case:
    return Case(name=f"labels-{name}", dataset="imagenet", split="val", write=write, words=words)


def _cases() -> Iterator[Case]:
    for name, (data, words) in _devkits().items():
        yield _case(f"devkit-{name}", partial(_write, DEVKIT, data), words)
    for name, (data, words) in _annotations().items():
        file = member(b"val/ILSVRC2012_val_00000001.xml", data)
        yield _case(f"boxes-{name}", partial(_write, BBOX, gzip.compress(tar(file), mtime=0)), words)
    file = member(b"val/ILSVRC2012_val_00000001.xml", _annotation())
    yield _case("boxes-twice", partial(_write, BBOX, gzip.compress(tar(file, file), mtime=0)), "occurs twice")
    yield _case("boxes-without-xml", partial(_write, BBOX, gzip.compress(tar(), mtime=0)), "no annotation")
    yield _case("boxes-of-one-image", partial(_write, BBOX, gzip.compress(tar(file), mtime=0)), "no label")
    yield _case("devkit-of-a-gigabyte", _write_large, "expected a label archive")


def _write_large(root: Path) -> None:
    """Holes on disk."""
    _write(DEVKIT, b"\x1f\x8b", root)
    with (root / DEVKIT).open("r+b") as stream:
        stream.truncate(2**30)


LABEL_CASES = tuple(_cases())
