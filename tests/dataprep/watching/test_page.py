"""A run as a page: its numbers, its curve, and in a real browser, its next looks and its end."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.pages.server import PageServer
from dataprep.watching.page import MOST_POINTS, Course, watch_page
from dataprep.watching.snapshots import ABSENT, BUILDING, TRAINING, WHOLE, BuildSnapshot, Snapshot, TrainingSnapshot
from tests.support.browser import CHROMIUM, NO_CHROMIUM, browse
from tests.support.pages import HOSTILE, Page

BUILD = BuildSnapshot(
    url="gs://bucket/coco",
    state=BUILDING,
    name="coco-dup5",
    format="tfrecord",
    shards=8,
    finished_shards=2,
    samples=800,
    finished_samples=200,
    images_per_s=50.0,
    left_s=12.0,
    read_receipts=2,
    repaired={"png": 2, "cmyk": 3},
    rejected={"truncated": 1},
)
TRAIN = TrainingSnapshot(
    url="runs/mae", state=TRAINING, step=1200, numbers={"loss": 0.25, "wait_share": 0.125}, checkpoint="checkpoint-1"
)


def shown(snapshot, course=None, losses=()):
    return Page(watch_page(snapshot, course or Course(), losses, 2.0))


@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 50)), min_size=1, max_size=4 * MOST_POINTS))
def test_a_course_keeps_its_first_and_its_last_look_and_no_more_points_than_are_drawn(looks):
    course, now_s, samples = Course(), 5.0, 10
    course.saw(now_s, samples)
    for elapsed_s, more in looks:
        now_s, samples = now_s + elapsed_s, samples + more
        course.saw(now_s, samples)
        assert course.points[0] == (0, 10)
        assert course.points[-1] == (now_s - 5, samples)
        assert 2 <= len(course.points) <= MOST_POINTS
    assert course.points == sorted(course.points)
    course.saw(now_s + 1, 0)
    assert course.points == [(0, 0)]


def test_a_build_is_shown_with_its_reasons():
    course = Course()
    for now_s, samples in ((0, 0), (2, 100), (4, 200)):
        course.saw(now_s, samples)
    page = shown(BUILD, course)
    assert "25 % · coco-dup5 as tfrecord" in page.texts
    for text in ("2 of 8", "200 of 800 samples", "50 images/s", "12 s left", "5 repaired", "1 rejected"):
        assert text in page.text
    assert "repaired cmyk 3 repaired png 2 rejected truncated 1" in page.text
    assert "Samples since this page was opened" in page.text
    assert page.tags.count("path") == 2


@pytest.mark.parametrize(("span_s", "unit"), [(100, "100 s"), (600, "10 min"), (36_000, "10 h")])
def test_the_time_of_a_course_has_the_unit_in_which_people_count(span_s, unit):
    course = Course()
    course.saw(0, 0)
    course.saw(span_s, 200)
    assert unit in shown(BUILD, course).text


def test_a_training_is_shown_with_its_loss():
    page = shown(TRAIN, losses=[(step, 1 / step) for step in range(1, 1201)])
    for text in ("Training; saved checkpoint-1.", "1,200 step", "0.2500 loss", "12% of the time waiting for data"):
        assert text in page.text
    assert "Loss over the last logged steps" in page.text


@pytest.mark.parametrize("losses", [[], [(1, 0.5)], [(1, 0.0), (2, 0.0)]])
def test_there_is_no_curve_without_a_course(losses):
    assert "path" not in shown(TRAIN, losses=losses).tags


@pytest.mark.parametrize(
    ("snapshot", "text"),
    [
        (Snapshot(url="a", state=WHOLE), "The dataset is whole."),
        (Snapshot(url="a", state=ABSENT, idle_s=90), "No build and no training there yet."),
        (replace(BUILD, idle_s=90), "Building; no progress for 90 s."),
        (replace(BUILD, finished_shards=8), "Building; index and manifest are being written."),
        (TrainingSnapshot(url="a", state=TRAINING, step=None), "Training; no checkpoint yet."),
    ],
)
def test_the_state_is_one_sentence(snapshot, text):
    assert text in shown(snapshot).text


def test_every_text_is_escaped():
    hostile = replace(BUILD, url=HOSTILE, name=HOSTILE, rejected={HOSTILE: 1})
    page = shown(hostile)
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert sum(HOSTILE in text for text in page.texts) == 4


class Looks(PageServer):
    """Serves one page after the other, and when there is none left, no answer."""

    def __init__(self, *pages):
        self.left = list(pages)
        super().__init__("", 0)

    @property
    def page(self):
        return self.left.pop(0)

    @page.setter
    def page(self, page):
        pass


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_a_browser_shows_the_next_look_and_keeps_the_last_when_the_command_ends(tmp_path):
    first = watch_page(BUILD, Course(), (), 0.2)
    last = watch_page(Snapshot(url="gs://bucket/coco", state=WHOLE), Course(), (), 0.2)
    with Looks(first, last) as server:
        dumped = browse(tmp_path, "--virtual-time-budget=5000", "--dump-dom", server.url)
        assert server.left == []
    assert "The dataset is whole." in dumped
    assert "<title>coco</title>" in dumped
    line = re.search(r'<p [^>]*role="status"[^>]*>', dumped)[0]
    assert "hidden" not in line


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_while_the_command_runs_nothing_is_said_of_its_end(tmp_path):
    with PageServer(watch_page(TRAIN, Course(), (), 0.2), 0) as server:
        dumped = browse(tmp_path, "--virtual-time-budget=3000", "--dump-dom", server.url)
    assert "hidden" in re.search(r'<p [^>]*role="status"[^>]*>', dumped)[0]
