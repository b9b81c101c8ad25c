"""A caption or a box that was changed is found in every format, also where all digests were made to agree."""

import json
import random
import re
import shutil
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.manifest import MANIFEST, manifest_bytes, read_manifest
from dataprep.storage import open_storage
from tests.support.builds import FORMATS
from tests.support.coco import build_small, write_small
from tests.support.finished import change_cell, column_values, details, kinds, verify_here
from tests.support.own_data import annotated, build_own


@pytest.mark.parametrize("column", ["key", "image_offset", "image_crc32c", "label", "height", "width"])
def test_an_index_row_that_differs_from_its_shard_is_found(damaged, column):
    copy = damaged("imagenet-tfrecord")
    before = column_values(copy, column)[0]
    change_cell(copy, "index/train.parquet", column, f"{before}x" if column == "key" else before + 1)
    copy.sign()
    report = verify_here(copy.root)
    assert "record" in kinds(report)
    key = column_values(copy, "key")[0]
    assert f" record 0 ({key}): {column} " in details(report)


@pytest.mark.parametrize(("column", "value"), [("shard", 1), ("key", None)])
def test_an_index_row_with_impossible_values_is_found(damaged, column, value):
    copy = damaged("imagenet-tfrecord")
    change_cell(copy, "index/train.parquet", column, value)
    copy.sign()
    assert kinds(verify_here(copy.root)) == {"index" if column == "shard" else "format"}


def test_wrong_row_groups_and_columns_are_found(damaged):
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


@pytest.mark.parametrize("file", ["index/train-events.parquet", "index/train.parquet", "index/val.parquet"])
def test_a_missing_file_is_found(damaged, file):
    copy = damaged("imagenet-imagefolder")
    (copy.root / file).unlink()
    assert f"missing {file}: no such file, expected " in details(verify_here(copy.root))


def test_events_that_disagree_with_the_manifest_are_found(damaged):
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
        ("dataset_info.json", '"name": "imagenet"', '"name": "imagenut"', "name"),
        ("dataset_info.json", "{", "[", "its syntax"),
        ("features.json", "class_label_feature.ClassLabel", "os.system", "featuresDict"),
        ("label.labels.txt", "n0", "n1", "its content"),
    ],
)
def test_metadata_that_disagree_with_the_manifest_are_found(damaged, file, old, new, what):
    copy = damaged("imagenet-tfrecord")
    document = copy.document
    copy.write(file, (copy.root / file).read_text().replace(old, new, 1).encode())
    copy.write_document(document)
    copy._sign(entry := next(entry for entry in document["files"] if entry["file"] == file))
    copy.write_document(document)
    report = verify_here(copy.root)
    assert (kinds(report), entry["file"]) == ({"metadata"}, file)
    assert f"metadata {file}: {what}" in details(report)


def test_changed_descriptions_and_citations_are_no_fault(damaged):
    copy = damaged("imagenet-tfrecord")
    info = json.loads((copy.root / "dataset_info.json").read_bytes())
    info["description"] = info["citation"] = "other words"
    copy.write("dataset_info.json", json.dumps(info).encode())
    copy.sign()
    assert details(verify_here(copy.root)) == ""


def test_unlisted_files_are_found(damaged):
    copy = damaged("imagenet-webdataset")
    for name in ("train/notes.txt", "index/old.parquet", "imagenet-train.tfrecord-00000-of-00001", "dataset_info.json"):
        copy.write(name, b"x")
    for name in ("README.md", "notes/x.txt", "replicas.json"):
        copy.write(name, b"harmless")
    report = verify_here(copy.root)
    assert kinds(report) == {"extra", "card"}
    assert sorted(finding.where for finding in report.findings if finding.kind == "extra") == [
        "dataset_info.json",
        "imagenet-train.tfrecord-00000-of-00001",
        "index/old.parquet",
        "train/notes.txt",
    ]


def test_an_empty_class_folder_is_found(damaged):
    copy = damaged("imagenet-imagefolder")
    (copy.root / "train/n99999999").mkdir()
    assert "extra train/n99999999: a folder in which the index has no image" in details(verify_here(copy.root))


def test_leftovers_of_a_build_are_a_warning(damaged):
    copy = damaged("imagenet-webdataset")
    copy.write("_build/receipts/00000.parquet", b"x")
    report = verify_here(copy.root)
    assert (report.verdict, kinds(report)) == ("complete", {"leftover"})


