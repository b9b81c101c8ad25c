"""Text files of pictures: `cat.txt` holds what is written about `cat.jpg`, as many tools leave captions.

The files are read while a build is planned, each once; then the text is a value of the picture's row like those of
metadata. They are hostile input: their size is bounded, and their bytes must be UTF-8.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple, TypeVar

from dataprep.dataset.features import MAX_ANNOTATION_BYTES, name_fault
from dataprep.dataset.paths import OTHER_PICTURES
from dataprep.dataset.spill import SpilledItems
from dataprep.errors import SourceError, UsageError
from dataprep.messages import shell_words, shown
from dataprep.sources.keys import IMAGE_SUFFIXES
from dataprep.sources.own import OwnData
from dataprep.sources.pictures import LABEL_COLUMN, Examples, Picture
from dataprep.sources.problems import Problems
from dataprep.sources.tree import ARCHIVES, PACKED, Original, stem_bytes
from dataprep.storage.base import Storage

MAX_TEXT_BYTES = MAX_ANNOTATION_BYTES
"""Maximum size of a text file: that of all annotations of a picture."""
SUFFIX = "txt"
"""Suffix of text files if the user names none."""
_SUFFIX = re.compile(r"[a-z0-9_-]{1,32}")
_OTHER_FILES = IMAGE_SUFFIXES | OTHER_PICTURES | ARCHIVES | PACKED

P = TypeVar("P", bound=Picture)


class Text(NamedTuple):
    """The content of one text file."""

    name: str
    """Feature that holds it."""
    original: Original
    content: str

    @property
    def shown(self) -> str:
        """Path of the file, as messages show it."""
        return shown("/".join(self.original.parts))


def text_files(values: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the features that hold text files, each with the suffix of its files, sorted.

    Args:
        values: `NAME` or `NAME=SUFFIX`, as the user wrote them.

    Raises:
        UsageError: No feature can have such a name, no text file such a suffix, or one of them occurs twice.
    """
    found = []
    for value in values:
        name, _, suffix = value.partition("=")
        suffix = suffix.lower().lstrip(".") or SUFFIX
        fault = "" if name == LABEL_COLUMN else name_fault(name)
        if not _SUFFIX.fullmatch(suffix) or suffix in _OTHER_FILES:
            fault = f"no text file has the suffix {shown(suffix)}; expected one such as txt or caption"
        if fault:
            raise UsageError(f"--text-files {value}: {fault}")
        found.append((name, suffix))
    for what, each in (("name", list(dict(found))), ("suffix", sorted({suffix for _, suffix in found}))):
        if len(each) < len(found):
            raise UsageError(f"--text-files: the same {what} twice among {', '.join(values)}; expected each once")
    return tuple(sorted(found))


