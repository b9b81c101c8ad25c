"""What a view keeps: conditions, lists, copies and draws, and nothing that a hostile condition asks for."""

import hashlib
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import dataprep
from dataprep.dataset.column_files import ColumnType
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.views import LEFT_OUT, find_view, viewed
from dataprep.errors import UsageError
from dataprep.inspection.contact_sheet import open_sheet
from dataprep.inspection.inspect import open_inspected
from dataprep.selection import drawn, near_duplicates
from dataprep.storage import open_storage
from tests.support.columns import write_column
from tests.support.finished import build_here

FORMATS = ("webdataset", "tfrecord", "imagefolder")


@pytest.fixture(scope="module")
def captioned(tmp_path_factory):
    """Folders of datasets of 12 pictures with captions, by format: widths 20 to 42, each second picture twice."""
    root = tmp_path_factory.mktemp("selection")
    for number in range(12):
        path = root / "pictures" / ("cat" if number < 5 else "dog") / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        same = number - number % 2 if number >= 8 else number
        Image.new("RGB", (20 + 2 * same, 30), (same, 9, 9)).save(path)
        path.with_suffix(".txt").write_text(f"picture {number}")
    for name in FORMATS:
        texts = {"caption": "txt"}
        dataprep.build_folder(source=root / "pictures", output=root / name, format=name, text_files=texts)
    return root


def kept(url, name):
    """Return the numbers of the pictures that a view keeps."""
    storage = open_storage(str(url))
    (split,) = viewed(storage, read_manifest(storage), name).splits
    keys = [key for batch in open_index(storage, split).batches(["key"]) for key in batch.column(0).to_pylist()]
    return sorted(int(key[-2:]) for key in keys)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("width >= 36", [8, 9, 10, 11]),
        ("class_name = 'cat' and label = 0", [0, 1, 2, 3, 4]),
        ("caption like 'picture 1%'", [1, 10, 11]),
        ("key in ('cat/01', 'dog/07')", [1, 7]),
        ("split = 'val' or null", []),
    ],
)
def test_conditions_see_index_class_and_fields(captioned, fmt, where, expected):
    dataprep.select(captioned / fmt, name="where", where=where, overwrite=True)
    assert kept(captioned / fmt, "where") == expected


def test_each_left_out_sample_has_the_first_reason_that_it_meets(captioned):
    (captioned / "list.txt").write_text("# taken down\ncat/00\ndog/11\n")
    found = dataprep.select(
        captioned / "webdataset",
        name="reasons",
        where=("width > 20", "width < 40"),
        except_=captioned / "list.txt",
        dedup="exact",
        overwrite=True,
    )
    assert found.left_out == {"train": {"width > 20": 1, "width < 40": 2, "duplicate": 1}}
    (file,) = (captioned / "webdataset/views/reasons").glob("train-*.parquet")
    assert pq.read_table(file).column(LEFT_OUT).null_count == found.samples["train"] == 8


def test_of_equal_pictures_the_first_by_key_that_is_left_is_kept(captioned):
    dataprep.select(captioned / "tfrecord", name="once", dedup="exact", overwrite=True)
    assert kept(captioned / "tfrecord", "once") == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]
    dataprep.select(captioned / "tfrecord", name="later", where="key <> 'dog/08'", dedup="exact", overwrite=True)
    assert kept(captioned / "tfrecord", "later") == [0, 1, 2, 3, 4, 5, 6, 7, 9, 10]


def test_equal_checksums_alone_do_not_make_a_copy(captioned, monkeypatch):
    monkeypatch.setattr("dataprep.selection.SAME_IMAGE", "SELECT place FROM prints ORDER BY ALL")
    dataprep.select(captioned / "webdataset", name="compared", dedup="exact", overwrite=True)
    assert kept(captioned / "webdataset", "compared") == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]


