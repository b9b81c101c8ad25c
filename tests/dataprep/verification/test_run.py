"""One shard is checked for a worker: it is found by its number among all splits, and any bytes are only a finding."""

import json
import os
import shutil
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dataprep.builder.finished import dataset_of, layout_faults, shape_faults
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import MANIFEST, manifest_bytes, read_manifest
from dataprep.dataset.replicas import Replica, record_replicas
from dataprep.errors import BuildError, FormatError, StorageError, UndecidedError, UsageError
from dataprep.sources import DATASETS
from dataprep.storage import open_storage
from dataprep.storage.gcs_location import BucketLocation
from dataprep.storage.local import LocalStorage
from dataprep.verification.findings import KINDS, Findings
from dataprep.verification.run import ShardJob, check_replicas, check_shard, consistency_faults, published_faults
from tests.support.adoption import adopt_here, upload
from tests.support.faults import Damaged, linked_copy, plant
from tests.support.finished import CHECKED, change_cell, column_values, details, kinds, verify_here


@pytest.mark.parametrize("name", CHECKED)
def test_an_undamaged_dataset_has_no_findings(finished, name):
    manifest = Damaged(finished(name)).document
    for deep in (False, True):
        report = verify_here(finished(name), deep=deep)
        assert (report.verdict, details(report)) == ("complete", "")
        assert report.samples == sum(split["samples"] for split in manifest["splits"])
        assert report.num_bytes == sum(split["num_bytes"] for split in manifest["splits"])
        assert report.shards == sum(len(split["shards"]) for split in manifest["splits"])


def test_worker_processes_find_the_same_faults(finished, damaged):
    copy = damaged("imagenet-webdataset")
    plant(copy.root, seed=7)
    here, there = (verify_here(copy.root, deep=True, workers=workers) for workers in (0, 2))
    assert here.findings
    assert replace(here, elapsed_s=0) == replace(there, elapsed_s=0)
    assert verify_here(finished("imagenet-webdataset"), workers=2).verdict == "complete"


@pytest.mark.parametrize("name", CHECKED)
def test_planted_faults_are_found_and_the_original_is_not_touched(finished, tmp_path, name):
    """Some of the 1,000 that the soak plants."""
    missed = []
    for seed in range(20):
        linked_copy(finished(name), tmp_path / "copy")
        fault = plant(tmp_path / "copy", seed)
        report = verify_here(tmp_path / "copy")
        assert kinds(report) <= set(KINDS)
        if report.verdict != "differs":
            missed.append(f"seed {seed}: {fault}")
    assert missed == []
    assert verify_here(finished(name)).verdict == "complete"


