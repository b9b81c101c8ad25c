"""Capacity plans beside arithmetic by hand, beside published facts, and their properties."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.arena.arena_peers import PEERS
from dataprep.cloud.accelerators import generations, parse_accelerator
from dataprep.cloud.capacity import (
    USABLE_SHARE,
    VCPU_SPEED,
    ImageCost,
    Pod,
    StoredImages,
    cost_from_document,
    cost_from_table,
    cost_on_host,
    enough_hosts,
    host_cores,
    measured_here,
    needs,
    plan_capacity,
    verdict_sentence,
)
from dataprep.errors import UndecidedError, UsageError
from loaders.bench.run import to_document as bench_document
from loaders.diagnosis.findings import to_document as diagnosis_document
from tests.support.costs import COSTS, cost_by_hand
from tests.support.findings import bench_table, diagnosis
from tests.support.markdown import ROOT

IMAGENET = StoredImages(num_bytes=147_897_477_120, short_side=387)


def pod_of(name: str, **changes) -> Pod:
    found = parse_accelerator(name)
    machine = found.machine
    pod = Pod(hosts=found.hosts, vcpus=machine.vcpus, ram_bytes=machine.ram_gb * 1e9, nic_gbps=machine.nic_gbps)
    return replace(pod, **changes)


FOUR_WORKERS = pod_of("v3-128", vcpus=4 / USABLE_SHARE / VCPU_SPEED)
"""Hosts of a v3-128 whose loader keeps four cores busy."""


def resource_of(plan, name):
    return next(resource for resource in plan.resources if resource.name == name)


def change_of(plan, name):
    return next(change for change in plan.what_ifs if change.name == name)


def test_the_plan_of_long_sequence_mae_on_v3_256_equals_arithmetic_by_hand():
    """Batches of 4,096 images of 448 pixels, a step a second.

    v3-256 has 256 / 8 = 32 hosts, so each delivers 4,096 / 32 = 128 images/s.
    CPU: 1.53 ms an image of 113 kB, 128 x 1.53 ms = 0.19584 cores; there are 96 vCPUs x 0.8 x 0.6 = 46.08. 235-fold.
    Network: 128 x 113,000 x 8 = 0.115712 Gbit/s; not published, 10 x 0.8 = 8 are certain. 69-fold.
    """
    cost = cost_by_hand("dataprep", 448, 113_000)
    plan = plan_capacity(4096 / 1.0, pod_of("v3-256"), cost)
    cores, network = resource_of(plan, "cores"), resource_of(plan, "network")
    assert plan.host_images_per_s == 128
    assert (cores.needed, cores.available) == (pytest.approx(0.19584), pytest.approx(46.08))
    assert (network.needed, network.available) == (pytest.approx(0.115712), pytest.approx(8.0))
    assert network.at_least
    assert (plan.verdict, plan.limit, plan.utilisation) == ("fed", "network", 1.0)
    assert plan.headroom == pytest.approx(69.137, abs=1e-3)
    assert verdict_sentence(plan, "v3-256") == (
        "v3-256 is fed with at least 69.1-fold headroom: 128 images/s needed per host; the hosts' network would be "
        "short first (0.116 Gbit/s needed per host, 8 available)."
    )


def test_the_plan_of_resnet_50_on_v4_32_equals_arithmetic_by_hand():
    """32,000 images/s, 2,000 a chip.

    v4-32 has 32 / 8 = 4 hosts, so each delivers 8,000 images/s.
    CPU: 8,000 x 1.27 ms = 10.16 cores; there are 240 x 0.8 x 0.6 = 115.2. 11.3-fold.
    Network: 8,000 x 113,000 x 8 = 7.232 Gbit/s of the 8 that are certain. 1.1-fold.
    At 40,000 images/s 9.04 Gbit/s are needed, and whether they are there is not published.
    A host that was seen to read 30 Gbit/s has 30 / 9.04 = 3.3 times as much.
    """
    cost = cost_by_hand("dataprep", 224, 113_000)
    plan = plan_capacity(32_000, pod_of("v4-32"), cost)
    assert resource_of(plan, "cores").needed == pytest.approx(10.16)
    assert resource_of(plan, "cores").available == pytest.approx(115.2)
    assert resource_of(plan, "network").needed == pytest.approx(7.232)
    assert (plan.verdict, plan.limit) == ("fed", "network")
    assert plan.headroom == pytest.approx(1.10619, abs=1e-5)

    unknown = plan_capacity(40_000, pod_of("v4-32"), cost)
    assert (unknown.verdict, unknown.limit) == ("unknown", "network")
    assert unknown.utilisation == pytest.approx(0.88496, abs=1e-5)
    assert verdict_sentence(unknown, "v4-32") == (
        "Cannot tell whether v4-32 is fed: 9.04 Gbit/s are needed per host, the hosts' network is not published, and "
        "only 8 are certain; measure it and give `host_gbps`."
    )
    measured = plan_capacity(40_000, pod_of("v4-32", measured_gbps=30), cost)
    assert (measured.verdict, measured.headroom) == ("fed", pytest.approx(3.31858, abs=1e-5))


def test_the_plan_explains_why_published_resnets_up_to_152_take_the_same_time():
    """resnet_jax, v3-128, PyTorch loader with its configuration's 4 workers: ResNet-50, -101, -152 take the same time;
    training does not cover loading before ResNet-200.

    16 hosts x 4 workers / 3.99 ms = 16,040 images/s, whatever the model. A v3-8 takes about 2,800 images/s of
    ResNet-50: 44,800 for v3-128, and the deeper ones fewer as their multiplications are more (4.1, 7.8, 11.5, 15.1
    billion): 23,549, 15,973 and 12,164.
    """
    cost = cost_by_hand("torchvision", 224, 113_000)
    asked = {
        name: 44_800 * 4.1 / billions for name, billions in {"50": 4.1, "101": 7.8, "152": 11.5, "200": 15.1}.items()
    }
    plans = {name: plan_capacity(rate, FOUR_WORKERS, cost) for name, rate in asked.items()}
    assert {name: plan.images_per_s for name, plan in plans.items()} == dict.fromkeys(
        asked, pytest.approx(16_040, abs=1)
    )
    assert [plans[name].verdict for name in ("50", "101", "200")] == ["input-bound", "input-bound", "fed"]
    assert plans["152"].headroom == pytest.approx(1, abs=0.01)
    assert verdict_sentence(plans["50"], "v3-128") == (
        "v3-128 is input-bound: reaches 16,040 images/s, 36% of the 44,800 that it takes; the hosts' CPU is short "
        "(11.2 cores needed per host, 4 available)."
    )


def test_the_plan_explains_the_published_speed_of_tfds_on_resnet_50():
    """resnet_jax: ResNet-50 with the PyTorch loader is 2-3 times slower than with TFDS, which takes all cores."""
    loaded = plan_capacity(44_800, FOUR_WORKERS, cost_by_hand("torchvision", 224, 113_000))
    with_tfds = plan_capacity(44_800, pod_of("v3-128"), cost_by_hand("tf.data", 224, 113_000))
    assert with_tfds.verdict == "fed"
    assert 2 <= with_tfds.utilisation / loaded.utilisation <= 3


def test_the_plan_explains_the_published_rates_from_a_bucket_and_from_a_disk():
    """pytorch/xla#2690, v3-32: 3,900 images/s one object at a time from the bucket, 14,200 from a disk."""
    cost = cost_by_hand("torchvision", 224, 115_440)
    gbps = 3_900 / 4 * 115_440 * 8e-9
    plan = plan_capacity(14_200, pod_of("v3-32", vcpus=72, measured_gbps=gbps), cost, stored=IMAGENET)
    assert (plan.verdict, plan.limit) == ("input-bound", "network")
    assert plan.images_per_s == pytest.approx(3_900)
    assert plan.what_ifs[0].name == "cache"
    assert plan.what_ifs[0].utilisation == 1.0


