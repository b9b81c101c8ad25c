"""Whether `dataset.json` is one that a build would write: types, names, sums, and the published facts.

Pure functions of the manifest. Once `shape_faults` and `layout_faults` find nothing, every file name in it is one that
the format itself derives, so what is opened later never depends on a hostile string.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dataprep.checks.laion import beside_faults, file_of, is_laion, laion_faults
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import REPEATED
from dataprep.randomness import ORDER_VERSION
from dataprep.records import Manifest, SplitManifest
from dataprep.sources import BUILT, Dataset, FakeImageNet, SplitFacts
from dataprep.sources.base import MAX_SAMPLES

_SHA256 = re.compile(r"[0-9a-f]{64}")
_HASHES = frozenset({"sha256", "enumeration_sha256", "plan_hash"})
_SPLIT = re.compile(r"[A-Za-z0-9_-]{1,100}")
_CRC32C = re.compile(r"[A-Za-z0-9+/]{6}==")

_MANIFEST_TYPES = {
    "schema_version": str, "revision": int, "order_version": int, "options": dict, "codecs": dict, "licence": str,
    "origin": str, "shuffled": bool, "partial": bool, "plan_hash": str,
}  # fmt: skip
_SPLIT_TYPES = {
    "samples": int, "num_bytes": int, "repeats": dict, "repaired": dict, "rejected": dict, "index": dict,
    "events": dict, "statuses": dict, "reasons": dict,
}  # fmt: skip
_SHARD_TYPES = {"file": str, "samples": int, "bytes": int, "sha256": str, "crc32c": str}
MAX_COUNT = 1 << 53
"""Of samples or bytes: what JSON carries exactly, and sums of which fit in 64 bits."""
_FILE_TYPES = {"file": str, "bytes": int, "sha256": str}
_SOURCE_TYPES = {"split": str, "name": str, "bytes": int, "enumeration_sha256": str}
_TABLE_TYPES = {"split": str, "name": str, "bytes": int, "rows": int, "sha256": str}


def dataset_of(manifest: Manifest) -> Dataset:
    """The dataset that it says it is, a generated one of its size. Expects no shape faults."""
    dataset, images = BUILT[manifest.name], manifest.options.get("fake_images")
    if isinstance(dataset, FakeImageNet) and isinstance(images, int) and 1 <= images <= MAX_SAMPLES:
        return dataset.with_images(images)
    return dataset


def links_repeats(manifest: Manifest, split: SplitManifest) -> bool:
    """Whether a split's files lie under `images/` and links show them several times."""
    return FORMATS[manifest.format] is None and split.repeats["stored"] > 1


def image_root(manifest: Manifest, split: SplitManifest) -> str:
    """The folder below which an image folder keeps the files of a split."""
    return REPEATED if links_repeats(manifest, split) else split.name


def written_passes(manifest: Manifest, split: SplitManifest) -> int:
    """Passes of which the samples are in the index: an image folder repeats by links."""
    return 1 if FORMATS[manifest.format] is None else int(split.repeats["stored"])


def adopted_faults(manifest: Manifest) -> Iterator[str]:
    """As `shape_faults`, of data that other tools wrote: names are theirs, and digests are not always known."""
    if not isinstance(manifest.name, str):
        yield f"name {_shown(manifest.name)}, expected text"
    yield from _common_faults(manifest)
    for split in manifest.splits:
        if not isinstance(split.name, str) or not _SPLIT.fullmatch(split.name):
            yield f"split {_shown(split.name)}, expected letters, digits, _ and -"
            continue
        yield from _split_shape_faults(split, hashed=False)
        for what, found in (("index", split.index), ("events", split.events)):
            due = f"index/{split.name}.parquet" if what == "index" else f"index/{split.name}-events.parquet"
            if isinstance(found, dict) and found.get("file") != due:
                yield f"split {split.name}: {what} is {_shown(found.get('file'))}, expected {due}"


def shape_faults(manifest: Manifest) -> Iterator[str]:
    """What keeps it from being looked at more closely: wrong types, unknown names."""
    dataset = BUILT.get(manifest.name) if isinstance(manifest.name, str) else None
    if dataset is None:
        yield f"name {_shown(manifest.name)}, expected one of {', '.join(BUILT)}"
    yield from _common_faults(manifest)
    for split in manifest.splits:
        if dataset is not None and (not isinstance(split.name, str) or split.name not in dataset.splits):
            yield f"split {_shown(split.name)}, expected one of {', '.join(dataset.splits)}"
        else:
            yield from _split_shape_faults(split, hashed=True)
    if is_laion(manifest):
        yield from laion_faults(manifest)


