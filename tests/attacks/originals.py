"""Originals that no camera made: mutants of archives, and folders with all that a file system can hold."""

from __future__ import annotations

import io
import os
import random
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from dataprep.adoption.labels import LabelReader
from dataprep.adoption.records import tar_rows, tfrecord_rows
from dataprep.demo.make import write_demo
from dataprep.errors import DataprepError
from dataprep.formats.tars import tar_members
from dataprep.sources.archives import ArchiveReader, zip_members
from dataprep.storage import open_storage
from tests.attacks import Attack
from tests.support.builds import build, build_arguments, dataprep
from tests.support.memory_growth import MemoryGrowth

MEMORY_BYTES = 200 << 20
"""More than a mutant of some kilobytes may cost."""
NUMBERS = (b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f\0\0\0\0", b"77777777", b"\x80" + b"\0" * 7)
"""Sizes and offsets as each format writes them, at the edges of what it can hold."""


def _zip(draw: random.Random) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for number in range(5):
            archive.writestr(f"train2017/{number:05}.jpg", draw.randbytes(draw.randrange(700)))
    return data.getvalue()


def _tar(draw: random.Random) -> bytes:
    data = io.BytesIO()
    kind = draw.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    with tarfile.open(fileobj=data, mode="w", format=kind) as archive:
        for number in range(5):
            folder = f"{'x' * 80}/{'y' * 40}/" if number == 2 else ""
            for ending, content in (("jpg", draw.randbytes(300)), ("json", b'{"label": 3}'), ("cls", b"5")):
                member = tarfile.TarInfo(f"{folder}{number:05}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def _tfrecords(folder: Path) -> bytes:
    write_demo("coco", folder / "coco", images=10, odd=False)
    build("coco-dup5", folder / "coco", folder / "shards", "tfrecord", "--num-shards", 2)
    data = next((folder / "shards").glob("*.tfrecord-*")).read_bytes()
    return data[: 16 + int.from_bytes(data[:8], "little")]  # one record: a number before and after it, and checksums


def _mutant(data: bytes, draw: random.Random) -> bytes:
    """Some bytes, numbers or pieces changed, left out, doubled, or all after a place left out."""
    found = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 4, 16])):
        if not found:
            break
        at, how = draw.randrange(len(found)), draw.random()
        if how < 0.5:
            found[at] = draw.choice([0, 255, 128, 127, 1, draw.randrange(256)])
        elif how < 0.6:
            del found[at : at + draw.choice([1, 2, 512, 1000])]
        elif how < 0.7:
            found[at:at] = found[draw.randrange(len(found)) :][: draw.choice([1, 8, 512])]
        elif how < 0.85:
            found[at : at + 8] = draw.choice(NUMBERS)
        else:
            del found[at:]
    return bytes(found)


def _adopting() -> dict[str, Any]:
    return {"labels": LabelReader(None, 1000), "fields": Counter(), "digest": True}


Read = Callable[[ArchiveReader], object]
KINDS: dict[str, tuple[Callable[[random.Random], bytes] | None, Read]] = {
    "zip": (_zip, zip_members),
    "tar": (_tar, lambda reader: list(tar_members(reader))),
    "WebDataset": (_tar, lambda reader: list(tar_rows(reader, **_adopting()))),
    "TFRecord": (None, lambda reader: list(tfrecord_rows(reader, shard="a", **_adopting()))),
}


def _mutants(folder: Path, kind: str, count: int) -> str:
    """Each is read or refused with an error of ours, within little memory."""
    write, read = KINDS[kind]
    fixed = b"" if write else _tfrecords(folder)
    refused, several_lines, growth = 0, 0, MemoryGrowth()
    (folder / "mutants").mkdir()
    storage = open_storage(str(folder / "mutants"))
    for seed in range(count):
        draw = random.Random(f"{kind} {seed}")
        (folder / "mutants/a").write_bytes(_mutant(write(draw) if write else fixed, draw))
        try:
            with ArchiveReader(storage, "a") as reader:
                read(reader)
        except DataprepError as error:
            refused += 1
            several_lines += "\n" in str(error)
        except BaseException as error:
            raise AssertionError(f"mutant {seed}: {type(error).__name__}: {error}") from error
    assert not several_lines, f"{several_lines:,} errors of more than one line"
    more_bytes = growth.bytes()
    assert more_bytes < MEMORY_BYTES, f"{more_bytes:,} bytes more"
    return f"{count:,} mutants, {refused:,} refused"


def _link(target: str) -> Callable[[Path, Path], object]:
    return lambda path, _image: path.with_name("000000000007.jpg").symlink_to(target)


def _copy(name: str) -> Callable[[Path, Path], object]:
    return lambda path, image: shutil.copy(image, os.fsencode(path.parent) + b"/" + os.fsencode(name))


def _sparse(path: Path, _image: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 40)


ODD: dict[str, Callable[[Path, Path], object]] = {
    "a pipe": lambda path, _image: os.mkfifo(path),
    "a link to a device without end": _link("/dev/zero"),
    "a link to a file of the system": _link("/etc/passwd"),
    "a link to its own folder": _link("."),
    "a line break in a name": _copy("a\nb.jpg"),
    "a name that is no UTF-8": _copy("a\udcff\udcfe.jpg"),
    "a name of 244 letters": _copy("x" * 240 + ".jpg"),
    "a name that is HTML": _copy("<script>alert(1)<.jpg"),
    "a folder with an image's name": lambda path, _image: path.mkdir(),
    "an empty file": lambda path, _image: path.touch(),
    "a sparse file of 3 TiB": _sparse,
}


def _odd_folders(folder: Path) -> str:
    """Each build succeeds or ends with one line, and what is shown in a page stays text."""
    write_demo("coco", folder / "archives", images=20, odd=False)
    ends = []
    for number, (what, plant) in enumerate(ODD.items()):
        source, output = folder / f"source{number}", folder / f"out{number}"
        for archive in (folder / "archives").glob("*.zip"):
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(source)
        images = sorted((source / "train2017").glob("*.jpg"))
        plant(images[0].with_name("000000000007.jpg"), images[0])
        run = dataprep(*build_arguments("coco-dup5", source, output, "webdataset"))
        assert run.returncode in (0, 1, 2), (what, run.returncode, run.stderr[-500:])
        assert "Traceback" not in run.stderr, (what, run.stderr[-500:])
        assert run.returncode == 0 or "dataprep: " in run.stderr.splitlines()[-1], (what, run.stderr[-500:])
        assert "root:" not in run.stderr + run.stdout, what
        ends.append(run.returncode)
        if run.returncode == 0:
            page = folder / "page.html"
            assert dataprep("inspect", output, "--html", page).returncode == 0, what
            assert "<script>alert" not in page.read_text(), what
            assert dataprep("verify", output, "--deep").returncode == 0, what
    return f"{ends.count(0)} of {len(ODD)} folders built, the others refused in one line"


ATTACKS = [
    *(Attack(f"mutants of a {kind} archive", partial(_mutants, kind=kind, count=5_000)) for kind in KINDS),
    *(Attack(f"some mutants of a {kind}", partial(_mutants, kind=kind, count=50), sampled=True) for kind in KINDS),
    Attack("folders with all that a file system can hold", _odd_folders),
]
