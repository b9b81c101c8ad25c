"""Checks all files except the shards: digests, the content of index, events, metadata and the annotations of an image
folder, and a listing: no additional shard, no foreign file, every link of a repeat.

In packed formats the annotations are in the records, which shard.py compares with the index.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep.builder.finished import image_root, links_repeats, listed_names
from dataprep.builder.merge import READ_IN_ROOT
from dataprep.builder.recipe import recipe_of
from dataprep.builder.shard import annotation_files
from dataprep.dataset.features import MAX_ANNOTATION_BYTES
from dataprep.dataset.hashes import position_of
from dataprep.dataset.index import ANNOTATIONS, index_files, open_events, open_index
from dataprep.dataset.manifest import MANIFEST, built_as
from dataprep.dataset.paths import BUILD, CHANGE, MAP
from dataprep.dataset.records import Manifest, SplitManifest, class_name_of
from dataprep.dataset.revisions import REMOVED, steps_back
from dataprep.errors import FormatError, UsageError
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import REPEATED, annotations_of, image_file, image_suffix, metadata_file, repeat_links
from dataprep.messages import quoted
from dataprep.sources.base import Dataset
from dataprep.storage import Storage
from dataprep.storage.checksums import crc32c_of, digests_of
from dataprep.storage.errors import disk_errors
from dataprep.verification.findings import Findings

_UNCOMPARED = ("citation", "description")
"""Prose fields of dataset_info.json, whose wording may differ between versions of dataprep."""
MAX_PROSE_BYTES = 1 << 20
KNOWN_FAULT = -1
"""Placeholder for the size of an image that is already known to have a wrong size."""
MAX_LINE_BYTES = MAX_ANNOTATION_BYTES + 4096


def check_file(storage: Storage, entry: Mapping[str, Any], findings: Findings) -> bool:
    """Compare a file with its entry `{file, bytes, sha256}`; return whether it is the listed file."""
    name = entry["file"]
    info = storage.stat(name)
    if info is None:
        findings.add("missing", name, f"no such file, expected {entry['bytes']:,} bytes")
        return False
    if info.num_bytes != entry["bytes"]:
        findings.add("size", name, f"{info.num_bytes:,} bytes, expected {entry['bytes']:,}")
        return False
    with storage.open(name) as stream:
        sha256 = digests_of(stream).sha256
    if sha256 != entry["sha256"]:
        findings.add("digest", name, f"sha256 {sha256[:16]}…, expected {entry['sha256'][:16]}…")
        return False
    return True


def check_index(storage: Storage, split: SplitManifest, findings: Findings, *, annotated: bool = False) -> bool:
    """Compare the index file with the manifest; return whether its rows can be compared with the shards.

    Args:
        annotated: Whether the dataset has features, whose checksums its index must have.
    """
    name = split.index["file"]
    unchanged = [check_file(storage, entry, findings) for entry in index_files(split)]
    if not all(unchanged):
        return False
    try:
        index = open_index(storage, split)
        rows = index.group_rows
    except FormatError as error:
        findings.add("format", name, str(error))
        return False
    if (ANNOTATIONS in index.columns) != annotated:
        expected = f"expected {ANNOTATIONS if annotated else f'no {ANNOTATIONS}'}, as in the manifest's features"
        findings.add("index", name, f"columns {', '.join(index.columns)[:200]}; {expected}")
        return False
    if len(rows) != len(split.shards):
        findings.add("index", name, f"{len(rows):,} row groups, expected one a shard: {len(split.shards):,}")
        return False
    odd = [number for number, shard in enumerate(split.shards) if rows[number] != shard["samples"]]
    for number in odd:
        samples = split.shards[number]["samples"]
        findings.add("index", name, f"row group {number} has {rows[number]:,} rows, its shard {samples:,} samples")
    return not odd


def check_events(storage: Storage, split: SplitManifest, keys: NDArray[np.uint64] | None, findings: Findings) -> None:
    """Compare the events file with the manifest's counts, and its keys with the split's.

    Args:
        keys: Sorted hashes of the split's keys in lower case; None if not all of them are known.
    """
    name = split.events["file"]
    if not check_file(storage, split.events, findings):
        return
    counts: dict[str, Counter[str]] = {"repaired": Counter(), "rejected": Counter()}
    try:
        for batch in open_events(storage, name).batches(["key", "kind", "reason"]):
            for key, kind, reason in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                counts.setdefault(kind, Counter())[reason] += 1
                if keys is not None and (kind == "repaired") != (position_of(keys, key.lower()) is not None):
                    problem = "is not in the split" if kind == "repaired" else "is in the split"
                    findings.add("index", name, f"{key[:200]!r} was {kind} and {problem}")
    except FormatError as error:
        findings.add("format", name, str(error))
        return
    expected = {"repaired": split.repaired, "rejected": split.rejected}
    for kind, found in counts.items():
        due = {reason: count for reason, count in expected.get(kind, {}).items() if count}
        if found != due:
            findings.add(
                "count", name, f"{kind[:40]}: {quoted(dict(found), 200)}, the manifest counts {quoted(due, 200)}"
            )


def check_changes(storage: Storage, manifest: Manifest, findings: Findings) -> None:
    """Read the lists of removed samples."""
    for split in manifest.splits:
        try:
            for _ in steps_back(storage, split, [each for each in manifest.changes if each.split == split.name]):
                pass
        except FormatError as error:
            findings.add("manifest", REMOVED, str(error))


def check_metadata(storage: Storage, manifest: Manifest, findings: Findings) -> None:
    """Compare the format's own metadata files with their digests and with the manifest."""
    recipe = recipe_of(built_as(manifest))
    try:
        expected = recipe.metadata_files(manifest)
    except FormatError as error:
        findings.add("manifest", MANIFEST, str(error))
        return
    sidecars = recipe.sidecar_files(manifest)  # compared with their shards
    entries = [entry for entry in manifest.files if entry["file"] not in sidecars]
    listed = [entry["file"] for entry in entries]
    if listed != sorted(expected):
        findings.add(
            "manifest", MANIFEST, f"metadata files {quoted(listed, 200)}, expected {quoted(sorted(expected), 200)}"
        )
        return
    for entry in entries:
        name = entry["file"]
        if entry["bytes"] > len(expected[name]) + MAX_PROSE_BYTES:
            got = f"{entry['bytes']:,} bytes, expected about {len(expected[name]):,}"
            findings.add("metadata", name, got)
        elif check_file(storage, entry, findings):
            difference = _difference(name, storage.read(name), expected[name])
            if difference:
                findings.add("metadata", name, f"{difference}: not what the manifest and the format require")


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The files of one split of an image folder, as its index names them."""

    hashes: NDArray[np.uint64]
    """Hashes of the names relative to the dataset's root, sorted; shape (files,)."""
    sizes: NDArray[np.int64]
    """Sizes in bytes, in the same order; `KNOWN_FAULT` if the file was found to have a wrong size."""
    folders: frozenset[str]
    """First components of the names below the split."""


