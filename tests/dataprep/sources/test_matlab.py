"""meta.mat without SciPy: what SciPy writes is read as SciPy reads it; anything damaged is refused."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import SourceError
from dataprep.sources.matlab import read_structs
from tests.support.on_use import on_use
from tests.support.raw_mat import FIELDS, compressed, mat, synsets
from tests.support.samples import examples

scipy_io = on_use("scipy.io")
ROWS = [(2, "n01440764", 0), (1, "n01443537", 0), (300, "n00001740", 2)]


def written_by_scipy(rows, **options):
    names = ("ILSVRC2012_ID", "WNID", "words", "num_children", "children")
    values = [(i, wnid, "tench, Tinca tinca", children, np.arange(children)) for i, wnid, children in rows]
    array = np.array(values, dtype=[(name, object) for name in names])[:, None]
    out = io.BytesIO()
    scipy_io.savemat(out, {"other": np.eye(3), "synsets": array}, **options)
    return out.getvalue()


def expected(rows):
    return [dict(zip(FIELDS, (float(i), wnid, float(children)), strict=True)) for i, wnid, children in rows]


@pytest.mark.parametrize("do_compression", [False, True])
def test_structs_written_by_scipy_are_read(do_compression):
    data = written_by_scipy(ROWS, do_compression=do_compression)
    assert read_structs(data, "synsets", FIELDS) == expected(ROWS)


texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20)


@examples
@given(st.lists(st.tuples(st.integers(0, 2**31), texts, st.integers(0, 300)), max_size=5))
def test_structs_are_read_as_scipy_reads_them(rows):
    rows = [(i, wnid.rstrip() or "x", children) for i, wnid, children in rows]
    data = mat(compressed(synsets([(float(i), wnid, float(children)) for i, wnid, children in rows])))
    read = scipy_io.loadmat(io.BytesIO(data), squeeze_me=True, struct_as_record=True)["synsets"]
    found = read_structs(data, "synsets", FIELDS)
    assert [row["ILSVRC2012_ID"] for row in found] == [float(i) for i, _, _ in rows]
    assert [row["WNID"] for row in found] == [wnid for _, wnid, _ in rows]
    assert [float(row["ILSVRC2012_ID"]) for row in np.atleast_1d(read)] == [float(i) for i, _, _ in rows]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.float32, np.float64, np.int64])
def test_numbers_of_every_type_are_read(dtype):
    rows = [(dtype(7), "n01440764", dtype(0))]
    assert read_structs(written_by_scipy(rows), "synsets", FIELDS) == expected(rows)


def test_the_other_byte_order_is_refused():
    data = written_by_scipy(ROWS[:1])
    with pytest.raises(SourceError, match=r"reaches beyond its end|without its header|truncated"):
        read_structs(data[:126] + b"MI" + data[128:], "synsets", FIELDS)


@examples
@given(st.data())
def test_a_damaged_file_is_refused_or_read(data):
    whole = bytearray(mat(synsets([(float(i), wnid, float(n)) for i, wnid, n in ROWS])))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        rows = read_structs(bytes(whole), "synsets", FIELDS)
    except SourceError:
        return
    assert all(set(row) == set(FIELDS) for row in rows)


@pytest.mark.parametrize("at", range(0, 900, 37))
def test_a_cut_file_is_refused(at):
    whole = mat(synsets([(float(i), wnid, float(n)) for i, wnid, n in ROWS]))
    assert len(whole) > 900
    with pytest.raises(SourceError):
        read_structs(whole[:at], "synsets", FIELDS)
