"""What a build asks of buckets: how many requests, how many bytes. Pure: a plan in, amounts out."""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.plan import Plan
from dataprep.sources.archives import BLOCK_BYTES
from dataprep.sources.tables import TABLE_WINDOW_BYTES

_ARCHIVES = (".tar", ".zip")
_LISTS = 3
"""What stands there, which receipts there are, what is left to remove; the pages of long lists come on top."""
_PAGE_OBJECTS = 1000
_GETS_A_SHARD = 3
"""Its row group of the plan, and its receipt as it is merged."""
_GETS_A_WORKER = 4
"""The plan, and its footer."""
_FETCHED_INSERTS_A_SHARD, _FETCHED_GETS_A_SHARD = 8, 2
"""Three files written and copied to their places, a receipt, a list before what waited is removed; the receipt read."""
_FETCHED_INSERTS, _FETCHED_GETS = 8, 7
_TABLE_GETS, _TABLE_GETS_A_SHARD = 4, 2
"""A table's size and footer, as it is measured and as it is read, beside the rows."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one bucket."""

    inserts: int
    """Requests of class A: objects written, and lists."""
    gets: int
    """Requests of class B."""
    num_bytes: int
    """Written to an output, read from a source."""


def output_traffic(plan: Plan, *, metadata_files: int, is_folder: bool, workers: int) -> Traffic:
    """Of a build's output, its own receipts included, which are gone when it is whole.

    Args:
        metadata_files: That the format writes beside the manifest.
        is_folder: Every image is an object.
        workers: Processes that read the plan.
    """
    shards, splits = plan.num_shards, len(plan.splits)
    samples = sum(sum(split.shard_samples) for split in plan.splits)
    objects = (samples if is_folder else shards) + 2 * splits + metadata_files + 1
    kept_while_building = shards + splits + 2
    pages = shards // _PAGE_OBJECTS
    stored = sum(split.source_bytes * split.repeat_stored for split in plan.splits)
    gets = _GETS_A_SHARD * shards + _GETS_A_WORKER * workers + splits + 3
    return Traffic(objects + kept_while_building + _LISTS + pages, gets, stored)


def fetched_traffic(plan: Plan, *, metadata_files: int) -> Traffic:
    """Of the output of a build that fetches its images: nobody knows their bytes before they came."""
    inserts = _FETCHED_INSERTS_A_SHARD * plan.num_shards + _FETCHED_INSERTS + metadata_files
    return Traffic(inserts, _FETCHED_GETS_A_SHARD * plan.num_shards + _FETCHED_GETS, num_bytes=0)


def source_traffic(plan: Plan) -> Traffic:
    """Of a build's source: archives are streamed once to find what is in them, then every image is read.

    Tables of URLs are measured, then read once; more where a row group holds the rows of several shards.
    """
    if plan.laion is not None:
        tables = [int(source["bytes"]) for split in plan.splits for source in split.sources]
        windows = sum(-(-num_bytes // TABLE_WINDOW_BYTES) for num_bytes in tables)
        gets = _TABLE_GETS * len(tables) + _TABLE_GETS_A_SHARD * plan.num_shards + max(plan.num_shards, windows)
        return Traffic(2 * (len(tables) // _PAGE_OBJECTS + 1), gets, sum(tables))
    archives = {
        source["name"]: int(source["bytes"])
        for split in plan.splits
        for source in split.sources
        if str(source["name"]).endswith(_ARCHIVES)
    }
    samples = sum(sum(split.shard_samples) for split in plan.splits)
    images = sum(split.source_bytes * split.repeat_stored for split in plan.splits)
    walked = sum(-(-num_bytes // BLOCK_BYTES) for num_bytes in archives.values())
    listed = 0 if archives else samples // _PAGE_OBJECTS + 1
    return Traffic(listed, samples + walked, images + sum(archives.values()))
