"""Reads and writes `dataset.json`, the manifest, and compares files with it.

The manifest is written once, when all data are there. Its bytes hold no time, no absolute path and nothing about who
built it. A comparison of sizes finds a truncated shard before it is read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, cast

import msgspec

from dataprep.dataset import records
from dataprep.dataset.documents import JsonObject, convert, decode, json_text
from dataprep.dataset.features import feature_faults, features_document
from dataprep.dataset.index import index_faults, index_files, is_changing
from dataprep.dataset.paths import PLAN_JSON
from dataprep.dataset.revisions import change_faults
from dataprep.errors import FormatError, UsageError, VerificationError
from dataprep.messages import counted, not_one_of, quoted, shell_words
from dataprep.storage.base import Storage, read_bounded

if TYPE_CHECKING:
    from dataprep.storage.local import LocalStorage

MANIFEST = "dataset.json"
SCHEMA_VERSION = "1.1"
PARTS_VERSION = "2.0"
"""Schema version of a manifest with an index in parts; all other fields are as in version 1."""
VERSIONS = (SCHEMA_VERSION, PARTS_VERSION)
"""Versions that are written: the newest of each major version that is read."""
MAX_MANIFEST_BYTES = 256 * 2**20
"""Maximum size of a manifest; the 41,000 shards of LAION-400M take 23 MB."""
MAX_OPTIONS_BYTES = 1 << 20
"""Maximum size of a manifest's options in bytes, which have no types, so that each empty list takes 30 times as much
memory; names of classes and files are in other fields."""
MAX_SHARDS = 350_000
"""Maximum number of shards of a build, which fit into a manifest even with sidecars and the longest names."""
FORMAT_NAMES = ("imagefolder", "tfrecord", "webdataset")
"""Names of the formats that a manifest may name; dataprep/formats implements them, and a test compares the two."""
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CRC32C = re.compile(r"[A-Za-z0-9+/]{6}==")
MANIFEST_ADVICE = "restore the manifest or build again"
NAMED_FILES = 3
"""Number of damaged files that an error names."""


def manifest_bytes(manifest: records.Manifest) -> bytes:
    """Return a manifest as canonical JSON: the same manifest gives the same bytes."""
    return json.dumps(manifest_document(manifest), indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def manifest_document(manifest: records.Manifest) -> JsonObject:
    """Return a manifest as JSON values; `features`, `converted_from` and `changes` only where they are not empty."""
    document = asdict(manifest)
    document["features"] = features_document(manifest.features)
    if not manifest.features:
        del document["features"]
    for name in ("converted_from", "changes"):
        if not document[name]:
            del document[name]
    return document


def built_as(manifest: records.Manifest) -> str:
    """Return the name of the dataset class that has built a dataset: its own name, unless the data are a user's."""
    options = manifest.options
    return options["dataset"] if "own" in options and isinstance(options.get("dataset"), str) else manifest.name


def no_dataset(storage: Storage) -> UsageError:
    """Return the error for a place without a manifest: it has an unfinished build, or no dataset at all."""
    if storage.stat(PLAN_JSON) is not None:
        hint = "a build there is not finished: run it again to finish it"
    else:
        hint = (
            "check the URL, make shards of pictures with dataprep build folder, or index data of other tools in place "
            "with dataprep adopt"
        )
    return UsageError(f"{storage.url}: no dataset there (no {MANIFEST}); {hint}")


def read_manifest(storage: Storage, *, sidecars: bool = True) -> records.Manifest | None:
    """Read the manifest of a finished dataset; None when there is none. Its fields have the types that readers rely on.
    Raises FormatError if the file is not a manifest, or has a version that this code does not know.

    Args:
        sidecars: Whether to keep the entries of sidecars. They can take more memory than the shards' own entries, and a
            loader needs them only if images are separate files.
    """
    data = read_bounded(storage, MANIFEST, MAX_MANIFEST_BYTES, advice=MANIFEST_ADVICE)
    return None if data is None else manifest_in(data, storage.url_of(MANIFEST), sidecars=sidecars)


def manifest_in(data: bytes, where: str, *, sidecars: bool = True) -> records.Manifest:
    """Return the manifest in the bytes of a file; `where` is its URL. See `read_manifest`."""
    outline = decode(data, _Outline, where=f"{where}: not a dataset manifest", advice=MANIFEST_ADVICE)
    version = outline.schema_version
    if version.partition(".")[0] not in [known.partition(".")[0] for known in VERSIONS]:
        known = " and ".join(VERSIONS)
        raise FormatError(f"{where}: schema version {version}, this dataprep reads {known}; update dataprep")
    if memoryview(outline.options).nbytes > MAX_OPTIONS_BYTES:
        got = f"$.options: {memoryview(outline.options).nbytes:,} bytes, expected at most {MAX_OPTIONS_BYTES:,}"
        raise FormatError(f"{where}: {got}; {MANIFEST_ADVICE}")
    if sidecars:
        manifest = decode(data, records.Manifest, where=where, advice=MANIFEST_ADVICE)
    else:
        head = decode(data, records.DatasetHead, where=where, advice=MANIFEST_ADVICE)
        manifest = records.Manifest(**{item.name: getattr(head, item.name) for item in fields(head)})
    if isinstance(adopted := manifest.options.get("adopted"), dict):
        convert(adopted, records.AdoptedOptions, where=where, at="$.options.adopted", advice=MANIFEST_ADVICE)
    for fault in _value_faults(manifest):
        raise FormatError(f"{where}: {fault}; {MANIFEST_ADVICE}")
    return manifest