def test_a_draw_depends_on_key_and_seed_alone():
    keys = [f"image-{number}" for number in range(20_000)]
    found = drawn(keys, 0.1, 3)
    assert found.sum() == pytest.approx(2_000, rel=0.1)
    assert (drawn(keys[::-1], 0.1, 3)[::-1] == found).all()
    assert (drawn(keys, 0.1, 4) != found).any()
    assert (drawn(keys, 0.2, 3) >= found).all()
    assert drawn(keys, 1.0, 3).all()


def test_a_view_of_a_view_keeps_what_both_keep(captioned):
    url = captioned / "webdataset"
    dataprep.select(url, name="wide", where="width >= 30", overwrite=True)
    found = dataprep.select(f"{url}@wide", name="dogs", where="class_name = 'dog'", overwrite=True)
    assert kept(url, "dogs") == [5, 6, 7, 8, 9, 10, 11]
    assert found.left_out == {"train": {"@wide": 5}}


def test_a_picture_of_a_view_is_shown_with_its_own_caption(captioned):
    url, chosen = captioned / "imagefolder", "key in ('cat/03', 'dog/07', 'dog/10')"
    found = dataprep.select(url, name="shown", where=chosen, overwrite=True)
    storage, manifest = open_inspected(found.url)
    sheet = open_sheet(storage, manifest, manifest.splits[0])
    shown = {picture.key: picture.caption for picture, _ in sheet.spread}
    assert shown == {"cat/03": "picture 3", "dog/07": "picture 7", "dog/10": "picture 10"}


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("widht > 3", "widht.*did you mean width"),
        ("width", "type INTEGER"),
        ("width >", "syntax error"),
        ("width = 'abc'", "Could not convert"),
        ("(select count(*) from duckdb_settings()) > 0", "a subquery"),
        ("row_number() over () = 1", "a window"),
        ("max(width) > 3", "a value for each sample"),
        ("unnest([true, true])", "a value for each sample"),
        ("1=1) from x; drop table prints; select (1", "(syntax error|SELECT)"),
        ("1) from (select 1", "expected one expression"),
        ("read_text('/etc/passwd') is not null", "table function"),
        ("getenv('HOME') = ''", "getenv"),
        ("repeat('a', 9999999999) = ''", "Cannot create a string"),
        ("$1", "a parameter"),
        ("x" * 20_000, "20,000 characters"),
    ],
)
def test_a_wrong_or_hostile_condition_is_one_clear_error(captioned, where, problem):
    with pytest.raises(UsageError, match=rf"(?s)`where`.*{problem}"):
        dataprep.select(captioned / "webdataset", name="wrong", where=where)
    assert not (captioned / "webdataset/views/wrong").exists()
    assert not (captioned / "webdataset/_build").exists()


def test_another_choice_needs_overwrite_and_the_same_is_nothing_new(captioned, tmp_path):
    root = shutil.copytree(captioned / "webdataset", tmp_path / "out")
    first = dataprep.select(root, name="a", where="width > 30")
    view = (root / "views/a/view.json").stat()
    assert dataprep.select(root, name="a", where="width > 30") == first
    assert (root / "views/a/view.json").stat().st_mtime_ns == view.st_mtime_ns
    with pytest.raises(UsageError, match="keeps something else exists; `overwrite`"):
        dataprep.select(root, name="a", where="width > 31")
    document = (root / "views/a/view.json").read_bytes()
    dataprep.select(root, name="a", where="width > 34", overwrite=True)
    # A run that was loaded through the replaced view goes on from it.
    found = find_view(open_storage(str(root)), "a", hashlib.sha256(document).hexdigest())
    assert found[0].choice.where == ("width > 30",)
    assert all((root / split.file["file"]).exists() for split in found[0].splits)


def test_views_change_no_byte_of_the_dataset_and_verify_accepts_them(originals, tmp_path):
    root = tmp_path / "out"
    build_here("coco-dup5", originals["coco"], root, "webdataset")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    dataprep.select(root, name="a", sample=0.5)
    assert {path: path.read_bytes() for path in before} == before
    assert {path.relative_to(root).parts[0] for path in set(root.rglob("*")) - before.keys()} >= {"views"}
    assert dataprep.verify(root).verdict == "complete"


