"""Number of requests and bytes that a build exchanges with buckets: a pure function of its plan."""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.build.image_folder import WRITES_BETWEEN_CHECKS
from dataprep.build.plan import Plan
from dataprep.formats import FORMATS
from dataprep.sources.archives import BLOCK_BYTES
from dataprep.sources.unpacked import unpacked_sources

_ARCHIVES = (".tar", ".zip")
_LISTS = 3
"""Number of listings: of the output, of its receipts, and of the files to remove; further pages of long listings are
extra."""
PAGE_OBJECTS = 1000
_GETS_A_SHARD = 4
"""Reads for each shard: its row group of the plan, its receipt, and plan.json twice, before the server copies the shard
to its name, and after its receipt."""
_GETS_A_WORKER = 4
"""Reads of each worker: the plan and its footer."""
_GETS = 12
"""Reads of a build of any size: manifest, plan.json, and the files to remove."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests to one bucket, and bytes exchanged with it."""

    inserts: int
    """Number of class A requests: writes and listings."""
    gets: int
    """Number of class B requests: reads."""
    num_bytes: int
    """Bytes written to an output, or read from a source."""


def output_traffic(plan: Plan, *, metadata_files: int, workers: int) -> Traffic:
    """Return the traffic between a build and its output, including receipts, which are removed at the end.

    Args:
        plan: The plan.
        metadata_files: Number of files that the format writes besides the manifest.
        workers: Number of processes that read the plan.
    """
    single = FORMATS[plan.options.format].one_file_per_image
    shards, splits = plan.num_shards, len(plan.splits)
    samples = sum(sum(split.shard_samples) for split in plan.splits)
    described = 2 * splits + metadata_files + 1
    cards = 2  # README.md and croissant.json, which are uploaded under their own names
    # Each object but single images is uploaded, and then copied to its name by the server.
    inserts = 2 * described + cards + (samples + splits if single else 2 * shards)
    kept_while_building = shards + splits + 2
    pages = shards // PAGE_OBJECTS + (samples // PAGE_OBJECTS if single else 0)
    stored = sum(split.source_bytes * split.repeat_stored for split in plan.splits)
    unpacked, images, unpacked_bytes = _unpacked(plan)
    inserts += unpacked
    gets = _GETS_A_SHARD * shards + _GETS_A_WORKER * workers + splits + described + _GETS
    if single:
        gets += samples // WRITES_BETWEEN_CHECKS
    return Traffic(inserts + kept_while_building + _LISTS + pages, gets + images, stored + unpacked_bytes)


def archives_traffic(plan: Plan) -> Traffic:
    """Return the traffic between a build and its originals: archives are streamed once to list them, then every image
    is read. Parquet files with images are only streamed."""
    archives = {
        source["name"]: int(source["bytes"])
        for split in plan.splits
        for source in split.sources
        if str(source["name"]).endswith(_ARCHIVES) or "sha256" in source
    }
    _, unpacked, unpacked_bytes = _unpacked(plan)
    samples = sum(sum(split.shard_samples) for split in plan.splits) - unpacked
    images = sum(split.source_bytes * split.repeat_stored for split in plan.splits) - unpacked_bytes
    walked = sum(-(-num_bytes // BLOCK_BYTES) for num_bytes in archives.values())
    listed = 0 if archives else samples // PAGE_OBJECTS + 1
    return Traffic(listed, samples + walked, images + sum(archives.values()))


def _unpacked(plan: Plan) -> tuple[int, int, int]:
    """Return how many parquet files are unpacked below the output, the number of their images, and their bytes."""
    splits = [split for split in plan.splits if unpacked_sources(split.sources)]
    files = {source["name"] for split in splits for source in unpacked_sources(split.sources)}
    return len(files), sum(sum(each.shard_samples) for each in splits), sum(each.source_bytes for each in splits)
