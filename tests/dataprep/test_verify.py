import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataprep.verify
from dataprep.checks.findings import KINDS
from dataprep.errors import BuildError, StorageError, UndecidedError, UsageError
from dataprep.records import Sample
from dataprep.storage import open_storage
from dataprep.storage.local import LocalStorage
from tests.support.builds import dataprep
from tests.support.faults import Damaged, linked_copy, plant
from tests.support.finished import build_here, details, kinds, verify_here

DATASETS = {
    "imagenet-webdataset": ("imagenet", "webdataset", {}),
    "imagenet-tfrecord": ("imagenet", "tfrecord", {}),
    "imagenet-imagefolder": ("imagenet", "imagefolder", {}),
    "coco-tfrecord": ("coco-dup5", "tfrecord", {}),
    "coco-five-times": ("coco-dup5", "webdataset", {"repeat": "physical"}),
    "coco-links": ("coco-dup5", "imagefolder", {"repeat": "physical"}),
    "unchecked": ("imagenet", "webdataset", {"check": "none"}),
}
SHARDED = ("imagenet-webdataset", "imagenet-tfrecord", "coco-tfrecord", "coco-five-times")


@pytest.fixture(scope="module")
def good(originals, tmp_path_factory):
    """Whole datasets by name; only ever read."""
    root = tmp_path_factory.mktemp("good")
    return {
        name: Path(build_here(dataset, originals[dataset.removesuffix("-dup5")], root / name, fmt, **options))
        for name, (dataset, fmt, options) in DATASETS.items()
    }


@pytest.fixture
def damaged(good, tmp_path):
    """A copy of a dataset that may be changed."""

    def copy(name):
        linked_copy(good[name], tmp_path / name)
        return Damaged(tmp_path / name)

    return copy


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "unchecked"])
def test_no_false_alarm(good, name):
    manifest = Damaged(good[name]).document
    for deep in (False, True):
        report = verify_here(good[name], deep=deep)
        assert (report.verdict, details(report)) == ("whole", "")
        assert report.samples == sum(split["samples"] for split in manifest["splits"])
        assert report.num_bytes == sum(split["num_bytes"] for split in manifest["splits"])
        assert report.shards == sum(len(split["shards"]) for split in manifest["splits"])


def test_worker_processes_find_the_same(good, damaged):
    copy = damaged("imagenet-webdataset")
    plant(copy.root, seed=7)
    here, there = (verify_here(copy.root, deep=True, workers=workers) for workers in (0, 2))
    assert here.findings
    assert replace(here, elapsed_s=0) == replace(there, elapsed_s=0)
    assert verify_here(good["imagenet-webdataset"], workers=2).verdict == "whole"


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "unchecked"])
def test_planted_faults_are_found_and_the_original_is_not_touched(good, tmp_path, name):
    """Some of the 1,000 that the soak plants."""
    missed = []
    for seed in range(40):
        linked_copy(good[name], tmp_path / "copy")
        fault = plant(tmp_path / "copy", seed)
        report = verify_here(tmp_path / "copy")
        assert kinds(report) <= set(KINDS)
        if report.verdict != "differs":
            missed.append(f"seed {seed}: {fault}")
    assert missed == []
    assert verify_here(good[name]).verdict == "whole"


@pytest.mark.parametrize("fmt", ["webdataset", "imagefolder"])
def test_in_a_bucket(originals, bucket_url, fmt):
    url = build_here("imagenet", originals["imagenet"], bucket_url, fmt)
    assert verify_here(url, deep=True).verdict == "whole"
    storage = open_storage(url)
    names = [info.name for info in storage.list("train/")]
    data = storage.read(names[0])
    storage.delete(names[0])
    assert kinds(verify_here(url)) == {"missing"}
    storage.create(names[0], data[:-1] + bytes([data[-1] ^ 1]))
    assert "digest" in kinds(verify_here(url))
    storage.delete(names[0])
    storage.create(names[0], data[:-1])
    assert "size" in kinds(verify_here(url))
    storage.delete(names[0])
    storage.create(names[0], data + b"\0")
    assert "size" in kinds(verify_here(url))
    storage.delete(names[0])
    storage.create(names[0], data)
    storage.create(names[0] + ".tar", data)
    report = verify_here(url)
    assert [(finding.kind, finding.where) for finding in report.findings] == [("extra", names[0] + ".tar")]


# One kind of fault after the other, with sizes and digests right, so that the content alone gives it away


