"""Number of requests and bytes that a build exchanges with buckets: a pure function of its plan."""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.builder.plan import Plan
from dataprep.builder.references import PLAN_WINDOW_BYTES
from dataprep.builder.shard import WRITES_BETWEEN_CHECKS
from dataprep.formats import FORMATS
from dataprep.sources.archives import BLOCK_BYTES
from dataprep.sources.unpacked import unpacked_sources

_ARCHIVES = (".tar", ".zip", ".gz")
_GETS_AN_ARCHIVE = 2
"""Looks at each archive in addition to reading its content: whether it is there, and its size before it is listed."""
_GETS_A_ZIP = 2
"""Reads at the end of a zip: the record that says where its directory is, and the directory."""
_LISTS = 4
"""Number of listings: of the output when the build begins, before the manifest is put and afterwards, and of the files
to remove; further pages of long listings are extra."""
_WHOLE_LISTINGS = 2
"""Listings of all the output, with its receipts."""
PAGE_OBJECTS = 1000
_GETS_A_SHARD = 2
"""Reads for each shard: its receipt when the index is written, and a look at plan.json after the receipt was stored."""
_GETS_A_PROCESS = 1
"""Looks of each process that reads references: at the checksum of the file."""
_REFERENCE_BYTES = 80
"""Approximate size of an image's reference in plan.parquet, which is read in parts of PLAN_WINDOW_BYTES."""
_GETS = 4
"""Reads of a build of any size: a look at plan.json before the index is written, at the manifest once it is put, and at
both before the build's own files are removed."""


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
        metadata_files: Number of files that the format writes in addition to the manifest.
        workers: Number of processes that read the plan.
    """
    single = FORMATS[plan.options.format].one_file_per_image
    shards, splits = plan.num_shards, len(plan.splits)
    samples = sum(sum(split.shard_samples) for split in plan.splits)
    described = 2 * splits + metadata_files + 1
    cards = 2  # README.md and croissant.json, which are uploaded under their own names
    # Each object but single images is uploaded, and then copied to its name by the server.
    inserts = 2 * described + cards + (samples + splits if single else 2 * shards)
    # Receipts, plan.json and the references; of each split what was listed, and the digest of that.
    kept_while_building = shards + 2 + 2 * splits
    listed = shards + (samples if single else shards)
    pages = _WHOLE_LISTINGS * (listed // PAGE_OBJECTS) + shards // PAGE_OBJECTS
    stored = sum(split.source_bytes * split.repeat_stored for split in plan.splits)
    unpacked, images, unpacked_bytes = _unpacked(plan)
    inserts += unpacked
    # plan.json is looked at before the server copies an object to its name, and before images are written to theirs.
    all_shards = [count for split in plan.splits for count in split.shard_samples]
    checks = described + (sum(-(-count // WRITES_BETWEEN_CHECKS) for count in all_shards) if single else shards)
    windows = -(-samples * _REFERENCE_BYTES // PLAN_WINDOW_BYTES)
    processes = min(workers, shards)
    plan_gets = _GETS_A_PROCESS + windows  # when the index is written, all references are compared
    # A worker reads the references of its shards.
    plan_gets += processes * (_GETS_A_PROCESS + min(windows, -(-shards // max(1, processes))))
    gets = _GETS_A_SHARD * shards + checks + plan_gets + _GETS
    return Traffic(inserts + kept_while_building + _LISTS + pages, gets + images, stored + unpacked_bytes)


def archives_traffic(plan: Plan) -> Traffic:
    """Return the traffic between a build and its originals: archives are streamed once to list them, then every image
    is read. Parquet files with images are only streamed."""
    archives = {
        str(source["name"]): int(source["bytes"])
        for split in plan.splits
        for source in split.sources
        if str(source["name"]).endswith(_ARCHIVES) or "sha256" in source
    }
    _, unpacked, unpacked_bytes = _unpacked(plan)
    samples = sum(sum(split.shard_samples) for split in plan.splits) - unpacked
    images = sum(split.source_bytes * split.repeat_stored for split in plan.splits) - unpacked_bytes
    walked = sum(-(-num_bytes // BLOCK_BYTES) for num_bytes in archives.values())
    looks = sum(_GETS_AN_ARCHIVE for name in archives if name.endswith(_ARCHIVES))
    looks += sum(_GETS_A_ZIP for name in archives if name.endswith(".zip"))
    listed = 0 if archives else samples // PAGE_OBJECTS + 1
    return Traffic(listed, samples + walked + looks, images + sum(archives.values()))


def _unpacked(plan: Plan) -> tuple[int, int, int]:
    """Return how many parquet files are unpacked below the output, the number of their images, and their bytes."""
    splits = [split for split in plan.splits if unpacked_sources(split.sources)]
    files = {source["name"] for split in splits for source in unpacked_sources(split.sources)}
    return len(files), sum(sum(each.shard_samples) for each in splits), sum(each.source_bytes for each in splits)
