"""Checks the files besides the shards: their digests, and the content of index, events and metadata."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep.builder.recipe import recipe_of
from dataprep.dataset.hashes import position_of
from dataprep.dataset.index import ANNOTATIONS, index_files, open_events, open_index
from dataprep.dataset.manifest import MANIFEST, built_as
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.errors import FormatError
from dataprep.messages import quoted
from dataprep.storage import Storage
from dataprep.storage.checksums import digests_of
from dataprep.verification.findings import Findings

_UNCOMPARED = ("citation", "description")
"""Fields of dataset_info.json with prose, whose wording may differ between versions of dataprep."""
MAX_PROSE_BYTES = 1 << 20


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
        keys: Sorted hashes of the split's keys in lower case; None where not all of them are known.
    """
    name = split.events["file"]
    if not check_file(storage, split.events, findings):
        return
    counts: dict[str, Counter[str]] = {"repaired": Counter(), "rejected": Counter()}
    try:
        for batch in open_events(storage, split.name).batches(["key", "kind", "reason"]):
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


def _difference(name: str, found: bytes, expected: bytes) -> str:
    """Return which fields of a metadata file differ; an empty text if none of importance does."""
    if found == expected:
        return ""
    if not name.endswith(".json"):
        return "its content"
    try:
        document = json.loads(found)
    except (ValueError, RecursionError):
        return "its syntax, which is no JSON"
    if not isinstance(document, dict):
        return "its content"
    due = json.loads(expected)
    fields = sorted(name for name in document.keys() | due.keys() if document.get(name) != due.get(name))
    return ", ".join(name[:40] for name in fields if name not in _UNCOMPARED)