def test_missing_and_wrong_links_of_repeats_are_found(damaged):
    copy = damaged("coco-links")
    links = sorted(path.name for path in (copy.root / "train").iterdir())
    assert links == [f"{folder}_{i}" for folder in ("train2017", "unlabeled2017") for i in range(5)]
    (copy.root / "train/train2017_3").unlink()
    (copy.root / "train/unlabeled2017_0").unlink()
    (copy.root / "train/unlabeled2017_0").symlink_to("../images/train2017")
    (copy.root / "train/train2017_5").symlink_to("../images/train2017")
    lines = details(verify_here(copy.root))
    assert "link train/train2017_3: not a link, expected one to ../images/train2017" in lines
    assert "link train/unlabeled2017_0: leads to '../images/train2017', expected ../images/unlabeled2017" in lines
    assert "extra train/train2017_5: expected only the links of the repeats" in lines


def test_links_that_lead_out_of_the_dataset_are_not_followed(damaged, tmp_path):
    copy = damaged("imagenet-webdataset")
    (tmp_path / "elsewhere").mkdir()
    (copy.root / "val/more").symlink_to(tmp_path / "elsewhere")
    assert kinds(verify_here(copy.root)) == {"extra"}
    for folder in ("train", "index"):
        shutil.move(copy.root / folder, tmp_path / f"moved-{folder}")
        (copy.root / folder).symlink_to(tmp_path / f"moved-{folder}")
        assert "unread" in kinds(verify_here(copy.root))


FAULTS = 100


@pytest.fixture(scope="module", params=FORMATS)
def whole(request, tmp_path_factory):
    """A whole dataset with annotations."""
    folder = tmp_path_factory.mktemp(request.param)
    build_own(annotated(folder / "source", 12), folder / "out", request.param)
    assert verify_here(folder / "out", deep=True).verdict == "complete"
    return folder / "out"


def annotated_file(root: Path) -> Path:
    files = [*root.glob("train/*.tar"), *root.glob("*.tfrecord-*"), *root.glob("train/metadata.jsonl")]
    return sorted(files)[0]


def test_values_that_were_changed_are_found(whole, tmp_path):
    """Only the value changes, and no length: what finds it is not the syntax."""
    rng = random.Random(7)
    file = annotated_file(whole)
    data = file.read_bytes()
    places = [match.start(1) for match in re.finditer(rb"(?:thing|\bp|cat on a m)(?: )?([0-9a])", data)]
    assert len(places) > 10
    root = tmp_path / "out"
    shutil.copytree(whole, root)
    for _ in range(FAULTS):
        at = rng.choice(places)
        changed = bytearray(data)
        changed[at] = rng.choice([byte for byte in b"0123456789" if byte != data[at]])
        (root / file.relative_to(whole)).write_bytes(changed)
        report = verify_here(root)
        assert report.verdict == "differs"
        assert set(report.counts) <= {"digest", "record", "format"}
        assert {"record", "format"} & set(report.counts)


def test_values_that_agree_with_every_digest_differ_from_the_index(whole, tmp_path):
    """Someone builds the same pictures with another caption, and puts file and digests into the dataset."""
    other = tmp_path / "other"
    source = annotated(tmp_path / "source", 12)
    metadata = source / "metadata.jsonl"
    metadata.write_text(metadata.read_text().replace("a cat on a mat", "a dog on a mat"))
    manifest = read_manifest(open_storage(str(whole)))
    forged = build_own(source, other, manifest.format)
    for name in ("index/train.parquet", "index/train-events.parquet"):
        shutil.copyfile(whole / name, other / name)
    (split,) = forged.splits
    object.__setattr__(split, "index", manifest.splits[0].index)
    object.__setattr__(split, "events", manifest.splits[0].events)
    (other / MANIFEST).write_bytes(manifest_bytes(forged))
    report = verify_here(other)
    assert report.verdict == "differs"
    assert report.counts["record"] == 3


def test_annotations_that_are_not_there(whole, tmp_path):
    root = tmp_path / "out"
    shutil.copytree(whole, root)
    file = root / annotated_file(whole).relative_to(whole)
    data = file.read_bytes()
    file.write_bytes(data[:-20])
    assert {"size", "format"} & set(verify_here(root).counts)
    file.write_bytes(data + b'{"x":1}\n')
    assert verify_here(root).verdict == "differs"
    file.unlink()
    assert verify_here(root).counts["missing"] == 1


def fault_with(manifest: str, whole: Path, root: Path) -> str:
    """The first fault of a copy that has this manifest."""
    shutil.copytree(whole, root)
    (root / MANIFEST).write_text(manifest)
    report = verify_here(root)
    assert report.verdict == "differs"
    return report.findings[0].detail


