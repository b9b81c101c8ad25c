"""Keys of samples, made from the names of files or archive members, and problems with those names.

The name also decides whether a file is an image.

Names are hostile input. A name that is absolute, climbs out of its folder or holds a backslash, NUL or line end is
refused in any case. Every other name must have an image's suffix, or be one of the few that are skipped:

- with a component that begins with a dot (`._x.jpg`, `.DS_Store`), or that systems leave behind (`__MACOSX`,
  `Thumbs.db`);
- README, LICENSE or COPYING, bare or with `.txt` or `.md`.

Anything else is refused: a sample must not be dropped because its name is unusual.

Problems of a user's own data are collected and raised together, so that one run shows all. Samples with the same key
are found among any number of references in bounded memory: hashes of 64 bits are sorted; if two are equal, the keys
are compared.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TypeAlias, TypeVar

from dataprep.arrays import NDArray, np, pa
from dataprep.dataset.columns import call, from_numpy, to_numpy
from dataprep.dataset.hashes import repeated
from dataprep.dataset.paths import CLOSE, READABLE_SUFFIXES, is_hidden_name, path_of
from dataprep.dataset.records import MAX_KEY_BYTES, References, SampleRef
from dataprep.dataset.spill import SpilledTable, in_order_of_words, refs_of_rows, spilled
from dataprep.errors import DataprepError, SourceError, UsageError
from dataprep.messages import shown
from dataprep.storage.base import FORBIDDEN

Names: TypeAlias = "Callable[[pa.RecordBatch], Sequence[str]]"
MAX_NAME_BYTES = 4096
"""Maximum length of an original name: no file system stores a longer path."""
IMAGE_SUFFIXES = READABLE_SUFFIXES | {"tif", "tiff"}
"""Suffixes of image names; the file's content decides the real format, so a TIFF is rejected."""
ARCHIVES = frozenset({"tar", "zip"})
"""Suffixes of archives whose images can be read in place."""
PACKED = frozenset({"7z", "bz2", "gz", "rar", "tgz", "xz", "zst"})
"""Suffixes of compressed archives, whose images are not byte ranges."""
_HASH_DIGITS = 32
_PLAIN = re.compile(r"[A-Za-z0-9_/-]*")
_METADATA = re.compile(r"(?<![^/])_(?=_)")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
_OTHER = re.compile(rb"[^A-Za-z0-9_/-]")
_DRIVE = re.compile(r"[A-Za-z]:")
PAPERS = frozenset({"readme", "license", "copying"})
"""Names of files about a dataset, without their suffixes."""
Refuse = Callable[[DataprepError], None]
"""Function that takes a problem and raises it immediately, or notes it so that reading continues."""
SHOWN_PROBLEMS = 10
"""Maximum number of problems that an error lists."""
T = TypeVar("T")
Chunk = tuple[Sequence[str], Callable[[int], T]]
CHUNK_ITEMS = 1 << 13
COMPARED_HASHES = 1_000
"""Number of equal hashes whose names are compared in one pass over all references."""


def name_parts(name: str) -> tuple[str, ...]:
    """Split a member's or file's path into components, without `.` and empty ones; an archive's root gives none. Raises
    SourceError if the name is absolute, climbs out, is longer than a path can be, or holds a backslash, a NUL, a line
    end or bytes that are not text. The message is a clause; the caller prepends the archive. Bytes that are not UTF-8
    are surrogate escapes."""
    if _PLAIN_PATH.fullmatch(name) and len(name) <= MAX_NAME_BYTES:
        return tuple(name.split("/"))
    num_bytes = len(name_bytes(name))
    if num_bytes > MAX_NAME_BYTES:
        raise SourceError(f"its name has {num_bytes:,} bytes, expected at most {MAX_NAME_BYTES:,}")
    if any(character in name for character in FORBIDDEN):
        raise SourceError("its name holds a backslash, NUL or line end")
    if name.startswith("/") or _DRIVE.match(name):
        raise SourceError("its name is absolute, expected a relative one")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise SourceError("its name climbs out of the archive ('..')")
    return parts


def is_image(parts: tuple[str, ...]) -> bool:
    """Return whether a name is an image's; False for a name to skip. Raises SourceError if the name is neither of the
    two; the message is a clause."""
    last = parts[-1]
    if is_hidden(parts):
        return False
    stem, dot, suffix = last.rpartition(".")
    if dot and suffix.lower() in IMAGE_SUFFIXES:
        return True
    if (stem if dot and suffix.lower() in ("txt", "md") else last).lower() in PAPERS:
        return False
    raise SourceError(
        "by its name it is neither an image (.jpg, .jpeg, .png ...) nor a file that is known to be safe to skip"
    )


def is_hidden(parts: tuple[str, ...]) -> bool:
    """Return whether a path is hidden or a system file, like those that macOS, Windows and shells leave behind."""
    return is_hidden_name("/".join(parts))


def key_of(parts: Sequence[str]) -> str:
    """Return the key of a path: without its extension, in `[A-Za-z0-9_/-]`, any other byte as `=XX`.

    The first of two underscores that begin a component becomes `=5F`: readers of shards take `__` for metadata.
    Two paths that differ in more than the extension have different keys. A key of more than 200 bytes is shortened, and
    ends with `=00` and 32 hexadecimal digits of the complete key's SHA-256.
    """
    folder, last = parts[:-1], parts[-1]
    stem, dot, _ = last.rpartition(".")
    path = "/".join([*folder, stem if dot and stem else last])
    key = path
    if not _PLAIN.fullmatch(path):
        key = _OTHER.sub(lambda match: b"=%02X" % match.group()[0], name_bytes(path)).decode()
    if "__" in key:
        key = _METADATA.sub("=5F", key)
    if len(key) <= MAX_KEY_BYTES:
        return key
    head = key[: MAX_KEY_BYTES - len(CLOSE) - _HASH_DIGITS]
    cut = head.rfind("=", len(head) - 2)
    head = head if cut < 0 else head[:cut]  # never cuts an `=XX`
    return head + CLOSE + hashlib.sha256(key.encode()).hexdigest()[:_HASH_DIGITS]