def check_listing(
    storage: Storage, manifest: Manifest, dataset: Dataset, files: Mapping[str, FolderFiles], findings: Findings
) -> None:
    """Compare the existing files with the files that the manifest or an image folder's index names.

    Args:
        files: Files of an image folder, by split; a split whose index was not read completely is absent, and not
            compared.
    """
    expected = listed_names(manifest)
    folders = {*dataset.splits, "index", REMOVED, REPEATED}
    single = FORMATS[manifest.format].one_file_per_image
    by_root = {image_root(manifest, split): split for split in manifest.splits if single}
    linked = {split.name for split in manifest.splits if links_repeats(manifest, split)}
    leftovers: Counter[str] = Counter()
    try:
        for info in storage.list():
            top, slash, _ = info.name.partition("/")
            if info.name in expected or top in linked:
                continue
            if top in (BUILD, MAP, CHANGE):
                leftovers[top] += 1
            elif slash and top in by_root:
                _check_image_file(info.name, info.num_bytes, files.get(by_root[top].name), findings)
            elif top in folders if slash else any(fnmatch(top, pattern) for pattern in READ_IN_ROOT):
                findings.add("extra", info.name, f"{info.num_bytes:,} bytes that nothing names; remove it")
    except UsageError as error:  # a link that leads out of the dataset
        findings.add("extra", storage.url, f"not all files could be listed: {error}")
    for folder, count in leftovers.items():
        whose = {BUILD: "a build", MAP: "dataprep map"}.get(folder, "dataprep retry-failed or remove")
        findings.add("leftover", folder, f"files of {whose}: {count:,}; run its command again, or remove the folder")
    if storage.is_local:
        for split in manifest.splits:
            if split.name in files:
                _check_folders(Path(storage.url), manifest, split, files[split.name], findings)


