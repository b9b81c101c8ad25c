"""Rows of a table whose images cannot be used: problems, or a line if so many may be rejected."""

import pytest

from dataprep.errors import DataprepError
from dataprep.sources.image_tables import ImageTable
from dataprep.sources.problems import Problems
from dataprep.sources.unusable import UnusableImages
from dataprep.storage import open_storage

ROWS = 200


def table(tmp_path, name="data.csv"):
    return ImageTable(open_storage(str(tmp_path)), name, 1)


def counted(tmp_path, ratio, missing, kind="jpg"):
    """Count a table of ROWS rows, the first `missing` of which have no file, and the last one a file of a kind."""
    found, of = UnusableImages(str(tmp_path), "image", ratio), table(tmp_path)
    kept = [found.takes(of, n + 2, f"{n}.{kind if n == ROWS - 1 else 'jpg'}", exists=n >= missing) for n in range(ROWS)]
    found.end_table(of)
    problems = Problems(str(tmp_path))
    line = found.end_split(problems)
    return sum(kept), line, problems, list(found.missing)


def test_nothing_is_said_of_images_that_can_be_used(tmp_path):
    assert counted(tmp_path, 0.0, 0)[:2] == (ROWS, "")


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (
            4,
            (
                "4 of 200 images are not below",
                "'2.jpg' (line 4), ... (--json lists all); put them there, or remove the",
            ),
        ),
        (4, ("rows, or have them rejected and listed with --max-reject-ratio 0.02;",)),
        (3, ("'2.jpg' (line 4); put them there, or remove the rows",)),
        (150, ("name their column with --image-column (now image), or put the table into the folder",)),
    ],
)
def test_missing_images_are_a_problem_whose_advice_depends_on_their_share(tmp_path, missing, words):
    kept, line, problems, listed = counted(tmp_path, 0.0, missing)
    assert (kept, line) == (ROWS - missing, "")
    assert listed == [(f"{n}.jpg", f"'data.csv' line {n + 2}") for n in range(missing)]
    with pytest.raises(DataprepError) as raised:
        problems.refuse()
    assert all(word in str(raised.value) for word in words)


def test_as_many_as_the_ratio_allows_are_told_and_kept(tmp_path):
    kept, line, problems, _ = counted(tmp_path, 0.02, 3, "tif")
    assert (kept, problems.count) == (ROWS, 0)
    assert line.startswith(
        "warning: 4 of 200 images do not exist or are of a type that is not read, so the build rejects"
    )
    kept, line, problems, _ = counted(tmp_path, 0.02, 4, "tif")
    assert (line, problems.count) == ("", 2)


def test_splits_and_tables_are_counted_apart(tmp_path):
    found, first, second = UnusableImages("/data", "image", 0.5), table(tmp_path), table(tmp_path, "more.csv")
    for of in (first, second):
        found.takes(of, 2, "a.jpg", exists=False)
        found.takes(of, 3, "b.jpg", exists=True)
        found.end_table(of)
    problems = Problems("/data")
    assert "2 of 4 images" in found.end_split(problems)
    found.takes(first, 2, "a.jpg", exists=False)
    found.end_table(first)
    assert (found.end_split(problems), problems.count) == ("", 1)
