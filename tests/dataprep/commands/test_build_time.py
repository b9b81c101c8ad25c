"""The line of a dry run about the time of the build, and its fields."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest

from dataprep.builder.duration import Tried
from dataprep.builder.recipe import Planned
from dataprep.commands.build_time import ONE_CORE, Crew, UnknownTime, crew_here, planned_time
from dataprep.errors import SourceError
from dataprep.host.cpu import available_cores
from tests.support.builds import build_arguments, dataprep
from tests.support.own_data import class_folders, planned

TWO = Crew(workers=2, cores=2, text="2 workers")
TRIED = Tried(images=64, num_bytes=64 * 110_000, cpu_s=64 * 0.0031, wait_s=0.0, transfer_s=0.0, reads_ahead=False)


def of(plan, tried):
    return Planned(plan, store=lambda storage, root: None, try_images=tried)


@pytest.fixture
def plan(tmp_path):
    return planned(class_folders(tmp_path / "pets"))


def large(plan, images):
    """The same plan with this many images in 100 shards."""
    return replace(plan, splits=(replace(plan.splits[0], shard_samples=(images // 100,) * 100),))


def test_the_time_is_a_line_with_what_it_rests_on(plan):
    found = planned_time(of(large(plan, 480_000), lambda: TRIED), TWO)
    assert found.line == (
        "  time: about 12 min with 2 workers (3.1 ms of CPU and 110.0 kB an image, 64 images sampled); writing was "
        "not tried and adds to it; other programs and a slow disk or network can make it longer"
    )
    assert found.document() == {
        "seconds": 744.0,
        "workers": 2,
        "limited_by_reading": False,
        "limited_by_writing": False,
        "cpu_ms_per_image": 3.1,
        "wait_ms_per_image": 0.0,
        "transfer_ms_per_image": 0.0,
        "sync_ms_per_image": None,
        "bytes_per_image": 110_000,
        "images_sampled": 64,
    }


def test_where_reading_takes_longer_the_line_says_so(plan):
    slow = replace(TRIED, transfer_s=64 * 0.009, reads_ahead=True)
    found = planned_time(of(large(plan, 480_000), lambda: slow), TWO)
    assert "about 72 min with 2 workers, limited by reading, 9.0 ms an image (3.1 ms of CPU" in found.line
    assert found.document()["limited_by_reading"] is True


def test_where_writing_was_tried_the_line_does_not_leave_it_out(plan):
    quick, slow = (
        planned_time(of(large(plan, 480_000), partial(replace, TRIED, sync_s=64 * each)), TWO) for each in (0.001, 0.01)
    )
    assert quick.line.endswith(" sampled); other programs and a slow disk or network can make it longer")
    assert "about 12 min with 2 workers (3.1 ms" in quick.line
    assert "about 80 min with 2 workers, limited by writing, 10.0 ms an image (3.1 ms of CPU" in slow.line
    assert (slow.document()["limited_by_writing"], slow.document()["sync_ms_per_image"]) == (True, 10.0)


def test_short_builds_are_no_number_and_a_cluster_is_counted_in_cores(plan):
    assert "  time: less than a minute with one core like those of this machine (" in (
        planned_time(of(plan, lambda: TRIED), ONE_CORE).line
    )


def test_parts_work_together():
    crew = crew_here(3, 4)
    assert (crew.workers, crew.text) == (12, "3 workers in each of 4 parts")
    assert 0 < crew.cores <= 4 * available_cores()
    assert crew_here(1).text == "1 worker"


def test_an_unknown_time_says_why_and_servers_of_others_are_not_estimated(plan):
    def fail():
        raise SourceError("no image is there")

    found = planned_time(of(plan, fail), TWO)
    assert found == UnknownTime("no image is there")
    assert found.line == "  time: not estimated: no image is there"
    assert found.document() == {"seconds": None, "unknown": "no image is there"}
    assert planned_time(of(plan, None), TWO) is None


def test_a_dry_run_prints_the_time_and_leaves_nothing_behind(originals, tmp_path):
    words = build_arguments("coco-dup5", originals["coco"], tmp_path / "out", "webdataset", "--dry-run", "--workers", 2)
    found = json.loads(dataprep(*words).stdout)["time"]
    assert found["seconds"] > 0
    assert found["workers"] == 2
    assert 0 < found["images_sampled"] <= 64  # on a busy machine the time for a sample may be up before
    words.remove("--json")
    shown = dataprep(*words).stdout
    assert re.search(r"  time: .+ with 2 workers \(.+ an image, \d+ images? sampled\); other programs", shown)
    assert shown.endswith("\nNothing was built, and nothing is left behind (--dry-run).\n")
    assert not list(tmp_path.iterdir())


def test_originals_that_the_build_would_write_first_are_not_sampled(tmp_path):
    words = ("build", "imagenet-fake", "--images", 4, "--source", tmp_path / "new", "--output", tmp_path / "out")
    shown = dataprep(*words, "--format", "tfrecord", "--dry-run").stdout
    assert "\n  time: not estimated: the build first writes its originals\n" in shown
    assert not list(tmp_path.iterdir())
