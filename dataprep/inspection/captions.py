"""Captions of a split's samples, for pictures of it: from their records, or from an image folder's annotations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dataprep.dataset.adopted import is_adopted
from dataprep.dataset.features import annotation_values
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.errors import DataprepError
from dataprep.formats import FORMATS
from dataprep.formats.fields import read_fields
from dataprep.formats.imagefolder import annotations_of, metadata_file
from dataprep.messages import shortened
from dataprep.storage import Storage

NAMES = ("caption", "captions", "txt", "text")
"""Names of features that are captions, the first one that a dataset has is shown."""
SHOWN_CHARACTERS = 300
MAX_FILE_BYTES = 256 * 2**20
"""Maximum size of an image folder's annotations that are read for captions: they are read from the start."""


def caption_field(manifest: Manifest, split: SplitManifest) -> str:
    """Return the name of the field that holds captions; empty where there is none.

    Samples that were fetched by a table of URLs, or written by other tools, have fields that the manifest does not
    list: a caption is looked for in each of them.
    """
    found = next((name for name in NAMES if name in manifest.features and manifest.features[name].kind == "text"), "")
    if found or FORMATS[manifest.format].one_file_per_image:
        return found
    return NAMES[0] if split.statuses or is_adopted(manifest) else ""


def caption_of_record(manifest: Manifest, field: str, record: bytes) -> str:
    """Return the caption in a sample's record; empty if it has none."""
    try:
        return _text(read_fields(manifest.format, record, (field,), manifest.features)[field])
    except DataprepError:
        return ""


def captions_of_folder(
    storage: Storage, manifest: Manifest, split: SplitManifest, positions: Collection[int]
) -> Mapping[int, str]:
    """Return the captions of an image folder's samples by their positions; none if its annotations cannot be read."""
    field, name = caption_field(manifest, split), metadata_file(split.name)
    num_bytes = next((entry["bytes"] for entry in manifest.files if entry["file"] == name), 0)
    if not (field and positions and 0 < num_bytes <= MAX_FILE_BYTES):
        return {}
    found, last = {}, max(positions)
    try:
        with storage.open(name) as lines:
            for position in range(last + 1):
                line = lines.readline(num_bytes)
                if position in positions:
                    _, annotations = annotations_of(line, manifest.features)
                    found[position] = _text(annotation_values(manifest.features, annotations)[field])
    except (DataprepError, FileNotFoundError):
        return {}
    return found


def _text(value: Any) -> str:
    """Return a text, or the first one of a list, shortened; empty for anything else."""
    first = value[0] if isinstance(value, list) and value else value
    return shortened(first.strip(), SHOWN_CHARACTERS) if isinstance(first, str) else ""
