"""Rows of a table whose images cannot be used: problems, or a line if so many may be rejected."""

import pytest

from dataprep.errors import DataprepError
from dataprep.sources.image_tables import ImageTable
from dataprep.sources.keys import Problems
from dataprep.sources.pictures import Examples
from dataprep.sources.table import NamedRow, UnusableImages
from dataprep.storage import open_storage

ROWS = 200


def table(tmp_path, name="data.csv"):
    return ImageTable(open_storage(str(tmp_path)), name, 1)


def counted(tmp_path, ratio, missing, kind="jpg", **options):
    """Refuse images of a table of ROWS rows: the first `missing` have no file, and the last one has a file of a kind.

    Half of the rows are of train, the rest of val.
    """
    found, of = UnusableImages(open_storage(str(tmp_path)), ratio), table(tmp_path)
    found.image_column = "image"
    rows = [NamedRow(of, n + 2, f"{n}.{kind if n == ROWS - 1 else 'jpg'}") for n in range(ROWS)]
    for n, row in enumerate(rows):
        found.add(row, None if n < missing else 7)
    found.end_table(of)
    problems = Problems(str(tmp_path))
    val = Examples(rows[-1:] if kind == "tif" else [])
    splits = {"train": (Examples(rows[:missing]), 160), "val": (val, 40)}
    lines = found.refuse(splits, problems, **({"are_final": True} | options))
    return lines, problems, list(found.missing)


def raised(problems):
    with pytest.raises(DataprepError) as error:
        problems.refuse()
    return str(error.value)


def test_nothing_is_said_of_images_that_can_be_used(tmp_path):
    lines, problems, _ = counted(tmp_path, 0.0, 0)
    assert (lines, problems.count) == ([], 0)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (
            4,
            (
                "4 of 200 images are not below",
                "'2.jpg' (line 4), ... (the JSON output lists all); put them there, or remove the",
            ),
        ),
        (4, ("rows, or have them rejected and listed with `max_reject_ratio` 0.025;",)),
        (3, ("'2.jpg' (line 4); put them there, or remove the rows",)),
        (150, ("name their column with `image_column` (now image), or put the table into the folder",)),
    ],
)
def test_missing_images_are_a_problem_whose_advice_depends_on_their_share(tmp_path, missing, words):
    lines, problems, listed = counted(tmp_path, 0.0, missing)
    assert lines == []
    assert listed == [(f"{n}.jpg", f"'data.csv' line {n + 2}") for n in range(missing)]
    assert all(word in raised(problems) for word in words)


def test_the_ratio_that_is_named_suffices_for_every_split_that_is_known(tmp_path):
    told = raised(counted(tmp_path, 0.0, 1, "tif")[1])
    assert "'199.tif': a picture of type tif, which is not read; convert such files to JPEG or PNG" in told
    assert told.count("have them rejected and listed with `max_reject_ratio` 0.025") == 2
    told = raised(counted(tmp_path, 0.0, 1, "tif", are_final=False)[1])
    assert told.count("have them rejected and listed with `max_reject_ratio`") == 2
    assert "`max_reject_ratio` 0" not in told


def test_as_many_as_the_ratio_allows_are_told(tmp_path):
    lines, problems, _ = counted(tmp_path, 0.025, 4, "tif")
    assert problems.count == 0
    assert lines == [
        "warning: train: 4 of 160 images cannot be used (missing, empty or of a type that is not read), and will be "
        "rejected and listed: '0.jpg' (line 2), '1.jpg' (line 3), '2.jpg' (line 4), ...",
        "warning: val: 1 of 40 images cannot be used (missing, empty or of a type that is not read), and will be "
        "rejected and listed: '199.tif' (line 201)",
    ]


def test_each_split_that_has_more_than_the_ratio_allows_is_a_problem(tmp_path):
    lines, problems, _ = counted(tmp_path, 0.02, 3, "tif")
    assert (lines, problems.count) == ([], 1)
    assert raised(problems) == (
        f"{tmp_path}: val: 1 of 40 images cannot be used (missing, empty or of a type that is not read), more than "
        "`max_reject_ratio` 0.02 allows, so a build would end without a dataset: '199.tif' (line 201); repair the "
        "files, or remove the rows; `max_reject_ratio` 0.025 suffices for these"
    )
    told = raised(counted(tmp_path, 0.02, 4, "tif")[1])
    assert "train: 4 of 160 images" in told and "val: 1 of 40 images" in told
    assert "name their column with `image_column`" in raised(counted(tmp_path, 0.02, 150)[1])


def test_no_more_than_ten_rows_of_files_that_are_not_read_are_kept(tmp_path):
    found, of = UnusableImages(open_storage(str(tmp_path)), 0.0), table(tmp_path)
    rows = [NamedRow(of, n, f"{n}.heic") for n in range(25)]
    for row in rows:
        found.add(row, 7)
    found.empty.add(rows[0])
    problems = Problems("/data")
    found.refuse({"train": (Examples(rows), 100)}, problems, are_final=True)
    assert problems.count == 26
    assert "and 16 more" in raised(problems)
