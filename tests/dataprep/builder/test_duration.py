"""The time of a build, from that of a few images: in proportion to the images, and never too good for the machine."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.builder.duration import Tried, build_duration

SECONDS = st.floats(0, 100)
TRIED = st.builds(
    Tried,
    images=st.integers(1, 64),
    num_bytes=st.integers(0, 10**9),
    cpu_s=st.floats(1e-4, 100),
    wait_s=SECONDS,
    transfer_s=SECONDS,
    reads_ahead=st.booleans(),
)
COUNTS = st.integers(1, 10_000)
CORES = st.floats(0.5, 256)


def tried(**more):
    return replace(Tried(images=10, num_bytes=10**6, cpu_s=0.03, wait_s=0.0, transfer_s=0.0, reads_ahead=False), **more)


@given(TRIED, st.integers(0, 10**8), COUNTS, COUNTS, CORES)
def test_twice_the_images_take_twice_as_long(tried, images, shards, workers, cores):
    once = build_duration(tried, images, shards=shards, workers=workers, cores=cores)
    twice = build_duration(tried, 2 * images, shards=shards, workers=workers, cores=cores)
    assert twice.seconds == pytest.approx(2 * once.seconds)
    assert twice.reading_limits == once.reading_limits or not images


@given(TRIED, COUNTS, COUNTS, CORES)
def test_another_worker_or_core_never_makes_it_longer(tried, shards, workers, cores):
    def seconds(workers, cores):
        return build_duration(tried, 1000, shards=shards, workers=workers, cores=cores).seconds

    assert seconds(workers + 1, cores) <= seconds(workers, cores) * (1 + 1e-9)
    assert seconds(workers, cores + 1) <= seconds(workers, cores) * (1 + 1e-9)


@given(TRIED, COUNTS, COUNTS, CORES)
def test_a_build_is_never_shorter_than_the_work_on_all_cores_that_have_a_worker(tried, shards, workers, cores):
    found = build_duration(tried, 1000, shards=shards, workers=workers, cores=cores)
    busy = min(workers, cores, shards)
    assert found.seconds >= 1000 * tried.cpu_s / tried.images / busy * (1 - 1e-9)
    assert found.seconds >= 1000 * tried.transfer_s / tried.images * (1 - 1e-9)


def test_two_workers_halve_it_and_a_third_shard_is_another_round():
    def seconds(shards, workers):
        return build_duration(tried(), 600_000, shards=shards, workers=workers, cores=8).seconds

    assert seconds(100, 1) == pytest.approx(1800)
    assert seconds(100, 2) == pytest.approx(900)
    assert seconds(3, 2) == pytest.approx(1200)
    assert seconds(1, 8) == pytest.approx(1800)


def test_more_workers_than_cores_do_not_compute_faster_but_wait_at_the_same_time():
    def seconds(**more):
        return build_duration(tried(**more), 600_000, shards=100, workers=10, cores=2).seconds

    assert seconds() == pytest.approx(900)
    assert seconds(wait_s=0.3) == pytest.approx(180 + 1800)


@pytest.mark.parametrize(
    ("more", "seconds", "limits"),
    [
        ({"wait_s": 0.02}, 1500, False),
        ({"wait_s": 0.04}, 2100, True),
        ({"wait_s": 0.02, "reads_ahead": True}, 900, False),
        ({"wait_s": 0.04, "reads_ahead": True}, 1200, True),
        ({"transfer_s": 0.01, "reads_ahead": True}, 900, False),
        ({"transfer_s": 0.02, "reads_ahead": True}, 1200, True),
    ],
)
def test_reading_ahead_hides_the_shorter_of_reading_and_work_and_a_network_is_shared(more, seconds, limits):
    found = build_duration(tried(**more), 600_000, shards=100, workers=2, cores=2)
    assert (found.seconds, found.reading_limits) == (pytest.approx(seconds), limits)


def test_a_disk_that_takes_longer_than_all_else_is_the_limit():
    fast, slow = (build_duration(tried(sync_s=each), 1000, shards=10, workers=2, cores=2) for each in (0.001, 0.5))
    assert (fast.writing_limits, slow.writing_limits) == (False, True)
    assert slow.seconds == pytest.approx(1000 / 10 * 0.5)
    assert fast == build_duration(tried(), 1000, shards=10, workers=2, cores=2)