@pytest.mark.parametrize("name", SHARDED)
def test_a_sample_twice(damaged, name):
    copy = damaged(name)
    shard = copy.shards()[0]
    samples = copy.read_shard(shard)
    copy.write_shard(shard, [samples[0], *samples])
    copy.sign()
    report = verify_here(copy.root)
    assert {"duplicate", "count"} <= kinds(report)
    assert f"duplicate train: {samples[0].key!r}: more than one sample has this key, ignoring case" in details(report)


@pytest.mark.parametrize("name", SHARDED)
def test_a_sample_in_place_of_another_of_the_same_size(damaged, name):
    copy = damaged(name)
    shard = copy.shards()[1]
    samples = copy.read_shard(shard)
    before = samples[3].image
    samples[3] = replace(samples[3], image=before[:-2] + bytes([before[-2] ^ 255]) + before[-1:])
    copy.write_shard(shard, samples)
    copy.sign()
    report = verify_here(copy.root)
    assert kinds(report) == {"record"}
    assert f"record {shard} record 3: image_crc32c " in details(report)


@pytest.mark.parametrize("name", SHARDED)
def test_swapped_samples(damaged, name):
    copy = damaged(name)
    shard = copy.shards()[1]
    samples = copy.read_shard(shard)
    samples[0], samples[1] = samples[1], samples[0]
    copy.write_shard(shard, samples)
    copy.sign()
    report = verify_here(copy.root)
    assert kinds(report) == {"record"}
    assert f"record {shard} record 0: key {samples[0].key!r}, the index has {samples[1].key!r}" in details(report)


@pytest.mark.parametrize("name", ["imagenet-webdataset", "imagenet-tfrecord"])
def test_another_label(damaged, name):
    copy = damaged(name)
    shard = copy.shards()[2]
    samples = copy.read_shard(shard)
    label = (samples[5].label + 1) % 2
    samples[5] = replace(samples[5], label=label, class_name=copy.classes[label])
    copy.write_shard(shard, samples)
    copy.sign()
    report = verify_here(copy.root)
    assert {"record", "count"} <= kinds(report)
    assert f"{shard} record 5: " in details(report)
    assert "samples of label " in details(report)


@pytest.mark.parametrize("name", SHARDED)
def test_a_dropped_sample(damaged, name):
    copy = damaged(name)
    shard = copy.shards()[0]
    samples = copy.read_shard(shard)
    copy.write_shard(shard, samples[:-1])
    copy.sign()
    report = verify_here(copy.root)
    assert f"count {shard}: {len(samples) - 1} records, the manifest has {len(samples)}" in details(report)


@pytest.mark.parametrize("name", SHARDED)
def test_a_shard_of_noise(damaged, name):
    copy = damaged(name)
    shard = copy.shards()[0]
    copy.write(shard, random.Random(1).randbytes(100_000))
    copy.sign()
    report = verify_here(copy.root, deep=True)
    assert "format" in kinds(report)
    assert f"format {shard}: offset 0: " in details(report)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), name=st.sampled_from(["imagenet-webdataset", "coco-tfrecord"]))
def test_a_shard_cut_anywhere(good, tmp_path_factory, data, name):
    copy = Damaged(tmp_path_factory.mktemp("cut") / "copy")
    linked_copy(good[name], copy.root)
    shard = copy.shards()[0]
    whole = (copy.root / shard).read_bytes()
    copy.write(shard, whole[: data.draw(st.integers(0, len(whole) - 1))])
    copy.sign()
    assert kinds(verify_here(copy.root)) & {"format", "count"}


def test_an_index_row_that_no_shard_has(damaged):
    for column, value in {
        "key": "x/y",
        "label": 0,
        "image_offset": 3,
        "image_crc32c": 7,
        "height": 9,
        "width": 1,
    }.items():
        copy = damaged("imagenet-tfrecord")
        change_cell(copy, "index/train.parquet", column, value)
        copy.sign()
        report = verify_here(copy.root)
        assert "record" in kinds(report), column
        assert f" record 0: {column} " in details(report)


def test_an_index_row_of_an_image_folder(damaged):
    expected = {
        "key": "missing",
        "label": "missing",
        "image_crc32c": "digest",
        "image_bytes": "index",
        "record_offset": "index",
    }
    for column, kind in expected.items():
        copy = damaged("imagenet-imagefolder")
        value = {"key": "n01440764/other", "label": (column_values(copy, "label")[0] + 1) % 2}.get(column, 1)
        change_cell(copy, "index/train.parquet", column, value)
        copy.sign()
        assert kind in kinds(verify_here(copy.root)), column


