"""Speed of the cores of TPU hosts: what each figure rests on, and what it does to a cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.cloud.accelerators import generations
from loaders.capacity.host_cores import cost_on_host, host_cores
from loaders.capacity.input_costs import cost_from_table, measured_here
from loaders.capacity.plan import ImageCost, Pod, plan_capacity
from tests.support.costs import COSTS, cost_by_hand
from tests.support.markdown import ROOT

CAPACITY = (ROOT / "docs/capacity.md").read_text(encoding="utf-8")

IMAGENET_BYTES = 115_440
V3_128_HOSTS, WORKERS = 16, 4
RESNET_50, RESNET_152 = 44_800, 44_800 * 4.1 / 11.5
"""Images/s that a v3-128 takes, as in docs/capacity.md."""


def test_every_generation_has_cores_relative_to_the_machine_of_the_table_of_costs():
    assert list(host_cores()) == list(generations())
    machines = {row.machine for rows in measured_here().values() for row in rows}
    assert {cores.relative_to for cores in host_cores().values()} == machines
    assert {cores.basis for cores in host_cores().values()} == {"measured", "published case", "assumed"}
    assert all(bool(cores.processor) == bool(cores.processor_source) for cores in host_cores().values())


def test_an_assumed_speed_is_that_of_the_generation_that_it_names():
    for cores in host_cores().values():
        if cores.basis == "assumed":
            named = cores.ground.split()[1].rstrip(",")
            assert cores.ground.startswith(f"as {named}")
            assert cores.speed == host_cores()[named].speed


def test_the_speed_of_v3_is_one_that_both_published_sentences_on_resnet_jax_allow():
    """Four workers on each of 16 hosts deliver 64,000 x speed / CPU ms.

    ResNet-152 takes the same time as ResNet-50, so they deliver no more than it takes. TFDS, with which ResNet-50 runs
    as fast as it can, is two to three times faster, so they deliver at least a third of what ResNet-50 takes.
    """
    fastest = V3_128_HOSTS * WORKERS * 1e3 / cost_from_table("torchvision", 224, IMAGENET_BYTES).cpu_ms
    low, high = RESNET_50 / 3 / fastest, RESNET_152 / fastest
    v3 = host_cores()["v3"]
    assert low <= v3.speed <= high
    assert v3.speed == pytest.approx((low + high) / 2, abs=0.006)
    assert v3.basis == "published case"
    assert v3.ground.endswith(f"allow {low + 0.005:.2f} to {high - 0.005:.2f}")
    with_tfds = RESNET_50 / (16 * 96 * 0.8 * 0.6 * 1e3 / cost_from_table("tf.data", 224, IMAGENET_BYTES).cpu_ms)
    assert with_tfds < v3.speed


@pytest.mark.parametrize("image_size", [224, 448])
def test_the_speed_of_v5p_is_the_ratio_of_two_measurements_of_torchvision(image_size):
    """The table of these tests was measured on a Xeon of 2023, as are the hosts of v5p."""
    xeon = cost_by_hand("torchvision", image_size, 113_000)
    here = cost_from_table("torchvision", image_size, 113_000)
    assert host_cores()["v5p"].speed == pytest.approx(here.cpu_ms / xeon.cpu_ms, abs=0.006)


def test_the_document_has_the_speeds_of_cores_and_what_they_rest_on():
    rows = [
        (name, cores.processor or "in no source that was read", str(cores.speed), f"{cores.basis}: {cores.ground}")
        for name, cores in host_cores().items()
    ]
    assert "\n".join(f"| {' | '.join(row)} |" for row in rows) in CAPACITY
    others = [
        cost_from_table(loader, row.image_size, row.cost.num_bytes).cpu_ms / row.cost.cpu_ms
        for loader, measured in COSTS.items()
        for row in measured
        if loader != "torchvision"
    ]
    assert f"`--core-speed {min(others):.2f}` is the lowest that was seen" in CAPACITY


costs = st.builds(
    ImageCost,
    loader=st.just("any"),
    cpu_ms=st.floats(0.1, 50),
    stored_ms=st.floats(0, 0.1),
    num_bytes=st.floats(1e3, 1e7),
    serial_ms=st.just(0.0) | st.floats(0.001, 1),
)
speeds = st.floats(0.1, 3)


@given(costs)
def test_cores_of_the_same_speed_have_the_same_cost(cost):
    assert cost_on_host(cost, 1.0) == cost


@given(costs, speeds)
def test_a_slower_core_takes_more_time_for_the_same_bytes(cost, speed):
    there = cost_on_host(cost, speed)
    assert there.cpu_ms * speed == pytest.approx(cost.cpu_ms)
    assert there.stored_ms * speed == pytest.approx(cost.stored_ms)
    assert (there.num_bytes, there.serial_ms) == (cost.num_bytes, cost.serial_ms)


@given(costs, speeds, st.none() | st.integers(1, 50))
def test_the_rate_that_cores_allow_is_in_proportion_to_their_speed(cost, speed, workers):
    pod = Pod(hosts=2, vcpus=100, ram_bytes=1e11, nic_gbps=100, workers=workers)
    here, there = (plan_capacity(1000, pod, each).resources for each in (cost, cost_on_host(cost, speed)))
    assert there[0].headroom == pytest.approx(here[0].headroom * speed)
    assert there[1:] == here[1:]
