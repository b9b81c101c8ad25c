"""Progress where stderr is a file: lines at intervals, warnings always, and nothing else when it is quiet."""

import pytest

from dataprep.commands import progress as progress_module
from dataprep.commands.progress import BuildProgress, CopyProgress, ImageProgress, LaionProgress


@pytest.fixture
def always(monkeypatch):
    """A line for every advance."""
    monkeypatch.setattr(progress_module, "LINE_EVERY_S", -1)


def test_a_progress_line_has_the_images_done_their_rate_and_the_time_left(always, capsys):
    with ImageProgress(quiet=False) as progress:
        progress.begin("building", 100)
        progress.advance(25, 1_000_000)
    line = capsys.readouterr().err
    assert line.startswith("building: 25 of 100 images, ")
    assert " images/s, " in line
    assert line.endswith(" min left\n")


def test_quiet_progress_prints_warnings_alone(always, capsys):
    with ImageProgress(quiet=True) as progress:
        progress.begin("building", 100)
        progress.advance(25, 1_000_000)
        progress.log("not this")
        progress.warn("but this")
    assert capsys.readouterr().err == "dataprep: warning: but this\n"


def test_a_resumed_build_reports_existing_shards_and_counts_the_others(always, capsys):
    with BuildProgress(quiet=False) as progress:
        progress.shards([10, 20, 30], {1})
        progress.advance(10, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "continuing: 1 of 3 shards done before"
    assert lines[1].startswith("building: 10 of 40 images, ")


def test_rows_of_a_table_are_counted_as_rows(always, capsys):
    with LaionProgress(quiet=False) as progress:
        progress.shards([10], set())
        progress.advance(10, 1000)
    assert capsys.readouterr().err.startswith("building: 10 of 10 rows, ")


def test_copies_are_counted_in_bytes_and_objects(always, capsys):
    with CopyProgress(quiet=False) as progress:
        progress.copying("gs://b/d", 2, 4_000_000)
        progress.copied(1, 1_000_000)
    assert capsys.readouterr().err.startswith("copying to gs://b/d (MB): 1.0 MB of 4.0 MB, 1 of 2 objects, ")