def test_rates_after_changes_equal_arithmetic_by_hand():
    """One host of 100 vCPUs and 100 Gbit/s; 1 ms an image, 0.8 of it for stored pixels, 100 kB; 60,000 images/s.

    There are 100 x 0.8 x 0.6 = 48 cores for the 60 that are needed, and 80 Gbit/s for 48.
    Stored at half the side: a quarter of the pixels, 1 - 0.8 x 0.75 = 0.4 ms: 48 / 24 = 2-fold, 120,000 images/s.
    A loader of 2 ms has half. Half of 100 GB of memory holds a quarter of 200 GB, which cores do not notice.
    """
    pod = Pod(hosts=1, vcpus=100, ram_bytes=100e9, nic_gbps=100)
    cost = ImageCost(loader="ours", cpu_ms=1.0, stored_ms=0.8, num_bytes=100_000)
    slow = ImageCost(loader="slow", cpu_ms=2.0, stored_ms=0.8, num_bytes=100_000, decodes="whole")
    stored = StoredImages(num_bytes=200e9, short_side=512)
    plan = plan_capacity(60_000, pod, cost, stored=stored, short_side=256, other_loaders={"slow": slow})
    assert (plan.verdict, plan.limit, plan.images_per_s) == ("input-bound", "cores", pytest.approx(48_000))
    assert [(change.name, round(change.images_per_s), change.limit) for change in plan.what_ifs] == [
        ("resize", 120_000, "cores"),
        ("cache", 48_000, "cores"),
        ("loader slow", 24_000, "cores"),
    ]
    assert change_of(plan, "cache").change.startswith("keep 25% of the dataset")
    assert change_of(plan, "loader slow").change == "load with slow, which decodes whole images"