def check_annotations(storage: Storage, manifest: Manifest, indexed: frozenset[str], findings: Findings) -> None:
    """Compare the annotations of every split with the manifest and the index.

    Args:
        indexed: Splits whose index can be compared.
    """
    names = annotation_files(manifest.format, manifest.features, (split.name for split in manifest.splits))
    entries = {entry["file"]: entry for entry in manifest.files}
    for split in manifest.splits:
        name = metadata_file(split.name)
        if name in names:
            check_file(storage, entries[name], findings)
            if split.name in indexed and storage.stat(name) is not None:
                _check_lines(storage, manifest, split, findings)


def _difference(name: str, found: bytes, expected: bytes) -> str:
    """Return the fields of a metadata file that differ; empty if no important one does."""
    if found == expected:
        return ""
    if not name.endswith(".json"):
        return "its content"
    try:
        document = json.loads(found)
    except (ValueError, RecursionError):
        return "its syntax, which is not JSON"
    if not isinstance(document, dict):
        return "its content"
    due = json.loads(expected)
    fields = sorted(name for name in document.keys() | due.keys() if document.get(name) != due.get(name))
    return ", ".join(name[:40] for name in fields if name not in _UNCOMPARED)


def _check_image_file(name: str, num_bytes: int, files: FolderFiles | None, findings: Findings) -> None:
    if files is None:
        return
    at = position_of(files.hashes, name)
    if at is None:
        findings.add("extra", name, f"{num_bytes:,} bytes that the index does not name; remove it")
    elif files.sizes[at] not in (num_bytes, KNOWN_FAULT):
        findings.add("size", name, f"{num_bytes:,} bytes, the index has {files.sizes[at]:,}")


def _check_folders(
    root: Path, manifest: Manifest, split: SplitManifest, files: FolderFiles, findings: Findings
) -> None:
    """Find folders without images, which ImageFolder takes for classes, and compare the links of a repeated split."""
    name = image_root(manifest, split)
    for folder in sorted(_entries(root / name) - files.folders):
        if (root / name / folder).is_dir():
            findings.add("extra", f"{name}/{folder}", "a folder in which the index has no image; remove it")
    if name == split.name:
        return
    links = dict(repeat_links(sorted(files.folders), split.repeats["count"], split=split.name))
    for link, target in links.items():
        try:
            found = str((root / link).readlink())
        except OSError:
            findings.add("link", link, f"not a link, expected one to {target}")
            continue
        if found != target:
            findings.add("link", link, f"leads to {found[:200]!r}, expected {target}")
    for entry in sorted(_entries(root / split.name)):
        if f"{split.name}/{entry}" not in links:
            findings.add("extra", f"{split.name}/{entry}", "expected only the links of the repeats; remove it")


def _entries(folder: Path) -> set[str]:
    with disk_errors(folder):
        try:
            return {path.name for path in folder.iterdir()}
        except (FileNotFoundError, NotADirectoryError):
            return set()


def _check_lines(storage: Storage, manifest: Manifest, split: SplitManifest, findings: Findings) -> None:
    name, count = metadata_file(split.name), 0
    with storage.open(name) as stream:
        for count, (file, crc32c) in enumerate(_expected(storage, manifest, split), 1):
            line = stream.readline(MAX_LINE_BYTES)
            where = f"{name} line {count}"
            try:
                found, annotations = annotations_of(line, manifest.features)
            except FormatError as error:
                findings.add("format", where, str(error))
                if not line.endswith(b"\n"):
                    return
                continue
            if found != file:
                findings.add("record", where, f"annotations of {found[:200]!r}, the index has {file!r} here")
            elif crc32c_of(annotations) != crc32c:
                findings.add("record", where, f"{file}: its annotations differ from the checksum in the index")
        if stream.read(1):
            findings.add("count", name, f"more lines than the {count:,} samples of the index")


def _expected(storage: Storage, manifest: Manifest, split: SplitManifest) -> Iterator[tuple[str, Any]]:
    """Yield the file of each sample, relative to the folder of its split, and the checksum of its annotations."""
    root, suffix = image_root(manifest, split), image_suffix(built_as(manifest))
    for batch in open_index(storage, split).batches(["key", "label", ANNOTATIONS]):
        for key, label, crc32c in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            file = image_file(root, key, class_name_of(label, manifest.classes) or "", suffix)
            yield file.removeprefix(f"{root}/"), crc32c
