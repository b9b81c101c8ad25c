"""The check of one shard as a task for a pool: idempotent, picklable, and reporting faults as findings, not as
errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from dataprep.builder.images import ImagePolicy, check_image
from dataprep.builder.recipe import load, recipe_of
from dataprep.dataset.adopted import is_adopted, open_named_data
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import built_as
from dataprep.dataset.paths import named
from dataprep.dataset.records import Event, Manifest, SplitManifest
from dataprep.errors import FormatError, StorageError, UsageError
from dataprep.formats.checked import MAX_IMAGE_BYTES
from dataprep.storage import Storage, open_storage
from dataprep.storage.checksums import crc32c_hex, crc32c_of
from dataprep.verification.findings import MAX_LISTED, Findings
from dataprep.verification.shard import CheckedShard, ShardResult, read_rows

ShardCheck = Callable[[CheckedShard, ShardResult], None]
"""Function that compares a shard with its manifest and its index; each recipe names one in `shard_check`."""

_READS_IN_FLIGHT = 32
_REPAIRABLE = ImagePolicy(check="decode", on_bad="repair")
"""How adopted images are decoded, which need not be JPEGs."""


@dataclass(frozen=True, slots=True)
class ShardJob:
    """Everything that a worker needs besides a shard's position among all shards of all splits."""

    url: str
    manifest: Manifest
    indexed: frozenset[str]
    """Splits whose index is the file that the manifest lists, with a row group for each shard."""
    deep: bool

    def locate(self, index: int) -> tuple[SplitManifest, int]:
        """Return the split of a shard, and its position there."""
        number = index
        for split in self.manifest.splits:
            if number < len(split.shards):
                return split, number
            number -= len(split.shards)
        raise UsageError(f"shard {index} past the end")


def check_shard(job: ShardJob, index: int) -> ShardResult:
    """Check one shard; its faults are in the result, whatever its bytes are."""
    split, number = job.locate(index)
    result = ShardResult(index)
    where = split.shards[number]["file"]
    try:
        storage = open_storage(job.url)
        if is_adopted(job.manifest):
            _check_adopted(storage, job.manifest, split, number, result)
            return result
        rows = read_rows(storage, split, number, result.findings) if split.name in job.indexed else None
        check: ShardCheck = load(recipe_of(built_as(job.manifest)).shard_check)
        check(CheckedShard(storage, job.manifest, split, number, rows, job.deep), result)
    except (StorageError, UsageError) as error:  # UsageError: a link that leads out of the dataset
        result.findings.add("unread", where, str(error))
    except FileNotFoundError:
        result.findings.add("missing", where, "it was removed meanwhile; another process is changing the dataset")
    return result


def _check_adopted(
    storage: Storage, manifest: Manifest, split: SplitManifest, number: int, result: ShardResult
) -> None:
    """Decode every image of a shard of adopted data, which has no digest, and compare the checksums of the index."""
    data, where = open_named_data(storage, manifest), split.index["file"]
    result.findings = Findings(MAX_LISTED)  # a folder of images is one shard
    try:
        table = open_index(storage, split, compare=True).read_group(number)
    except (FormatError, FileNotFoundError) as error:
        result.findings.add("format", where, str(error))
        return
    names = [name for name in _Adopted._fields if name in table.column_names]
    rows = [_Adopted(**row) for row in table.select(names).to_pylist()]
    shard_file = split.shards[number]["file"]
    with ThreadPoolExecutor(_READS_IN_FLIGHT if not data.is_local else 1, thread_name_prefix="dataprep-read") as pool:
        for first in range(0, len(rows), _READS_IN_FLIGHT):  # so many images at most are in memory
            some = rows[first : first + _READS_IN_FLIGHT]
            for row, image in zip(some, pool.map(partial(_read, data, shard_file), some), strict=True):
                place = row.file or f"{shard_file} ({named(row.key)})"
                for kind, fault in (image,) if isinstance(image, tuple) else _image_faults(image, row):
                    result.findings.add(kind, place, fault)
                result.samples += 1
                result.num_bytes += row.image_bytes


class _Adopted(NamedTuple):
    """One row of the index of adopted data; the fields are its columns."""

    key: str
    image_offset: int
    image_bytes: int
    image_crc32c: int | None = None
    file: str | None = None
    """File of the image; None if it is in its shard's file."""


def _read(data: Storage, shard_file: str, row: _Adopted) -> bytes | tuple[str, str]:
    """Return the bytes of an image, or the kind and the text of what is wrong with its file."""
    file = row.file or shard_file
    if row.image_bytes > MAX_IMAGE_BYTES:
        return "index", f"{row.image_bytes:,} bytes, expected at most {MAX_IMAGE_BYTES:,}"
    try:
        info = data.stat(file)
        if info is not None and row.file and info.num_bytes != row.image_bytes:
            return "size", f"{info.num_bytes:,} bytes, the index has {row.image_bytes:,}"
        return data.read_range(file, row.image_offset, row.image_bytes)
    except FileNotFoundError:
        return "missing", "no such file"
    except (FormatError, StorageError, UsageError) as error:
        return "unread", str(error)


def _image_faults(image: bytes, row: _Adopted) -> Iterator[tuple[str, str]]:
    due = row.image_crc32c
    if due is not None and crc32c_of(image) != due:
        yield "digest", f"crc32c {crc32c_hex(crc32c_of(image))}, the index has {crc32c_hex(due)}"
    checked = check_image("", image, _REPAIRABLE)
    if isinstance(checked, Event):
        yield "image", f"{checked.reason}: {checked.detail}"