def test_manifests_that_lie_about_features(whole, tmp_path):
    root = tmp_path / "out"
    shutil.copytree(whole, root)
    manifest = read_manifest(open_storage(str(whole)))
    for features in ({}, {"caption": manifest.features["caption"]}):
        object.__setattr__(manifest, "features", features)
        (root / MANIFEST).write_bytes(manifest_bytes(manifest))
        assert verify_here(root).verdict == "differs"


@pytest.mark.parametrize(
    ("was", "now", "text"),
    [
        ('"name": "pets"', '"name": "imagenet"', "name 'imagenet'"),
        ('"name": "pets"', '"name": "../x"', "name"),
        ('"dataset": "folder"', '"dataset": "imagenet"', "which 'imagenet' does not have"),
        ('"dataset": "folder"', '"dataset": "nothing"', "expected one of"),
        ('"val_fraction": 0.0', '"val_fraction": "x"', "options.own cannot be read"),
        ('"val_fraction": 0.0', '"val_fraction": 7.5', "options.own cannot be read"),
        ('"kind": "text"', '"kind": "tensor"', "features"),
        ('"caption": {', '"label": {', "features"),
    ],
)
def test_manifests_that_are_damaged(whole, tmp_path, was, now, text):
    manifest = (whole / MANIFEST).read_text()
    assert was in manifest
    assert text in fault_with(manifest.replace(was, now), whole, tmp_path / "out")


# COCO: boxes, masks, keypoints and panoptic images


@pytest.fixture(scope="module", params=FORMATS)
def coco(request, tmp_path_factory):
    """A whole dataset with all annotations of COCO."""
    folder = tmp_path_factory.mktemp(f"coco-{request.param}")
    build_small(write_small(folder / "source"), folder / "out", request.param)
    assert verify_here(folder / "out", deep=True).verdict == "complete"
    return folder / "out"


def places_of_values(data: bytes) -> list[int]:
    """Positions of bytes of captions, masks, boxes, keypoints and panoptic images, in text or binary."""
    texts = (
        rb"caption (\d)",
        rb"1\.5,2,11\.(75)",
        rb"\[14,(2),14",
        rb"\[0,(2),14",
        rb"iVBORw0KGgo(.{30})",
        rb"\x89PNG(.{30})",
    )
    numbers = (re.escape(struct.pack("<d", value)) for value in (10.25, 41.125, -3.5, 40.0, 5.5, 6.5))
    patterns = [
        *texts,
        rb"10\.(25)",
        rb"41\.(125)",
        rb"-(3)\.5",
        rb"(40)\.0",
        rb"6\.(5),1",
        *(b"(%s)" % n for n in numbers),
    ]
    found = [match.span(1) for pattern in patterns for match in re.finditer(pattern, data, re.DOTALL)]
    return sorted({place for start, stop in found for place in range(start, stop)})


def test_values_of_coco_that_were_changed_are_found(coco, tmp_path):
    rng = random.Random(11)
    (file,) = [*coco.glob("val/*.tar"), *coco.glob("*-val.tfrecord-*"), *coco.glob("val/metadata.jsonl")]
    data, root = file.read_bytes(), tmp_path / "out"
    places = places_of_values(data)
    assert len(places) > 60
    shutil.copytree(coco, root)
    for place in rng.sample(places, 40):
        changed = bytearray(data)
        changed[place] = rng.choice([byte for byte in b"0123456789AB" if byte != data[place]])
        (root / file.relative_to(coco)).write_bytes(changed)
        report = verify_here(root)
        assert report.verdict == "differs"
        assert {"record", "format"} & set(report.counts)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda manifest: manifest["options"].update(annotations=["captions"]), "features"),
        (lambda manifest: manifest["options"].update(annotations=["boxes"]), "options.annotations cannot be read"),
        (lambda manifest: manifest["options"].update(annotations=7), "options.annotations cannot be read"),
        (lambda manifest: manifest["options"].pop("annotations"), "features"),
        (lambda manifest: manifest["features"].pop("captions"), "features ['captions'], which 'coco' does not have"),
        (lambda manifest: manifest["features"]["image_id"].update(kind="text"), "features ['image_id']"),
        (lambda manifest: manifest["options"].update(own={"name": "coco"}), "coco"),
    ],
)
def test_manifests_whose_features_are_not_those_of_coco(coco, tmp_path, change, text):
    manifest = json.loads((coco / MANIFEST).read_text())
    change(manifest)
    assert text in fault_with(json.dumps(manifest), coco, tmp_path / "out")
