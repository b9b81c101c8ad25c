"""Builds whose outputs and originals others change between any two of their steps: exit 0 means complete and right.

A build is suspended at random boundaries. At each one, as long as there is no manifest, a file of a finished shard is
removed, emptied, or replaced by bytes of the same size, a foreign file is put into the dataset, or an original is
written again, replaced, reordered, grown or touched. In the end there is an error in one line, no manifest, and a
dataset after what it advises; or exit 0, and a dataset that other readers find to be the originals of one moment.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
from PIL import Image

from dataprep.formats.example import byte_ranges, features_of, integers
from dataprep.storage import open_storage
from tests.support import stopping
from tests.support.builds import FORMATS
from tests.support.raw_tar import tar_of
from tests.support.stopping import ENDED, SUSPENDED, Ended, Stops

CLASSES = ("cat", "dog", "fox")
PICTURES, SHARDS = 12, 3
PICTURE_BYTES = 3000
BOUNDARIES, REQUESTS = 110, 60
"""About as many as a build has."""
LONGEST_S = 300
KINDS = ("folder", "tar", "zip")
Set = dict[str, tuple[str, bytes]]
"""Pictures by name: class and bytes."""


def picture(number: int) -> bytes:
    """A JPEG of its own, of the same size as all others: a comment fills it."""
    stream = io.BytesIO()
    noise = np.random.default_rng(number).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, "JPEG", quality=80)
    data = stream.getvalue()
    comment = bytes(PICTURE_BYTES - len(data) - 4)
    return data[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + data[2:]


class Originals:
    """Pictures on a disk or in a bucket, loose or in an archive, which others change."""

    def __init__(self, url: str, kind: str) -> None:
        self._storage, self.kind, self._next = open_storage(url), kind, PICTURES
        self.pictures: Set = {f"p{n:02d}.jpg": (CLASSES[n % len(CLASSES)], picture(n)) for n in range(PICTURES)}
        self.url = url if kind == "folder" else f"{url}/pets.{kind}"
        self._write(self.pictures)

    def change(self, rng: random.Random) -> str:
        """Change something; return what."""
        how = rng.choice(("written", "replaced", "grown", "touched", "reordered", "gone"))
        name = rng.choice(sorted(self.pictures))
        label, data = self.pictures[name]
        if how in ("written", "replaced"):
            self.pictures[name], self._next = (label, picture(self._next)), self._next + 1
        elif how == "grown":
            self.pictures[name] = label, data + bytes(100)
        elif how == "reordered":
            names = rng.sample(sorted(self.pictures), len(self.pictures))
            self.pictures = {each: self.pictures[each] for each in names}
        elif how == "gone" and self.kind == "folder":
            del self.pictures[name]
            self._storage.delete(f"{label}/{name}")
            return f"{name} is gone"
        if self.kind == "folder":
            self._put(f"{label}/{name}", self.pictures[name][1], in_place=how == "written")
        else:
            self._put(f"pets.{self.kind}", self._archive(), in_place=how == "written")
        return f"{name} is {how}"

    def _write(self, pictures: Set) -> None:
        if self.kind != "folder":
            self._put(f"pets.{self.kind}", self._archive(), in_place=True)
            return
        for name, (label, data) in pictures.items():
            self._put(f"{label}/{name}", data, in_place=True)

    def _archive(self) -> bytes:
        stream = io.BytesIO()
        if self.kind == "zip":
            with zipfile.ZipFile(stream, "w") as packed:
                for name, (label, data) in self.pictures.items():
                    packed.writestr(zipfile.ZipInfo(f"{label}/{name}"), data)
            return stream.getvalue()
        return tar_of([(f"{label}/{name}", data) for name, (label, data) in self.pictures.items()])

    def _put(self, name: str, data: bytes, *, in_place: bool) -> None:
        """Write a file; with its old times, if it exists."""
        path = Path(self._storage.url_of(name))
        if not self._storage.is_local:
            self._storage.delete(name)
            self._storage.create(name, data)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.stat() if path.exists() else None
        if in_place:
            path.write_bytes(data)
        else:
            new = path.with_name(".new")
            new.write_bytes(data)
            new.replace(path)
        if before is not None:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def schedule(number: int, folder: Path, bucket: str | None) -> str:
    """Run one schedule; return a line that says how it ended.

    Args:
        number: Decides all of it but how fast the machine is.
        folder: Empty.
        bucket: URL of a bucket, for some of the places; None for the disk alone.
    """
    rng = random.Random(f"changed builds {number}")
    fmt, kind = FORMATS[number % len(FORMATS)], rng.choice(KINDS)
    places = [f"{bucket}/{uuid4().hex}" if bucket and rng.random() < 0.5 else str(folder / each) for each in "io"]
    originals, output = Originals(places[0], kind), places[1]
    command = ["build", "folder", "--source", originals.url, "--output", output, "--format", fmt, "--name", "pets"]
    command += ["--num-shards", SHARDS, "--workers", 1]
    states, told = [dict(originals.pictures)], []

    def act() -> None:
        if rng.random() < 0.5:
            told.append(originals.change(rng))
            states.append(dict(originals.pictures))
        elif open_storage(output).stat("dataset.json") is None:  # afterwards it is a matter of verify
            told.append(harm(output, rng))

    end = _run(command, output, rng, act)
    ways = f"{fmt}, {kind}, {'/'.join('bucket' if '://' in place else 'disk' for place in places)}"
    line = f"{ways}: {'; '.join(told) or 'nothing'}: {end.code} {end.last_line[:150]}"
    for _ in range(4):
        if end.code == 0:
            break
        assert "Traceback" not in end.stderr and end.last_line.startswith("dataprep: "), f"{line}\n{end.stderr[-3000:]}"
        assert open_storage(output).stat("dataset.json") is None, f"{line}: a manifest after an error"
        _follow_advice(output, end.last_line)
        more = ["--overwrite"] if "--overwrite" in end.stderr else []
        end = stopping.run([*command, *more])
        line += f"; then {end.code}"
    assert end.code == 0, f"{line}\n{end.stderr[-3000:]}"
    try:
        found = read_back(output, fmt)
    except Exception as error:
        raise AssertionError(f"{line}: cannot be read") from error
    assert found in states, f"{line}: not the originals of one moment"
    for place in places:
        if "://" in place:
            open_storage(place.rpartition("/")[0]).delete_tree(place.rpartition("/")[2])
    return line


def _run(command: list[object], output: str, rng: random.Random, act: Callable[[], None]) -> Ended:
    """Run a command; at some of its boundaries it is suspended, and something is changed."""
    in_bucket = "://" in output
    boundaries = sorted(rng.sample(range(1, REQUESTS if in_bucket else BOUNDARIES), rng.choice((1, 2, 3, 4))))
    stops = Stops(boundaries, rng.choice(("before", "after")), suspend=True, requests=in_bucket)
    running = stopping.start(command, stops)
    while running.wait(LONGEST_S) != ENDED:
        assert running.state() == SUSPENDED, "a build hangs"
        act()
        running.send(signal.SIGCONT)
    return running.ended()


def harm(output: str, rng: random.Random) -> str:
    """Remove, empty or replace a file of the dataset, or put a foreign one there; return what was done."""
    storage = open_storage(output)
    names = [info.name for info in storage.list() if _is_data(info.name)]
    how = rng.choice(("gone", "emptied", "replaced", "foreign"))
    if how == "foreign" or not names:
        name = f"{rng.choice(('train/cat/stranger.jpg', 'train/stranger.tar', 'stranger.tfrecord'))}"
        if storage.stat(name) is None and (not storage.is_local or Path(output).is_dir()):
            _overwrite(output, name, b"stranger")
        return f"{name} is foreign"
    name = rng.choice(names)
    num_bytes = len(storage.read(name))
    before = Path(storage.url_of(name)).stat() if storage.is_local else None
    if how == "gone" or before is None or rng.random() < 0.5:
        storage.delete(name)
    if how != "gone":
        _overwrite(output, name, b"" if how == "emptied" else b"z" * num_bytes)
        if before is not None and rng.random() < 0.5:
            os.utime(storage.url_of(name), ns=(before.st_atime_ns, before.st_mtime_ns))
    return f"{name.rpartition('/')[2]} is {how}"


def _is_data(name: str) -> bool:
    shards = name.endswith((".tar", ".jpg")) or ".tfrecord-" in name
    return shards and ("_build" not in name or "/folder/" in name)


def _overwrite(output: str, name: str, data: bytes) -> None:
    storage = open_storage(output)
    if not storage.is_local:
        storage.create(name, data)
        return
    path = Path(storage.url_of(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _follow_advice(output: str, error: str) -> None:
    """Do what the errors about foreign files advise.

    One that is found at the name of a picture before the picture is put there is not removed by a build, which cannot
    know whose it is, even if `harm` has put it in the place of the build's own.
    """
    storage = open_storage(output)
    for info in list(storage.list()):
        if "stranger" in info.name:
            storage.delete(info.name)
    if error.endswith("; move it away and run the same command again"):
        name = error.removeprefix(f"dataprep: {storage.url}/").partition(": ")[0]
        assert not storage.read(name).strip(b"z"), f"{name}: a file that nobody has harmed is to be moved away"
        storage.delete(name)


def read_back(output: str, fmt: str) -> Set:
    """Return the pictures of a dataset by name, with class and bytes; read with tarfile and by hand."""
    storage = open_storage(output)
    names = [info.name for info in storage.list() if _is_data(info.name)]
    if fmt == "imagefolder":
        return {name.rpartition("/")[2]: (name.split("/")[1], storage.read(name)) for name in names}
    found: Set = {}
    classes = json.loads(storage.read("dataset.json"))["classes"]
    for name in names:
        if fmt == "webdataset":
            with tarfile.open(fileobj=io.BytesIO(storage.read(name))) as tar:
                members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
            for member, data in members.items():
                if member.endswith(".jpg"):
                    label = classes[int(members[member.replace(".jpg", ".cls")])]
                    found[member.rpartition("/")[2]] = label, data
            continue
        for record in _records(storage.read(name)):
            read = partial(_slice, record)
            features = features_of(read, 0, len(record))
            key, image = (record[slice(*byte_ranges(read, features[each])[0])] for each in ("key", "image"))
            (label,) = integers(read, features["label"])
            found[f"{key.decode().rpartition('/')[2]}.jpg"] = classes[label], image
    return found


def _slice(data: bytes, offset: int, num_bytes: int) -> bytes:
    return data[offset : offset + num_bytes]


def _records(data: bytes) -> list[bytes]:
    """Return the records of a TFRecord file: length, CRC, bytes, CRC."""
    found, at = [], 0
    while at < len(data):
        num_bytes = int.from_bytes(data[at : at + 8], "little")
        found.append(data[at + 12 : at + 12 + num_bytes])
        at += 16 + num_bytes
    return found
