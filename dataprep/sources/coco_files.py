"""Finds the annotation files of COCO 2017, in their archives or unpacked in `annotations/`, and opens them.

    annotations_trainval2017.zip             annotations/{captions,instances,person_keypoints}_{train,val}2017.json
    panoptic_annotations_trainval2017.zip    annotations/panoptic_{train,val}2017.json, and .zip with a PNG an image
    image_info_test2017.zip                  annotations/image_info_test2017.json
    image_info_unlabeled2017.zip             annotations/image_info_unlabeled2017.json

An archive is preferred to unpacked files. Its members are compressed, so they are read as streams: the elements of a
JSON list, one at a time, in bounded memory.
"""

from __future__ import annotations

import codecs
import json
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, NoReturn, cast

from dataprep.dataset.records import SourceFile
from dataprep.errors import SourceError
from dataprep.messages import human_bytes, one_line, quoted, shown
from dataprep.sources.archives import StreamReader, find_directory
from dataprep.storage.base import Storage
from dataprep.storage.errors import disk_errors
from dataprep.storage.ranges import RangeFile

CHUNK_BYTES = 2**20
MAX_ELEMENT_CHARS = 4 * 2**20
"""Maximum length of an element, and of each value outside arrays."""
MAX_NAMES = 100
"""Maximum number of names at the top level."""
MAX_BYTES = 4 * 2**30
"""Maximum size of a file; COCO's largest has 0.5 GB."""
READ_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)
"""Errors of `zipfile` for damaged, encrypted and unknown members."""
_REST_OF_NUMBER = re.compile(r"[0-9.eE+-]*\Z")
_NOT_SPACE = re.compile(r"[^ \t\n\r]")
KINDS = ("captions", "instances", "keypoints", "panoptic")
"""Kinds of annotations; each is a file for each split."""
FOLDER = "annotations"
JSON_OF = {
    "captions": "captions",
    "instances": "instances",
    "keypoints": "person_keypoints",
    "panoptic": "panoptic",
    "image_info": "image_info",
}
"""First part of the name of a file, by the kind of annotations in it."""
WINDOW_BYTES = 2**20
"""Minimum size of one read of an archive, which over a network is one request."""
MAX_PACKED_BYTES = 4 * 2**30
"""Maximum size of an archive inside an archive, which is copied to a temporary file; COCO's has 0.8 GB."""
MAX_PNG_BYTES = 2**20
"""Maximum size of a panoptic image; COCO's have 7 kB on average."""
_COPY_BYTES = 2**20