# Near duplicates


def greedy(hashes, bits):
    """What `near_duplicates` finds, one hash after the other."""
    kept, near = [], []
    for each in hashes.tolist():
        near.append(any((each ^ other).bit_count() <= bits for other in kept))
        if not near[-1]:
            kept.append(each)
    return near


@st.composite
def crowded(draw):
    """Hashes of which many are near others: few bits of few numbers are flipped."""
    seeds = draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5))
    flips = st.tuples(st.sampled_from(seeds), st.lists(st.integers(0, 63), max_size=9))
    found = draw(st.lists(flips, min_size=1, max_size=60))
    return np.array([seed ^ sum({1 << bit for bit in bits}) for seed, bits in found], np.uint64)


@given(crowded(), st.integers(0, 16), st.sampled_from([0, 2**22]), st.sampled_from([1, 9]))
def test_near_duplicates_are_those_of_looking_at_each_after_the_other(hashes, bits, pairs, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataprep.selection._MAX_PAIRS", pairs)
        patch.setattr("dataprep.selection._BLOCK", block)
        assert near_duplicates(hashes, bits).tolist() == greedy(hashes, bits)


@pytest.mark.parametrize("bits", [0, 1, 4, 8])
def test_near_duplicates_of_many_hashes_are_those_that_were_planted(bits):
    rng = np.random.default_rng(bits)
    first = rng.integers(0, 2**64, 6_000, np.uint64)
    flips = [sum(1 << int(bit) for bit in rng.choice(64, bits, replace=False)) for _ in range(2_000)]
    copies = first[rng.integers(0, 6_000, 2_000)] ^ np.array(flips, np.uint64)
    assert near_duplicates(np.concatenate([first, copies]), bits).tolist() == [False] * 6_000 + [True] * 2_000


def test_many_hashes_of_one_crowd_take_no_more_than_others():
    rng = np.random.default_rng(0)
    crowd = np.uint64(2**63) ^ rng.integers(0, 2**12, 200_000, np.uint64)
    assert near_duplicates(crowd, 12).tolist() == [False] + [True] * 199_999


def test_of_pictures_with_hashes_near_each_other_the_first_by_key_that_is_left_is_kept(captioned, tmp_path):
    root = shutil.copytree(captioned / "tfrecord", tmp_path / "near")
    far = [0xFF << 8, 0xFF << 24, 0xFF << 56]
    hashes = [0, 3, 7, 15, far[0], far[0] + 1, far[1], far[1] + 2**50, 9, 8, 10, far[2]]
    write_column(root, "hash", ColumnType("array", "uint64"), lambda _, key: hashes[int(key[-2:])])
    found = dataprep.select(root, name="near", dedup="hash<=2", overwrite=True)
    assert kept(root, "near") == [0, 2, 4, 6, 11]
    assert found.left_out == {"train": {"near duplicate": 7}}
    dataprep.select(root, name="later", where="key <> 'cat/00'", dedup="hash <= 2", overwrite=True)
    assert kept(root, "later") == [1, 4, 6, 9, 11]


@pytest.mark.parametrize(
    ("dedup", "problem"),
    [
        ("hash", r"expected exact, or a column of hashes .* such as phash<=4"),
        ("hash<=17", "0 to 16"),
        ("hash<4", "expected exact"),
        ("hahs<=4", "no column 'hahs'.*did you mean hash"),
        ("caption<=4", "'caption' has values of type .*string, expected hashes of 64 bits"),
    ],
)
def test_a_column_without_hashes_is_refused(captioned, tmp_path, dedup, problem):
    root = shutil.copytree(captioned / "tfrecord", tmp_path / "wrong")
    write_column(root, "hash", ColumnType("array", "uint64"), lambda _, key: 0)
    with pytest.raises(UsageError, match=f"(?s){problem}"):
        dataprep.select(root, name="wrong", dedup=dedup)
