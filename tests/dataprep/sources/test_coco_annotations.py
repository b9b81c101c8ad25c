"""Annotations of COCO, grouped by image; whatever the files hold, they are read or refused with one line."""

import copy
import json
import random
import re
import tracemalloc

import msgspec
import pytest

from dataprep.dataset.features import annotation_values, feature_faults
from dataprep.errors import DataprepError, SourceError
from dataprep.sources.coco_annotations import (
    KINDS,
    RECORDS,
    TYPES,
    CocoAnnotations,
    category_names,
    coco_features,
    mask_size,
    segmentation_text,
)
from dataprep.storage import open_storage
from tests.support.coco import as_pycocotools, small_documents, write_small
from tests.support.json_mutants import mutants
from tests.support.own_data import picture

FEATURES = coco_features(KINDS)
NAMES = tuple(f"{number:012d}.jpg" for number in (7, 8, 9))


def read(root, kinds=KINDS) -> dict[str, dict]:
    """The values of each image."""
    features = coco_features(kinds)
    with CocoAnnotations(open_storage(str(root)), "val2017", kinds, features) as annotations:
        return {name: annotation_values(features, annotations.of(name)) for name in NAMES}


def refused(root, documents) -> str:
    write_small(root, documents)
    with pytest.raises(SourceError) as caught:
        read(root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_annotations_are_those_of_the_files(tmp_path):
    documents = small_documents()
    found = read(write_small(tmp_path))
    for name, values in found.items():
        for kind in KINDS:
            expected = [item for item in documents[kind]["annotations"] if item["image_id"] == values["image_id"]]
            assert as_pycocotools(kind, values) == expected
        image = next(image for image in documents["captions"]["images"] if image["file_name"] == name)
        assert (values["original_height"], values["original_width"]) == (image["height"], image["width"])
    first, second, last = found.values()
    assert first["objects"]["category"] == ["toothbrush", "person"]
    assert first["objects"]["label"] == [1, 0]
    assert first["objects"]["segmentation"][1] == "[]"
    assert second["person_keypoints"]["keypoints"][0][16] == [5.5, 6.5, 1.0]
    assert second["panoptic_image"] == picture(8, "PNG")
    assert last["objects"] == {name: [] for name in FEATURES["objects"].columns}
    assert (last["panoptic_image"], last["panoptic_filename"], last["filename"]) == (b"", "", NAMES[2])


def test_fields_that_are_not_known_are_left_out_and_absent_segmentations_stay_absent(tmp_path):
    documents = small_documents()
    first = documents["instances"]["annotations"][0]
    del first["segmentation"]
    first["score"] = 0.5
    write_small(tmp_path, {"instances": documents["instances"]})
    found = read(tmp_path, ("instances",))[NAMES[1]]
    assert found["objects"]["segmentation"] == [""]
    assert "segmentation" not in as_pycocotools("instances", found)[0]


def test_images_that_no_file_lists_have_no_annotations(tmp_path):
    write_small(tmp_path)
    with CocoAnnotations(open_storage(str(tmp_path)), "val2017", KINDS, FEATURES) as annotations:
        values = annotation_values(FEATURES, annotations.of("000000000123.jpg"))
        assert (values["image_id"], values["original_height"], values["captions"]["id"]) == (-1, 0, [])
        assert annotation_values(FEATURES, annotations.of("cat.jpg"))["image_id"] == -1
        assert annotations.unused() == list(NAMES)
        assert annotations.unlisted() == ["000000000123.jpg", "cat.jpg"]
        assert annotations.of_unlisted() == {}
        assert annotations.counts == {"captions": 10, "instances": 3, "keypoints": 1, "panoptic": 2}
        assert annotations.categories["instances"] == {1: "person", 90: "toothbrush"}
    assert category_names(open_storage(str(tmp_path)), "panoptic", "val2017") == {187: "sky"}
    assert category_names(open_storage(str(tmp_path)), "panoptic", "train2017") is None


def test_an_unlisted_image_named_like_an_id_gets_no_boxes(tmp_path):
    documents = small_documents()
    for image, name in zip(documents["captions"]["images"], ("000000000008.jpg", "b.jpg", "c.jpg"), strict=True):
        image["file_name"] = name  # the ids are 7, 8 and 9; all documents share these images
    write_small(tmp_path, documents)
    kinds = ("captions", "instances", "keypoints")
    with CocoAnnotations(open_storage(str(tmp_path)), "val2017", kinds, FEATURES) as annotations:
        listed = annotation_values(FEATURES, annotations.of("000000000008.jpg"))
        unlisted = annotation_values(FEATURES, annotations.of("000000000007.jpg"))
    assert listed["image_id"] == 7 and listed["captions"]["id"]
    assert unlisted["image_id"] == -1
    assert (unlisted["captions"]["id"], unlisted["objects"]["id"], unlisted["person_keypoints"]["id"]) == ([], [], [])


def test_a_split_without_annotations_takes_the_list_of_its_images(tmp_path):
    images = small_documents()["captions"]["images"]
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations/image_info_val2017.json").write_text(json.dumps({"images": images, "annotations": [7]}))
    with CocoAnnotations(open_storage(str(tmp_path)), "val2017", (), FEATURES) as annotations:
        values = annotation_values(FEATURES, annotations.of(NAMES[0]))
    assert (values["flickr_url"], values["objects"]["id"], values["panoptic_image"]) == ("f", [], b"")
    assert values["original_width"] == 24


BILLION = {"size": [31_623, 31_623], "counts": [31_623**2]}
INSTANCE = {
    "bbox-3": ("bbox", [1, 2, 3], "bbox"),
    "bbox-text": ("bbox", "1,2,3,4", "bbox"),
    "bbox-null": ("bbox", [1, 2, 3, None], r"bbox\[3\]"),
    "bbox-negative": ("bbox", [1, 2, -3, 4], "negative size"),
    "bbox-huge": ("bbox", [1, 2, 3, 1e300], "not a number up to"),
    "bbox-nan": ("bbox", [1, 2, 3, float("nan")], "NaN is not a number in JSON"),
    "area-infinite": ("area", float("inf"), "Infinity is not a number in JSON"),
    "area-text": ("area", "41", r"\.area"),
    "area-overflow": ("area", 10**400, "area"),
    "crowd-2": ("iscrowd", 2, "iscrowd 2, expected 0 or 1"),
    "crowd-true": ("iscrowd", True, r"\.iscrowd"),
    "id-text": ("id", "70", r"\.id"),
    "id-float": ("id", 70.5, r"\.id"),
    "id-negative": ("id", -1, "an id out of range"),
    "id-huge": ("id", 2**63, "out of range|expected int"),
    "id-twice": ("id", 71, "two annotations with the id 71"),
    "image-huge": ("image_id", 2**80, "image_id|out of range"),
    "category-unknown": ("category_id", 4, "category_id 4, which is not among"),
    "category-text": ("category_id", "person", r"\.category_id"),
    "mask-other-size": ("segmentation", {"size": [2, 2], "counts": [4]}, "a mask of 2x2 pixels, the image has 24x16"),
}


@pytest.mark.parametrize("name", INSTANCE)
def test_instances_that_no_reader_can_read_are_refused(tmp_path, name):
    field, value, words = INSTANCE[name]
    documents = small_documents()
    documents["instances"]["annotations"][0][field] = value
    found = refused(tmp_path, documents)
    assert re.search(words, found)
    assert "instances_val2017.json" in found


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([-3.5, 14, 40, 0], [-3.5, 14, 40, 0]),
        ([1000, 1000, 5, 5], [1000, 1000, 5, 5]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
        ([1e-300, 2, 3, 4], [1e-300, 2, 3, 4]),
    ],
)
def test_boxes_that_are_merely_odd_are_kept(tmp_path, value, shown):
    """COCO itself has boxes without height; what lies outside of an image is the reader's to cut."""
    documents = small_documents()
    documents["instances"]["annotations"][0]["bbox"] = value
    assert read(write_small(tmp_path, documents))[NAMES[1]]["objects"]["bbox"] == [shown]


