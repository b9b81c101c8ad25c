"""Compares the existing files and links with those that should exist: no additional shard, no foreign file, every link
of a repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataprep.builder.finished import image_root, links_repeats
from dataprep.builder.published import READ_IN_ROOT
from dataprep.dataset.hashes import position_of
from dataprep.dataset.index import index_files
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.paths import BUILD, RETRY
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.dataset.replicas import REPLICAS
from dataprep.errors import UsageError
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import REPEATED, repeat_links
from dataprep.sources import Dataset
from dataprep.storage import Storage
from dataprep.storage.errors import disk_errors
from dataprep.verification.findings import Findings

KNOWN_FAULT = -1
"""In place of the size of an image that is known to have another one."""


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The files of one split of an image folder, as its index names them."""

    hashes: NDArray[np.uint64]
    """Hashes of the names relative to the dataset's root, sorted; shape (files,)."""
    sizes: NDArray[np.int64]
    """Sizes in bytes, in the same order; `KNOWN_FAULT` where the file was found to have another one."""
    folders: frozenset[str]
    """First components of the names below the split."""


def check_listing(
    storage: Storage, manifest: Manifest, dataset: Dataset, files: Mapping[str, FolderFiles], findings: Findings
) -> None:
    """Compare the existing files with those that the manifest, or an image folder's index, names.

    Args:
        files: Files of an image folder, by split; a split whose index was not read completely is absent, and not
            compared.
    """
    expected = _expected_names(manifest)
    folders = {*dataset.splits, "index", REPEATED}
    single = FORMATS[manifest.format].one_file_per_image
    by_root = {image_root(manifest, split): split for split in manifest.splits if single}
    linked = {split.name for split in manifest.splits if links_repeats(manifest, split)}
    leftovers: Counter[str] = Counter()
    try:
        for info in storage.list():
            top, slash, _ = info.name.partition("/")
            if info.name in expected or top in linked:
                continue
            if top in (BUILD, RETRY):
                leftovers[top] += 1
            elif slash and top in by_root:
                _check_image_file(info.name, info.num_bytes, files.get(by_root[top].name), findings)
            elif top in folders if slash else any(fnmatch(top, pattern) for pattern in READ_IN_ROOT):
                findings.add("extra", info.name, f"{info.num_bytes:,} bytes that nothing names; remove it")
    except UsageError as error:  # a link that leads out of the dataset
        findings.add("extra", storage.url, f"not all files could be listed: {error}")
    for folder, count in leftovers.items():
        whose = "a build" if folder == BUILD else "dataprep retry-failed"
        findings.add("leftover", folder, f"files of {whose}: {count:,}; run its command again, or remove the folder")
    if storage.is_local:
        for split in manifest.splits:
            if split.name in files:
                _check_folders(Path(storage.url), manifest, split, files[split.name], findings)


def _expected_names(manifest: Manifest) -> set[str]:
    names = {MANIFEST, REPLICAS, *(entry["file"] for entry in manifest.files)}
    for split in manifest.splits:
        names |= {split.events["file"], *(entry["file"] for entry in index_files(split))}
        for shard in split.shards:
            names.update(FORMATS[manifest.format].stored_files(shard["file"]))
    return names


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
    """Find folders without images, which torchvision's ImageFolder takes for classes, and compare the links of a
    repeated split."""
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
            findings.add("link", link, f"no link, expected one to {target}")
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
