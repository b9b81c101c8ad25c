"""The plan of a table of URLs: what it holds, and what changes it."""

import json
from dataclasses import replace

import pytest

from dataprep.builder.finished import layout_faults, shape_faults
from dataprep.builder.plan import plan_from_document
from dataprep.dataset.documents import differences
from dataprep.dataset.manifest import MAX_MANIFEST_BYTES, MAX_SHARDS, manifest_bytes, read_manifest
from dataprep.dataset.records import Manifest
from dataprep.errors import SourceError, UsageError
from dataprep.fetched.collect import DuplicatePolicy, EncodeOptions, RowFilter, RowOptions
from dataprep.fetched.plan import TableRequest, build_options, is_fetched, laion_of, plan_tables
from dataprep.fetched.shard import built_names, schema_with
from dataprep.storage import open_storage
from dataprep.verification.run import consistency_faults
from dataprep.web.requests import Limits
from tests.dataprep.fetched.laion_tables import make_tables

LIMITS = Limits(contact="mailto:me@example.org")


@pytest.fixture
def request_of(tmp_path):
    make_tables(tmp_path, [{"URL": f"http://h/{i}", "TEXT": "t", "md5": "x", "Key": i} for i in range(25)])
    return TableRequest(sources=(str(tmp_path / "table.parquet"),), rows_per_shard=10, limits=LIMITS)


def plan_of(request, format_name="webdataset"):
    return plan_tables(request, build_options(format_name))


def test_a_plan_holds_row_ranges_and_no_row(request_of):
    plan = plan_of(request_of)
    assert plan.splits[0].shard_samples == (10, 10, 5)
    assert plan.splits[0].sources[0]["rows"] == 25
    assert "opencv-python-headless" in plan.codecs
    assert len(json.dumps(plan.document())) < 5_000


def test_plan_comes_back_from_its_document(request_of):
    plan = plan_of(request_of)
    again = plan_from_document(json.loads(json.dumps(plan.document())))
    assert again.plan_hash == plan.plan_hash
    tables, options = laion_of(again)
    assert (tables, options) == laion_of(plan)
    assert options.schema == schema_with(tables.carried, options.rows)


def test_the_plan_does_not_depend_on_web_limits_or_the_tables_location(request_of, tmp_path):
    plan = plan_of(request_of)
    other = replace(LIMITS, in_flight=3, contact="https://example.org/else", host_per_s=1.0)
    assert plan_of(replace(request_of, limits=other)).plan_hash == plan.plan_hash
    (tmp_path / "moved").mkdir()
    (tmp_path / "table.parquet").rename(tmp_path / "moved" / "table.parquet")
    moved = (str(tmp_path / "moved" / "table.parquet"),)
    assert plan_of(replace(request_of, sources=moved)).plan_hash == plan.plan_hash


@pytest.mark.parametrize(
    "rows",
    [
        RowOptions(row_filter=RowFilter(min_image_size=9)),
        RowOptions(encode=EncodeOptions(image_size=9)),
        RowOptions(duplicates=DuplicatePolicy(exact="drop")),
        RowOptions(verify_hash="md5"),
    ],
)
def test_every_row_option_changes_the_plan_and_is_named(request_of, rows):
    ours, theirs = plan_of(replace(request_of, rows=rows)), plan_of(request_of)
    assert ours.plan_hash != theirs.plan_hash
    assert len(differences(ours.document(), theirs.document())) == 1


def test_plans_that_cannot_be_built_are_refused(request_of, tmp_path):
    with pytest.raises(UsageError, match="`column` url=LINK"):
        plan_of(replace(request_of, columns={"url": "LINK"}))
    with pytest.raises(UsageError, match="`rows_per_shard` must be 1 or more"):
        plan_of(replace(request_of, rows_per_shard=0))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "t.csv").write_text("url,caption\n")
    with pytest.raises(SourceError, match="1 table without a row; check `source`"):
        plan_of(replace(request_of, sources=(str(tmp_path / "empty"),)))


@pytest.fixture
def manifest(fetched) -> Manifest:
    """The manifest of 34 rows, 27 of them images, in four shards."""
    return read_manifest(open_storage(str(fetched("webdataset"))))


def faults(found: Manifest) -> list[str]:
    shape = list(shape_faults(found))
    return shape or [*layout_faults(found), *consistency_faults(found)]


def test_a_manifest_of_a_build_has_no_fault(manifest):
    assert is_fetched(manifest)
    assert faults(manifest) == []


def test_the_largest_number_of_shards_and_their_sidecars_fit_in_a_manifest(manifest):
    """A thousand of them stand for all; their names and sizes are the longest."""
    shards = 1000
    names = built_names("x" * 64, "tfrecord", "train", 9)
    (split,) = manifest.splits
    entry = {**split.shards[0], "file": names.samples_file(0), "samples": 10**6, "bytes": 10**12}
    sidecars = [names.parquet_file(0), names.stats_file(0)] * shards
    files = tuple({"file": name, "bytes": 10**9, "sha256": "0" * 64} for name in sidecars)
    large = replace(manifest, splits=(replace(split, shards=(entry,) * shards),), files=files)
    a_shard = (len(manifest_bytes(large)) - len(manifest_bytes(manifest))) / shards
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
        (lambda m: _counted(m, filtered=1), "statuses of 35 rows, the sources have 34"),
        (lambda m: _split(m, reasons={"success": 3}), "reasons of 3 rows, the sources have 34"),
        (
            lambda m: _counted(m, success=26, filtered=1),
            "success 26, the shards have 27",
        ),
        (lambda m: replace(m, files=m.files[1:]), "1 are not listed, the first is train/00000.parquet"),
        (lambda m: replace(m, files=m.files[::-1]), "not sorted by name"),
        (lambda m: replace(m, shuffled=True), "shuffled True; expected 1 or more, false"),
        (lambda m: _split(m, shards=({**m.splits[0].shards[0], "file": "../x.tar"},)), "shard 0 is '../x.tar'"),
        (lambda m: replace(m, sources=({**m.sources[0], "sha256": "x"},)), "sources: sha256 is 'x', expected 64 hex"),
        (
            lambda m: replace(m, sources=({**m.sources[0], "enumeration_sha256": "0" * 64},)),
            "sources: fields bytes, enumeration_sha256, name, rows, sha256, split; expected split, name, bytes, rows,",
        ),
    ],
)
def test_every_false_statement_is_a_fault(manifest, change, text):
    found = faults(change(manifest))
    assert any(text in fault for fault in found), found


def _counted(found: Manifest, **statuses: int) -> Manifest:
    return _split(found, statuses=found.splits[0].statuses | statuses)


def _with(found: Manifest, **changed) -> Manifest:
    return replace(found, options={**found.options, "laion": {**found.options["laion"], **changed}})


def _split(found: Manifest, **changed) -> Manifest:
    return replace(found, splits=(replace(found.splits[0], **changed),))