def is_file_of_image(source: str) -> bool:
    """Return whether an original file is an image, not an archive of images, by its name."""
    return source.rpartition(".")[2].lower() in IMAGE_SUFFIXES


def name_bytes(name: str) -> bytes:
    """Return the bytes that a name was decoded from."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise SourceError("its name is not text") from error


def at_once(error: DataprepError) -> None:
    raise error


class Problems:
    """Counts problems, and keeps the first few."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.count = 0
        self._first: list[DataprepError] = []
        self._raised: DataprepError | None = None

    def add(self, error: DataprepError) -> None:
        self.count += 1
        if self.count <= SHOWN_PROBLEMS:
            self._first.append(error)

    def note(self, text: str) -> None:
        """Note a problem with the source, given as text."""
        self.add(SourceError(text))

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a problem that is raised inside the block, and continue after the block."""
        try:
            yield
        except (SourceError, UsageError) as error:
            if error is self._raised:
                raise
            self.add(error)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise all problems at the end of the block, with the one raised inside it, if any."""
        with self.noted():
            yield
        self.refuse()

    def refuse(self) -> None:
        """Raise a single problem as it is, or several as one error that lists the first ones; do nothing if none."""
        if not self.count:
            return
        if self.count == 1:
            self._raised = self._first[0]
        else:
            lines = [str(error).removeprefix(f"{self._where}: ") for error in self._first]
            if more := self.count - len(lines):
                lines.append(f"and {more:,} more")
            listed = "".join(f"\n  {line}" for line in lines)
            self._raised = SourceError(
                f"{self._where}: {self.count:,} problems; correct them, and run the same command again:{listed}"
            )
        raise self._raised


def refuse_duplicates(where: str, refs: References) -> None:
    """Raise SourceError, beginning with `where`, if samples have the same key, ignoring case; names the first pairs."""
    problems = Problems(where)
    for first, second, _ in same_names(refs, keys_in_lower_case):
        problems.note(
            f"{where}: two images have the key {first.key}, ignoring case: {_place(first)} and {_place(second)}; "
            "expected every name once: remove or rename one"
        )
    problems.refuse()


def keys_in_lower_case(batch: pa.RecordBatch) -> list[str]:
    keys: list[str] = call("ascii_lower", batch.column("key")).to_pylist()
    return keys


def same_names(refs: References, names: Names) -> Iterator[tuple[SampleRef, SampleRef, str]]:
    """Yield references with equal names: the first with a name, another one, and the name. `names` returns the names of
    a batch with the columns of `spill_schema`."""
    found = spilled(refs)

    def ref_at(batch: pa.RecordBatch, position: int) -> SampleRef:
        return next(refs_of_rows(batch.slice(position, 1)))

    def chunks() -> Iterator[Chunk[SampleRef]]:
        for batch in found.batches():
            yield names(batch), partial(ref_at, batch)

    return _pairs(chunks)


def same_items(items: Iterable[T], name_of: Callable[[T], str]) -> Iterator[tuple[T, T, str]]:
    """Yield items with equal names: the first with a name, another one, and the name."""

    def chunks() -> Iterator[Chunk[T]]:
        waiting = iter(items)
        while some := list(islice(waiting, CHUNK_ITEMS)):
            yield list(map(name_of, some)), some.__getitem__

    return _pairs(chunks)


def _pairs(chunks: Callable[[], Iterator[Chunk[T]]]) -> Iterator[tuple[T, T, str]]:
    """Yield values with equal names, among any number of values; `chunks` returns all in their order, each time."""
    equal = _equal_hashes(chunks)
    while hashes := set(islice(equal, COMPARED_HASHES)):
        seen: dict[str, T] = {}
        for name, value in _with_hashes(chunks, hashes):
            first = seen.setdefault(name, value)
            if first is not value:
                yield first, value, name


def _hashes(names: Sequence[str]) -> NDArray[np.uint64]:
    """Return hashes that differ between processes, so that nobody can prepare names with equal ones."""
    return np.fromiter(map(hash, names), np.int64, len(names)).view(np.uint64)


def _equal_hashes(chunks: Callable[[], Iterator[Chunk[T]]]) -> Iterator[int]:
    """Yield each hash of two or more names."""
    rows = SpilledTable(pa.schema([("hash", pa.uint64())]), "the list of names")
    for names, _ in chunks():
        rows.add(pa.RecordBatch.from_arrays([from_numpy(_hashes(names))], names=["hash"]))
    # Equal numbers are always in the same part.
    for part in in_order_of_words(rows, lambda _, batch: to_numpy(batch.column(0))):
        yield from repeated(to_numpy(part.column(0))).tolist()


def _with_hashes(chunks: Callable[[], Iterator[Chunk[T]]], hashes: set[int]) -> Iterator[tuple[str, T]]:
    wanted = np.array(sorted(hashes), np.uint64)
    for names, value_at in chunks():
        for position in np.flatnonzero(np.isin(_hashes(names), wanted)).tolist():
            yield names[position], value_at(position)


def _place(ref: SampleRef) -> str:
    if is_file_of_image(ref.source):
        return shown(ref.source)
    return f"{shown(path_of(ref.key))} in {shown(ref.source)} at byte {ref.offset:,}"