def test_a_cache_that_holds_half_of_the_dataset_doubles_the_rate_of_a_slow_network():
    pod = Pod(hosts=2, vcpus=100, ram_bytes=100e9, nic_gbps=None, measured_gbps=1, bucket_gbps=8)
    cost = ImageCost(loader="ours", cpu_ms=1.0, stored_ms=0.8, num_bytes=125_000)
    plan = plan_capacity(4_000, pod, cost, stored=StoredImages(num_bytes=100e9, short_side=400))
    assert (plan.verdict, plan.limit, plan.utilisation) == ("input-bound", "network", pytest.approx(0.5))
    assert change_of(plan, "cache").utilisation == pytest.approx(1.0)
    narrow = plan_capacity(4_000, replace(pod, bucket_gbps=1), cost)
    assert (narrow.limit, narrow.utilisation) == ("bucket", pytest.approx(0.25))


def test_images_that_are_small_already_are_not_shrunk():
    plan = plan_capacity(100, pod_of("v3-8"), cost_by_hand("dataprep", 448, 113_000), stored=IMAGENET, short_side=512)
    assert [change.name for change in plan.what_ifs] == ["cache"]


@pytest.mark.parametrize("change", [{"hosts": 0}, {"vcpus": 0}, {"measured_gbps": -1.0}, {"vcpus": float("nan")}])
def test_sizes_of_0_or_less_are_refused(change):
    with pytest.raises(UsageError, match="above 0"):
        pod_of("v3-8", **change)


@pytest.mark.parametrize("images_per_s", [0, -1, float("inf"), float("nan")])
def test_rates_of_0_or_less_are_refused(images_per_s):
    with pytest.raises(UsageError, match="above 0"):
        plan_capacity(images_per_s, pod_of("v3-8"), cost_by_hand("dataprep", 224, 113_000))


pods = st.builds(
    Pod,
    hosts=st.integers(1, 2000),
    vcpus=st.floats(1, 400),
    ram_bytes=st.floats(1e9, 1e13),
    nic_gbps=st.none() | st.floats(0.1, 800),
    measured_gbps=st.none() | st.floats(0.1, 800),
    bucket_gbps=st.none() | st.floats(1, 1e4),
)
costs = st.builds(
    ImageCost,
    loader=st.just("any"),
    cpu_ms=st.floats(0.1, 50),
    stored_ms=st.floats(0, 0.1),
    num_bytes=st.floats(1e3, 1e7),
)
rates = st.floats(1, 1e6)
more = st.floats(1, 10)
GOODNESS = {"input-bound": 0, "unknown": 1, "fed": 2}


def better_or_equal(first, second):
    """The second plan is at least as good, to rounding."""
    assume(all(abs(resource.headroom - 1) > 1e-9 for plan in (first, second) for resource in plan.resources))
    rates = ((first.images_per_s, second.images_per_s), (first.most_images_per_s, second.most_images_per_s))
    return GOODNESS[second.verdict] >= GOODNESS[first.verdict] and all(new >= old * (1 - 1e-9) for old, new in rates)


@given(rates, pods, costs, more)
def test_more_cores_are_never_worse(images_per_s, pod, cost, factor):
    larger = replace(pod, vcpus=pod.vcpus * factor)
    assert better_or_equal(*(plan_capacity(images_per_s, each, cost) for each in (pod, larger)))


@given(rates, pods, costs, more)
def test_more_network_is_never_worse(images_per_s, pod, cost, factor):
    assume(pod.nic_gbps)
    faster = replace(pod, nic_gbps=pod.nic_gbps * factor, measured_gbps=None)
    first = plan_capacity(images_per_s, replace(pod, measured_gbps=None), cost)
    assert better_or_equal(first, plan_capacity(images_per_s, faster, cost))


