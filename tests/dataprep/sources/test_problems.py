"""What is wrong with a user's own data is shown at once, a line for each problem."""

import json

import pytest

from dataprep.errors import SourceError, UsageError
from dataprep.sources.keys import Problems
from tests.support.builds import refuses
from tests.support.own_data import picture, write_files

JPEG = picture(1)
CLASSES = {f"{name}/{number}.jpg": picture(number) for name in ("cats", "dogs") for number in range(2)}


def build(kind, source, *more):
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
    lines = build("folder", write_files(tmp_path / "in", files), "--label-from", "folder")
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
    lines = build("folder", tmp_path / "in")
    told = "\n".join(lines)
    assert "in: 3 problems" in told and "'a/b'" in told and "'c/d'" in told and "'..'" in told


def test_text_files_are_refused_together(tmp_path):
    files = {f"{number}.jpg": picture(number) for number in range(4)}
    texts = {"0.txt": b"\xff", "1.txt": b"\xfe", "2.txt": b"fine", "lost.txt": b"x"}
    lines = build("folder", write_files(tmp_path / "in", files | texts), "--text-files", "caption")
    told = "\n".join(lines)
    for words in ("4 problems", "'0.txt': not UTF-8", "'1.txt': not UTF-8", "no .txt file for 1 of 4", "'lost.txt'"):
        assert words in told


def test_rows_of_a_table_are_refused_together(tmp_path):
    rows = ["0.jpg,1,x", ",2,x", "../up.jpg,3,x", "none.jpg,4,x", "0.jpg,5,x", "1.jpg,6", "1.jpg,inf,x", "1.heic,7,x"]
    table = "\n".join(["image,age,note", *rows])
    files = {"0.jpg": JPEG, "1.jpg": picture(2), "1.heic": b"x", "dogs.csv": table}
    lines = build("table", write_files(tmp_path / "in", files))
    told = "\n".join(lines)
    for words in (
        "7 problems", "no path (line 3)", "line 4: '../up.jpg' climbs out", "line 7: 2 fields",
        "'1.heic': a picture of type heic", "2 of 6 images are not below", "have the same key 0", "have the same key 1",
        "column 'age': a number that is not finite",
    ):  # fmt: skip
        assert words in told


def test_all_columns_that_only_some_tables_have_are_named(tmp_path):
    files = {"a.csv": "image,x,y\n0.jpg,1,2\n", "b.csv": "image,z\n0.jpg,1\n", "c.csv": "image,x\n0.jpg,1\n"}
    lines = build("table", write_files(tmp_path / "in", {**files, "0.jpg": JPEG}))
    told = "\n".join(lines)
    assert "2 problems" in told and "x (str), y (str), z (str) are only in one" in told
    assert "y (str) is only in one" in told


def test_all_pairs_of_one_key_are_refused_together(tmp_path):
    files = {f"{number}.{suffix}": picture(number) for number in range(2) for suffix in ("jpg", "png")}
    lines = build("folder", write_files(tmp_path / "in", files))
    told = "\n".join(lines)
    assert "2 problems" in told and "have the key 0" in told and "have the key 1" in told
