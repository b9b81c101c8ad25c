"""Columns as readers open them: every type comes back, others read the files, and hostile ones are refused."""

import json
import pickle
import random
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dataprep.dataset import column_files as files
from dataprep.dataset.column_files import DTYPES, Column, ColumnType
from dataprep.errors import DataprepError, FormatError, UsageError
from dataprep.storage import open_storage
from tests.support.json_mutants import mutants
from tests.support.splits import manifest_of, split_of

KINDS = [
    ColumnType("text"),
    ColumnType("bytes"),
    *(ColumnType("array", dtype, shape) for dtype in DTYPES for shape in ((), (3,), (2, 3), (None,), (2, None))),
]


def values_of(kind):
    if kind.kind == "text":
        return st.text(max_size=8)
    if kind.kind == "bytes":
        return st.binary(max_size=8)
    free = st.integers(0, 3)
    shapes = st.tuples(*(free if length is None else st.just(length) for length in kind.shape))
    return shapes.flatmap(lambda shape: arrays.arrays(kind.dtype, shape))


KINDS_AND_VALUES = st.sampled_from(KINDS).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(values_of(kind), max_size=5))
)


def write(root, kind, shards, name="latent"):
    """Write a column with these values of each shard; return the dataset's manifest."""
    storage, manifest = open_storage(str(root)), manifest_of(split_of([*map(len, shards)]))
    entries = []
    for number, values in enumerate(shards):
        data = files.arrow_file(kind, values)
        entries.append(files.placed(kind, data, files.shard_id(manifest.splits[0], number), name, "train"))
        files.publish_values(storage, entries[-1], data)
    column = Column(
        version=1, name=name, plan_hash="plan", function="a:b", function_version="1", type=kind,
        splits={"train": tuple(entries)},
    )  # fmt: skip
    (root / f"columns/{name}/column.json").write_text(json.dumps(asdict(column)))
    return manifest


@settings(deadline=None)
@given(KINDS_AND_VALUES)
def test_values_of_every_type_come_back(case):
    kind, values = case
    with TemporaryDirectory() as folder:
        manifest = write(Path(folder), kind, [values, []])
        storage = open_storage(folder)
        column = pickle.loads(pickle.dumps(files.read_column(storage, manifest, "latent")))
        shard = column.shard("train", 0)
        found = files.read_values(storage, column.type, shard)
        assert len(found) == len(values)
        assert len(files.read_values(storage, column.type, column.shard("train", 1))) == 0
        bounds = files.value_bounds(storage, kind, shard)
        shapes = files.value_shapes(storage, kind, shard, bounds)
        for n, value in enumerate(values):
            data = storage.read_range(shard.file, int(bounds[n]), int(bounds[n + 1] - bounds[n]))
            alone = files.value_of(kind, data, None if shapes is None else shapes[n])
            for each in (found[n], alone):
                if kind.kind == "array":
                    np.testing.assert_array_equal(each, value, strict=True)
                else:
                    assert each == value
        column.shard("train", 0)
        assert files.placed(kind, files.arrow_file(kind, values), shard.of, "latent", "train") == shard


@settings(deadline=None)
@given(KINDS_AND_VALUES)
def test_pyarrow_reads_the_files(case):
    kind, values = case
    with TemporaryDirectory() as folder:
        manifest = write(Path(folder), kind, [values])
        shard = files.read_column(open_storage(folder), manifest, "latent").shard("train", 0)
        table = pa.ipc.open_file(Path(folder, shard.file)).read_all()
        table.validate(full=True)
        found = table.column("value").to_pylist()
        if not kind.is_free:
            np.testing.assert_array_equal(
                np.array(found, kind.dtype).reshape(-1, *kind.shape), np.array(values).reshape(-1, *kind.shape)
            )
        elif kind.kind == "array":
            assert [value.shape for value in values] == [tuple(each) for each in table.column("shape").to_pylist()]
            assert found == [value.tobytes() for value in values]
        else:
            assert found == values