@given(rates, pods, costs, more)
def test_a_faster_accelerator_never_has_more_headroom(images_per_s, pod, cost, factor):
    modest, greedy = (plan_capacity(rate, pod, cost) for rate in (images_per_s, images_per_s * factor))
    assert GOODNESS[greedy.verdict] <= GOODNESS[modest.verdict]
    assert greedy.utilisation <= modest.utilisation * (1 + 1e-9)
    assert greedy.images_per_s == pytest.approx(modest.images_per_s)


@given(rates, pods, costs, st.integers(2, 50))
def test_a_pod_of_n_times_the_hosts_feeds_n_times_the_images(images_per_s, pod, cost, factor):
    pod = replace(pod, bucket_gbps=None)
    first = plan_capacity(images_per_s, pod, cost)
    second = plan_capacity(images_per_s * factor, replace(pod, hosts=pod.hosts * factor), cost)
    assert second.headroom == pytest.approx(first.headroom)
    assert second.images_per_s == pytest.approx(first.images_per_s * factor)


@given(rates, pods, costs)
def test_an_accelerator_that_takes_the_deliverable_rate_is_just_fed(images_per_s, pod, cost):
    first = plan_capacity(images_per_s, pod, cost)
    again = plan_capacity(first.images_per_s, pod, cost)
    assert min(resource.headroom for resource in again.resources) == pytest.approx(1)
    assert plan_capacity(first.images_per_s * 0.99, pod, cost).verdict == "fed"
    assert plan_capacity(first.most_images_per_s * 1.01, pod, cost).verdict == "input-bound"


@given(rates, pods, costs, st.floats(0, 1))
def test_a_cache_reduces_the_need_for_network_alone(images_per_s, pod, cost, share):
    for before, after in zip(needs(images_per_s, pod, cost), needs(images_per_s, pod, cost, share), strict=True):
        spared = share if before.name in ("network", "bucket") else 0
        assert after.needed == pytest.approx(before.needed * (1 - spared))


@given(rates, pods, costs)
def test_changes_are_ranked_best_first(images_per_s, pod, cost):
    plan = plan_capacity(images_per_s, pod, cost, stored=IMAGENET, short_side=256, other_loaders={"other": cost})
    reached = [change.images_per_s for change in plan.what_ifs]
    assert reached == sorted(reached, reverse=True)
    assert all(0 < change.utilisation <= 1 for change in plan.what_ifs)


@given(st.floats(1, 1e7), costs)
def test_the_hosts_of_a_row_deliver_the_rate_and_one_fewer_than_needed_does_not(images_per_s, cost):
    def pod_of_kind(machine, hosts):
        return Pod(hosts=hosts, vcpus=machine.vcpus, ram_bytes=1e11, nic_gbps=machine.nic_gbps)

    for row in enough_hosts(images_per_s, dict.fromkeys(generations(), cost), pod_of_kind):
        if row.machine.vcpus is None:
            continue
        assert row.hosts * row.host_images_per_s >= images_per_s * (1 - 1e-9)
        assert (row.hosts - 1) * row.host_images_per_s < images_per_s * (1 + 1e-9)
        if row.accelerator is None:
            continue
        assert row.accelerator.machine == row.machine
        assert row.accelerator.hosts >= row.hosts
        assert row.plan == plan_capacity(images_per_s, pod_of_kind(row.machine, row.accelerator.hosts), cost)
        assert row.plan.headroom >= 1 - 1e-9


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
    low, high = sorted({cores.speed for cores in host_cores().values()})
    assert f"counts as {low} or {high} of an EPYC core" in CAPACITY
    (measured,), (published,) = (
        [name for name, cores in host_cores().items() if cores.basis == basis]
        for basis in ("measured", "published case")
    )
    assert f"measured for {measured}, calibrated against a published case for {published}" in CAPACITY
    others = [
        cost_from_table(loader, row.image_size, row.cost.num_bytes).cpu_ms / row.cost.cpu_ms
        for loader, measured in COSTS.items()
        for row in measured
        if loader != "torchvision"
    ]
    assert f"The lowest figure that we measured is {min(others):.2f}." in CAPACITY


speeds = st.floats(0.1, 3)


@given(costs, speeds)
def test_a_slower_core_takes_more_time_for_the_same_bytes(cost, speed):
    there = cost_on_host(cost, speed)
    assert there.cpu_ms * speed == pytest.approx(cost.cpu_ms)
    assert there.stored_ms * speed == pytest.approx(cost.stored_ms)
    assert there.num_bytes == cost.num_bytes


