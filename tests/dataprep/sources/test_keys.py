"""Keys are injective, in their alphabet; harmful names, equal keys and a user's other problems are refused together."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.dataset import spill
from dataprep.dataset.records import MAX_KEY_BYTES, SampleRef
from dataprep.errors import SourceError, UsageError
from dataprep.formats.base import is_key
from dataprep.messages import shown
from dataprep.sources import keys
from dataprep.sources.keys import (
    Problems,
    is_image,
    key_of,
    keys_in_lower_case,
    name_bytes,
    name_parts,
    refuse_duplicates,
    same_names,
)
from tests.support.builds import refuses
from tests.support.own_data import picture, write_files
from tests.support.samples import examples

# Any bytes that a file name can have, as Python decodes them.
names = st.binary(min_size=1, max_size=300).map(
    lambda data: re.sub(rb"[\0\\/\r\n]", b"_", data).decode("utf-8", "surrogateescape")
)
paths = st.lists(names.filter(lambda name: name not in (".", "..")), min_size=1, max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("n01440764/n01440764_10026.JPEG", "n01440764/n01440764_10026"),
        ("train2017/000000000009.jpg", "train2017/000000000009"),
        ("a.b.jpg", "a=2Eb"),
        ("a=b c.png", "a=3Db=20c"),
        ("naïve.jpg", "na=C3=AFve"),
        ("raw\udcff.jpg", "raw=FF"),
        ("no-extension", "no-extension"),
        ("__metadata/__x__.jpg", "=5F_metadata/=5F_x__"),
        ("a__b/_c.jpg", "a__b/_c"),
    ],
)
def test_a_key_is_made_of_the_path(path, key):
    assert key_of(tuple(path.split("/"))) == key


@examples
@given(paths)
def test_keys_are_in_the_alphabet_that_every_format_takes(path):
    key = key_of(path)
    assert is_key(key)
    assert len(key) <= MAX_KEY_BYTES


@examples
@given(paths)
def test_keys_that_were_not_cut_say_the_path(path):
    key = key_of(path)
    last, dot, _ = path[-1].rpartition(".")
    stem = "/".join([*path[:-1], last if dot and last else path[-1]])
    unescaped = re.sub(rb"=(..)", lambda match: bytes.fromhex(match[1].decode()), key.encode())
    if b"\0" not in unescaped:  # a cut key holds a NUL, a path never
        assert unescaped == name_bytes(stem)


@examples
@given(st.lists(st.binary(min_size=200, max_size=400), min_size=2, max_size=6, unique=True))
def test_long_names_keep_different_keys(contents):
    keys = {key_of((data.hex(),)) for data in contents}
    assert len(keys) == len(contents)
    assert all(len(key) <= MAX_KEY_BYTES for key in keys)


def test_a_cut_key_is_that_of_no_other_path():
    cut = key_of(("x" * 300,))
    assert len(cut) == MAX_KEY_BYTES
    pretender = cut.replace("=00", "\0")
    assert key_of((pretender,)) == cut
    with pytest.raises(SourceError, match="NUL"):
        name_parts(pretender)


@pytest.mark.parametrize("length", range(195, 206))
def test_no_escape_is_cut_in_two(length):
    key = key_of(("x" * (length % 3) + "é" * length,))
    assert is_key(key), key


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a/b.jpg", ("a", "b.jpg")),
        ("./a//b/./c.jpg", ("a", "b", "c.jpg")),
        ("a/", ("a",)),
        ("./", ()),
        ("...jpg", ("...jpg",)),
        ("a..b/c", ("a..b", "c")),
    ],
)
def test_a_name_is_split_into_its_parts(name, parts):
    assert name_parts(name) == parts


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../x", r"climbs out of the archive \('..'\)"),
        ("a/../b", "climbs out"),
        ("/etc/passwd", "absolute"),
        ("C:/x", "absolute"),
        ("a\\b", "backslash"),
        ("a\0b", "NUL"),
        ("a\nb", "line end"),
        ("\ud800", "not text"),
        ("y" * 100_000, "its name has 100,000 bytes, expected at most 4,096"),
    ],
)
def test_harmful_names_are_refused(name, words):
    with pytest.raises(SourceError, match=words):
        name_parts(name)


@examples
@given(st.text(max_size=60))
def test_parts_of_a_name_never_leave_the_folder(name):
    try:
        parts = name_parts(name)
    except SourceError:
        return
    assert not {"..", ".", ""} & set(parts)
    assert not any("/" in part or "\\" in part for part in parts)


@pytest.mark.parametrize("name", ["a.jpg", "a.JPEG", "b/c.png", "x.y.webp", "a.TIFF", "a.gif", "a.bmp"])
def test_images_are_recognised_by_their_names(name):
    assert is_image(name_parts(name))


@pytest.mark.parametrize(
    "name",
    ["__MACOSX/a.jpg", "._a.jpg", "a/.DS_Store", "Thumbs.db", "desktop.ini", "README", "readme.TXT", "LICENSE.md"],
)
def test_other_files_are_skipped_by_their_names(name):
    assert not is_image(name_parts(name))


@pytest.mark.parametrize("name", ["a.sh", "a", "a.jpg.part", "labels.txt", "x.tar", "README.exe"])
def test_unknown_names_are_refused(name):
    with pytest.raises(SourceError, match="by its name it is neither an image"):
        is_image(name_parts(name))


def test_names_in_messages_are_one_short_line_with_control_characters_and_odd_bytes_escaped():
    assert shown("a\nb\x1b[0m\u202e") == r"'a\nb\x1b[0m\u202e'"
    assert shown("Kätzchen 猫.jpg") == "'Kätzchen 猫.jpg'"
    assert shown("\udcff\udcfe.jpg") == r"'\xff\xfe.jpg'"
    assert shown("a\\udcff") == r"'a\\udcff'"
    assert len(shown("é" * 100_000)) < 300


def test_both_images_of_a_duplicate_key_are_named():
    refs = [SampleRef(f"k{i}", "x.zip", i, 1) for i in range(50)] + [SampleRef("K7", "y.zip", 99, 1)]
    words = (
        r"^train: two images have the key (k7|K7), ignoring case: 'k7' in 'x.zip' at byte 7 and "
        r"'K7' in 'y.zip' at byte 99"
    )
    with pytest.raises(SourceError, match=words):
        refuse_duplicates("train", refs)
    refuse_duplicates("train", refs[:-1])


@pytest.fixture
def small_parts(monkeypatch):
    """Every table of a few rows is on the disk, and in several parts."""
    monkeypatch.setattr(spill, "MEMORY_BYTES", 64)
    monkeypatch.setattr(spill, "PART_BYTES", 64)


def pairs(keys):
    found = same_names([SampleRef(key, "x.zip", offset, 1) for offset, key in enumerate(keys)], keys_in_lower_case)
    return sorted((first.offset, second.offset, name) for first, second, name in found)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text("abAB", max_size=3), max_size=60))
def test_each_equal_name_comes_with_the_first_of_its_name(small_parts, keys):
    first, expected = {}, []
    for offset, key in enumerate(map(str.lower, keys)):
        if first.setdefault(key, offset) != offset:
            expected.append((first[key], offset, key))
    assert pairs(keys) == sorted(expected)


def test_equal_hashes_of_different_names_are_no_duplicates(monkeypatch):
    monkeypatch.setattr(keys, "hash", lambda name: len(name) - 2, raising=False)
    assert pairs(["a", "b", "cc", "dd", "CC", "e"]) == [(2, 4, "cc")]


def test_more_equal_hashes_than_are_compared_at_once_are_all_compared(monkeypatch):
    monkeypatch.setattr(keys, "COMPARED_HASHES", 3)
    names = [f"k{number}" for number in range(10)]
    assert pairs(names + names) == sorted((number, number + 10, f"k{number}") for number in range(10))


JPEG = picture(1)
CLASSES = {f"{name}/{number}.jpg": picture(number) for name in ("cats", "dogs") for number in range(2)}


def problems_of(kind, source, *more):
    words = ("--source", source, "--output", source.parent / "out", "--format", "webdataset", *more)
    return refuses("build", kind, *words).stderr.rstrip().splitlines()


def test_a_single_problem_is_raised_as_it_is():
    problems, error = Problems("/data"), UsageError("`drop`: no such column")
    with pytest.raises(UsageError) as raised, problems.together(), problems.noted():
        raise error
    assert raised.value is error
    Problems("/data").refuse()


def test_several_are_lines_of_one_error_without_their_common_place_and_ten_at_most_are_listed():
    problems = Problems("/data")
    for number in range(1_011):
        problems.add(SourceError(f"/data: {number} is damaged"))
    with pytest.raises(SourceError) as raised, problems.together():
        raise SourceError("/other: gone")
    first, *lines = str(raised.value).split("\n")
    assert first == "/data: 1,012 problems; correct them, and run the same command again:"
    assert lines == [*(f"  {number} is damaged" for number in range(10)), "  and 1,002 more"]


def test_files_folders_rows_and_columns_are_refused_together(tmp_path):
    rows = [
        {"file_name": "cats/0.jpg", "age": 1, "size": 1},
        {"file_name": "cats/1.jpg", "age": None, "size": "large"},
        {"file_name": "cats/9.jpg", "age": 2, "size": 3},
        {"file_name": "../x.jpg", "age": 2, "size": 3},
        {"file_name": "dogs/0.jpg", "age": 2, "size": 3, "mixed": [1, "a", None]},
    ]
    lines = [*map(json.dumps, rows), "{damaged"]
    files = {**CLASSES, "dogs/deep/er.jpg": JPEG, "a.heic": b"x", "b.tif": b"x", "metadata.jsonl": "\n".join(lines)}
    lines = problems_of("folder", write_files(tmp_path / "in", files), "--label-from", "folder")
    (first,) = [at for at, line in enumerate(lines) if line.startswith("dataprep: ")]
    assert lines[first] == f"dataprep: {tmp_path}/in: 9 problems; correct them, and run the same command again:"
    told = "\n".join(lines[first + 1 :])
    for words in (
        "a.heic': a picture of type heic", "b.tif': a picture of type tif", "line 4: file_name '../x.jpg'",
        "line 6: not JSON", "line 5: column 'mixed': a list with missing values", "'cats/9.jpg' does not exist",
        "line 2: column 'age' has no value", "column 'size': int64 in",
        "1 of 5 images are not directly in a class folder",
    ):  # fmt: skip
        assert words in told


def test_names_of_classes_and_empty_labels_are_refused_together(tmp_path):
    rows = "".join(f"{number}.jpg,{label}\n" for number, label in enumerate(("a/b", "c/d", "good", "..")))
    files = {f"{number}.jpg": picture(number) for number in range(4)}
    write_files(tmp_path / "in", {"metadata.csv": f"file_name,label\n{rows}", **files})
    lines = problems_of("folder", tmp_path / "in")
    told = "\n".join(lines)
    assert "in: 3 problems" in told and "'a/b'" in told and "'c/d'" in told and "'..'" in told


def test_text_files_are_refused_together(tmp_path):
    files = {f"{number}.jpg": picture(number) for number in range(4)}
    texts = {"0.txt": b"\xff", "1.txt": b"\xfe", "2.txt": b"fine", "lost.txt": b"x"}
    lines = problems_of("folder", write_files(tmp_path / "in", files | texts), "--text-files", "caption")
    told = "\n".join(lines)
    for words in ("4 problems", "'0.txt': not UTF-8", "'1.txt': not UTF-8", "no .txt file for 1 of 4", "'lost.txt'"):
        assert words in told


def test_rows_of_a_table_are_refused_together(tmp_path):
    rows = ["0.jpg,1,x", ",2,x", "../up.jpg,3,x", "none.jpg,4,x", "0.jpg,5,x", "1.jpg,6", "1.jpg,inf,x", "1.heic,7,x"]
    table = "\n".join(["image,age,note", *rows])
    files = {"0.jpg": JPEG, "1.jpg": picture(2), "1.heic": b"x", "dogs.csv": table}
    lines = problems_of("table", write_files(tmp_path / "in", files))
    told = "\n".join(lines)
    for words in (
        "7 problems", "no path (line 3)", "line 4: '../up.jpg' climbs out", "line 7: 2 fields",
        "'1.heic': a picture of type heic", "2 of 6 images are not below", "have the same key 0", "have the same key 1",
        "column 'age': a number that is not finite",
    ):  # fmt: skip
        assert words in told


def test_all_columns_that_only_some_tables_have_are_named(tmp_path):
    files = {"a.csv": "image,x,y\n0.jpg,1,2\n", "b.csv": "image,z\n0.jpg,1\n", "c.csv": "image,x\n0.jpg,1\n"}
    lines = problems_of("table", write_files(tmp_path / "in", {**files, "0.jpg": JPEG}))
    told = "\n".join(lines)
    assert "2 problems" in told and "x (str), y (str), z (str) are only in one" in told
    assert "y (str) is only in one" in told
