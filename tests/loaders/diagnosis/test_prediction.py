"""What stages make together: by hand, against a simulation of queues, and by properties."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.diagnosis.findings import STAGES
from loaders.diagnosis.prediction import Batches, Rates, allocate, predict, predict_fetched

speeds = st.floats(1, 1e5)
costs = st.floats(0, 0.1)


def rates_of(
    fetch, prepare, transfer, compute, *, cpu_s=(0, 0, 0, 0), cores=2.0, on_device=2, in_turn=False, **batches
):
    return Rates(
        images_per_s=dict(zip(STAGES, (fetch, prepare, transfer, compute), strict=True)),
        cpu_s_per_image=dict(zip(STAGES, cpu_s, strict=True)),
        cores=cores,
        transfer_ahead=on_device > 0,
        fetch_in_turn=in_turn,
        batches=Batches(**{"images": 8, "ahead": 3, "on_device": on_device} | batches),
    )


@pytest.mark.parametrize(
    ("rates", "images_per_s", "limit"),
    [
        (rates_of(100, 900, 900, 900), 100, "fetch"),
        (rates_of(900, 100, 900, 900), 100, "prepare"),
        (rates_of(900, 900, 100, 900), 100, "transfer"),
        (rates_of(900, 900, 900, 100), 100, "compute"),
        (rates_of(9e9, 9e9, 300, 100, on_device=0), 75, "compute"),
        (rates_of(9e9, 9e9, 100, 300, on_device=0), 75, "transfer"),
        (rates_of(200, 200, 900, 900, in_turn=True), 100, "fetch"),
        # 1 ms to fetch and 4 ms to decode an image, on 2 cores
        (rates_of(900, 500, 900, 900, cpu_s=(0.001, 0.004, 0, 0)), 400, "cores"),
    ],
)
def test_the_slowest_stage_or_the_cores_hold_the_run_back(rates, images_per_s, limit):
    found = predict(rates)

    assert found.images_per_s == pytest.approx(images_per_s, rel=0.01)
    assert found.limit == limit


@pytest.mark.parametrize(
    ("quota", "prepare", "compute", "compute_cpu_s", "measured"),
    [(1.459, 13_900, 35_800, 28e-6, 10_294), (1.125, 10_190, 34_500, 29e-6, 7764)],
)
def test_under_a_quota_the_devices_steps_share_it_with_decoding(quota, prepare, compute, compute_cpu_s, measured):
    """Two recorded runs on smaller images; that decoding alone used all of the quota is assumed, not recorded."""
    stages, cpu_s = (9e9, prepare, 9e9, compute), (0, quota / prepare, 0, compute_cpu_s)
    found = predict(rates_of(*stages, cpu_s=cpu_s, cores=quota, on_device=0, images=32))
    assert found.limit == "cores"
    assert found.images_per_s == pytest.approx(measured, rel=0.1)
    assert predict(rates_of(*stages, cpu_s=cpu_s, cores=2.0, on_device=0, images=32)).images_per_s > 1.2 * measured


def test_with_one_batch_ahead_the_times_of_fetching_and_preparing_add_up():
    """16 images: 40 ms until their bytes are there, 16 ms to decode them, a step of 16 ms meanwhile."""
    one = {"images": 16, "ahead": 1, "fetch_latency_s": 0.04}
    rates = (400, 1000, 9e9, 1000)

    assert predict(rates_of(*rates, on_device=0, **one)).images_per_s == pytest.approx(16 / 0.056, rel=0.01)
    assert predict(rates_of(*rates, **one | {"ahead": 4})).images_per_s == pytest.approx(400, rel=0.02)


def test_uneven_batches_cost_most_between_two_equally_fast_stages_without_a_queue():
    uneven = {"jitter": (0.5, 1.5)}
    twice = (9e9, 1000, 9e9, 1000)
    one = predict(rates_of(*twice, on_device=0, images=16, ahead=1, **uneven)).images_per_s
    more = predict(rates_of(*twice, images=16, ahead=4, **uneven)).images_per_s
    faster = predict(rates_of(9e9, 3000, 9e9, 1000, on_device=0, images=16, ahead=1, **uneven)).images_per_s

    assert one < 0.85 * more
    assert more == pytest.approx(1000, rel=0.02)
    assert faster == pytest.approx(1000, rel=0.02)


@given(st.tuples(speeds, speeds, speeds, speeds), st.tuples(costs, costs, costs, costs), st.floats(0.1, 256))
def test_a_run_is_never_faster_than_a_stage_and_more_of_anything_never_slows_it(speed, cpu_s, cores):
    rates = rates_of(*speed, cpu_s=cpu_s, cores=cores)
    found = predict(rates).images_per_s

    assert found <= min(speed) * (1 + 1e-9)
    assert found * sum(cpu_s) <= cores * (1 + 1e-9)
    assert predict(rates_of(*(2 * each for each in speed), cpu_s=cpu_s, cores=cores)).images_per_s >= 0.99 * found
    assert predict(rates_of(*speed, cpu_s=cpu_s, cores=2 * cores)).images_per_s >= 0.99 * found
    assert predict(rates_of(*speed, cpu_s=cpu_s, cores=cores, on_device=0)).images_per_s <= 1.01 * found
    assert predict(rates_of(*speed, cpu_s=cpu_s, cores=cores, in_turn=True)).images_per_s <= 1.01 * found


@given(st.tuples(speeds, speeds, speeds, speeds), st.tuples(costs, costs, costs, costs), st.floats(0.1, 256))
def test_cores_are_divided_so_that_every_useful_core_is_used(speed, cpu_s, cores):
    most = {"fetch": cores, "prepare": cores / 2}
    best, allocation = allocate(rates_of(*speed, cpu_s=cpu_s, cores=cores), most)

    assert sum(allocation.values()) <= cores * (1 + 1e-9)
    assert allocation["prepare"] <= cores / 2 * (1 + 1e-9)
    assert best <= min(speed[0], speed[2], speed[3])
    bounds = [speed[0], speed[2], speed[3]]
    bounds += [most[name] / cost for name, cost in zip(("fetch", "prepare"), cpu_s, strict=False) if cost]
    bounds += [cores / sum(cpu_s)] if sum(cpu_s) else []
    assert any(math.isclose(best, bound, rel_tol=1e-9) for bound in bounds)


@given(st.tuples(speeds, speeds, speeds, speeds), st.tuples(costs, costs, costs, costs), speeds, st.floats(0, 1))
def test_what_follows_fetching_depends_on_its_cpu_time_but_not_on_its_rate(speed, cpu_s, fetch, latency_s):
    as_it_is = rates_of(*speed, cpu_s=cpu_s, fetch_latency_s=latency_s)
    found = predict_fetched(as_it_is)

    assert found.images_per_s >= 0.99 * predict(as_it_is).images_per_s
    assert found == predict_fetched(rates_of(fetch, *speed[1:], cpu_s=cpu_s))
    assert found.images_per_s * sum(cpu_s) <= 2.0 * (1 + 1e-9)
    assert found.limit != "fetch"
