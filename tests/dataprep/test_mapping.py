"""Columns that functions and tables make: every sample once, crash-safe, and only what is lacking."""

import io
import json
import random
import shutil
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dataprep import mapping
from dataprep.builder.recipe import build_shard
from dataprep.column_functions import find_function
from dataprep.commands.progress import BuildProgress
from dataprep.dataset.column_files import ColumnType, read_column, read_values
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import BuildError, DataprepError, FormatError, UsageError
from dataprep.mapping import join_column, map_column, plan_column, read_plan, table_version
from dataprep.storage import open_storage
from tests.support.builds import digests
from tests.support.finished import build_here
from tests.support.json_mutants import mutants
from tests.support.own_data import annotated, annotated_rows, build_own

HERE = "tests.support.mapped"


@pytest.fixture(scope="module")
def made(originals, tmp_path_factory):
    """A dataset in three shards, with captions, for copies."""
    root = tmp_path_factory.mktemp("mapped") / "out"
    build_here("coco-dup5", originals["coco"], root, "webdataset")
    return root


@pytest.fixture
def root(made, tmp_path):
    return shutil.copytree(made, tmp_path / "out")


def here(job, indexes):
    return (build_shard(job, index) for index in indexes)


def interrupted(job, indexes):
    raise KeyboardInterrupt


def make(root, name, function, *, engine=here, overwrite=False, **given):
    found = find_function(f"{HERE}:{function}", **given)
    work = plan_column(str(root), name, found.place, found.version, overwrite=overwrite)
    return map_column(work, found, engine, BuildProgress(quiet=True))


def values_of(root, name):
    """Values of all samples in their order."""
    storage = open_storage(str(root))
    manifest = read_manifest(storage)
    column = read_column(storage, manifest, name)
    return [
        value
        for split in manifest.splits
        for number in range(len(split.shards))
        for value in read_values(storage, column.type, column.shard(split.name, number))
    ]


def indexed(root, name):
    """A column of the index of all samples in their order."""
    storage = open_storage(str(root))
    splits = read_manifest(storage).splits
    return [
        value
        for split in splits
        for batch in open_index(storage, split).batches([name])
        for value in batch.column(0).to_pylist()
    ]


def unfinished(root):
    return [str(path) for folder in ("_map", "_build") for path in (root / folder).rglob("*")]


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord", "imagefolder"])
def test_a_function_gets_every_sample_once_in_every_format(originals, tmp_path, fmt):
    root = tmp_path / "out"
    build_here("imagenet", originals["imagenet"], root, fmt)
    before = digests(root)
    make(root, "size", "sizes")
    make(root, "name", "keys")
    assert values_of(root, "size") == indexed(root, "image_bytes")
    assert values_of(root, "name") == indexed(root, "key")
    after = digests(root)
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[0] for name in after.keys() - before.keys()} == {"columns"}
    assert unfinished(root) == []


