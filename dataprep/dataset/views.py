"""Views: selections of a dataset's samples, with a reason for each one left out; the dataset itself stays unchanged.

    views/<name>/view.json                  what was asked, and the counts; written last
    views/<name>/<split>-<digest>.parquet   a row for each stored sample, a row group for each shard: why it is left
                                            out, or null
    views/<name>/view-<digest>.json         earlier contents of view.json, for runs that go on from them; they and their
                                            files stay

`DATA@name` is the address of a view. Anyone may have written one: its names and counts are compared with the dataset's
manifest, and the rows with the counts, before one of them is used.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import cast

from dataprep.arrays import NDArray, np, pa
from dataprep.dataset.columns import nulls
from dataprep.dataset.documents import Count, decode
from dataprep.dataset.index import MAX_BUFFERED_BYTES, ParquetTable
from dataprep.dataset.records import FileEntry, Manifest, ShardEntry, SplitManifest, ViewedSplit
from dataprep.errors import FormatError, UsageError
from dataprep.messages import quoted, there_are
from dataprep.storage import Storage, open_storage
from dataprep.storage.base import read_bounded

VIEWS = "views"
VIEW_JSON = "view.json"
VIEW_VERSION = 1
MAX_VIEW_BYTES = 2**28
LEFT_OUT = "left_out"
"""The only column of a view's files."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_ADDRESS = re.compile(rf"(?P<url>.*[^/@])/?@(?P<name>{_NAME.pattern})")
_ADVICE = "make the view again with `dataprep select`"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Conditions of a view, which keeps the samples that pass all of them; they apply in this order."""

    of: str = ""
    """View from which to choose; empty for the complete dataset."""
    where: tuple[str, ...] = ()
    """SQL conditions over a sample's columns."""
    left_out: tuple[str, ...] = ()
    """Files of keys, URLs or digests of samples to leave out."""
    dedup: str = ""
    """`exact`: keep only the first by key of samples with the same bytes; `phash<=4`: the same for samples whose hashes
    in the column `phash` differ in at most 4 bits."""
    sample: float = 1.0
    """Share of the samples, drawn by their keys."""
    seed: Count = 0


@dataclass(frozen=True, slots=True)
class ViewSplit:
    """One split of a view."""

    name: str
    file: FileEntry
    kept: tuple[Count, ...]
    """Kept samples of each shard."""
    class_counts: tuple[Count, ...]
    """Kept samples per label; empty where the dataset has no classes."""
    left_out: dict[str, Count]
    """Samples that are left out, by reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """`view.json`: if it exists, the view is complete."""

    version: int
    name: str
    plan_hash: str
    """Plan hash of the dataset at `revision`."""
    revision: Count
    choice: Choice
    splits: tuple[ViewSplit, ...]


class Kept:
    """The kept samples of a split, read shard by shard; picklable, and safe in many threads."""

    def __init__(self, url: str, split: ViewSplit, stored: tuple[int, ...]) -> None:
        self.url, self.split, self.stored = url, split, stored
        self._lock = threading.Lock()
        self._table: ParquetTable | None = None

    def numbers(self, shard: int) -> NDArray[np.int64]:
        """Return the numbers of a shard's kept samples, ascending, shape (kept,). Raises FormatError if the file is
        damaged, or not the one that the view lists."""
        with self._lock:
            reasons = self._opened().read_group(shard).column(LEFT_OUT)
        mask = np.concatenate([nulls(chunk) for chunk in reasons.chunks]) if len(reasons) else np.empty(0, np.bool_)
        found = np.flatnonzero(mask)
        if len(mask) != self.stored[shard] or len(found) != self.split.kept[shard]:
            raise FormatError(
                f"{self.url}/{self.split.file['file']}: row group {shard} keeps {len(found):,} of {len(mask):,} "
                f"samples, expected {self.split.kept[shard]:,} of {self.stored[shard]:,}; {_ADVICE}"
            )
        return found

    def _opened(self) -> ParquetTable:
        if self._table is None:
            storage, entry = open_storage(self.url), self.split.file
            source = None
            if entry["bytes"] <= MAX_BUFFERED_BYTES:
                data = storage.read(entry["file"], entry["bytes"])
                if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                    raise FormatError(f"{storage.url_of(entry['file'])}: not the file that the view lists; {_ADVICE}")
                source = pa.BufferReader(data)
            table = ParquetTable(
                storage,
                entry["file"],
                view_schema(),
                nullable=frozenset({LEFT_OUT}),
                source=source,
                max_rows=sum(self.stored),
            )
            if tuple(table.group_rows) != self.stored:
                raise FormatError(f"{storage.url_of(entry['file'])}: its rows are not those of the shards; {_ADVICE}")
            self._table = table
        return self._table

    def __reduce__(self) -> tuple[type[Kept], tuple[str, ViewSplit, tuple[int, ...]]]:
        return Kept, (self.url, self.split, self.stored)


@dataclass(frozen=True, slots=True)
class OpenedView:
    """A view that was compared with its dataset."""

    view: View
    sha256: str
    """Digest of `view.json`, which names the digests of all files: the view's identity."""
    url: str
    splits: Mapping[str, Kept]

    def of(self, manifest: Manifest) -> Manifest:
        """Return a manifest as if only the kept samples were stored."""
        return replace(manifest, splits=tuple(map(self._viewed, manifest.splits)))

    def _viewed(self, split: SplitManifest) -> ViewedSplit:
        kept = self.splits[split.name]
        shards = tuple(
            cast(ShardEntry, {**shard, "samples": samples})
            for shard, samples in zip(split.shards, kept.split.kept, strict=True)
        )
        whole = replace(split, samples=sum(kept.split.kept), shards=shards, class_counts=kept.split.class_counts)
        return ViewedSplit(**{item.name: getattr(whole, item.name) for item in fields(SplitManifest)}, kept=kept)