def test_hostile_index_rows_lead_nowhere(damaged):
    for key in ("../../../etc/passwd", "/etc/passwd", "", "a\0b", "x" * 300):
        copy = damaged("imagenet-imagefolder")
        change_cell(copy, "index/train.parquet", "key", key)
        copy.sign()
        assert {"index", "extra"} <= kinds(verify_here(copy.root, deep=True)), key


def test_row_groups_and_columns(damaged):
    copy = damaged("imagenet-webdataset")
    table = pq.read_table(copy.root / "index/train.parquet")
    (copy.root / "index/train.parquet").unlink()
    pq.write_table(table, copy.root / "index/train.parquet")
    copy.sign()
    assert "index index/train.parquet: 1 row groups, expected one a shard: 3" in details(verify_here(copy.root))
    (copy.root / "index/train.parquet").unlink()
    pq.write_table(table.drop_columns("label"), copy.root / "index/train.parquet")
    copy.sign()
    report = verify_here(copy.root)
    assert kinds(report) == {"format"}
    assert "expected key, shard, record_offset" in details(report)
    copy.write("index/train.parquet", b"PAR1 no PAR1")
    copy.sign()
    assert kinds(verify_here(copy.root)) == {"format"}


def test_keys_that_differ_in_case_alone(damaged):
    copy = damaged("imagenet-webdataset")
    shard = copy.shards()[0]
    samples = copy.read_shard(shard)
    samples[1] = replace(samples[1], key=samples[0].key.upper())
    copy.write_shard(shard, samples)
    copy.sign()
    report = verify_here(copy.root)
    assert "duplicate" in kinds(report)


@pytest.mark.parametrize("file", ["index/train-events.parquet", "index/train.parquet", "index/val.parquet"])
def test_a_missing_file(damaged, file):
    copy = damaged("imagenet-imagefolder")
    (copy.root / file).unlink()
    assert f"missing {file}: no such file, expected " in details(verify_here(copy.root))


def test_events_that_disagree(damaged):
    copy = damaged("imagenet-webdataset")
    rows = pq.read_table(copy.root / "index/train-events.parquet").to_pylist()
    schema = pq.read_schema(copy.root / "index/train-events.parquet")
    kept = next(sample.key for sample in copy.read_shard(copy.shards()[0]))
    rejected = next(row for row in rows if row["kind"] == "rejected")
    for changed, kind, text in (
        (rows[:-1], "count", "the manifest counts"),
        ([*rows, {**rejected, "kind": "vanished"}], "count", "vanished: {"),
        (
            [{**row, "key": kept} if row is rejected else row for row in rows],
            "index",
            f"{kept!r} was rejected and is in",
        ),
        (
            [{**row, "key": "no/where"} if row["kind"] == "repaired" else row for row in rows],
            "index",
            "is not in the split",
        ),
    ):
        (copy.root / "index/train-events.parquet").unlink()
        pq.write_table(pa.Table.from_pylist(changed, schema), copy.root / "index/train-events.parquet")
        copy.sign()
        report = verify_here(copy.root)
        assert (kinds(report), text in details(report)) == ({kind}, True)


@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        ("dataset_info.json", '"shardLengths": [\n        "', '"shardLengths": [\n        "1', "splits"),
        ("dataset_info.json", "imagenet", "imagenut", "name"),
        ("dataset_info.json", "{", "[", "its syntax"),
        ("features.json", "class_label_feature.ClassLabel", "os.system", "featuresDict"),
        ("label.labels.txt", "n0", "n1", "its content"),
    ],
)
def test_metadata_that_disagrees(damaged, file, old, new, what):
    copy = damaged("imagenet-tfrecord")
    document = copy.document
    copy.write(file, (copy.root / file).read_text().replace(old, new, 1).encode())
    copy.write_document(document)
    copy._sign(entry := next(entry for entry in document["files"] if entry["file"] == file))
    copy.write_document(document)
    report = verify_here(copy.root)
    assert (kinds(report), entry["file"]) == ({"metadata"}, file)
    assert f"metadata {file}: {what}" in details(report)


def test_prose_may_be_put_better(damaged):
    copy = damaged("imagenet-tfrecord")
    info = json.loads((copy.root / "dataset_info.json").read_bytes())
    info["description"] = info["citation"] = "other words"
    copy.write("dataset_info.json", json.dumps(info).encode())
    copy.sign()
    assert details(verify_here(copy.root)) == ""


