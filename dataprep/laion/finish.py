"""All receipts of a table's shards to index, TFDS files and manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dataprep.errors import BuildError
from dataprep.laion.commit import entries_of, fetched, placing
from dataprep.laion.metadata import metadata_files
from dataprep.laion.plan import LaionOptions, laion_of
from dataprep.manifest import build_manifest, bytes_entry, merge_split
from dataprep.plan import Plan
from dataprep.records import Manifest, ShardReceipt, SplitManifest
from dataprep.sources.laion import LAION, SPLIT
from dataprep.storage import Storage

TOP_REASONS = 5


def finish_laion(storage: Storage, plan: Plan) -> Manifest:
    """Put in place what waits, and write all but the manifest, which is returned.

    Raises:
        BuildError: A receipt is missing.
    """
    place = placing(storage)
    beside: list[dict[str, Any]] = []
    networks: set[str] = set()

    def seen(receipt: ShardReceipt) -> None:
        place(receipt)
        beside.extend(entries_of(receipt))
        networks.update(fetched(receipt).allow_networks)

    split = merge_split(storage, plan, plan.splits[0], 0, seen)
    _, options = laion_of(plan)
    written = tfds_files(plan.options.format, options, split)
    for name, data in written.items():
        storage.create(name, data)
    metadata = [bytes_entry(name, data) for name, data in written.items()]
    manifest = build_manifest(plan, LAION, [split], sorted([*metadata, *beside], key=lambda entry: str(entry["file"])))
    return replace(
        manifest,
        options={
            "dataset": LAION.name,
            "format": plan.options.format,
            "splits": [SPLIT],
            "laion": options.document(),
            "allow_networks": sorted(networks),
        },
        sources=tuple({"split": SPLIT, **source} for source in plan.splits[0].sources),
        shuffled=False,
        checked="decode",
    )


def nothing_came(url: str, split: SplitManifest) -> BuildError:
    """The error where not one row became an image."""
    return BuildError(
        f"{url}: none of {sum(split.statuses.values()):,} rows became an image ({top_reasons(split.reasons)}), and "
        "nothing is kept; check the table, the filters and the network, and run the same command again"
    )


def tfds_files(format_name: str, options: LaionOptions, split: SplitManifest) -> dict[str, bytes]:
    """Name to content of what TFDS reads in the dataset's root; none for other formats."""
    if format_name != "tfrecord":
        return {}
    lengths = {split.name: [int(shard["samples"]) for shard in split.shards]}
    return metadata_files(options.schema, lengths, {split.name: split.num_bytes})


def top_reasons(reasons: Mapping[str, int], most: int = TOP_REASONS) -> str:
    """The most frequent failures, for people: `http 404 12, timeout 3`."""
    failures = Counter({reason: count for reason, count in reasons.items() if reason != "success"})
    return ", ".join(f"{reason} {count:,}" for reason, count in failures.most_common(most))
