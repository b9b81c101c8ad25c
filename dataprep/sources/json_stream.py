"""Reads the arrays at the top level of a large JSON object element by element, in bounded memory.

The annotations of COCO are objects of this kind: `{"info": {...}, "images": [...], "annotations": [...]}`, of which an
array holds hundreds of megabytes. Python's own scanner decodes each element, so numbers are what `json.load` gives.
A file is hostile input: an element, the number of names and the whole have a maximum size, and NaN and infinity are
refused.
"""

from __future__ import annotations

import codecs
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

from dataprep.errors import SourceError
from dataprep.messages import one_line, quoted

CHUNK_BYTES = 2**20
MAX_ELEMENT_CHARS = 4 * 2**20
"""Maximum length of an element, and of each value outside of arrays."""
MAX_NAMES = 100
"""Maximum number of names at the top level."""
MAX_BYTES = 4 * 2**30
"""Maximum size of a file; the largest of COCO has 0.5 GB."""
READ_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)
"""Errors of `zipfile` for damaged, encrypted and unknown members."""
_REST_OF_NUMBER = re.compile(r"[0-9.eE+-]*\Z")
_NOT_SPACE = re.compile(r"[^ \t\n\r]")


def top_level_items(stream: BinaryIO, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the elements of all arrays at the top level of an object, each with the name of its array, in order.

    An array without elements yields nothing, and neither do values that are no arrays.

    Args:
        stream: The file, which is read forward.
        where: URL of the file, for messages.

    Raises:
        SourceError: The file is not JSON, no object, too large, or cannot be read.
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


def _name(text: _Text, seen: set[str]) -> str:
    name = text.value()
    if not isinstance(name, str) or name in seen or len(seen) >= MAX_NAMES:
        text.fail(f"{quoted(name)} as a name, expected at most {MAX_NAMES} texts, each once")
    seen.add(name)
    return name


def _elements(text: _Text) -> Iterator[Any]:
    text.expect("[")
    if text.peek() == "]":
        text.expect("]")
        return
    while True:
        yield text.value()
        if text.peek() == "]":
            text.expect("]")
            return
        text.expect(",")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class _Text:
    """The text of a file around the place that is read."""

    def __init__(self, stream: BinaryIO, where: str) -> None:
        self._stream, self._where = stream, where
        self._decode = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at = "", 0
        self._bytes_read, self._chars_dropped = 0, 0

    def peek(self) -> str:
        """Return the next character that is no white space; empty at the end."""
        while True:
            found = _NOT_SPACE.search(self._text, self._at)
            if found is not None:
                self._at = found.start()
                return found[0]
            self._at = len(self._text)
            if not self._read_more():
                return ""

    def expect(self, character: str) -> None:
        """Pass over one character."""
        found = self.peek()
        if found != character:
            self.fail(f"{quoted(found) if found else 'the end of the file'}, expected {quoted(character)}")
        self._at += 1

    def value(self) -> Any:
        """Return the next value, whatever it is, and pass over it."""
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
            # A number at the end of what is read may go on: 1 is the beginning of 1.5e3.
            is_whole = self._text[end - 1] in '}]"' or not _REST_OF_NUMBER.match(self._text, end)
            if is_whole or not self._read_more():
                self._at = end
                return value

    def fail(self, what: str, cause: Exception | None = None) -> NoReturn:
        """Raise SourceError for the place that is read."""
        place = self._chars_dropped + self._at
        raise SourceError(f"{self._where}: at character {place:,}: {what}; fetch the file again") from cause

    def _read_more(self) -> bool:
        """Append the next part of the file; return False at its end."""
        try:
            data = self._stream.read(CHUNK_BYTES)
            text = self._decode.decode(data, final=not data)
        except UnicodeDecodeError as error:
            self.fail("no UTF-8", error)
        except READ_ERRORS as error:
            self.fail(one_line(error), error)
        self._bytes_read += len(data)
        if self._bytes_read > MAX_BYTES:
            self.fail(f"over {MAX_BYTES:,} bytes")
        self._chars_dropped += self._at
        self._text, self._at = self._text[self._at :] + text, 0
        return bool(data)
