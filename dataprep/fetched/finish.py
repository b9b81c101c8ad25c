"""The end of a build from tables of URLs: its receipts become index, TFDS files and manifest.

`dataset_info.json` and `features.json` for TFRecord shards are made of counts, without a pass over the data. The
features are those of CLIPA's reader: `jpg`, `txt`, and one for each column. Shards are named by their number only, so
that shards can be added to a finished dataset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from dataprep.builder.finished import dataset_of, planned_metadata
from dataprep.builder.merge import Published, build_manifest, merge_split
from dataprep.builder.output import OpenBuild, is_over_remains
from dataprep.dataset.index import PublishingRows
from dataprep.dataset.manifest import bytes_entry, source_entry
from dataprep.dataset.records import FileEntry, Manifest, ShardReceipt, SplitManifest
from dataprep.errors import BuildError, ConflictError, StorageError
from dataprep.fetched.commit import Places, are_lost, entries_of, fetched, files_of, placing
from dataprep.fetched.plan import LaionOptions, laion_of
from dataprep.fetched.shard import ShardSchema, built_names
from dataprep.formats.base import DatasetInfo
from dataprep.formats.img2dataset import SUCCESS
from dataprep.formats.tfds import Feature, dataset_info, features_dict, image, json_bytes, scalar, text
from dataprep.formats.tfrecord import tfds_name
from dataprep.sources.base import UNSTATED, Dataset
from dataprep.sources.laion import LAION, SPLIT, UNNAMED
from dataprep.storage import Storage
from dataprep.storage.checksums import crc32c_number

if TYPE_CHECKING:
    import pyarrow as pa


TOP_REASONS = 5
_REFUSED = "refused address"
FILEPATH_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"


def finish_tables(build: OpenBuild, publishing: PublishingRows) -> tuple[Manifest, Callable[[], None]]:
    """Put waiting files in place, and write everything but the manifest. Return it, and the function that compares the
    files in place with the receipts.

    Raises:
        BuildError: A receipt is missing.
        FormatError: A receipt names files of another shard.
        OvertakenError: Another build owns the output now.
    """
    build.check()
    storage, plan = build.storage, build.plan
    tables, options = laion_of(plan)
    dataset = tables.facts(plan.options.own)
    names = built_names(dataset.name, plan.options.format, SPLIT, options.shard_digits)
    replaces = is_over_remains(storage, plan)
    places = Places(root=build.root, names=names, replaces=replaces)
    place, indexes = placing(storage, replaces=replaces), count()
    publishing.replaces = replaces
    published = Published(build, planned_metadata(plan), placed_late=True)
    sidecars: list[FileEntry] = []
    networks: set[str] = set()
    statuses: Counter[str] = Counter()
    reasons: Counter[str] = Counter()

    def seen(receipt: ShardReceipt, rows: pa.Table) -> None:
        checked = places.checked(storage, next(indexes), receipt)
        try:
            place(checked)
        except StorageError:
            if not are_lost(storage, checked):  # else the comparison below has their shard fetched again
                raise
        files = ((info.name, info.num_bytes, crc32c_number(str(info.crc32c))) for info in files_of(receipt))
        published.expect(receipt.index, files)
        sidecars.extend(entries_of(receipt))
        what = fetched(receipt)
        networks.update(what.allow_networks)
        statuses.update(what.statuses)
        reasons.update(what.reasons)

    merged = merge_split(build, plan.splits[0], 0, publishing, check=_check_rows, seen=seen)
    split = replace(merged, statuses=dict(statuses), reasons=dict(sorted(reasons.items())))
    written = tfds_files(dataset, plan.options.format, options, split)
    if written:
        publishing.wait()
    for name, data in written.items():
        _create(storage, name, data, replaces=replaces)
    metadata = [bytes_entry(name, data) for name, data in written.items()]
    files = sorted([*metadata, *sidecars], key=lambda entry: str(entry["file"]))
    manifest = build_manifest(plan, dataset, [split], files)
    stated = {} if plan.options.own is None else {"own": plan.options.document()["own"]}
    manifest = replace(
        manifest,
        options={
            "dataset": LAION.name,
            "format": plan.options.format,
            "splits": [SPLIT],
            LAION.name: options.document(),
            "allow_networks": sorted(networks),
            **stated,
        },
        sources=tuple(source_entry(SPLIT, source) for source in plan.splits[0].sources),
        shuffled=False,
        checked="decode",
    )
    return manifest, published.check


def nothing_came(url: str, split: SplitManifest) -> BuildError:
    """Return the error for a build in which no row became an image."""
    advice = "check the table, the filters and the network, and run the same command again"
    if max(split.reasons, key=lambda reason: split.reasons[reason], default="") == _REFUSED:
        advice = (
            "refused addresses are not public: if they are those of a network of your own, name it with "
            "`allow_network` CIDR, else check the table, and run the command again"
        )
    return BuildError(
        f"{url}: none of {sum(split.statuses.values()):,} rows became an image ({top_reasons(split.reasons)}), and "
        f"nothing is kept; {advice}"
    )


def facts_of(manifest: Manifest) -> Dataset:
    """Return the facts about a finished dataset that its TFDS files have."""
    dataset = dataset_of(manifest)
    return UNNAMED if dataset == LAION and manifest.licence == UNSTATED else dataset


def tfds_files(dataset: Dataset, format_name: str, options: LaionOptions, split: SplitManifest) -> dict[str, bytes]:
    """Return TFDS's metadata files, name to content; none unless the format is tfrecord."""
    if format_name != "tfrecord":
        return {}
    lengths = {split.name: [int(shard["samples"]) for shard in split.shards]}
    return metadata_files(dataset, options.schema, lengths, {split.name: split.num_bytes})


