"""What a manifest of a table of URLs must say; hostile ones end as findings."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dataprep.builder.finished import layout_faults, shape_faults
from dataprep.dataset.manifest import MAX_MANIFEST_BYTES, MAX_SHARDS, SCHEMA_VERSION, manifest_bytes
from dataprep.dataset.randomness import ORDER_VERSION
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.fetched.collect import RowOptions
from dataprep.fetched.manifest import is_fetched
from dataprep.fetched.names import built_names
from dataprep.fetched.plan import LaionOptions
from dataprep.sources.tables import Column
from dataprep.verification.manifest import consistency_faults

HASH, CRC = "0" * 64, "AAAAAA=="
STATUSES = {"success": 3, "failed_to_download": 1, "failed_to_resize": 0, "filtered": 0, "duplicate": 0}


def manifest() -> Manifest:
    """Return the manifest of four rows in two shards."""
    options = LaionOptions(
        columns={"url": "URL"},
        carried=(Column("SAMPLE_ID", "int"),),
        rows_per_shard=2,
        shard_digits=5,
        rows=RowOptions(),
    )
    names = [f"train/{number:05d}{end}" for number in range(2) for end in (".parquet", "_stats.json")]
    shards = [
        {"file": f"train/{number:05d}.tar", "samples": samples, "bytes": 10, "sha256": HASH, "crc32c": CRC}
        for number, samples in enumerate((2, 1))
    ]
    split = SplitManifest(
        name="train",
        samples=3,
        num_bytes=20,
        shards=tuple(shards),
        class_counts=(),
        repeats={"count": 1, "stored": 1},
        repaired={},
        rejected={},
        index={"file": "index/train.parquet", "bytes": 1, "sha256": HASH},
        events={"file": "index/train-events.parquet", "bytes": 1, "sha256": HASH},
        statuses=STATUSES,
        reasons={"http 404": 1, "success": 3},
    )
    laion = json.loads(json.dumps(options.document()))
    return Manifest(
        name="laion",
        schema_version=SCHEMA_VERSION,
        revision=1,
        format="webdataset",
        plan_hash=HASH,
        order_version=ORDER_VERSION,
        options={
            "dataset": "laion", "format": "webdataset", "splits": ["train"], "laion": laion, "allow_networks": [],
        },
        sources=({"split": "train", "name": "t.parquet", "bytes": 9, "rows": 4, "sha256": HASH},),
        codecs={},
        licence="",
        origin="",
        classes=(),
        shuffled=False,
        checked="decode",
        partial=False,
        splits=(split,),
        files=tuple({"file": name, "bytes": 1, "sha256": HASH} for name in names),
    )  # fmt: skip


def faults(found: Manifest) -> list[str]:
    shape = list(shape_faults(found))
    return shape or [*layout_faults(found), *consistency_faults(found)]


def test_a_manifest_of_a_build_has_no_fault():
    assert is_fetched(manifest())
    assert faults(manifest()) == []


def test_the_largest_number_of_shards_and_their_sidecars_fit_in_a_manifest():
    """A thousand of them stand for all; their names and sizes are the longest."""
    found, shards = manifest(), 1000
    names = built_names("x" * 64, "tfrecord", "train", 9)
    (split,) = found.splits
    entry = {**split.shards[0], "file": names.samples_file(0), "samples": 10**6, "bytes": 10**12}
    sidecars = [names.parquet_file(0), names.stats_file(0)] * shards
    files = tuple({"file": name, "bytes": 10**9, "sha256": HASH} for name in sidecars)
    large = replace(found, splits=(replace(split, shards=(entry,) * shards),), files=files)
    a_shard = (len(manifest_bytes(large)) - len(manifest_bytes(found))) / shards
    assert a_shard * MAX_SHARDS < 0.99 * MAX_MANIFEST_BYTES


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: replace(m, options={**m.options, "laion": {}}), "options.laion cannot be read"),
        (lambda m: replace(m, options={**m.options, "laion": None}), "options.laion cannot be read"),
        (lambda m: _with(m, shard_digits=10**6), "options.laion cannot be read"),
        (lambda m: _with(m, carried=[["x", "pickle"]]), "options.laion cannot be read"),
        (lambda m: _with(m, columns={"url": 5}), "options.laion cannot be read"),
        (lambda m: _with(m, columns={"caption": "URL"}), "options.laion cannot be read"),
        (lambda m: _with(m, columns={"url": "URL", "width": "W"}), "options.laion cannot be read"),
        (lambda m: replace(m, format="imagefolder"), "format 'imagefolder', expected webdataset or tfrecord"),
        (lambda m: replace(m, options={**m.options, "allow_networks": "all"}), "options.allow_networks is 'all'"),
        (lambda m: _split(m, statuses={"success": 3}), "statuses ['success'], expected"),
        (lambda m: _split(m, statuses={**STATUSES, "filtered": 1}), "statuses of 5 rows, the sources have 4"),
        (lambda m: _split(m, reasons={"success": 3}), "reasons of 3 rows, the sources have 4"),
        (lambda m: _split(m, statuses={**STATUSES, "success": 2, "filtered": 1}), "success 2, the shards have 3"),
        (lambda m: replace(m, files=m.files[1:]), "1 are not listed, the first is train/00000.parquet"),
        (lambda m: replace(m, files=m.files[::-1]), "not sorted by name"),
        (lambda m: replace(m, shuffled=True), "shuffled True; expected 1 or more, false"),
        (lambda m: _split(m, shards=({**m.splits[0].shards[0], "file": "../x.tar"},)), "shard 0 is '../x.tar'"),
        (lambda m: replace(m, sources=({**m.sources[0], "sha256": "x"},)), "sources: sha256 is 'x', expected 64 hex"),
        (
            lambda m: replace(m, sources=({**m.sources[0], "enumeration_sha256": HASH},)),
            "sources: fields bytes, enumeration_sha256, name, rows, sha256, split; expected split, name, bytes, rows,",
        ),
    ],
)
def test_every_false_statement_is_a_fault(change, text):
    assert any(text in fault for fault in faults(change(manifest()))), faults(change(manifest()))


def _with(found: Manifest, **changed) -> Manifest:
    return replace(found, options={**found.options, "laion": {**found.options["laion"], **changed}})


def _split(found: Manifest, **changed) -> Manifest:
    return replace(found, splits=(replace(found.splits[0], **changed),))
