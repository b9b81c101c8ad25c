"""What becomes of a user's own pictures, however they were found: the share of train that becomes val."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.features import Feature, annotations_json
from dataprep.errors import SourceError
from dataprep.sources.base import OwnData
from dataprep.sources.pictures import Columns, in_val
from dataprep.sources.tables import Row
from tests.support.samples import examples


def chosen(texts, fraction, seed=0):
    own = OwnData(name="pets", val_fraction=fraction, split_seed=seed)
    return {text for text in texts if in_val(own, text)}


@examples
@given(st.sets(st.text(max_size=5), max_size=30), st.sets(st.text(max_size=5), max_size=30), st.floats(0, 0.99))
def test_pictures_that_are_added_move_no_others(before, added, fraction):
    assert chosen(before, fraction) == chosen(before | added, fraction) & before


@examples
@given(st.floats(0, 0.99), st.floats(0, 0.99))
def test_a_larger_share_keeps_what_a_smaller_one_has(one, other):
    texts = [str(number) for number in range(100)]
    assert chosen(texts, min(one, other)) <= chosen(texts, max(one, other))


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_share_is_about_as_large_as_asked_for(fraction, seed):
    count = 20_000
    found = len(chosen([f"cats/{number}" for number in range(count)], fraction, seed))
    assert abs(found - count * fraction) < 5 * math.sqrt(count * fraction * (1 - fraction))


def test_another_seed_chooses_others():
    texts = [str(number) for number in range(200)]
    assert chosen(texts, 0.5, 0) != chosen(texts, 0.5, 1)


def found(*rows, is_text=False, drop=(), **defaults):
    """The features of some rows, and the values of each."""
    columns = Columns(defaults, frozenset(drop))
    kept = [columns.add(Row(("x",), f"row {number}", dict(row), is_text)) for number, row in enumerate(rows, 1)]
    features = columns.features()
    values = [columns.values(row, features) for row in kept]
    for row in values:
        annotations_json(features, row)
    return features, values


def texts(*values, **more):
    """The type of one column of texts, and its values."""
    features, rows = found(*({"x": value} for value in values), is_text=True, **more)
    return features["x"].kind, [row["x"] for row in rows]


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["1", "-2", "+3"], "int64", [1, -2, 3]),
        (["1", "2.5", ".5", "1e3"], "float64", [1.0, 2.5, 0.5, 1000.0]),
        (["true", "False"], "bool", [True, False]),
        (["007", "12"], "text", ["007", "12"]),
        (["1", "x"], "text", ["1", "x"]),
        (["", "a"], "text", ["", "a"]),
        (["", ""], "text", ["", ""]),
        (["nan", "a"], "text", ["nan", "a"]),
        (["nan", "true"], "text", ["nan", "true"]),
        (["9223372036854775807"], "int64", [2**63 - 1]),
        (["9223372036854775808"], "float64", [2.0**63]),
        (["9223372036854775809", "1"], "text", ["9223372036854775809", "1"]),
        (["9007199254740993", "0.5"], "text", ["9007199254740993", "0.5"]),
        (["9007199254740992", "0.5"], "float64", [2.0**53, 0.5]),
        (["1e999", "1"], "text", ["1e999", "1"]),
    ],
)
def test_types_of_texts(values, kind, expected):
    assert texts(*values) == (kind, expected)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["1", ""], "row 2: column 'x' has no value, and every image needs one: give one with `default`"),
        (["1", "nan"], "row 2: column 'x': a number that is not finite"),
        (["0.5", "-Infinity"], "row 2: column 'x': a number that is not finite"),
        (["true", ""], "row 2: column 'x' has no value"),
    ],
)
def test_texts_that_are_no_values(values, text):
    with pytest.raises(SourceError) as error:
        texts(*values)
    assert text in str(error.value)
    assert "`drop` x" in str(error.value)


def test_defaults_of_texts():
    assert texts("1", "", x="-1") == ("int64", [1, -1])
    assert texts("1", "", x="unknown") == ("text", ["1", "unknown"])
    assert texts("a", "", x="b") == ("text", ["a", "b"])


def typed(*values, **more):
    """The feature of one column of JSON values, and its values."""
    features, rows = found(*({"x": value} for value in values), **more)
    return features["x"], [row["x"] for row in rows]


@pytest.mark.parametrize(
    ("values", "feature", "expected"),
    [
        ([1, 2.5], Feature("float64"), [1.0, 2.5]),
        ([True, False], Feature("bool"), [True, False]),
        (["a", ""], Feature("text"), ["a", ""]),
        ([b"\0"], Feature("bytes"), [b"\0"]),
        ([[], [1, 2], [3]], Feature("int64", (None,)), [[], [1, 2], [3]]),
        ([[1], [2.5]], Feature("float64", (None,)), [[1.0], [2.5]]),
        ([[[1, 2.5]], []], Feature("float64", (None, 2)), [[[1.0, 2.5]], []]),
        (
            [[{"a": 1, "b": [1.5, 2]}, {"a": 2, "b": [3, 4]}], []],
            Feature("records", (), {"a": Feature("int64", (None,)), "b": Feature("float64", (None, 2))}),
            [{"a": [1, 2], "b": [[1.5, 2.0], [3.0, 4.0]]}, {"a": [], "b": []}],
        ),
        (
            [{"a": [1, 2]}, {"a": []}],
            Feature("records", (), {"a": Feature("int64", (None,))}),
            [{"a": [1, 2]}, {"a": []}],
        ),
    ],
)
def test_types_of_values(values, feature, expected):
    assert typed(*values) == (feature, expected)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1, None], "row 2: column 'x' has no value"),
        ([1, float("nan")], "row 2: column 'x' has no value"),
        ([1.0, float("inf")], "row 2: column 'x': a number that is not finite"),
        ([1, "a"], "int64 in row 1, but text in row 2"),
        ([True, 1], "bool in row 1, but int64 in row 2"),
        ([1, [1]], "nested differently"),
        ([[[1, 2]], [[1, 2, 3]]], "of different lengths"),
        ([[["a"]]], "lists in lists of text"),
        ([[[[1]]]], "lists in lists in lists"),
        ([[1, None]], "a list with missing values"),
        ([[], []], "only empty lists"),
        ([{"a": 1}], "expected records"),
        ([{"a": [1], "b": []}], "expected records"),
        ([{}], "expected records"),
        ([[{"a": 1}, {"b": 1}]], "different fields"),
        ([[{"a": 1}], [{"b": 1}]], "earlier rows have records of a"),
        (["\ud800"], "half of a surrogate pair"),
        ([2**63], "an integer of 64 bits"),
        ([2**53 + 1, 0.5], "float64 in row 2, but an integer in row 1 would be rounded"),
        ([[0.5], [1, 2**53 + 1]], "an integer in row 2 would be rounded"),
        ([object()], "a value of type object"),
        (["x" * 2**20], "expected at most 1,048,576 for an image"),
    ],
)
def test_values_that_no_feature_has(values, text):
    with pytest.raises(SourceError) as error:
        typed(*values)
    assert text in str(error.value)


def test_rows_with_other_columns():
    with pytest.raises(SourceError, match="row 2: column 'b' has no value"):
        found({"a": 1, "b": 2}, {"a": 1})
    with pytest.raises(SourceError, match="row 1: column 'b' has no value"):
        found({"a": 1}, {"a": 1, "b": 2})
    _, values = found({"a": 1}, {"a": 1, "b": 2}, b="7")
    assert [row["b"] for row in values] == [7, 2]
    features, _ = found({"a": 1}, {"a": 1, "b": 2}, drop=("b",))
    assert list(features) == ["a"]


def test_defaults_of_values_are_json_or_text():
    assert typed(1, None, x="2.5") == (Feature("float64"), [1.0, 2.5])
    assert typed("a", None, x="none given")[1] == ["a", "none given"]
    assert typed([1], None, x=json.dumps([]))[1] == [[1], []]
    with pytest.raises(SourceError, match="`default` y: the metadata has no such column; it has x"):
        typed(1, y="2")
