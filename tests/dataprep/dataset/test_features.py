"""Features and the annotations of a sample: every value comes back as it was, and nothing else is taken."""

import json

import msgspec
import pytest
from hypothesis import given

from dataprep.dataset.features import (
    FILE_NAME,
    MAX_ANNOTATION_BYTES,
    MAX_FEATURES,
    Feature,
    annotation_values,
    annotations_json,
    described,
    feature_faults,
    features_document,
    member_value,
    name_fault,
    places_in_images,
    values_of,
)
from dataprep.errors import FormatError
from tests.support.annotations import FEATURES, VALUES, annotated_values
from tests.support.samples import examples


@examples
@given(annotated_values())
def test_values_come_back_from_their_json(values):
    text = annotations_json(FEATURES, values)
    assert annotation_values(FEATURES, text) == values
    assert annotations_json(FEATURES, annotation_values(FEATURES, text)) == text
    assert text.isascii()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")).encode()


def test_features_come_back_from_their_document():
    document = features_document(FEATURES)
    assert list(document) == sorted(document)
    assert (document["tags"], document["caption"]) == (
        {"kind": "text", "shape": [None]},
        {"kind": "text", "member": "txt"},
    )
    assert document["objects"]["columns"]["bbox"] == {"kind": "float32", "shape": [None, 4]}
    found = msgspec.json.decode(json.dumps(document), type=dict[str, Feature])
    assert found == FEATURES and features_document(found) == document
    assert list(feature_faults(FEATURES)) == []


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("caption", 7, "'caption' is 7, expected text"),
        ("caption", None, "'caption' is null, expected text"),
        ("caption", "\ud800", "expected text"),
        ("score", float("nan"), "'score' is NaN, expected float64"),
        ("score", float("inf"), "'score' is Infinity, expected float64"),
        ("score", 1, "'score' is 1, expected float64"),
        ("half", 0.1, "'half' is 0.1, expected float32"),
        ("year", True, "'year' is true, expected int64"),
        ("year", 2**63, "expected int64"),
        ("indoor", 1, "'indoor' is 1, expected bool"),
        ("tags", "cat", "expected lists of text"),
        ("tags", ["cat", None], "expected lists of text"),
        ("box", [1.0, 2.0, 3.0], "expected list of 4 float64"),
        ("objects", [], "expected records of bbox, category, name"),
        ("objects", VALUES["objects"] | {"category": []}, "columns of different lengths"),
        ("objects", VALUES["objects"] | {"bbox": [[1.0]]}, "'objects/bbox' is [[1.0]]"),
        ("objects", VALUES["objects"] | {"points": [[[1.0]]]}, "'objects/points' is [[[1.0]]]"),
    ],
)
def test_values_of_other_types_are_refused(name, value, text):
    with pytest.raises(FormatError) as error:
        annotations_json(FEATURES, VALUES | {name: value})
    assert text in str(error.value)


def test_absent_and_unknown_values_are_refused():
    with pytest.raises(FormatError, match="'caption' is absent"):
        annotations_json(FEATURES, {name: value for name, value in VALUES.items() if name != "caption"})
    with pytest.raises(FormatError, match="'depth' is not a feature of the dataset"):
        annotations_json(FEATURES, VALUES | {"depth": 1})
    with pytest.raises(FormatError, match="fields"):
        values_of(FEATURES, [])
    with pytest.raises(FormatError, match="is not base64"):
        values_of(FEATURES, json.loads(annotations_json(FEATURES, VALUES)) | {"raw": "???"})


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"1", b'{"a":1}', b"[" * 100_000])
def test_other_documents_are_no_annotations(text):
    with pytest.raises(FormatError):
        annotation_values(FEATURES, text)


def test_annotations_need_features():
    assert annotation_values({}, b"") == {}
    with pytest.raises(FormatError, match="annotations without features"):
        annotation_values({}, b"{}")