def test_images_are_decoded_scaled_and_cut(root):
    column = make(root, "small", "small")
    assert column.type == ColumnType("array", "float32", (4, 4, 3))
    storage = open_storage(str(root))
    split = read_manifest(storage).splits[0]
    row = open_index(storage, split).read_group(0).slice(0, 1).to_pylist()[0]
    data = storage.read_range(split.shards[0]["file"], row["image_offset"], row["image_bytes"])
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = picture.size
    side = min(width, height)
    box = ((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2)
    expected = np.asarray(picture.resize((4, 4), Image.Resampling.BICUBIC, box)) / 255
    np.testing.assert_allclose(values_of(root, "small")[0], expected, atol=3 / 255)


@pytest.mark.parametrize("fmt", ["webdataset", "imagefolder"])
def test_a_function_gets_stored_fields_and_other_columns(tmp_path, fmt):
    root = tmp_path / "out"
    rows = annotated_rows(9)
    build_own(annotated(tmp_path / "pets"), root, fmt)
    make(root, "size", "sizes")
    make(root, "text", "described", engine=lambda job, indexes: here(job, reversed(indexes)))
    captions = {row["file_name"].removesuffix(".jpg"): row["caption"] for row in rows}
    pairs = zip(indexed(root, "key"), indexed(root, "image_bytes"), strict=True)
    assert values_of(root, "text") == [f"{size} {captions[key]}" for key, size in pairs]
    with pytest.raises(UsageError, match="no field 'captoin'; did you mean caption"):
        make(root, "x", "misspelt")


def test_a_class_is_created_once_a_process(root):
    make(root, "call", "Numbered")
    samples = [shard["samples"] for shard in read_manifest(open_storage(str(root))).splits[0].shards]
    calls = sum(-(-count // 2) for count in samples)
    assert max(values_of(root, "call")) == calls


def test_batches_do_not_cross_shards_and_have_the_asked_size(root):
    make(root, "call", "Numbered", batch=10_000)
    assert max(values_of(root, "call")) == 3


def test_the_same_function_makes_nothing_again(root):
    make(root, "size", "sizes")
    before = digests(root)
    make(root, "size", "sizes", engine=None)
    assert digests(root) == before


def test_after_growth_only_what_is_lacking_is_made(root):
    make(root, "size", "sizes")
    path = root / "columns/size/column.json"
    document = json.loads(path.read_text())
    gone = document["splits"]["train"].pop(1)
    path.write_text(json.dumps(document))
    (root / gone["file"]).unlink()
    kept = {entry["file"]: (root / entry["file"]).stat().st_ino for entry in document["splits"]["train"]}
    built = []
    make(root, "size", "sizes", engine=lambda job, indexes: here(job, built.extend(indexes) or indexes))
    assert built == [1]
    assert {name: (root / name).stat().st_ino for name in kept} == kept
    assert values_of(root, "size") == indexed(root, "image_bytes")


def test_an_interrupted_run_is_continued(root):
    def stopped(job, indexes):
        yield build_shard(job, indexes[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(root, "size", "sizes", engine=stopped)
    with pytest.raises(UsageError, match="no column 'size'"):
        values_of(root, "size")
    built = []
    make(root, "size", "sizes", engine=lambda job, indexes: here(job, built.extend(indexes) or indexes))
    assert built == [1, 2]
    assert values_of(root, "size") == indexed(root, "image_bytes")
    assert unfinished(root) == []


def test_values_that_are_never_the_same_are_decided_by_the_receipt(root):
    def twice(job, indexes):
        for index in indexes:
            first = build_shard(job, index)
            mapping._worker.cache_clear()
            yield build_shard(job, index)
            assert build_shard(job, index) == first

    make(root, "noise", "never_the_same", engine=twice)
    values = values_of(root, "noise")
    assert len(set(values)) == len(values)
    before = {path.name for path in (root / "columns/noise").iterdir()}
    make(root, "noise", "never_the_same", overwrite=True)
    assert not set(values) & set(values_of(root, "noise"))
    assert before & {path.name for path in (root / "columns/noise").iterdir()} == {"column.json"}


def test_values_of_another_function_stay_unless_they_are_to_be_replaced(root):
    make(root, "size", "sizes")
    with pytest.raises(UsageError, match=r"was made by tests.support.mapped:sizes .*`overwrite` makes all"):
        make(root, "size", "keys")
    make(root, "size", "keys", overwrite=True)
    assert values_of(root, "size") == indexed(root, "key")


def test_another_version_of_a_function_is_another_function(root):
    make(root, "size", "sizes", version="1")
    make(root, "size", "sizes", version="1", engine=None)
    with pytest.raises(UsageError, match="`version` says that the values are the same"):
        make(root, "size", "sizes", version="2")


def test_another_run_for_a_column_is_refused_until_it_is_finished(root):
    with pytest.raises(ZeroDivisionError):
        make(root, "size", "sizes", engine=lambda job, indexes: iter([1 / 0]))
    with pytest.raises(UsageError, match=r"another run .* is under way \(other function, function_version"):
        make(root, "size", "keys", version="2")
    make(root, "size", "keys", version="2", overwrite=True)
    assert values_of(root, "size") == indexed(root, "key")
    assert unfinished(root) == []


def test_a_worker_that_was_overtaken_publishes_nothing(root):
    jobs = []
    with suppress(KeyboardInterrupt):
        make(root, "size", "sizes", engine=lambda job, indexes: interrupted(jobs.append(job), indexes))
    make(root, "size", "keys", overwrite=True)
    before = digests(root)
    mapping._worker.cache_clear()
    with pytest.raises(DataprepError, match="another run has taken over"):
        build_shard(jobs[0], 0)
    assert digests(root) == before


def test_two_runs_at_once_give_one_column(root):
    """The second one begins and ends while the first one works."""

    def engine(job, indexes):
        make(root, "size", "sizes")
        yield from here(job, indexes)

    column = make(root, "size", "sizes", engine=engine)
    assert values_of(root, "size") == indexed(root, "image_bytes")
    assert len(column.splits["train"]) == 3
    assert unfinished(root) == []


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("raising", BuildError, r"shard \d of train: ZeroDivisionError: a multiple of three .*; the sample is '"),
        ("too_few", BuildError, r"shard 0 of train: \d+ values for \d+ samples"),
        ("one", BuildError, r"one int, expected a value for each sample"),
        ("other_shape", BuildError, r"value of '.*': float32 \(3,\), expected float32 \(2\)"),
        ("other_dtype", BuildError, r"value of '.*': float64 \(\), expected int8"),
        ("not_a_number", BuildError, r"value of '.*': NaN; a function says with nan=True .*, expected float64"),
        ("no_type", BuildError, "a value of type dict"),
        ("rows", BuildError, r"value of '.*': uint8 \(\d+, 3\), expected uint8 \(\d+, 3\)"),
        ("lacking", UsageError, "it needs the package no_such_package, which .* does not have"),
        ("keyz", UsageError, "not a function of its module; did you mean keys"),
        ("NOT_A_FUNCTION", UsageError, "not a function of its module"),
    ],
)
def test_a_faulty_function_is_named_with_what_was_expected(root, function, error, message):
    with pytest.raises(error, match=message):
        make(root, "x", function)
    assert not (root / "columns/x/column.json").exists()


def test_arrays_of_a_free_shape_are_said_to_be(root):
    column = make(root, "row", "free_rows")
    assert column.type.shape == (None, 3)
    assert [len(row) for row in values_of(root, "row")] == indexed(root, "width")


def test_types_of_two_shards_must_be_the_same(root):
    with pytest.raises(BuildError, match=r"expected uint8|other values are"):
        make(root, "row", "rows", batch=1)


@pytest.mark.parametrize("seed", range(3))
def test_a_hostile_plan_is_refused_or_continued(root, seed):
    with suppress(KeyboardInterrupt):
        make(root, "size", "sizes", engine=interrupted)
    path = root / "_map/size/plan.json"
    for _, document in mutants(path.read_bytes(), random.Random(seed), 40):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document)
        with suppress(DataprepError):
            plan = read_plan(open_storage(str(root)), "size")
            assert plan is None or plan.root.startswith("_map/size/")


def test_a_hostile_receipt_is_refused(root):
    def forged(job, indexes):
        for index in indexes:
            receipt = build_shard(job, index)
            for path in (root / job.root / "receipts").glob("*1.parquet"):
                table = pq.read_table(path)
                entry = json.loads(table.column("entry")[0].as_py()) | {"values": 10**9}
                changed = table.set_column(0, "entry", [[json.dumps(entry)]])
                pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
            yield receipt

    with pytest.raises(FormatError, match="a receipt names a file of values that cannot be"):
        make(root, "size", "sizes", engine=forged)


# Tables


def table(root, path, change=lambda rows: rows):
    """Write a table of the samples in another order, and return the values in the samples' order."""
    rows = [
        {"id": key, "note": f"{key} ä", "score": n / 2, "box": [n, n + 1.0]}
        for n, key in enumerate(indexed(root, "key"))
    ]
    shuffled = change(random.Random(0).sample(rows, len(rows)))
    found = pa.Table.from_pylist(shuffled)
    if path.suffix == ".csv":
        lines = ["id,note,score", *(f"{row['id']},{row['note']},{row['score']}" for row in shuffled)]
        path.write_text("\n".join(lines))
    else:
        pq.write_table(found, path)
    return rows


def join(root, name, path, on="id"):
    work = plan_column(str(root), name, f"table {path.name}", table_version(str(path)))
    return join_column(work, str(path), on, progress=lambda samples: None)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_table_is_joined_by_key(root, tmp_path, suffix):
    path = tmp_path / f"captions{suffix}"
    rows = table(root, path)
    assert join(root, "note", path).type == ColumnType("text")
    assert join(root, "score", path).type == ColumnType("array", "float64")
    assert values_of(root, "note") == [row["note"] for row in rows]
    assert values_of(root, "score") == [row["score"] for row in rows]
    before = digests(root)
    join(root, "note", path)
    assert digests(root) == before
    assert unfinished(root) == []


def test_lists_of_a_table_are_arrays(root, tmp_path):
    path = tmp_path / "boxes.parquet"
    rows = table(root, path)
    assert join(root, "box", path).type == ColumnType("array", "float64", (None,))
    assert [box.tolist() for box in values_of(root, "box")] == [row["box"] for row in rows]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[2:], "2 keys without a value: '"),
        (lambda rows: [*rows, rows[0]], "1 key in several rows: '"),
        (lambda rows: [*rows[1:], rows[0] | {"note": None}], "1 key without a value"),
        (lambda rows: [{"key": 1, "note": ""}], "no column 'id'"),
        (lambda rows: [{"id": "a", "nota": ""}], "no column 'note'; did you mean nota"),
        (lambda rows: [{"id": "a", "note": {"x": 1}}], "note is struct<x: int64>; type"),
        (
            lambda rows: [row | {"note": [1, None][: 1 + (row is rows[3])]} for row in rows],
            "note: value of 'train2017/",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(root, tmp_path, change, message):
    path = tmp_path / "captions.parquet"
    table(root, path, change)
    with pytest.raises(UsageError, match=message):
        join(root, "note", path)
    assert not (root / "columns/note/column.json").exists()


def test_rows_that_no_sample_has_are_left_out(root, tmp_path):
    path = tmp_path / "captions.parquet"
    rows = table(root, path, lambda rows: [*rows, rows[0] | {"id": "none"}])
    join(root, "note", path)
    assert values_of(root, "note") == [row["note"] for row in rows]
