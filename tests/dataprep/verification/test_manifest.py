import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.builder.finished import dataset_of, layout_faults, shape_faults
from dataprep.dataset.manifest import MANIFEST, manifest_bytes, read_manifest
from dataprep.errors import FormatError
from dataprep.sources import DATASETS
from dataprep.storage import open_storage
from dataprep.verification.findings import KINDS
from dataprep.verification.manifest import consistency_faults, published_faults
from tests.support.faults import Damaged, linked_copy
from tests.support.finished import details, kinds, verify_here


def test_a_file_that_is_no_manifest_is_found(damaged):
    copy = damaged("imagenet-webdataset")
    for data in (b"", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 100_000, b'{"schema_version": "9.0"}'):
        copy.write("dataset.json", data)
        report = verify_here(copy.root)
        assert (report.verdict, kinds(report)) == ("differs", {"manifest"})


def test_a_reformatted_manifest_is_found(damaged):
    copy = damaged("imagenet-webdataset")
    copy.write("dataset.json", json.dumps(copy.document).encode())
    assert "manifest dataset.json: other bytes than a build writes" in details(verify_here(copy.root))


@pytest.mark.parametrize(
    ("verdict", "changes"),
    [
        ("whole", {"licence": "MIT"}),
        ("whole", {"origin": "elsewhere"}),
        ("whole", {"options": {"seed": 5}}),
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


@settings(max_examples=150, deadline=None, derandomize=True)
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
        (
            {"files": ({"file": "x", "bytes": 1, "sha256": "y"},)},
            "files: sha256 is 'y', expected 64 hexadecimal",
        ),
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
        (
            {"shards": (SHARD | {"crc32c": "x"},)},
            "split train: shard 0: crc32c is 'x', expected 8 characters of",
        ),
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