def top_reasons(reasons: Mapping[str, int]) -> str:
    """Return the most frequent failures, for people: `http 404 12, timeout 3`."""
    failures = Counter({reason: count for reason, count in reasons.items() if reason != "success"})
    return ", ".join(f"{reason} {count:,}" for reason, count in failures.most_common(TOP_REASONS))


def metadata_files(
    dataset: Dataset,
    schema: ShardSchema,
    shard_samples: Mapping[str, Sequence[int]],
    split_bytes: Mapping[str, int],
) -> dict[str, bytes]:
    """Return the files in the dataset's root, name to content.

    Args:
        shard_samples: By split, the samples of each shard, in the order of their numbers.
        split_bytes: By split, bytes of all shards.
    """
    facts = DatasetInfo(
        name=tfds_name(dataset.name),
        description=dataset.description,
        citation=dataset.citation,
        licence=dataset.licence,
        classes=(),
        shard_samples=shard_samples,
        split_bytes=split_bytes,
    )
    info = dataset_info(facts, filepath_template=FILEPATH_TEMPLATE)
    return {"dataset_info.json": json_bytes(info), "features.json": json_bytes(_features(schema))}


def _create(storage: Storage, name: str, data: bytes, *, replaces: bool) -> None:
    try:
        storage.create(name, data)
    except ConflictError:
        if not replaces or not storage.replace(name, data, storage.read(name)):
            raise


def _check_rows(index: int, receipt: ShardReceipt, rows: pa.Table) -> tuple[int, bool]:
    """Return the number of a receipt's rows, and whether the index has exactly those that succeeded."""
    statuses = fetched(receipt).statuses
    return sum(statuses.values()), statuses.get(SUCCESS, 0) == rows.num_rows


def _features(schema: ShardSchema) -> Feature:
    kinds = {"string": text(), "int": scalar("int64"), "float": scalar("float32")}
    features = {column.name: kinds[column.kind] for column in schema.columns}
    features["txt"] = text()
    features[schema.image_name] = image("png" if schema.image_name == "png" else "jpeg")
    return features_dict(features)
