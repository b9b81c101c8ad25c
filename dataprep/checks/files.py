"""The files beside the shards: their digests, and what index, events and metadata say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep.checks.findings import Findings
from dataprep.checks.hashes import position_of
from dataprep.checks.laion import is_laion, names_beside
from dataprep.checksums import digests_of
from dataprep.errors import FormatError
from dataprep.formats import FORMATS
from dataprep.formats.base import DatasetInfo
from dataprep.index import open_events, open_index
from dataprep.laion.finish import tfds_files
from dataprep.laion.plan import options_from
from dataprep.manifest import MANIFEST
from dataprep.records import Manifest, SplitManifest
from dataprep.sources import Dataset
from dataprep.storage import Storage

_UNCOMPARED = ("citation", "description")
"""Fields of dataset_info.json that are prose about the dataset; a later version may put them better."""
MAX_PROSE_BYTES = 1 << 20


def check_file(storage: Storage, entry: Mapping[str, Any], findings: Findings) -> bool:
    """Compare a file with its entry `{file, bytes, sha256}`; True where it is the very file."""
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


def check_index(storage: Storage, split: SplitManifest, findings: Findings) -> bool:
    """The index file against the manifest; True where its rows can be compared with the shards."""
    name = split.index["file"]
    if not check_file(storage, split.index, findings):
        return False
    try:
        rows = open_index(storage, split.name).group_rows
    except FormatError as error:
        findings.add("format", name, str(error))
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
    """The events file against the manifest's counts, and its keys against the split's.

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
                    there = "is not in the split" if kind == "repaired" else "is in the split"
                    findings.add("index", name, f"{key[:200]!r} was {kind} and {there}")
    except FormatError as error:
        findings.add("format", name, str(error))
        return
    expected = {"repaired": split.repaired, "rejected": split.rejected}
    for kind, found in counts.items():
        due = {reason: count for reason, count in expected.get(kind, {}).items() if count}
        if found != due:
            findings.add("count", name, f"{kind[:40]}: {_shown(dict(found))}, the manifest counts {_shown(due)}")


def check_metadata(storage: Storage, manifest: Manifest, dataset: Dataset, findings: Findings) -> None:
    """The format's own metadata files against their digests and against what the manifest says."""
    expected = _expected_metadata(manifest, dataset, findings)
    if expected is None:
        return
    beside = names_beside(manifest) if is_laion(manifest) else set()  # compared with their shards
    entries = [entry for entry in manifest.files if entry["file"] not in beside]
    listed = [entry["file"] for entry in entries]
    if listed != sorted(expected):
        findings.add("manifest", MANIFEST, f"metadata files {_shown(listed)}, expected {_shown(sorted(expected))}")
        return
    for entry in entries:
        name = entry["file"]
        if entry["bytes"] > len(expected[name]) + MAX_PROSE_BYTES:
            got = f"{entry['bytes']:,} bytes, expected about {len(expected[name]):,}"
            findings.add("metadata", name, got)
        elif check_file(storage, entry, findings):
            difference = _difference(name, storage.read(name), expected[name])
            if difference:
                findings.add("metadata", name, f"{difference}: other than the manifest and the format say")


def _expected_metadata(manifest: Manifest, dataset: Dataset, findings: Findings) -> dict[str, bytes] | None:
    shard_format = FORMATS[manifest.format]
    if shard_format is None:
        return {}
    if is_laion(manifest):
        return tfds_files(manifest.format, options_from(manifest.options["laion"]), manifest.splits[0])
    info = DatasetInfo(
        name=manifest.name,
        description=dataset.description,
        citation=dataset.citation,
        licence=manifest.licence,
        classes=manifest.classes,
        shard_samples={split.name: tuple(shard["samples"] for shard in split.shards) for split in manifest.splits},
        split_bytes={split.name: split.num_bytes for split in manifest.splits},
    )
    try:
        return shard_format.metadata_files(info)
    except FormatError as error:
        findings.add("manifest", MANIFEST, str(error))
        return None


def _difference(name: str, found: bytes, expected: bytes) -> str:
    """Which fields of a metadata file differ; empty where none that matters does."""
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


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