@pytest.mark.parametrize("name", ["imagenet-webdataset", "imagenet-tfrecord"])
def test_a_truncated_shard_is_one_finding(finished, name, tmp_path):
    shutil.copytree(finished(name), tmp_path / "copy")
    shard = next(path for path in sorted((tmp_path / "copy").rglob("*-train*-00000-of-*")) if path.is_file())
    os.truncate(shard, shard.stat().st_size // 2)
    found = verify_here(tmp_path / "copy").findings
    where = shard.relative_to(tmp_path / "copy").as_posix()
    assert [(each.kind, each.where) for each in found] == [("size", where)]


@pytest.mark.parametrize("fmt", [pytest.param("webdataset", marks=pytest.mark.long), "imagefolder"])
def test_damage_in_a_bucket_is_found(finished, bucket_url, fmt):
    url = upload(finished(f"imagenet-{fmt}"), bucket_url)
    assert verify_here(url, deep=True).verdict == "complete"
    storage = open_storage(url)
    names = [info.name for info in storage.list("train/")]
    data = storage.read(names[0])
    storage.delete(names[0])
    assert kinds(verify_here(url)) == {"missing"}
    storage.create(names[0], data[:-1] + bytes([data[-1] ^ 1]))
    assert "digest" in kinds(verify_here(url))
    storage.delete(names[0])
    storage.create(names[0], data[:-1])
    assert kinds(verify_here(url)) == {"size"}
    storage.delete(names[0])
    storage.create(names[0], data + b"\0")
    assert "size" in kinds(verify_here(url))
    storage.delete(names[0])
    storage.create(names[0], data)
    storage.create(names[0] + ".tar", data)
    report = verify_here(url)
    assert [(finding.kind, finding.where) for finding in report.findings] == [("extra", names[0] + ".tar")]


# What cannot be read proves nothing


def test_a_shard_that_cannot_be_read_is_undecided(finished, damaged, monkeypatch):
    shard = Damaged(finished("imagenet-webdataset")).shards()[0]
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


def test_a_listing_that_is_refused_is_undecided(finished, monkeypatch):
    def refuse(self, prefix=""):
        raise StorageError("listing is refused")

    monkeypatch.setattr(LocalStorage, "list", refuse)
    report = verify_here(finished("imagenet-webdataset"))
    assert (report.verdict, kinds(report)) == ("undecided", {"unread"})


def test_a_manifest_that_cannot_be_read_is_undecided(finished, monkeypatch):
    def refuse(self, name, max_bytes=None):
        raise StorageError("the disk is gone")

    monkeypatch.setattr(LocalStorage, "read", refuse)
    with pytest.raises(UndecidedError, match=r"the disk is gone; .* cannot be checked"):
        verify_here(finished("imagenet-webdataset"))


def test_a_shard_whose_check_kills_its_process_is_undecided(finished, monkeypatch):
    def run(self, task, indexes):
        yield from (task(index) for index in indexes if index != 2)
        raise BuildError("shard 2: killed its worker 3 times")

    monkeypatch.setattr("dataprep.builder.pool.Pool.run", run)
    report = verify_here(finished("imagenet-webdataset"), workers=1)
    assert report.verdict == "undecided"
    assert report.findings[0].where == Damaged(finished("imagenet-webdataset")).shards()[2]


# Deep


def test_deep_finds_what_an_unchecked_build_let_through(finished):
    assert verify_here(finished("unchecked")).verdict == "complete"
    report = verify_here(finished("unchecked"), deep=True)
    assert (report.verdict, kinds(report)) == ("differs", {"image"})
    assert ": truncated: " in details(report)


def test_deep_compares_sides_that_shard_and_index_agree_on(damaged):
    copy = damaged("imagenet-webdataset")
    height = column_values(copy, "height")[0] + 1
    change_cell(copy, "index/train.parquet", "height", height)
    first, *others = copy.read_shard(copy.shards()[0])
    copy.write_shard(copy.shards()[0], [first._replace(height=height), *others])
    copy.sign()
    assert verify_here(copy.root).verdict == "complete"
    report = verify_here(copy.root, deep=True)
    assert kinds(report) == {"image"}
    assert f"height and width ({height - 1}, {first.width}), recorded ({height}, {first.width})" in details(report)


# The command


def job_of(url: object, **changed) -> ShardJob:
    manifest = read_manifest(open_storage(str(url)))
    splits = frozenset(split.name for split in manifest.splits)
    return ShardJob(**{"url": str(url), "manifest": manifest, "indexed": splits, "deep": False, **changed})


def found_by(job: ShardJob, index: int) -> list[tuple[str, str]]:
    return [(finding.kind, finding.where) for finding in check_shard(job, index).findings.listed]


def test_shards_are_numbered_through_all_splits(finished):
    job = job_of(finished("imagenet-webdataset"))
    located = [(split.name, number) for split, number in map(job.locate, range(6))]
    assert located == [(name, number) for name in ("train", "val") for number in range(3)]
    with pytest.raises(UsageError, match="shard 6 past the end"):
        job.locate(6)


@pytest.mark.parametrize("name", ["imagenet-tfrecord", "imagenet-imagefolder", "coco-five-times"])
@pytest.mark.parametrize("deep", [False, True])
def test_a_whole_shard_has_no_findings(finished, name, deep):
    job = job_of(finished(name), deep=deep)
    assert found_by(job, 0) == []
    assert check_shard(job, 0).samples > 0


def test_a_shard_that_is_gone_is_missing_and_one_behind_a_link_is_not_read(damaged, tmp_path):
    copy = damaged("imagenet-webdataset")
    job = job_of(copy.root)
    gone, linked = (job.manifest.splits[0].shards[number]["file"] for number in (0, 1))
    (copy.root / gone).unlink()
    assert found_by(job, 0) == [("missing", gone)]
    (tmp_path / "outside").mkdir()
    (copy.root / linked).parent.rename(tmp_path / "outside/train")
    (copy.root / linked).parent.symlink_to(tmp_path / "outside/train")
    assert found_by(job, 1) == [("unread", linked)]


def test_all_bad_images_of_adopted_data_are_named_at_once(tmp_path):
    folder = tmp_path / "data/train/cats"
    folder.mkdir(parents=True)
    for number in range(70):
        kind = ("PNG", "WEBP", "BMP", "JPEG")[number % 4]
        Image.new("RGB", (20, 10 + number)).save(folder / f"{number:02}.{kind.lower()}", kind)
    index = adopt_here(tmp_path / "data", tmp_path / "index", digest=True).url
    report = verify_here(index)
    assert (report.verdict, report.is_adopted, report.samples) == ("complete", True, 70)
    bad = [path.name for path in sorted(folder.iterdir())[:60]]
    for name in bad:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(b"?" * len(data))
    (folder / sorted(path.name for path in folder.iterdir())[-1]).unlink()
    grown = folder / sorted(path.name for path in folder.iterdir())[-1]
    grown.write_bytes(grown.read_bytes() + b"?")
    report = verify_here(index)
    assert (report.verdict, report.samples) == ("differs", 70)
    assert report.counts == {"digest": 60, "image": 60, "missing": 1, "size": 1}
    assert [each.where for each in report.findings if each.kind == "image"] == [f"train/cats/{name}" for name in bad]
    assert replace(verify_here(index, workers=2), elapsed_s=0) == replace(report, elapsed_s=0)


@pytest.mark.parametrize("name", ["imagenet-tfrecord", "imagenet-webdataset"])
def test_bad_images_of_adopted_shards_are_named_by_their_keys(finished, tmp_path, name):
    data = tmp_path / "data"
    shutil.copytree(finished(name), data)
    for path in (data / "dataset.json", data / "index"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    index = adopt_here(data, tmp_path / "index").url
    assert verify_here(index).verdict == "complete"
    manifest = read_manifest(open_storage(index))
    row = open_index(open_storage(index), manifest.splits[0]).read_group(0).to_pylist()[1]
    path = data / manifest.splits[0].shards[0]["file"]
    damaged = bytearray(path.read_bytes())
    damaged[row["image_offset"] : row["image_offset"] + row["image_bytes"]] = bytes(row["image_bytes"])
    path.write_bytes(damaged)
    (found,) = verify_here(index).findings
    assert (found.kind, found.where) == ("image", f"{manifest.splits[0].shards[0]['file']} ({row['key']})")


@pytest.fixture
def places(finished, bucket_url):
    """Two places of one dataset, each with a list of both."""
    folder = finished("imagenet-webdataset")
    storages = [open_storage(upload(folder, f"{bucket_url}/{name}")) for name in ("first", "second")]
    for storage in storages:
        record_replicas(storage, [Replica(each.url, BucketLocation(location="US")) for each in storages])
    return storages


def compared(storage) -> tuple[int, list[tuple[str, str]]]:
    """Number of places that were compared, and the kind and place of each finding."""
    findings = Findings()
    count = check_replicas(storage, lambda _: None, findings)
    return count, sorted((finding.kind, finding.where) for finding in findings.listed)


def test_places_of_the_same_bytes_do_not_differ(places):
    assert compared(places[0]) == (1, [])
    assert compared(places[1]) == (1, [])


def test_a_dataset_without_a_list_has_no_other_places(finished):
    assert compared(open_storage(str(finished("imagenet-webdataset")))) == (0, [])


def test_what_is_missing_or_of_another_size_or_of_other_bytes_is_named(places):
    first, second = places
    gone, cut, other = [info.name for info in first.list("train/")][:3]
    data = {name: first.read(name) for name in (cut, other)}
    for name in (gone, cut, other):
        second.delete(name)
    second.create(cut, data[cut][:-1])
    second.create(other, bytes([data[other][0] ^ 1]) + data[other][1:])
    assert compared(first) == (
        1,
        sorted([("missing", second.url_of(gone)), ("size", second.url_of(cut)), ("digest", second.url_of(other))]),
    )


def test_cards_which_replicate_leaves_alone_may_differ_or_be_absent(places):
    first, second = places
    first.create("README.md", b"the one")
    second.create("README.md", b"another")
    first.create("croissant.json", b"{}")
    assert compared(first) == (1, [])


def test_a_place_that_cannot_be_asked_is_undecided(places):
    gone = "gs://no-such-bucket-anywhere/x"
    record_replicas(places[0], [Replica(gone, BucketLocation(location="US"))])
    count, found = compared(places[0])
    assert (count, found) == (2, [("unread", gone)])


def test_a_file_that_is_no_manifest_is_found(damaged):
    copy = damaged("imagenet-webdataset")
    for data in (b"", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 100_000, b'{"schema_version": "9.0"}'):
        copy.write("dataset.json", data)
        report = verify_here(copy.root)
        assert (report.verdict, kinds(report)) == ("differs", {"manifest"})


def test_a_reformatted_manifest_is_found(damaged):
    copy = damaged("imagenet-webdataset")
    copy.write("dataset.json", json.dumps(copy.document).encode())
    assert "manifest dataset.json: its bytes are not what a build writes" in details(verify_here(copy.root))


@pytest.mark.parametrize(
    ("verdict", "changes"),
    [
        ("complete", {"licence": "MIT"}),
        ("complete", {"origin": "elsewhere"}),
        ("complete", {"options": {"seed": 5}}),
        ("differs", {"name": "other"}),
        ("differs", {"splits": 0}),
    ],
)
def test_a_changed_option_origin_or_licence_is_not_found(damaged, verdict, changes):
    copy = damaged("imagenet-webdataset")
    manifest = read_manifest(open_storage(str(copy.root)))
    first = manifest.splits[0]
    values = {
        "options": {**manifest.options, **changes.get("options", {})},
        "splits": (replace(first, samples=first.samples - 1), *manifest.splits[1:]),
    }
    changed = replace(manifest, **{name: values.get(name, value) for name, value in changes.items()})
    copy.write("dataset.json", manifest_bytes(changed))
    assert verify_here(copy.root).verdict == verdict


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@settings(derandomize=True)
@given(data=st.data(), name=st.sampled_from(["imagenet-imagefolder", "coco-tfrecord", "coco-links"]))
def test_no_hostile_manifest_crashes_verify(finished, tmp_path_factory, data, name):
    copy = Damaged(tmp_path_factory.mktemp("hostile") / "copy")
    linked_copy(finished(name), copy.root)
    document = copy.document
    parent, key = document, data.draw(st.sampled_from(sorted(document)))
    while isinstance(parent[key], dict | list) and parent[key] and data.draw(st.integers(0, 3)):
        parent = parent[key]
        key = data.draw(st.sampled_from(sorted(parent) if isinstance(parent, dict) else range(len(parent))))
    parent[key] = data.draw(VALUES)
    copy.write_document(document)
    assert kinds(verify_here(copy.root)) <= set(KINDS)


def manifest_of(finished, name):
    return read_manifest(open_storage(str(finished(name))))


ENDS = (("index", ""), ("events", "-events"))


def with_split(manifest, **changes):
    """The manifest with changes to its first split."""
    return replace(manifest, splits=(replace(manifest.splits[0], **changes), *manifest.splits[1:]))


def test_a_good_manifest_has_no_faults(finished):
    for name in ("imagenet-webdataset", "coco-links", "coco-five-times"):
        manifest = manifest_of(finished, name)
        for find in (shape_faults, layout_faults, consistency_faults):
            assert list(find(manifest)) == []


def faults_read(manifest, folder):
    """Write a manifest, of whatever types, and return what its reader finds wrong with it, or else its shape."""
    (folder / MANIFEST).write_bytes(manifest_bytes(manifest))
    try:
        found = read_manifest(open_storage(str(folder)))
    except FormatError as error:
        return str(error)
    return "\n".join(shape_faults(found))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "cifar"}, "name 'cifar', expected one of coco, coco-dup5, imagenet"),
        ({"format": "parquet"}, "$.format 'parquet', expected one of imagefolder"),
        ({"plan_hash": "x"}, "plan_hash is 'x', expected 64 hexadecimal digits"),
        ({"partial": 1}, "$.partial: expected bool, got 1"),
        ({"classes": (1,)}, "$.classes[0]: expected str, got 1"),
        ({"files": ("x",)}, '$.files[0]: expected object, got "x"'),
        ({"files": ({"file": "x", "bytes": 1, "sha256": "y"},)}, "files: sha256 is 'y', expected 64 hexadecimal"),
        ({"revision": True}, "$.revision: expected int, got true"),
        ({"sources": ({"split": "train", "name": "x", "bytes": 1},)}, "sources: fields bytes, name, split; expected"),
        ({"sources": ({"split": "train", "name": "x", "bytes": -1},)}, "$.sources[0].bytes: expected int >= 0, got -1"),
        (
            {"sources": ({"split": "train", "name": "x", "bytes": 1, "enumeration_sha256": "y"},)},
            "sources: enumeration_sha256 is 'y', expected 64 hexadecimal digits",
        ),
    ],
)
def test_manifest_of_wrong_types_or_digests_is_refused(finished, tmp_path, change, text):
    assert text in faults_read(replace(manifest_of(finished, "imagenet-webdataset"), **change), tmp_path)