def test_annotations_have_a_bound():
    with pytest.raises(FormatError, match=f"at most {MAX_ANNOTATION_BYTES:,}"):
        annotations_json({"caption": Feature("text")}, {"caption": "x" * MAX_ANNOTATION_BYTES})


@pytest.mark.parametrize("name", ["key", "label", "image", "jpg", "file_name", "__key__", "a/b", "", "x" * 101, "a\nb"])
def test_names_that_are_taken_or_that_no_format_stores_are_refused(name):
    assert name_fault(name)
    assert name == FILE_NAME or list(feature_faults({name: Feature("text")}))  # which a build adds itself


@pytest.mark.parametrize("name", ["caption", "Bildtext", "image_id", "a b", "größe", "x" * 100, "weather (local)"])
def test_other_names_are_taken(name):
    assert name_fault(name) == ""


@pytest.mark.parametrize(
    "feature",
    [
        Feature("int64", (None, None)),
        Feature("int64", (None, 2, 2, 2)),
        Feature("int64", (0,)),
        Feature("int64", (10**9,)),
        Feature("text", (None, 2)),
        Feature("records"),
        Feature("records", (None,), {"a": Feature("int64", (None,))}),
        Feature("records", (), {"a": Feature("int64")}),
        Feature("records", (), {"a": Feature("int64", (3,))}),
        Feature("records", (), {"a": Feature("records", (), {"b": Feature("int64", (None,))})}),
        Feature("records", (), {"a/b": Feature("int64", (None,))}),
        Feature("int64", (), {"a": Feature("int64", (None,))}),
    ],
)
def test_shapes_that_no_format_stores_are_faults(feature):
    assert list(feature_faults({"x": feature}))


def test_features_have_a_bound():
    many = {f"f{number}": Feature("int64") for number in range(MAX_FEATURES + 1)}
    assert "expected at most" in next(feature_faults(many))


def test_types_are_described_in_words():
    assert described(Feature("float64", (None, 4))) == "lists of list of 4 float64"
    assert described(Feature("text")) == "text"


def test_places_in_images_are_found_by_their_names():
    records = Feature("records", (), {"BBox": Feature("float64", (None, 4)), "label": Feature("int64", (None,))})
    features = {"objects": records, "boxes": Feature("float64", (None, 4)), "score": Feature("float64")}
    assert places_in_images(features) == ["boxes", "objects/BBox"]
    assert places_in_images({"caption": Feature("text")}) == []


@pytest.mark.parametrize(
    "suffix",
    ["jpg", "cls", "json", "__key__", "a..b", ".a", "a.", "a/b", "TXT", "a b", "a\n", "x" * 101, "pyd", "x.pickle"],
)
def test_suffixes_that_readers_take_otherwise_are_refused(suffix):
    (fault,) = feature_faults({"caption": Feature("text", member=suffix)})
    assert "expected 1 to 100 of a-z" in fault


@pytest.mark.parametrize("suffix", ["txt", "mask.png", "a-b", "pt.png", "a_1.b.c", "objects.json", "_", "x" * 100])
def test_other_suffixes_are_taken(suffix):
    assert list(feature_faults({"caption": Feature("text", member=suffix)})) == []


def test_members_of_one_suffix_and_of_columns_are_refused():
    (fault,) = feature_faults({"a": Feature("text", member="txt"), "b": Feature("bytes", member="txt")})
    assert fault == "2 features with the suffix 'txt', expected one"
    (fault,) = feature_faults({"a": Feature("records", (), {"b": Feature("text", (None,), member="txt")})})
    assert fault == "feature 'a': a column with a member of its own"


@pytest.mark.parametrize(
    ("name", "data"), [("caption", b"\xff"), ("score", b"1"), ("score", b"{"), ("objects", b"[" * 100_000)]
)
def test_other_contents_of_members_are_refused(name, data):
    with pytest.raises(FormatError, match=f"'{name}' is "):
        member_value(name, FEATURES[name], data)