def test_files_that_nothing_names(damaged):
    copy = damaged("imagenet-webdataset")
    for name in ("train/notes.txt", "index/old.parquet", "imagenet-train.tfrecord-00000-of-00001", "dataset_info.json"):
        copy.write(name, b"x")
    for name in ("README.md", "notes/x.txt", "replicas.json"):
        copy.write(name, b"harmless")
    report = verify_here(copy.root)
    assert kinds(report) == {"extra"}
    assert sorted(finding.where for finding in report.findings) == [
        "dataset_info.json",
        "imagenet-train.tfrecord-00000-of-00001",
        "index/old.parquet",
        "train/notes.txt",
    ]


def test_an_empty_folder_would_be_a_class(damaged):
    copy = damaged("imagenet-imagefolder")
    (copy.root / "train/n99999999").mkdir()
    assert "extra train/n99999999: a folder in which the index has no image" in details(verify_here(copy.root))


def test_leftovers_of_a_build_are_a_warning(damaged):
    copy = damaged("imagenet-webdataset")
    copy.write("_build/receipts/00000.parquet", b"x")
    report = verify_here(copy.root)
    assert (report.verdict, kinds(report)) == ("whole", {"leftover"})


def test_links_of_the_repeats(damaged):
    copy = damaged("coco-links")
    links = sorted(path.name for path in (copy.root / "train").iterdir())
    assert links == [f"{folder}_{i}" for folder in ("train2017", "unlabeled2017") for i in range(5)]
    (copy.root / "train/train2017_3").unlink()
    (copy.root / "train/unlabeled2017_0").unlink()
    (copy.root / "train/unlabeled2017_0").symlink_to("../images/train2017")
    (copy.root / "train/train2017_5").symlink_to("../images/train2017")
    lines = details(verify_here(copy.root))
    assert "link train/train2017_3: no link, expected one to ../images/train2017" in lines
    assert "link train/unlabeled2017_0: leads to '../images/train2017', expected ../images/unlabeled2017" in lines
    assert "extra train/train2017_5: expected the links of the repeats alone" in lines


def test_a_link_out_of_the_dataset(damaged, tmp_path):
    copy = damaged("imagenet-webdataset")
    (tmp_path / "elsewhere").mkdir()
    (copy.root / "val/more").symlink_to(tmp_path / "elsewhere")
    assert "extra" in kinds(verify_here(copy.root))
    shutil.move(copy.root / "train", tmp_path / "moved")
    (copy.root / "train").symlink_to(tmp_path / "moved")
    assert "unread" in kinds(verify_here(copy.root))


# The manifest


def test_a_manifest_that_is_none(damaged):
    copy = damaged("imagenet-webdataset")
    for data in (b"", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 100_000, b'{"schema_version": "9.0"}'):
        copy.write("dataset.json", data)
        report = verify_here(copy.root)
        assert (report.verdict, kinds(report)) == ("differs", {"manifest"})


def test_a_manifest_that_was_reformatted(damaged):
    copy = damaged("imagenet-webdataset")
    copy.write("dataset.json", json.dumps(copy.document).encode())
    assert "manifest dataset.json: other bytes than a build writes" in details(verify_here(copy.root))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data(), name=st.sampled_from(["imagenet-imagefolder", "coco-tfrecord", "coco-links"]))
def test_no_manifest_is_hostile_enough_to_crash_it(good, tmp_path_factory, data, name):
    copy = Damaged(tmp_path_factory.mktemp("hostile") / "copy")
    linked_copy(good[name], copy.root)
    document = copy.document
    parent, key = document, data.draw(st.sampled_from(sorted(document)))
    while isinstance(parent[key], dict | list) and parent[key] and data.draw(st.integers(0, 3)):
        parent = parent[key]
        key = data.draw(st.sampled_from(sorted(parent) if isinstance(parent, dict) else range(len(parent))))
    parent[key] = data.draw(VALUES)
    copy.write_document(document)
    assert kinds(verify_here(copy.root)) <= set(KINDS)


# What cannot be read proves nothing


def test_what_cannot_be_read_is_undecided(good, damaged, monkeypatch):
    shard = Damaged(good["imagenet-webdataset"]).shards()[0]
    opened = LocalStorage.open

    def refuse(self, name):
        if name == shard:
            raise StorageError(f"{name}: input/output error")
        return opened(self, name)

    copy = damaged("imagenet-webdataset")
    monkeypatch.setattr(LocalStorage, "open", refuse)
    report = verify_here(copy.root)
    assert (report.verdict, details(report)) == ("undecided", f"unread {shard}: {shard}: input/output error")
    (copy.root / copy.shards()[1]).unlink()
    assert verify_here(copy.root).verdict == "differs"


