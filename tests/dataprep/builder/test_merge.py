"""Receipts become index, events and manifest; what is missing or of another plan is refused."""

import pytest

from dataprep.builder.merge import build_manifest, merge_split, refuse_rejections
from dataprep.builder.output import claim_place, open_build
from dataprep.builder.receipts import write_receipt
from dataprep.dataset.index import IndexRows, PublishingRows, open_index_file
from dataprep.dataset.records import Event, Placement, ShardReceipt
from dataprep.errors import BuildError, FormatError
from dataprep.sources import DATASETS
from tests.support.plans import planned, refs_of, small_plan

REJECTED = Event("s1-0", "rejected", "truncated", "image file is truncated")


@pytest.fixture
def build(storage):
    """A build of two shards; the image of the second is rejected."""
    return open_build(storage.url, claim_place(storage, planned(small_plan())).root)


def put(build, index: int, keys: list[str], *events: Event, **more) -> None:
    rows = IndexRows(index)
    for number, key in enumerate(keys):
        rows.add(key, b"image", Placement(10 * number, 9, 10 * number + 2, 5), label=number, height=4, width=3)
    fields = {"split": "val", "file": f"val/{index}.tar", "num_bytes": 100, "sha256": "0" * 64, "crc32c": "AAAAAA=="}
    receipt = ShardReceipt(index=index, split_index=index, samples=len(keys), events=events, **(fields | more))
    write_receipt(build.storage, receipt, rows.table(), build.root)


def merge(build, check=lambda index, receipt, rows: (rows.num_rows + len(receipt.events), True), seen=None):
    with PublishingRows(build.storage) as publishing:
        seen = seen or (lambda receipt, rows: None)
        return merge_split(build, build.plan.splits[0], publishing, check=check, seen=seen)


def test_receipts_become_a_split(build):
    told = []
    put(build, 0, [ref.key for ref in refs_of(build.plan, 0)])
    put(build, 1, [], REJECTED)
    split = merge(build, seen=lambda receipt, rows: told.append((receipt.index, rows.num_rows)))
    assert told == [(0, 2), (1, 0)]
    assert (split.samples, split.num_bytes, split.class_counts) == (2, 200, (1, 1))
    assert (split.rejected, split.repaired) == ({"truncated": 1}, {})
    assert open_index_file(build.storage, "index/val.parquet").group_rows == [2, 0]
    manifest = build_manifest(build.plan, DATASETS["imagenet"], [split])
    assert (manifest.name, manifest.plan_hash, manifest.splits) == ("imagenet", build.plan.plan_hash, (split,))
    with pytest.raises(BuildError, match=r"val: 1 of 3 images were rejected, allowed are 0 .*: s1-0 \(truncated\)"):
        refuse_rejections(build, 0.0, [split])
    refuse_rejections(build, 0.34, [split])


def test_missing_receipt_is_named(build):
    put(build, 0, ["s0-0", "s0-1"])
    with pytest.raises(BuildError, match="shard 1 has no receipt; run the same command again"):
        merge(build)


@pytest.mark.parametrize(("more", "counted"), [({}, 1), ({"split": "train"}, 0)])
def test_receipt_of_another_shard_is_refused(build, more, counted):
    put(build, 0, ["s0-0", "s0-1"], **more)
    with pytest.raises(FormatError, match="with their keys; start over with `overwrite`"):
        merge(build, check=lambda index, receipt, rows: (rows.num_rows + counted, True))


def test_receipt_of_other_samples_is_refused(build):
    put(build, 0, ["s0-0", "x"])
    with pytest.raises(FormatError, match="the receipt has 2 samples, expected the plan's 2 for shard 0 of val"):
        merge(build, check=lambda index, receipt, rows: (rows.num_rows, False))
