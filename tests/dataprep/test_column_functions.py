"""Functions for columns: how workers find them, and which values they may return."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dataprep.column_functions import Columns, Samples, conformed, decoded, place_of
from dataprep.dataset.column_files import ColumnType
from dataprep.errors import UsageError
from tests.support import mapped

HERE = "tests.support.mapped"


def test_images_of_other_formats_are_decoded():
    picture = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    sink = io.BytesIO()
    Image.fromarray(picture).save(sink, "PNG")
    np.testing.assert_array_equal(decoded(sink.getvalue()), picture)
    sink = io.BytesIO()
    Image.new("CMYK", (6, 4), (0, 255, 255, 0)).save(sink, "JPEG")
    assert decoded(sink.getvalue()).shape == (4, 6, 3)
    assert decoded(sink.getvalue(), 2).shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("function", "message"),
    [(lambda samples: samples.keys, "workers import functions"), (Samples.__len__, "workers import functions")],
)
def test_a_function_that_workers_cannot_import_is_refused(function, message):
    with pytest.raises(UsageError, match=message):
        place_of(function)
    assert place_of(mapped.sizes) == f"{HERE}:sizes"


@pytest.mark.parametrize("given", [{"images": "png"}, {"size": 0}, {"batch": 0}, {"fields": "caption"}, {"returns": 1}])
def test_a_function_that_takes_what_there_is_not_is_refused(given):
    with pytest.raises(UsageError, match="expected images rgb, bytes or none"):
        Columns(**given)


@given(st.lists(st.integers(-300, 300), min_size=1, max_size=5), st.sampled_from(["int8", "uint8", "int16", "float32"]))
def test_numbers_keep_their_values_or_are_refused(numbers, dtype):
    kind, keys = ColumnType("array", dtype), [str(number) for number in numbers]
    info = np.iinfo(dtype) if "int" in dtype else None
    fits = info is None or all(info.min <= number <= info.max for number in numbers)
    try:
        found = conformed(kind, np.array(numbers), keys, nan=False)
    except ValueError:
        assert not fits
    else:
        assert fits
        assert found.tolist() == numbers