def _common_faults(manifest: Manifest) -> Iterator[str]:
    """Wrong types outside the splits, and an unknown format."""
    if not isinstance(manifest.format, str) or manifest.format not in FORMATS:
        yield f"format {_shown(manifest.format)}, expected one of {', '.join(FORMATS)}"
    fields = {name: getattr(manifest, name) for name in _MANIFEST_TYPES}
    yield from _type_faults("", fields, _MANIFEST_TYPES)
    if not all(isinstance(name, str) for name in manifest.classes):
        yield "classes hold something else than names"
    sources = _TABLE_TYPES if is_laion(manifest) else _SOURCE_TYPES
    for field, types in (("files", _FILE_TYPES), ("sources", sources)):
        for entry in getattr(manifest, field):
            yield from _type_faults(f"{field}: ", entry, types)


def _split_shape_faults(split: SplitManifest, *, hashed: bool) -> Iterator[str]:
    where = f"split {split.name}: "
    yield from _type_faults(where, {name: getattr(split, name) for name in _SPLIT_TYPES}, _SPLIT_TYPES)
    if not all(_is(count, int) for count in split.class_counts):
        yield f"{where}class_counts hold something else than counts"
    for number, shard in enumerate(split.shards):
        yield from _type_faults(f"{where}shard {number}: ", shard, _SHARD_TYPES, hashed=hashed)
    for name in ("index", "events"):
        yield from _type_faults(f"{where}{name}: ", getattr(split, name), _FILE_TYPES)
    for name in ("repeats", "repaired", "rejected", "statuses", "reasons"):
        counts = getattr(split, name)
        if not isinstance(counts, dict) or not all(_is(count, int) for count in counts.values()):
            yield f"{where}{name} {_shown(counts)}, expected counts"
        elif name == "repeats" and set(counts) != {"count", "stored"}:
            yield f"{where}repeats {_shown(counts)}, expected count and stored"


def _type_faults(where: str, found: Any, types: Mapping[str, type], *, hashed: bool = True) -> Iterator[str]:
    if not isinstance(found, dict):
        yield f"{where}{_shown(found)}, expected {', '.join(types)}"
        return
    if set(found) != set(types):
        yield f"{where}fields {', '.join(map(_shown, sorted(found, key=str)))}; expected {', '.join(types)}"
    for name, kind in types.items():
        value = found.get(name)
        if name in found and not _is(value, kind):
            yield f"{where}{name} is {_shown(value)}, expected {kind.__name__}{' of 0 or more' if kind is int else ''}"
        elif hashed and name in _HASHES and not _SHA256.fullmatch(str(value)):
            yield f"{where}{name} is {_shown(value)}, expected 64 hexadecimal digits"
        elif hashed and name == "crc32c" and not _CRC32C.fullmatch(str(value)):
            yield f"{where}crc32c is {_shown(value)}, expected 8 characters of base64"


def _is(value: Any, kind: type) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT
    return isinstance(value, kind)


def layout_faults(manifest: Manifest) -> Iterator[str]:
    """Splits, repeats and file names other than the format and the dataset derive. Expects no shape faults."""
    splits = [split.name for split in manifest.splits]
    if not splits or max(Counter(splits).values()) > 1:
        yield f"splits {', '.join(splits) or 'none'}, expected each once and at least one"
    for split in manifest.splits:
        count = BUILT[manifest.name].repeats(split.name)
        repeats = {"count": count, "stored": count if manifest.options.get("repeat") == "physical" else 1}
        if split.repeats != repeats:
            yield f"split {split.name}: repeats {_shown(split.repeats)}, expected {_shown(repeats)}"
        names = [(f"shard {number}", shard["file"]) for number, shard in enumerate(split.shards)]
        expected = [shard_file(manifest, split, number) for number in range(len(split.shards))]
        names += [("index", split.index["file"]), ("events", split.events["file"])]
        expected += [f"index/{split.name}.parquet", f"index/{split.name}-events.parquet"]
        for (what, found), due in zip(names, expected, strict=True):
            if found != due:
                yield f"split {split.name}: {what} is {_shown(found)}, expected {due}"
    if is_laion(manifest):
        yield from beside_faults(manifest)


def consistency_faults(manifest: Manifest) -> Iterator[str]:
    """Where it contradicts itself or what builds write. Expects no shape and no layout faults."""
    names = [split.name for split in manifest.splits]
    if manifest.order_version != ORDER_VERSION:
        yield f"order_version {manifest.order_version}, this dataprep reads {ORDER_VERSION}; update dataprep"
    shuffled = not is_laion(manifest)
    if manifest.revision < 1 or manifest.shuffled != shuffled:
        yield f"revision {manifest.revision}, shuffled {manifest.shuffled}; expected 1 or more, {str(shuffled).lower()}"
    if len(set(manifest.classes)) != len(manifest.classes) or list(manifest.classes) != sorted(manifest.classes):
        yield "classes are not sorted, or one is there twice"
    sources = sorted({source["split"] for source in manifest.sources})
    if sources != sorted(set(names)):
        yield f"sources are those of {', '.join(sources) or 'nothing'}, the splits {', '.join(names)}"
    yield from _option_faults(manifest, names)
    if not is_laion(manifest):
        yield from _image_option_faults(manifest)
    for split in manifest.splits:
        for fault in _split_faults(manifest, split):
            yield f"split {split.name}: {fault}"