class TextFiles:
    """Reads text files, and joins them with their pictures.

    Args:
        root: Where the files are.
        own: Names the features, and the text for pictures that have no file.
        texts: The files, in any order.
        problems: Takes the files that cannot be read, are too large or not UTF-8, or are of no picture.
    """

    def __init__(self, root: Storage, own: OwnData, texts: SpilledItems[Original], problems: Problems) -> None:
        self._root, self._texts, self._problems = root, texts, problems
        self._names = {suffix: name for name, suffix in own.text_files}
        self._defaults = {name: text for name, text in own.defaults if name in self._names.values()}
        self._without = {name: Examples() for name in self._names.values()}
        self._odd = Examples()
        self._num_pictures = 0

    def joined(self, pictures: Iterable[P], stem_of: Callable[[P], bytes]) -> Iterator[tuple[P, dict[str, str]]]:
        """Yield each picture with the contents of its files, by feature; `refuse_odd` refuses what is wrong afterwards.

        Args:
            pictures: All pictures, in the order of their stems.
            stem_of: Returns the path of a picture below the root, without its suffix, as bytes.
        """
        waiting = self._contents()
        text = next(waiting, None)
        found: dict[str, Text] = {}
        stem: bytes | None = None
        for picture in pictures:
            self._num_pictures += 1
            wanted = stem_of(picture)
            if wanted != stem:
                stem, found = wanted, {}
                while text is not None and (at := stem_bytes(text.original)) <= wanted:
                    if at < wanted:
                        self._odd.add(text)
                    elif text.name in found:
                        self._problems.add(
                            SourceError(
                                f"{self._root.url}: {found[text.name].shown} and {text.shown} are text files of one "
                                "picture; remove one"
                            )
                        )
                    else:
                        found[text.name] = text
                    text = next(waiting, None)
            yield picture, self._values(picture, found)
        while text is not None:
            self._odd.add(text)
            text = next(waiting, None)

    def refuse_odd(self) -> None:
        """Refuse pictures without a text, and text files without a picture."""
        for suffix, name in self._names.items():
            without = self._without[name]
            if without.count:
                self._problems.add(
                    SourceError(
                        f"{self._root.url}: no .{suffix} file for {without.count:,} of {self._num_pictures:,} images: "
                        f"{without}; expected one of the same name for each: add them, or give the text of images that "
                        f"have none with --default {shell_words(name)}=TEXT"
                    )
                )
        if self._odd.count:
            self._problems.add(
                SourceError(
                    f"{self._root.url}: no image for {self._odd.count:,} of {len(self._texts):,} text files: "
                    f"{self._odd}; expected one of the same name for each: put the images back, move these files away, "
                    "or leave them out with --pass-over NAME"
                )
            )

    def _values(self, picture: P, found: dict[str, Text]) -> dict[str, str]:
        values = dict(self._defaults)
        for name, without in self._without.items():
            if name in found:
                values[name] = found[name].content
            elif name not in values:
                without.add(picture)
        return values

    def _contents(self) -> Iterator[Text]:
        """Yield the files in the order of their stems; over a network many are read at a time."""
        texts = iter(self._texts.in_order(stem_bytes))
        if self._root.reads_in_flight == 1:
            yield from map(self._checked, map(self._read, texts))
            return
        with ThreadPoolExecutor(self._root.reads_in_flight, thread_name_prefix="dataprep-texts") as threads:
            ahead: deque[Future[Text | tuple[Text, SourceError]]] = deque()
            ahead.extend(threads.submit(self._read, text) for text in islice(texts, self._root.reads_in_flight))
            while ahead:
                found = ahead.popleft().result()
                ahead.extend(threads.submit(self._read, text) for text in islice(texts, 1))
                yield self._checked(found)

    def _checked(self, found: Text | tuple[Text, SourceError]) -> Text:
        """Return a text; the one of a file that is refused is empty."""
        if isinstance(found, Text):
            return found
        text, error = found
        self._problems.add(error)
        return text

    def _read(self, text: Original) -> Text | tuple[Text, SourceError]:
        name = self._names[text.parts[-1].lower().rpartition(".")[2]]
        try:
            return Text(name, text, self._content(text).rstrip("\r\n"))
        except SourceError as error:
            return Text(name, text, ""), error

    def _content(self, text: Original) -> str:
        where = f"{self._root.url}: {shown('/'.join(text.parts))}"
        if text.num_bytes > MAX_TEXT_BYTES:
            raise SourceError(
                f"{where}: {text.num_bytes:,} bytes, expected the text of one image, of at most {MAX_TEXT_BYTES:,}; "
                "shorten it"
            )
        try:
            data = self._root.read_range(text.source, text.offset, text.num_bytes) if text.num_bytes else b""
            return data.decode("utf-8-sig")
        except FileNotFoundError as error:
            raise SourceError(f"{where}: gone since the source was listed; put it back") from error
        except UnicodeDecodeError as error:
            raise SourceError(f"{where}: not UTF-8; save the file as UTF-8") from error