def top_level_items(stream: BinaryIO, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the elements of all arrays at the top level of an object, each with the name of its array, in order.

    Empty arrays and other values yield nothing. Raises SourceError if the file is not a JSON object, is too large, or
    cannot be read.
    """
    text = _Text(stream, where)
    text.expect("{")
    seen: set[str] = set()
    while text.peek() != "}":
        if seen:
            text.expect(",")
        name = _name(text, seen)
        text.expect(":")
        if text.peek() == "[":
            yield from ((name, element) for element in _elements(text))
        else:
            text.value()
    text.expect("}")
    if text.peek():
        text.fail("more text after the end of the object")


@dataclass(frozen=True, slots=True)
class AnnotationFile:
    url: str
    source: SourceFile
    """The original file that holds it: an archive, or the file itself."""
    open: Callable[[], AbstractContextManager[BinaryIO]]
    """Opens the file as a stream to be read forward."""


def archive_of(kind: str, folder: str) -> str:
    """Return the archive with the annotations of one kind for a folder of images such as `train2017`."""
    if kind == "image_info":
        return f"image_info_{folder}.zip"
    return "panoptic_annotations_trainval2017.zip" if kind == "panoptic" else "annotations_trainval2017.zip"


def find_json(root: Storage, kind: str, folder: str) -> AnnotationFile | None:
    """Return the file of one kind of annotations for a folder of images, or None if there is none. Raises SourceError
    if an archive that should hold it is damaged or hostile."""
    return _find(root, archive_of(kind, folder), f"{JSON_OF[kind]}_{folder}.json")


class PanopticImages:
    """The panoptic images of one split: PNG files in an archive, or in a folder."""

    def __init__(self, root: Storage, folder: str) -> None:
        self._root, self._name = root, f"panoptic_{folder}"
        self._stack = ExitStack()
        self._file = _find(root, archive_of("panoptic", folder), f"{self._name}.zip")
        self._zip: zipfile.ZipFile | None = None
        self.url = self._file.url if self._file is not None else root.url_of(f"{FOLDER}/{self._name}")

    def __enter__(self) -> PanopticImages:
        if self._file is not None:
            self._zip = self._stack.enter_context(_zip_of(self._stack.enter_context(self._seekable()), self.url))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, file_name: str) -> bytes:
        """Return a PNG file. Raises SourceError if it does not exist, is too large, or not a PNG."""
        where = f"{self.url}: {shown(file_name)}"
        if "/" in file_name or "\\" in file_name or file_name in ("", ".", ".."):
            raise SourceError(f"{where}: expected the name of a file")
        try:
            path = f"{self._name}/{file_name}"
            with self._root.open(f"{FOLDER}/{path}") if self._zip is None else self._zip.open(path) as stream:
                data = stream.read(MAX_PNG_BYTES + 1)
        except (KeyError, FileNotFoundError) as error:
            raise SourceError(f"{where}: not found, but the annotations name it; download the archive again") from error
        except READ_ERRORS as error:
            raise SourceError(f"{where}: {one_line(error)}; download the archive again") from error
        if len(data) > MAX_PNG_BYTES:
            raise SourceError(f"{where}: over {MAX_PNG_BYTES:,} bytes, expected a panoptic image")
        if not data.startswith(b"\x89PNG\r\n\x1a\n"):
            raise SourceError(f"{where}: not a PNG; download the archive again")
        return data

    @contextmanager
    def _seekable(self) -> Iterator[BinaryIO]:
        """Open the archive; an archive in an archive is copied to a temporary file without a name."""
        file = cast(AnnotationFile, self._file)
        with file.open() as stream:
            if not isinstance(stream, zipfile.ZipExtFile):
                yield stream
                return
            with tempfile.TemporaryFile(prefix="dataprep-panoptic-") as copy:
                while chunk := _read(stream, file.url):
                    if copy.tell() + len(chunk) > MAX_PACKED_BYTES:
                        limit = human_bytes(MAX_PACKED_BYTES)
                        raise SourceError(f"{file.url}: larger than {limit}; unpack it into {FOLDER}/")
                    with disk_errors(tempfile.gettempdir()):
                        copy.write(chunk)
                yield cast(BinaryIO, copy)


def _name(text: _Text, seen: set[str]) -> str:
    name = text.value()
    if not isinstance(name, str) or name in seen or len(seen) >= MAX_NAMES:
        text.fail(f"{quoted(name)} as a name, expected at most {MAX_NAMES} names, each once")
    seen.add(name)
    return name


def _elements(text: _Text) -> Iterator[Any]:
    text.expect("[")
    if text.peek() != "]":
        yield text.value()
        while text.peek() != "]":
            text.expect(",")
            yield text.value()
    text.expect("]")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class _Text:
    """A window of the file's text around the current position."""

    def __init__(self, stream: BinaryIO, where: str) -> None:
        self._stream, self._where = stream, where
        self._decode = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at = "", 0
        self._bytes_read, self._chars_dropped = 0, 0

    def peek(self) -> str:
        """Return the next character that is not white space; empty at the end."""
        while True:
            found = _NOT_SPACE.search(self._text, self._at)
            if found is not None:
                self._at = found.start()
                return found[0]
            self._at = len(self._text)
            if not self._read_more():
                return ""

    def expect(self, character: str) -> None:
        """Skip one character. Raises SourceError if it is another."""
        found = self.peek()
        if found != character:
            self.fail(f"{quoted(found) if found else 'the end of the file'}, expected {quoted(character)}")
        self._at += 1

    def value(self) -> Any:
        """Return the next value of any type, and move past it."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > MAX_ELEMENT_CHARS or not self._read_more():
                    limit = f"expected a value of JSON of at most {MAX_ELEMENT_CHARS:,} characters"
                    self.fail(f"{error.msg}; {limit}", error)
                continue
            except (ValueError, RecursionError) as error:
                self.fail(one_line(error), error)
            # A number at the end of the window may continue: 1 is the beginning of 1.5e3.
            is_whole = self._text[end - 1] in '}]"' or not _REST_OF_NUMBER.match(self._text, end)
            if is_whole or not self._read_more():
                self._at = end
                return value

    def fail(self, what: str, cause: Exception | None = None) -> NoReturn:
        """Raise SourceError for the current position."""
        place = self._chars_dropped + self._at
        raise SourceError(f"{self._where}: at character {place:,}: {what}; download the file again") from cause

    def _read_more(self) -> bool:
        """Append the next part of the file; return False at its end."""
        try:
            data = self._stream.read(CHUNK_BYTES)
            text = self._decode.decode(data, final=not data)
        except UnicodeDecodeError as error:
            self.fail("not UTF-8", error)
        except READ_ERRORS as error:
            self.fail(one_line(error), error)
        self._bytes_read += len(data)
        if self._bytes_read > MAX_BYTES:
            self.fail(f"over {MAX_BYTES:,} bytes")
        self._chars_dropped += self._at
        self._text, self._at = self._text[self._at :] + text, 0
        return bool(data)


def _find(root: Storage, archive: str, file: str) -> AnnotationFile | None:
    name = f"{FOLDER}/{file}"
    info = root.stat(archive)
    if info is not None:
        with _zip_in(root, archive) as packed:
            if name in packed.NameToInfo:
                source = SourceFile(archive, info.num_bytes)
                return AnnotationFile(f"{root.url_of(archive)}/{name}", source, partial(_member, root, archive, name))
    info = root.stat(name)
    if info is None:
        return None
    return AnnotationFile(root.url_of(name), SourceFile(name, info.num_bytes), partial(_opened, root, name))


def _read(stream: BinaryIO, url: str) -> bytes:
    try:
        return stream.read(_COPY_BYTES)
    except READ_ERRORS as error:
        raise SourceError(f"{url}: {one_line(error)}; download the archive again") from error


def _opened(root: Storage, name: str) -> BinaryIO:
    return cast(BinaryIO, RangeFile(root, name, WINDOW_BYTES))


@contextmanager
def _zip_in(root: Storage, archive: str) -> Iterator[zipfile.ZipFile]:
    with _opened(root, archive) as stream, _zip_of(stream, root.url_of(archive)) as packed:
        yield packed


@contextmanager
def _member(root: Storage, archive: str, name: str) -> Iterator[BinaryIO]:
    where = f"{root.url_of(archive)}/{name}"
    with _zip_in(root, archive) as packed:
        try:
            stream = packed.open(name)
        except READ_ERRORS as error:
            raise SourceError(f"{where}: {one_line(error)}; download the archive again") from error
        with stream:
            yield cast(BinaryIO, stream)


def _zip_of(stream: BinaryIO, url: str) -> zipfile.ZipFile:
    """Open a zip. Raises SourceError if its directory is over the limits or damaged."""
    find_directory(StreamReader(stream, url))
    stream.seek(0)
    try:
        return zipfile.ZipFile(stream)
    except (*READ_ERRORS, ValueError) as error:
        raise SourceError(f"{url}: not a valid zip ({one_line(error)}); download it again") from error