@given(costs, speeds)
def test_the_rate_that_cores_allow_is_in_proportion_to_their_speed(cost, speed):
    pod = Pod(hosts=2, vcpus=100, ram_bytes=1e11, nic_gbps=100)
    here, there = (plan_capacity(1000, pod, each).resources for each in (cost, cost_on_host(cost, speed)))
    assert there[0].headroom == pytest.approx(here[0].headroom * speed)
    assert there[1:] == here[1:]


def bench(*cpu_ms: float) -> dict:
    """A document with a section for each CPU time."""
    (section,) = (table := bench_table()).sections
    return bench_document(replace(table, sections=tuple(replace(section, cpu_ms_per_image=each) for each in cpu_ms)))


def test_every_peer_has_a_measured_cost():
    assert set(measured_here()) == {"dataprep", *PEERS}


def test_a_cost_between_two_measured_sizes_is_linear_in_the_pixels():
    """336 pixels: (336^2 - 224^2) / (448^2 - 224^2) = 62,720 / 150,528 = 0.41667; 1.27 + 0.41667 x 0.26 = 1.37833."""
    assert cost_by_hand("dataprep", 336, 113_000).cpu_ms == pytest.approx(1.37833, abs=1e-5)


def test_the_decoding_cost_grows_with_the_stored_bytes():
    """1.08 of 1.27 ms grow with the stored pixels: at twice the bytes 1.27 + 1.08 = 2.35 ms."""
    cost = cost_by_hand("dataprep", 224, 226_000)
    assert (cost.cpu_ms, cost.stored_ms, cost.num_bytes) == (pytest.approx(2.35), pytest.approx(2.16), 226_000)


def test_a_loader_measured_at_one_size_is_undecided_at_another():
    with pytest.raises(UndecidedError, match="webdataset at 448 pixels was not measured, only at 224"):
        cost_by_hand("webdataset", 448, 113_000)


@given(st.sampled_from(["dataprep", "torchvision", "tf.data"]), st.integers(16, 1024), st.floats(1e3, 1e7))
def test_costs_are_above_0_and_the_part_for_stored_pixels_is_no_larger_than_the_whole(loader, image_size, num_bytes):
    cost = cost_from_table(loader, image_size, num_bytes)
    assert 0 <= cost.stored_ms <= cost.cpu_ms
    assert cost.cpu_ms > 0


def test_the_document_has_the_figures_of_the_table():
    cost = measured_here()["dataprep"][0].cost
    measured = f"{cost.cpu_ms:.2f} ms per image for our loader at 224 pixels, of which {cost.stored_ms:.2f} ms depend"
    assert measured in CAPACITY


def test_costs_are_read_from_the_json_of_bench():
    found = cost_from_document(bench(2.54), "bench.json")
    assert found.image_size == 224
    assert (found.cost.loader, found.cost.cpu_ms, found.cost.num_bytes) == ("dataprep", 2.54, 112_903.4)
    ours = measured_here()["dataprep"][0].cost
    assert found.cost.stored_ms == pytest.approx(2.54 * ours.stored_ms / ours.cpu_ms)


def test_the_costliest_section_counts():
    assert cost_from_document(bench(1.0, 3.0, 2.0), "bench.json").cost.cpu_ms == 3.0


def test_costs_read_from_the_json_of_diagnose_are_those_of_fetch_and_prepare():
    found = cost_from_document(diagnosis_document(diagnosis()), "diagnosis.json")
    assert found.image_size == 224
    assert (found.cost.cpu_ms, found.cost.num_bytes) == (pytest.approx(0.31 + 3.62), 112_903.4)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "x.json: expected the JSON that `dataprep bench` or `dataprep diagnose` writes, of schema version 1"),
        ({"schema_version": 2}, "of schema version 1"),
        ({"schema_version": 1}, "not the JSON of"),
        ({"schema_version": 1, "sections": [{}]}, "not the JSON of"),
        ({"schema_version": 1, "sections": 3}, "not the JSON of"),
        ({"schema_version": 1, "sections": [], "settings": []}, "not the JSON of"),
        ({"schema_version": 1, "stages": [{"name": "fetch", "cpu_s_per_image": 1}]}, "not the JSON of"),
        ({"schema_version": 1, "sections": []}, "no CPU time above 0"),
        (bench(0.0), "no CPU time above 0"),
    ],
)
def test_other_documents_are_refused(document, message):
    with pytest.raises(UsageError, match=message):
        cost_from_document(document, "x.json")