def test_a_listing_that_is_refused_is_undecided(good, monkeypatch):
    def refuse(self, prefix=""):
        raise StorageError("listing is refused")

    monkeypatch.setattr(LocalStorage, "list", refuse)
    report = verify_here(good["imagenet-webdataset"])
    assert (report.verdict, kinds(report)) == ("undecided", {"unread"})


def test_a_manifest_that_cannot_be_read_is_undecided(good, monkeypatch):
    def refuse(self, name):
        raise StorageError("the disk is gone")

    monkeypatch.setattr(LocalStorage, "read", refuse)
    with pytest.raises(UndecidedError, match="the disk is gone; so nothing is known of"):
        verify_here(good["imagenet-webdataset"])


def test_a_shard_whose_check_kills_its_process_is_undecided(good, monkeypatch):
    class DyingPool:
        def __init__(self, task, workers, log):
            self.task = task

        def run(self, indexes):
            yield from (self.task(index) for index in indexes if index != 2)
            raise BuildError("shard 2: killed its worker 3 times")

    monkeypatch.setattr(dataprep.verify, "Pool", DyingPool)
    report = verify_here(good["imagenet-webdataset"], workers=1)
    assert report.verdict == "undecided"
    assert report.findings[0].where == Damaged(good["imagenet-webdataset"]).shards()[2]


# Deep


def test_deep_finds_what_an_unchecked_build_let_through(good):
    assert verify_here(good["unchecked"]).verdict == "whole"
    report = verify_here(good["unchecked"], deep=True)
    assert (report.verdict, kinds(report)) == ("differs", {"image"})
    assert ": truncated: " in details(report)


@pytest.mark.parametrize("name", ["imagenet-webdataset", "imagenet-imagefolder"])
def test_deep_compares_dimensions(damaged, name):
    copy = damaged(name)
    height = column_values(copy, "height")[0] + 1
    change_cell(copy, "index/train.parquet", "height", height)
    if name == "imagenet-webdataset":
        shard = copy.shards()[0]
        samples: list[Sample] = copy.read_shard(shard)
        copy.write_shard(shard, [replace(samples[0], height=height), *samples[1:]])
    copy.sign()
    assert verify_here(copy.root).verdict == "whole"
    report = verify_here(copy.root, deep=True)
    assert kinds(report) == {"image"}
    assert f"recorded ({height}, " in details(report)


# The command


def test_exit_codes_and_output(good, damaged, tmp_path):
    run = dataprep("verify", good["imagenet-tfrecord"], "--deep", "--workers", 1)
    assert (run.returncode, run.stderr) == (0, "")
    assert " is whole: " in run.stdout
    assert "every image decoded" in run.stdout
    copy = damaged("imagenet-tfrecord")
    (copy.root / copy.shards()[0]).unlink()
    copy.write("x.tfrecord-1", b"x")
    run = dataprep("verify", copy.root, "--workers", 1)
    assert run.returncode == 1
    assert [line.split()[0] for line in run.stdout.splitlines()] == ["missing", "extra"]
    assert "differs from its manifest: 2 findings (1 extra, 1 missing); " in run.stderr
    run = dataprep("verify", copy.root, "--json", "--workers", 1)
    report = json.loads(run.stdout)
    assert (run.returncode, report["verdict"], report["counts"]) == (1, "differs", {"extra": 1, "missing": 1})
    run = dataprep("verify", tmp_path / "nothing")
    assert (run.returncode, run.stdout) == (2, "")
    assert "no dataset there (no dataset.json); check the URL" in run.stderr


def test_a_build_under_way_is_named(tmp_path):
    (tmp_path / "_build").mkdir()
    (tmp_path / "_build/plan.json").write_text("{}")
    with pytest.raises(UsageError, match="a build is under way there: run it again to finish it"):
        verify_here(tmp_path)


def change_cell(copy, file, column, value):
    """The first row's value of a column."""
    done = []

    def change(table):
        if done:
            return table
        done.append(True)
        values = [value, *table.column(column).to_pylist()[1:]]
        at = table.column_names.index(column)
        return table.set_column(at, column, pa.array(values, table.schema.field(column).type))

    copy.change_table(file, change)


def column_values(copy, column):
    return pq.read_table(copy.root / "index/train.parquet").column(column).to_pylist()