SHARD = {"file": "train/x.tar", "samples": 1, "bytes": 1, "sha256": "0" * 64, "crc32c": "AAAAAA=="}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"samples": -1}, "$.splits[0].samples: expected int >= 0, got -1"),
        ({"num_bytes": 10**30}, "$.splits[0].num_bytes: expected int <= 9007199254740991, got 1000"),
        ({"name": "../train"}, '$.splits[0].name: expected letters, digits, _ and -, got "../train"'),
        ({"rejected": {"x": "y"}}, '$.splits[0].rejected[...]: expected int, got "y"'),
        ({"repeats": {"count": 1}}, "$.splits[0].repeats: the field stored is missing"),
        ({"index": {"file": "x", "bytes": 1}}, "$.splits[0].index: the field sha256 is missing"),
        ({"shards": (SHARD | {"sha256": ""},)}, "split train: shard 0: sha256 is '', expected 64 hexadecimal digits"),
        ({"shards": (SHARD | {"crc32c": "x"},)}, "split train: shard 0: crc32c is 'x', expected 8 characters of"),
    ],
)
def test_split_of_wrong_types_or_digests_is_refused(finished, tmp_path, change, text):
    assert text in faults_read(with_split(manifest_of(finished, "imagenet-webdataset"), **change), tmp_path)