def _option_faults(manifest: Manifest, split_names: list[str]) -> Iterator[str]:
    pairs = {
        "dataset": (manifest.options.get("dataset"), manifest.name),
        "format": (manifest.options.get("format"), manifest.format),
        "splits": (manifest.options.get("splits"), split_names),
    }
    for name, (option, fact) in pairs.items():
        if option != fact:
            yield f"options.{name} is {_shown(option)}, elsewhere it says {_shown(fact)}"


def _image_option_faults(manifest: Manifest) -> Iterator[str]:
    images = manifest.options.get("images")
    pairs = {
        "allow_partial": (manifest.options.get("allow_partial"), manifest.partial),
        "images.check": (images.get("check") if isinstance(images, dict) else None, manifest.checked),
    }
    for name, (option, fact) in pairs.items():
        if option != fact:
            yield f"options.{name} is {_shown(option)}, elsewhere it says {_shown(fact)}"
    if manifest.options.get("repeat") not in ("virtual", "physical"):
        yield f"options.repeat is {_shown(manifest.options.get('repeat'))}, expected virtual or physical"
    if manifest.checked not in ("decode", "header", "none"):
        yield f"checked {_shown(manifest.checked)}, expected decode, header or none"


def _split_faults(manifest: Manifest, split: SplitManifest) -> Iterator[str]:
    samples, num_bytes = (sum(int(shard[field]) for shard in split.shards) for field in ("samples", "bytes"))
    sums = {
        "samples": (split.samples, samples),
        "num_bytes": (split.num_bytes, num_bytes),
        "classes counted": (len(split.class_counts), len(manifest.classes)),
    }
    if manifest.classes:
        sums["samples of all classes"] = (sum(split.class_counts), samples)
    for name, (got, expected) in sums.items():
        if got != expected:
            yield f"{name} {got:,}, expected {expected:,}"
    if not split.shards:
        yield "no shards, expected one at least"
    if split.statuses or split.reasons:
        rows = sum(source["rows"] for source in manifest.sources) if is_laion(manifest) else 0
        counted = {"statuses": sum(split.statuses.values()), "reasons": sum(split.reasons.values())}
        for name, count in counted.items():
            if count != rows:
                yield f"{name} of {count:,} rows, the sources have {rows:,}"
        if split.statuses.get("success") != samples:
            yield f"success {split.statuses.get('success')}, the shards have {samples:,} samples"


def shard_file(manifest: Manifest, split: SplitManifest, number: int) -> str:
    """The name of a shard as the format derives it."""
    shard_format = FORMATS[manifest.format]
    if shard_format is None:
        return f"{split.name}/#{number:05d}-of-{len(split.shards):05d}"
    if is_laion(manifest):
        return file_of(manifest, number)
    return shard_format.shard_file(manifest.name, split.name, number, len(split.shards))


def published_faults(manifest: Manifest, dataset: Dataset, classes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Split (or the manifest) and what differs from the published facts; nothing is held against a partial dataset.

    Args:
        classes: The published ones.
    """
    if manifest.partial:
        return
    if manifest.classes != classes:
        other = sorted(set(manifest.classes) ^ set(classes))[:3]
        yield "classes", f"{len(manifest.classes):,} classes, published are {len(classes):,}; not in both: {other}"
    for split in manifest.splits:
        yield from (
            (split.name, fault) for fault in _published_counts(manifest, split, dataset.split_facts(split.name))
        )


def _published_counts(manifest: Manifest, split: SplitManifest, facts: SplitFacts) -> Iterator[str]:
    passes, rejected = written_passes(manifest, split), sum(split.rejected.values())
    if facts.samples is not None and split.samples + rejected != facts.samples * passes:
        yield (
            f"{split.samples:,} samples and {rejected:,} rejected; published are {facts.samples:,}"
            + (f", stored {passes} times" if passes > 1 else "")
        )
    if facts.class_samples is None:
        return
    fewest, most = (bound * passes for bound in facts.class_samples)
    for name, count in zip(manifest.classes, split.class_counts, strict=False):
        if not fewest - rejected <= count <= most:
            yield f"class {_shown(name)} has {count:,} samples; published are {fewest:,} to {most:,}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