@pytest.mark.parametrize(
    "arguments",
    [
        ("array",), ("array", "str"), ("text", "int8"), ("bytes", "", (3,)), ("array", "int8", (0,)),
        ("array", "int8", (2**31,)), ("array", "int8", (2**30,) * 3), ("picture",),
    ],
)  # fmt: skip
def test_a_type_that_no_file_can_have_is_refused(arguments):
    with pytest.raises(UsageError, match="expected text, bytes, or array with one of bool"):
        ColumnType(*arguments)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("../x", "allowed|letters"), ("", "letters|allowed"), ("label", "taken"), ("a.b", "letters"), ("1a", "letters")],
)
def test_a_name_that_is_none_is_refused(name, expected):
    with pytest.raises(UsageError, match=expected):
        files.check_column_name(name)


def test_columns_are_found_by_their_names(tmp_path):
    manifest = write(tmp_path, ColumnType("text"), [["a"]])
    write(tmp_path, ColumnType("text"), [["b"]], name="other")
    storage = open_storage(str(tmp_path))
    assert files.column_names(storage) == ["latent", "other"]
    with pytest.raises(UsageError, match="no column 'latnet'; did you mean latent"):
        files.read_column(storage, manifest, "latnet")


def test_a_shard_without_values_is_said_with_what_makes_them(tmp_path):
    write(tmp_path, ColumnType("text"), [["a"], ["b"]])
    storage, manifest = open_storage(str(tmp_path)), manifest_of(split_of([1, 1, 3]))
    column = files.read_column(storage, manifest, "latent")
    assert column.lacking("train") == [2]
    with pytest.raises(UsageError, match=r"no values for 1 shard of train.*dataprep map"):
        column.shard("train", 2)
    assert files.read_column(storage, replace(manifest, plan_hash="other"), "latent").lacking("train") == [0, 1, 2]


def test_another_number_of_samples_is_refused(tmp_path):
    write(tmp_path, ColumnType("text"), [["a"], ["b"]])
    with pytest.raises(FormatError, match="1 value for shard 1 of train, which has 2 samples"):
        files.read_column(open_storage(str(tmp_path)), manifest_of(split_of([1, 2])), "latent")


@pytest.mark.parametrize("kind", [ColumnType("text"), ColumnType("array", "int16", (2, None))])
@pytest.mark.parametrize("seed", range(4))
def test_a_hostile_column_is_refused_or_read(tmp_path, kind, seed):
    values = ["a", "bc", ""] if kind.kind == "text" else [np.ones((2, n), np.int16) for n in (1, 0, 3)]
    manifest = write(tmp_path, kind, [values, values[:1]])
    storage, path = open_storage(str(tmp_path)), tmp_path / "columns/latent/column.json"
    for done, document in mutants(path.read_bytes(), random.Random(seed), 60):
        path.write_bytes(document)
        try:
            column = files.read_column(storage, manifest, "latent")
            shards = [column.shard("train", number) for number in range(2)]
            found = [files.read_values(storage, column.type, shard) for shard in shards]
        except DataprepError:
            continue
        assert [len(each) for each in found] == [3, 1], done
        assert all(shard.file.startswith("columns/latent/train-") for shard in shards), done


def test_offsets_of_a_hostile_file_are_refused(tmp_path):
    kind = ColumnType("array", "int16", (2, None))
    manifest = write(tmp_path, kind, [[np.ones((2, n), np.int16) for n in (1, 0, 3)]])
    storage = open_storage(str(tmp_path))
    column, data = files.find_column(storage, "latent")
    shard = files.opened_column(storage, manifest, column, data).shard("train", 0)
    path = tmp_path / shard.file
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(200):
        start, size = [(shard.offsets, 32), (shard.shapes, 24)][rng.integers(2)]
        changed = bytearray(whole)
        changed[start + rng.integers(size)] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        with pytest.raises(FormatError, match=r"its (offsets|shapes) are not those|not the file"):
            files.value_shapes(storage, kind, shard, files.value_bounds(storage, kind, shard))
        with pytest.raises(FormatError, match="not the file that the column lists"):
            files.read_values(storage, kind, shard)


def test_a_file_of_another_type_has_no_place():
    data = files.arrow_file(ColumnType("text"), ["a"])
    with pytest.raises(FormatError, match="not one batch of int8 values"):
        files.placed(ColumnType("array", "int8"), data, "0" * 64, "a", "train")
    with pytest.raises(FormatError, match="not an Arrow file"):
        files.placed(ColumnType("text"), b"ARROW1", "0" * 64, "a", "train")