def test_split_of_another_dataset_is_refused(finished, tmp_path):
    manifest = manifest_of(finished, "imagenet-webdataset")
    files = {name: {**getattr(manifest.splits[0], name), "file": f"index/test{end}.parquet"} for name, end in ENDS}
    faults = faults_read(with_split(manifest, name="test", **files), tmp_path)
    assert "split 'test', expected one of train, val" in faults


def test_files_and_repeats_other_than_a_builds_are_faults(finished):
    manifest = manifest_of(finished, "imagenet-webdataset")
    shards = ({**manifest.splits[0].shards[0], "file": "../../etc/passwd"}, *manifest.splits[0].shards[1:])
    faults = list(layout_faults(with_split(manifest, shards=shards, repeats={"count": 5, "stored": 1})))
    assert faults == [
        "split train: repeats {'count': 5, 'stored': 1}, expected {'count': 1, 'stored': 1}",
        "split train: shard 0 is '../../etc/passwd', expected train/imagenet-train-00000-of-00003.tar",
    ]
    twice = replace(manifest, splits=(manifest.splits[0], manifest.splits[0]))
    assert list(layout_faults(twice)) == ["splits train, train, expected each once and at least one"]


def test_names_in_tfds_that_lead_elsewhere_are_a_fault(finished, tmp_path):
    manifest = manifest_of(finished, "imagenet-webdataset")
    for name, text in (("../up", "options.tfds cannot be read (`tfds_name`: got '../up'"), (7, "$.options.tfds.name")):
        assert text in faults_read(replace(manifest, options={**manifest.options, "tfds": {"name": name}}), tmp_path)


