import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.checks.findings import KINDS
from dataprep.checks.manifest import consistency_faults, dataset_of, layout_faults, published_faults, shape_faults
from dataprep.manifest import read_manifest
from dataprep.sources import DATASETS
from dataprep.storage import open_storage
from tests.support.faults import Damaged, linked_copy
from tests.support.finished import details, kinds, verify_here


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
def test_no_manifest_is_hostile_enough_to_crash_it(finished, tmp_path_factory, data, name):
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


def with_split(manifest, **changes):
    """The manifest with changes to its first split."""
    return replace(manifest, splits=(replace(manifest.splits[0], **changes), *manifest.splits[1:]))


def test_a_good_manifest_has_no_faults(finished):
    for name in ("imagenet-webdataset", "coco-links", "coco-five-times"):
        manifest = manifest_of(finished, name)
        for find in (shape_faults, layout_faults, consistency_faults):
            assert list(find(manifest)) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "cifar"}, "name 'cifar', expected one of coco-dup5, imagenet"),
        ({"format": "parquet"}, "format 'parquet', expected one of imagefolder"),
        ({"plan_hash": "x"}, "plan_hash is 'x', expected 64 hexadecimal digits"),
        ({"partial": 1}, "partial is 1, expected bool"),
        ({"classes": (1,)}, "classes hold something else than names"),
        ({"files": ("x",)}, "files: 'x', expected file, bytes, sha256"),
        ({"revision": True}, "revision is True, expected int of 0 or more"),
    ],
)
def test_shape(finished, change, text):
    assert text in "\n".join(shape_faults(replace(manifest_of(finished, "imagenet-webdataset"), **change)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"samples": -1}, "split train: samples is -1, expected int of 0 or more"),
        ({"num_bytes": 10**30}, "split train: num_bytes is 1000"),
        ({"name": "../train"}, "split '../train', expected one of train, val"),
        ({"rejected": {"x": "y"}}, "split train: rejected {'x': 'y'}, expected counts"),
        ({"repeats": {"count": 1}}, "expected count and stored"),
        (
            {"index": {"file": "x", "bytes": 1}},
            "split train: index: fields 'bytes', 'file'; expected file, bytes, sha256",
        ),
    ],
)
def test_shape_of_a_split(finished, change, text):
    assert text in "\n".join(shape_faults(with_split(manifest_of(finished, "imagenet-webdataset"), **change)))


def test_layout(finished):
    manifest = manifest_of(finished, "imagenet-webdataset")
    shards = ({**manifest.splits[0].shards[0], "file": "../../etc/passwd"}, *manifest.splits[0].shards[1:])
    faults = list(layout_faults(with_split(manifest, shards=shards, repeats={"count": 5, "stored": 1})))
    assert faults == [
        "split train: repeats {'count': 5, 'stored': 1}, expected {'count': 1, 'stored': 1}",
        "split train: shard 0 is '../../etc/passwd', expected train/imagenet-train-00000-of-00003.tar",
    ]
    twice = replace(manifest, splits=(manifest.splits[0], manifest.splits[0]))
    assert list(layout_faults(twice)) == ["splits train, train, expected each once and at least one"]


def test_consistency(finished):
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
    assert "classes are not sorted, or one is there twice" in list(
        consistency_faults(replace(manifest, classes=tuple(reversed(manifest.classes))))
    )


def published(finished, **changes):
    """Faults of a manifest that claims to be all of ImageNet's val, with some changes to the split."""
    classes = DATASETS["imagenet"].classes(open_storage("/"), allow_partial=False)
    manifest = replace(manifest_of(finished, "imagenet-webdataset"), partial=False, classes=classes)
    val = {"samples": 50_000, "class_counts": (50,) * 1000, "rejected": {}} | changes
    manifest = replace(manifest, splits=(replace(manifest.splits[1], **val),))
    return list(published_faults(manifest, DATASETS["imagenet"], classes))


def test_published_counts(finished):
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


def test_published_classes_and_repeats(finished):
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
