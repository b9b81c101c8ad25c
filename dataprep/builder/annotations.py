"""Annotations of an image folder: `<split>/metadata.jsonl`, as Hugging Face's ImageFolder reads it.

Each line describes one sample, in the order of the index: `{"caption":"a cat","file_name":"cats/7.jpg"}`. Packed
formats have the annotations in their records and need no such file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dataprep.builder.image_folder import image_names
from dataprep.builder.open_build import OpenBuild
from dataprep.builder.references import references_of
from dataprep.dataset.features import Features
from dataprep.dataset.index import open_index
from dataprep.dataset.records import FileEntry, SplitManifest
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import metadata_file, metadata_line
from dataprep.storage.checksums import digests_of
from dataprep.storage.errors import disk_errors


def annotation_files(format_name: str, features: Features, splits: Iterable[str]) -> list[str]:
    """Return the names of the annotation files; none if records hold the annotations, or samples have none."""
    if not features or not FORMATS[format_name].one_file_per_image:
        return []
    return sorted(metadata_file(split) for split in splits)


def publish_annotations(build: OpenBuild, splits: Sequence[SplitManifest]) -> list[FileEntry]:
    """Write the annotations of an image folder from the plan and the index, and return the files' entries."""
    plan, storage, entries = build.plan, build.storage, []
    if not annotation_files(plan.options.format, plan.features, plan.options.splits):
        return []
    first_index = 0
    for split in splits:
        name = metadata_file(split.name)
        spool = storage.spool_path(name)
        with disk_errors(spool), spool.open("wb") as stream:
            stream.writelines(_lines(build, split, first_index))
        with disk_errors(spool), spool.open("rb") as stream:
            digests = digests_of(stream)
        storage.publish(spool, name, digests.crc32c)
        entries.append(FileEntry(file=name, bytes=digests.num_bytes, sha256=digests.sha256))
        first_index += len(split.shards)
    return entries


def _lines(build: OpenBuild, split: SplitManifest, first_index: int) -> Iterator[bytes]:
    index = open_index(build.storage, split)
    for number in range(len(split.shards)):
        planned = references_of(build, first_index + number)
        annotations = dict(
            zip(planned.column("key").to_pylist(), planned.column("annotations").to_pylist(), strict=True)
        )
        rows = index.read_group(number, ["key", "label"])
        keys, labels = (rows.column(name).to_pylist() for name in ("key", "label"))
        planned_split, _ = build.plan.locate(first_index + number)
        for key, file in zip(keys, image_names(build.plan, planned_split, keys, labels), strict=True):
            yield metadata_line(file.removeprefix(f"{split.name}/"), annotations[key].encode())