def test_counts_that_contradict_each_other_are_faults(finished):
    manifest = manifest_of(finished, "imagenet-webdataset")
    split = manifest.splits[0]
    more = with_split(manifest, samples=split.samples + 1, class_counts=(*split.class_counts, 1))
    assert list(consistency_faults(more)) == [
        f"split train: samples {split.samples + 1}, expected {split.samples}",
        f"split train: classes counted {len(split.class_counts) + 1}, expected {len(split.class_counts)}",
        f"split train: samples of all classes {split.samples + 1}, expected {split.samples}",
    ]
    assert "options.images.check is 'decode', elsewhere it says 'none'" in list(
        consistency_faults(replace(manifest, checked="none"))
    )
    assert "classes are not sorted" in list(
        consistency_faults(replace(manifest, classes=tuple(reversed(manifest.classes))))
    )
    assert "a class occurs twice" in list(
        consistency_faults(replace(manifest, classes=(manifest.classes[0], *manifest.classes[:-1])))
    )


def published(finished, **changes):
    """Faults of a manifest that claims to be all of ImageNet's val, with some changes to the split."""
    classes = DATASETS["imagenet"].classes(open_storage("/"), allow_partial=False)
    manifest = replace(manifest_of(finished, "imagenet-webdataset"), partial=False, classes=classes)
    val = {"samples": 50_000, "class_counts": (50,) * 1000, "rejected": {}} | changes
    manifest = replace(manifest, splits=(replace(manifest.splits[1], **val),))
    return list(published_faults(manifest, DATASETS["imagenet"], classes))