class _Outline(msgspec.Struct):
    """The version, a field of all manifests, and the bytes of `options`, the only field whose values have no types."""

    schema_version: str
    options: msgspec.Raw = msgspec.Raw()


def _value_faults(manifest: records.Manifest) -> Iterator[str]:
    """Yield faults in a manifest's values, whose types are right, by rules for all datasets and later versions."""
    if manifest.format not in FORMAT_NAMES:
        yield not_one_of("$.format", manifest.format, FORMAT_NAMES)
    yield from (f"$.features: {fault}" for fault in feature_faults(manifest.features))
    names = [split.name for split in manifest.splits]
    if not names or len(set(names)) < len(names):
        yield f"$.splits: expected each name once and at least one, got {json_text(names)}"
    yield from (f"$.changes: {fault}" for fault in change_faults(manifest))
    for number, split in enumerate(manifest.splits):
        at = f"$.splits[{number}]"
        if not _SPLIT_NAME.fullmatch(split.name):
            yield f"{at}.name: expected letters, digits, _ and -, got {json_text(split.name)}"
        yield from (f"{at}.{fault}" for fault in index_faults(split))
        if split.repeats["stored"] > split.repeats["count"]:
            yield f"{at}.repeats: expected at most as many stored as count, got {json_text(split.repeats)}"


def digest_faults(manifest: records.Manifest) -> Iterator[str]:
    """Yield malformed digests in the manifest of a build; adopted data may have none."""
    if not _SHA256.fullmatch(manifest.plan_hash):
        yield f"plan_hash is {quoted(manifest.plan_hash)}, expected 64 hexadecimal digits"
    for entry in manifest.files:
        yield from _sha256_faults("files: ", entry["sha256"])
    for split in manifest.splits:
        for number, shard in enumerate(split.shards):
            where = f"split {split.name}: shard {number}: "
            yield from _sha256_faults(where, shard["sha256"])
            if not _CRC32C.fullmatch(shard["crc32c"]):
                yield f"{where}crc32c is {quoted(shard['crc32c'])}, expected 8 characters of base64"
        for index in index_files(split):
            yield from _sha256_faults(f"split {split.name}: index: ", index["sha256"])
        yield from _sha256_faults(f"split {split.name}: events: ", split.events["sha256"])


def source_faults(manifest: records.Manifest, fields: Sequence[str], optional: Sequence[str] = ()) -> Iterator[str]:
    """Yield faults in a manifest's sources: entries with other fields than `fields`, and malformed digests."""
    for entry in manifest.sources:
        if set(entry) - set(optional) != set(fields) - set(optional):
            yield f"sources: fields {', '.join(sorted(entry))}; expected {', '.join(fields)}"
        for name in ("sha256", "enumeration_sha256"):
            if name in entry:
                yield from _sha256_faults("sources: ", str(entry.get(name)), name)


def _sha256_faults(where: str, value: str, name: str = "sha256") -> Iterator[str]:
    if not _SHA256.fullmatch(value):
        yield f"{where}{name} is {quoted(value)}, expected 64 hexadecimal digits"


def schema_version(splits: Iterable[records.SplitManifest]) -> str:
    return PARTS_VERSION if any("parts" in split.index for split in splits) else SCHEMA_VERSION


def bytes_entry(name: str, data: bytes) -> records.FileEntry:
    """Return the manifest's entry for a file about to be written."""
    return {"file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def source_entry(
    split: str, source: records.PlannedSource, enumeration_sha256: str | None = None
) -> records.SourceEntry:
    """Return the manifest's entry for an original file; a table has no hash of an enumeration."""
    entry = cast(records.SourceEntry, {"split": split, **source})
    return entry if enumeration_sha256 is None else {**entry, "enumeration_sha256": enumeration_sha256}


def shard_entry(receipt: records.ShardReceipt) -> records.ShardEntry:
    return {
        "file": receipt.file,
        "samples": receipt.samples,
        "bytes": receipt.num_bytes,
        "sha256": receipt.sha256,
        "crc32c": receipt.crc32c,
    }


def refuse_other_sizes(storage: LocalStorage, split: records.SplitManifest) -> None:
    """Raise VerificationError, naming shards, if shards of a split are missing or differ in size from the manifest.

    Folders are listed, and no shard is opened. Nothing is compared while a change of the dataset is running or
    interrupted, because shards are then newer than the manifest.
    """
    due = {shard["file"]: shard["bytes"] for shard in split.shards}
    damaged = list(size_faults(due.items(), storage.sizes(due)))
    if not damaged or is_changing(storage):
        return
    raise VerificationError(
        f"{storage.url}: {counted(len(damaged), 'shard')} of {split.name} not as the manifest lists: "
        f'{first_faults(damaged)}; run "dataprep verify {shell_words(storage.url)}" to see what else is, and '
        "restore them or build again"
    )


def size_faults(due: Iterable[tuple[str, int]], found: Mapping[str, int]) -> Iterator[str]:
    """Yield a clause for each file that is missing or has another size, in bytes: `x.tar has 3 bytes, expected 9`."""
    for name, num_bytes in due:
        size = found.get(name)
        if size is None:
            yield f"{name} is missing"
        elif size != num_bytes:
            yield f"{name} has {size:,} bytes, expected {num_bytes:,}"


def first_faults(faults: list[str]) -> str:
    """Join the first clauses, and say how many more there are."""
    more = f" and {len(faults) - NAMED_FILES:,} more" if len(faults) > NAMED_FILES else ""
    return f"{'; '.join(faults[:NAMED_FILES])}{more}"
