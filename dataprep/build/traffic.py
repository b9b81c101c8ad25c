"""How many requests and bytes a build asks of buckets: a pure function of its plan."""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.build.image_folder import WRITES_BETWEEN_CHECKS
from dataprep.build.plan import Plan
from dataprep.formats import FORMATS
from dataprep.sources.archives import BLOCK_BYTES

_ARCHIVES = (".tar", ".zip")
_LISTS = 3
"""Lists of the place, of its receipts, and of what is left to remove; the pages of long lists come on top."""
PAGE_OBJECTS = 1000
_GETS_A_SHARD = 4
"""Reads of a shard's row group of the plan, of its receipt, and of plan.json, twice: before the shard is copied from
where it was uploaded, and after its receipt."""
_GETS_A_WORKER = 4
"""Reads of the plan and of its footer."""
_GETS = 12
"""Reads of a build, whatever its size: of manifest, plan.json, and what is left to remove."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked of one bucket."""

    inserts: int
    """Requests of class A: objects written, and lists."""
    gets: int
    """Requests of class B: objects read."""
    num_bytes: int
    """Bytes written to an output, or read from a source."""


def output_traffic(plan: Plan, *, metadata_files: int, workers: int) -> Traffic:
    """Return the traffic of a build with its output, including receipts, which are gone when the dataset is whole.

    Args:
        plan: The plan.
        metadata_files: Number of files that the format writes besides the manifest.
        workers: Number of processes that read the plan.
    """
    single = FORMATS[plan.options.format].one_file_per_image
    shards, splits = plan.num_shards, len(plan.splits)
    samples = sum(sum(split.shard_samples) for split in plan.splits)
    described = 2 * splits + metadata_files + 1
    # Each is uploaded, then copied to its place by the server; but for single images.
    inserts = 2 * described + (samples + splits if single else 2 * shards)
    kept_while_building = shards + splits + 2
    pages = shards // PAGE_OBJECTS + (samples // PAGE_OBJECTS if single else 0)
    stored = sum(split.source_bytes * split.repeat_stored for split in plan.splits)
    gets = _GETS_A_SHARD * shards + _GETS_A_WORKER * workers + splits + described + _GETS
    if single:
        gets += samples // WRITES_BETWEEN_CHECKS
    return Traffic(inserts + kept_while_building + _LISTS + pages, gets, stored)


def archives_traffic(plan: Plan) -> Traffic:
    """Return what a build asks of its originals: archives are streamed once to find what is in them, then every image
    is read."""
    archives = {
        source["name"]: int(source["bytes"])
        for split in plan.splits
        for source in split.sources
        if str(source["name"]).endswith(_ARCHIVES)
    }
    samples = sum(sum(split.shard_samples) for split in plan.splits)
    images = sum(split.source_bytes * split.repeat_stored for split in plan.splits)
    walked = sum(-(-num_bytes // BLOCK_BYTES) for num_bytes in archives.values())
    listed = 0 if archives else samples // PAGE_OBJECTS + 1
    return Traffic(listed, samples + walked, images + sum(archives.values()))
