"""Number of requests and bytes that a build of fetched images exchanges with buckets: a pure function of its plan."""

from __future__ import annotations

from dataprep.builder.plan import Plan
from dataprep.builder.traffic import PAGE_OBJECTS, Traffic
from dataprep.sources.tables import TABLE_WINDOW_BYTES

_INSERTS_A_SHARD = 8
"""Writes and listings of each shard: three files are written and copied, its receipt is written, its folder is
listed."""
_GETS_A_SHARD = 2
"""Reads for each shard: plan.json before the server copies its files to their names, and its receipt when the index is
written."""
_INSERTS = 14
"""Writes and listings of a build of any size: plan.json and two cards are written; index, events and manifest are
written and copied; the output is listed four times, the files to remove once; further pages of long listings are
extra."""
_WHOLE_LISTINGS = 3
"""Listings of all the output: before files that wait are put in place, before the manifest is put, and afterwards."""
_OBJECTS_A_SHARD = 4
"""Objects of each shard in those listings: three files and its receipt."""
_GETS = 7
"""Reads of a build of any size: a look at plan.json before the index is written, and before index, events and manifest
are copied to their names; at the manifest once it is put; and it and plan.json before the build's own files are
removed. Each metadata file is copied to its name after a look as well."""
_TABLE_GETS, _TABLE_GETS_A_SHARD = 4, 2
"""Reads of a table's size and footer, besides its rows: when it is measured, and for every shard."""

ALIVE_SHARE = 0.68
"""Share of LAION-400M's links that answered early in 2024 (img2dataset's issue 400); other tables differ."""
IMAGE_BYTES = 190_000
"""Mean size of a download, from img2dataset's authors: 1,300 images a second over 2 Gbit/s."""


def web_bytes(plan: Plan) -> int:
    """Return the bytes of the images that a build downloads, estimated from its number of rows."""
    rows = sum(sum(split.shard_samples) for split in plan.splits)
    return round(rows * ALIVE_SHARE * IMAGE_BYTES)


def fetched_traffic(plan: Plan, *, metadata_files: int) -> Traffic:
    """Return the traffic between a build and its output; the bytes of images are unknown before they are fetched.

    Args:
        plan: The plan.
        metadata_files: Number of files that the format writes besides the manifest.
    """
    pages = _WHOLE_LISTINGS * (_OBJECTS_A_SHARD * plan.num_shards // PAGE_OBJECTS) + plan.num_shards // PAGE_OBJECTS
    inserts = _INSERTS_A_SHARD * plan.num_shards + _INSERTS + 2 * metadata_files + pages
    gets = _GETS_A_SHARD * plan.num_shards + _GETS + metadata_files
    return Traffic(inserts, gets, num_bytes=0)


def tables_traffic(plan: Plan) -> Traffic:
    """Return the traffic between a build and its tables, which are measured, then read once.

    The traffic is higher if a row group holds the rows of several shards.
    """
    tables = [int(source["bytes"]) for split in plan.splits for source in split.sources]
    windows = sum(-(-num_bytes // TABLE_WINDOW_BYTES) for num_bytes in tables)
    gets = _TABLE_GETS * len(tables) + _TABLE_GETS_A_SHARD * plan.num_shards + max(plan.num_shards, windows)
    return Traffic(2 * (len(tables) // PAGE_OBJECTS + 1), gets, sum(tables))
