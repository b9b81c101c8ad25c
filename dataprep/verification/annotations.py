"""Checks the annotations of an image folder: each line against its row of the index, and the file that it names against
the image's.

In packed formats the annotations are in the records, which `verification/shard.py` compares with the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dataprep.builder.annotations import annotation_files
from dataprep.builder.finished import image_root
from dataprep.dataset.features import MAX_ANNOTATION_BYTES
from dataprep.dataset.index import ANNOTATIONS, open_index
from dataprep.dataset.manifest import built_as
from dataprep.dataset.records import Manifest, SplitManifest, class_name_of
from dataprep.errors import FormatError
from dataprep.formats.imagefolder import annotations_of, image_file, image_suffix, metadata_file
from dataprep.storage import Storage
from dataprep.storage.checksums import crc32c_of
from dataprep.verification.files import check_file
from dataprep.verification.findings import Findings

MAX_LINE_BYTES = MAX_ANNOTATION_BYTES + 4096


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
    """Yield the file of each sample relative to the folder of its split, and the checksum of its annotations."""
    root, suffix = image_root(manifest, split), image_suffix(built_as(manifest))
    for batch in open_index(storage, split).batches(["key", "label", ANNOTATIONS]):
        for key, label, crc32c in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            file = image_file(root, key, class_name_of(label, manifest.classes) or "", suffix)
            yield file.removeprefix(f"{root}/"), crc32c
