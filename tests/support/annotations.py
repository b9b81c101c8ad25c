"""Features of every kind, some with members of their own in tars, and values of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dataprep.dataset.features import Feature

FEATURES: dict[str, Feature] = {
    "aa": Feature("int64", (None, 2)),
    "box": Feature("float64", (4,)),
    "caption": Feature("text", member="txt"),
    "half": Feature("float32"),
    "indoor": Feature("bool"),
    "objects": Feature(
        "records",
        (),
        {
            "bbox": Feature("float32", (None, 4)),
            "category": Feature("int64", (None,)),
            "name": Feature("text", (None,)),
            "points": Feature("float64", (None, 2, 3)),
        },
        "objects.json",
    ),
    "raw": Feature("bytes", member="raw.bin"),
    "score": Feature("float64", member="score"),
    "tags": Feature("text", (None,)),
    "year": Feature("int64"),
}
VALUES: dict[str, Any] = {
    "aa": [[1, -2], [3, 4]],
    "box": [0.1, 1e300, -0.0, 4.0],
    "caption": "Grünfink \u2028 🐦",
    "half": 0.5,
    "indoor": True,
    "objects": {
        "bbox": [[1.0, 2.5, 3.0, 4.0], [0.0, 0.0, 1.0, 1.0]],
        "category": [7, -1],
        "name": ["cat", ""],
        "points": [[[0.1, 2.0, 3.0], [4.0, 5.0, 6.0]], [[0.0] * 3, [-1e300] * 3]],
    },
    "raw": b"\0\xff",
    "score": 1 / 3,
    "tags": ["one"],
    "year": -(2**63),
}

_integers = st.integers(-(2**63), 2**63 - 1)
_reals = st.floats(allow_nan=False, allow_infinity=False)
_halves = st.floats(allow_nan=False, allow_infinity=False, width=32)
_texts = st.text(max_size=8)


@st.composite
def annotated_values(draw: st.DrawFn) -> dict[str, Any]:
    """Any values of FEATURES."""
    count = draw(st.integers(0, 3))

    def many(values: st.SearchStrategy[Any], least: int = 0, most: int = 3) -> list[Any]:
        return draw(st.lists(values, min_size=least, max_size=most))

    return {
        "aa": many(st.lists(_integers, min_size=2, max_size=2)),
        "box": many(_reals, 4, 4),
        "caption": draw(_texts),
        "half": draw(_halves),
        "indoor": draw(st.booleans()),
        "objects": {
            "bbox": many(st.lists(_halves, min_size=4, max_size=4), count, count),
            "category": many(_integers, count, count),
            "name": many(_texts, count, count),
            "points": many(st.lists(st.lists(_reals, min_size=3, max_size=3), min_size=2, max_size=2), count, count),
        },
        "raw": draw(st.binary(max_size=8)),
        "score": draw(_reals),
        "tags": many(_texts),
        "year": draw(_integers),
    }