def view_schema() -> pa.Schema:
    """Return the columns of a view's files."""
    return pa.schema([(LEFT_OUT, pa.string())])


def address(url: str) -> tuple[str, str]:
    """Return the dataset's URL and the name of the view in `DATA@name`; the name is empty without a view.

    A folder whose own name has an @ is itself, and the @ of hf:// is the Hub's revision.
    """
    found = _ADDRESS.fullmatch(url)
    if found is None or url.startswith("hf://") or ("://" not in url and Path(url).is_dir()):
        return url, ""
    return found["url"], found["name"]


def check_name(name: str) -> str:
    """Return a view's name. Raises UsageError if it is not a valid one."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"`name`: expected letters, digits, _ and -, 100 at most, got {quoted(name)}")
    return name


def view_file(name: str, file: str) -> str:
    """Return the name of a file of a view, below the dataset's root."""
    return f"{VIEWS}/{name}/{file}"


def split_file(name: str, split: str, sha256: str) -> str:
    """Return the name of a view's file for a split; it changes with the content, so a view is replaced all at once."""
    return view_file(name, f"{split}-{sha256[:12]}.parquet")


def earlier_file(name: str, sha256: str) -> str:
    """Return the name of an earlier content of a view's `view.json`, by its digest."""
    return view_file(name, f"view-{sha256[:12]}.json")


def view_names(storage: Storage) -> list[str]:
    """Return the names of a dataset's views, sorted."""
    parts = (info.name.split("/") for info in storage.list(f"{VIEWS}/"))
    return sorted(part[1] for part in parts if len(part) == len((VIEWS, "name", "file")) and part[2] == VIEW_JSON)


def read_view(storage: Storage, manifest: Manifest, name: str) -> OpenedView:
    """Read a view, and compare it with its dataset. Raises UsageError if there is no such view, or it was made of
    another revision or build, and FormatError if its file is damaged."""
    found = find_view(storage, name)
    if found is None:
        known = view_names(storage)
        advice = there_are(name, known) if known else "; dataprep select makes views"
        raise UsageError(f"{storage.url}: no view {name!r}{advice}")
    view, sha256 = found
    if (view.plan_hash, view.revision) != (manifest.plan_hash, manifest.revision):
        raise UsageError(
            f"{storage.url}@{name}: made of revision {view.revision} (plan {view.plan_hash[:12]}), the dataset has "
            f"revision {manifest.revision} (plan {manifest.plan_hash[:12]}); make it again with `refresh` of dataprep "
            "select"
        )
    splits = {
        split.name: kept_of(storage, view, manifest, split.name, [shard["samples"] for shard in split.shards])
        for split in manifest.splits
    }
    return OpenedView(view, sha256, storage.url, splits)


def kept_of(storage: Storage, view: View, manifest: Manifest, name: str, stored: Sequence[int]) -> Kept:
    """Return the kept samples of a split whose shards store so many samples in the view's revision. Raises FormatError
    if the view describes another split."""
    chosen = next((each for each in view.splits if each.name == name), None)
    if (
        chosen is None
        or chosen.file["file"] != split_file(view.name, name, chosen.file["sha256"])
        or len(chosen.kept) != len(stored)
        or any(kept > samples for kept, samples in zip(chosen.kept, stored, strict=True))
        or len(chosen.class_counts) != len(manifest.classes)
        or sum(chosen.class_counts) > sum(chosen.kept)
    ):
        where = storage.url_of(view_file(view.name, VIEW_JSON))
        raise FormatError(f"{where}: its split {name} differs from the dataset's; {_ADVICE}")
    return Kept(storage.url, chosen, tuple(stored))


def viewed(storage: Storage, manifest: Manifest, name: str) -> Manifest:
    """Return the manifest of a view, or of the dataset itself if the name is empty; see `read_view`."""
    return read_view(storage, manifest, name).of(manifest) if name else manifest


def stored_positions(split: SplitManifest, positions: Iterable[int]) -> dict[int, int]:
    """Return a dict from each sample's position among all stored samples of the split to its given position."""
    if not isinstance(split, ViewedSplit):
        return {position: position for position in positions}
    found, wanted = dict[int, int](), sorted(positions)
    first = stored = 0
    for number, shard in enumerate(split.shards):
        here = [position for position in wanted if first <= position < first + shard["samples"]]
        numbers = split.kept.numbers(number) if here else ()
        found |= {stored + int(numbers[position - first]): position for position in here}
        first, stored = first + shard["samples"], stored + split.kept.stored[number]
    return found


def find_view(storage: Storage, name: str, sha256: str = "") -> tuple[View, str] | None:
    """Return a view and the digest of its file, the present one or one with this digest, which a later one may have
    replaced; None if there is none. Raises FormatError."""
    for file in (view_file(check_name(name), VIEW_JSON), earlier_file(name, sha256))[: 2 if sha256 else 1]:
        data = read_bounded(storage, file, MAX_VIEW_BYTES, advice=_ADVICE)
        digest = "" if data is None else hashlib.sha256(data).hexdigest()
        if data is None or sha256 not in ("", digest):
            continue
        where = storage.url_of(file)
        view = decode(data, View, where=where, advice=_ADVICE)
        if (view.version, view.name) != (VIEW_VERSION, name):
            got = f"view {quoted(view.name)}, version {view.version}"
            raise FormatError(f"{where}: got {got}, expected {name!r}, version 1")
        return view, digest
    return None