def _image(**changes):
    def change(documents):
        documents["captions"]["images"][0] |= changes

    return change


def _kind(kind, **changes):
    def change(documents):
        documents[kind]["annotations"][0] |= changes

    return change


def _categories(*more):
    def change(documents):
        documents["instances"]["categories"] += more

    return change


DOCUMENTS = {
    "image-id-text": (_image(id="7"), r"\.id"),
    "image-id-negative": (_image(id=-7), "a number out of range"),
    "image-id-shared": (_image(id=8), "both have the id 8"),
    "image-height-negative": (_image(height=-1), "a number out of range"),
    "image-height-huge": (_image(height=10**18), "a number out of range"),
    "image-name-number": (_image(file_name=7), r"\.file_name"),
    "image-other-size": (_image(height=17), "is listed before with the id 7 and the size 24x16|24x17"),
    "caption-number": (_kind("captions", caption=7), r"\.caption"),
    "caption-null": (_kind("captions", caption=None), r"\.caption"),
    "caption-surrogate": (_kind("captions", caption="\ud800"), "captions/text"),
    "caption-long": (_kind("captions", caption="x" * 2**21), "bytes of annotations, expected at most"),
    "caption-endless": (_kind("captions", caption="x" * (2**22 + 2**20)), "at most 4,194,304 characters"),
    "keypoints-48": (_kind("keypoints", keypoints=[1] * 48), "48 numbers as keypoints"),
    "keypoints-text": (_kind("keypoints", keypoints=["1"] * 51), "keypoints"),
    "keypoints-huge": (_kind("keypoints", keypoints=[1e12] * 51), "numbers as keypoints"),
    "num-keypoints": (_kind("keypoints", num_keypoints=1.5), r"\.num_keypoints"),
    "panoptic-name": (_kind("panoptic", file_name="../../etc/passwd"), "expected the name of a file"),
    "panoptic-absent": (_kind("panoptic", file_name="x.png"), "not found"),
    "panoptic-segments": (_kind("panoptic", segments_info=[{"id": 1}]), "missing|area|bbox"),
    "panoptic-twice": (_kind("panoptic", image_id=8), "two annotations with the id 8"),
    "category-twice": (_categories({"id": 1, "name": "person"}), "is listed twice"),
    "category-name": (_categories({"id": 5, "name": 5}), r"\.name"),
    "category-id": (_categories({"id": "5", "name": "x"}), r"\.id"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_that_contradict_themselves_are_refused(tmp_path, name):
    change, words = DOCUMENTS[name]
    documents = copy.deepcopy(small_documents())
    change(documents)
    assert re.search(words, refused(tmp_path, documents))


@pytest.mark.parametrize("element", [b"7", b"[[1, 2]]"])
def test_annotations_that_are_no_objects_are_refused(tmp_path, element):
    documents = small_documents() | {"instances": b'{"annotations": [%s]}' % element}
    assert re.search("annotation .*expected", refused(tmp_path, documents))


@pytest.mark.parametrize("kind", KINDS)
def test_mutants_are_read_or_refused(tmp_path, kind):
    """Whatever values a file has: annotations with the features' types, or one line of error."""
    root = write_small(tmp_path)
    file = next((root / "annotations").glob(f"*{'person_' if kind == 'keypoints' else ''}{kind}_val2017.json"))
    lines: list[str] = []
    for _, data in mutants(json.dumps(small_documents()[kind]).encode(), random.Random(kind), 60):
        file.write_bytes(data)
        try:
            read(root)
        except DataprepError as error:
            lines.append(str(error))
    assert 20 < len(lines) < 60
    assert "\n" not in "".join(lines)


@pytest.mark.parametrize("kind", KINDS)
def test_records_have_the_columns_of_their_feature(kind):
    """All but those that need the list of categories."""
    feature = coco_features([kind])[RECORDS[kind]]
    for annotation in small_documents()[kind]["annotations"]:
        values = msgspec.convert(annotation, TYPES[kind]).columns()
        for record in values["segments"] if kind == "panoptic" else [values]:
            assert record.keys() == feature.columns.keys() - {"category", "label"}


def test_features_are_those_that_a_manifest_may_have():
    features = coco_features(KINDS)
    assert list(feature_faults(features)) == []
    assert list(features) == sorted(features)
    assert features == {name: feature for kind in KINDS for name, feature in coco_features([kind]).items()}
    assert coco_features([]) == {}


SIDE = 31_623  # squared


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ([], None),
        ([[]], None),
        ([[1, 2]], None),
        ([[0.5, 1.25, 3, 4, 5e-7, 6]], None),
        ([[-3.5, 2, 1e6, 3, 4, 5], [1, 2, 3, 4, 5, 6]], None),
        ({"size": [2, 3], "counts": [1, 5]}, (2, 3)),
        ({"size": [2, 3], "counts": "15"}, (2, 3)),
        ({"size": [0, 0], "counts": []}, (0, 0)),
    ],
)
def test_segmentations_are_kept_even_odd_ones(value, size):
    """Readers that draw them may fail, but it is the original that has them."""
    text = segmentation_text(value)
    assert text == json.dumps(value, sort_keys=True, separators=(",", ":"))  # 3 is not 3.0
    assert mask_size(text) == size
    assert segmentation_text(None) == ""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[[1, 2]]", "str, expected polygons"),
        (7, "int, expected polygons"),
        ([1, 2, 3, 4], "a polygon of int"),
        ([[1, 2, 3]], "a polygon of 3 numbers"),
        ([[1, "2"]], "not a number"),
        ([[True, 2]], "not a number"),
        ([[1, None]], "not a number"),
        ([[1, float("inf")]], "not a number"),
        ([[1, float("nan")]], "not a number"),
        ([[1, 1e10]], "not a number"),
        ({}, "the size \\[height, width\\] and the counts"),
        ({"size": [1, 1], "counts": [1], "x": 1}, "the size \\[height, width\\] and the counts"),
        ({"size": [1], "counts": [1]}, "the size \\[height, width\\]"),
        ({"size": [1, -1], "counts": [1]}, "two whole numbers"),
        ({"size": [1.0, 1], "counts": [1]}, "two whole numbers"),
        ({"size": [SIDE, SIDE], "counts": [SIDE**2]}, "a mask of 1,000,014,129 pixels"),
        ({"size": [10**9, 1], "counts": [10**9]}, "two whole numbers"),
        ({"size": [2, 3], "counts": [1, 4]}, "of 5 pixels, its size has 6"),
        ({"size": [2, 3], "counts": [1, 6]}, "of 7 pixels, its size has 6"),
        ({"size": [2, 3], "counts": [-1, 7]}, "counts that are not runs"),
        ({"size": [2, 3], "counts": [1.0, 5]}, "counts that are not runs"),
        ({"size": [2, 3], "counts": None}, "counts that are not runs"),
        ({"size": [2, 3], "counts": "15\n"}, "pycocotools does not write"),
        ({"size": [2, 3], "counts": "ooooooooooooooo"}, "pycocotools does not write"),
        ({"size": [2, 3], "counts": "1o"}, "end within a number"),
        ({"size": [2, 3], "counts": "?7"}, "counts that are not runs"),
    ],
)
def test_what_readers_cannot_read_is_refused(value, words):
    with pytest.raises(ValueError, match=words):
        segmentation_text(value)


def test_a_mask_of_many_pixels_takes_no_memory():
    """Ninety-nine million pixels are one run, and stay one."""
    tracemalloc.start()
    try:
        segmentation_text({"size": [9_900, 10_000], "counts": [99_000_000]})
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()