def test_counts_other_than_the_published_ones_are_faults(finished):
    assert published(finished) == []
    counts = (49, *(50,) * 999)
    assert published(finished, samples=49_999, class_counts=counts, rejected={"truncated": 1}) == []
    assert published(finished, samples=49_999, class_counts=counts) == [
        ("val", "49,999 samples and 0 rejected; published are 50,000"),
        ("val", "class 'n01440764' has 49 samples; published are 50 to 50"),
    ]
    assert published(finished, class_counts=(51, 49, *(50,) * 998), samples=49_999, rejected={"empty": 1}) == [
        ("val", "class 'n01440764' has 51 samples; published are 50 to 50")
    ]


def test_classes_and_repeats_other_than_the_published_ones_are_faults(finished):
    coco = replace(manifest_of(finished, "coco-five-times"), partial=False)
    assert [fault for _, fault in published_faults(coco, DATASETS["coco-dup5"], ())] == [
        f"{coco.splits[0].samples:,} samples and {sum(coco.splits[0].rejected.values()):,} rejected; "
        "published are 241,690, stored 5 times"
    ]
    imagenet = replace(manifest_of(finished, "imagenet-webdataset"), partial=False)
    classes = DATASETS["imagenet"].classes(open_storage("/"), allow_partial=False)
    where, fault = next(iter(published_faults(imagenet, DATASETS["imagenet"], classes)))
    assert (where, f"{len(imagenet.classes)} classes, published are 1,000; not in both: [" in fault) == (
        "classes",
        True,
    )


def test_a_generated_dataset_has_the_size_that_was_asked_for(finished):
    manifest = replace(manifest_of(finished, "imagenet-webdataset"), name="imagenet-fake", options={"fake_images": 260})
    dataset = dataset_of(manifest)
    assert [dataset.split_facts(split).samples for split in ("train", "val")] == [260, 10]
