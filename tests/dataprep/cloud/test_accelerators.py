"""Names of TPUs: every example of Google's pages that the tables rest on, and what no TPU is called."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.cloud.accelerators import (
    accelerator_types,
    generations,
    known_zones,
    machines,
    parse_accelerator,
    shape_of,
    smallest_slice,
    zone_note,
)
from dataprep.errors import UsageError
from tests.support.markdown import ROOT

EVERY_TYPE = [name for generation in generations().values() for name in accelerator_types(generation)]


@pytest.mark.parametrize(
    ("name", "chips", "cores", "hosts", "machine_type"),
    [
        ("v2-8", 4, 8, 1, "v2"),
        ("v2-512", 256, 512, 64, "v2"),
        ("v3-8", 4, 8, 1, "v3"),
        ("v3-32", 16, 32, 4, "v3"),
        ("v3-128", 64, 128, 16, "v3"),
        ("v3-256", 128, 256, 32, "v3"),
        ("v3-2048", 1024, 2048, 256, "v3"),
        ("v4-8", 4, 8, 1, "ct4p-hightpu-4t"),
        ("v4-32", 16, 32, 4, "ct4p-hightpu-4t"),
        ("v4-24", 12, 24, 3, "ct4p-hightpu-4t"),
        ("v5litepod-1", 1, 1, 1, "ct5lp-hightpu-1t"),
        ("v5litepod-4", 4, 4, 1, "ct5lp-hightpu-4t"),
        ("v5litepod-8", 8, 8, 1, "ct5lp-hightpu-8t"),
        ("v5litepod-16", 16, 16, 4, "ct5lp-hightpu-4t"),
        ("v5litepod-64", 64, 64, 16, "ct5lp-hightpu-4t"),
        ("v5p-8", 4, 8, 1, "ct5p-hightpu-4t"),
        ("v5p-12288", 6144, 12288, 1536, "ct5p-hightpu-4t"),
        ("v6e-1", 1, 1, 1, "ct6e-standard-1t"),
        ("v6e-8", 8, 8, 1, "ct6e-standard-8t"),
        ("v6e-16", 16, 16, 4, "ct6e-standard-4t"),
        ("v6e-256", 256, 256, 64, "ct6e-standard-4t"),
        ("tpu7x-1x1x1", 1, 2, 1, "tpu7x-standard-1t"),
        ("tpu7x-2x2x1", 4, 8, 1, "tpu7x-standard-4t"),
        ("tpu7x-2x2x4", 16, 32, 4, "tpu7x-standard-4t"),
    ],
)
def test_a_tpu_name_gives_its_chips_cores_hosts_and_machines(name, chips, cores, hosts, machine_type):
    found = parse_accelerator(name)
    assert (found.name, found.chips, found.cores, found.hosts) == (name, chips, cores, hosts)
    assert found.machine.machine_type == machine_type


@pytest.mark.parametrize(
    ("generation", "vcpus", "ram_gb", "nic_gbps", "hbm_gib_per_chip"),
    [
        ("v2-8", 96, 334, None, 16),
        ("v3-8", 96, 334, None, 32),
        ("v4-8", 240, 400, None, 32),
        ("v5litepod-1", 24, 48, None, 16),
        ("v5litepod-4", 112, 192, 100, 16),
        ("v5litepod-8", 224, 384, 200, 16),
        ("v5p-8", 208, 448, 200, 95),
        ("v6e-1", 44, 176, 50, 32),
        ("v6e-4", 180, 720, 400, 32),
        ("v6e-8", 360, 1440, 200, 32),
        ("tpu7x-2x2x1", 224, 960, 400, 192),
    ],
)
def test_hosts_have_the_published_cores_memory_and_network(generation, vcpus, ram_gb, nic_gbps, hbm_gib_per_chip):
    found = parse_accelerator(generation)
    assert (found.machine.vcpus, found.machine.ram_gb, found.machine.nic_gbps) == (vcpus, ram_gb, nic_gbps)
    assert found.hbm_gib == found.chips * hbm_gib_per_chip


@pytest.mark.parametrize(
    ("name", "official", "hosts"),
    [
        ("V3-256", "v3-256", 32),
        (" v5e-64 ", "v5litepod-64", 16),
        ("v5lite-16", "v5litepod-16", 4),
        ("Trillium-8", "v6e-8", 1),
        ("ironwood:2x2x4", "tpu7x-2x2x4", 4),
        ("v4:2x2x4", "v4-32", 4),
        ("v4-4x4x4", "v4-128", 16),
        ("v5p:2x2x1", "v5p-8", 1),
        ("v6e:2x4", "v6e-8", 1),
        ("7x:2x2x4", "tpu7x-2x2x4", 4),
        ("tpu7x-standard-4t:2x2x4", "tpu7x-2x2x4", 4),
        ("tpu7x-standard-4t", "tpu7x-standard-4t", 1),
        ("ct6e-standard-4t:2x4", "ct6e-standard-4t:2x4", 2),
        ("ct3p-hightpu-4t:16x8", "ct3p-hightpu-4t:16x8", 32),
    ],
)
def test_a_tpu_may_be_written_in_several_ways(name, official, hosts):
    found = parse_accelerator(name)
    assert (found.name, found.hosts) == (official, hosts)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v3-16", "v3-16: v3 does not come with 16 cores; nearest: v3-8, v3-32"),
        ("v6e-12", "v6e-12: v6e does not come with 12 chips; nearest: v6e-8, v6e-16"),
        (
            "v5litpod-64",
            "v5litpod-64: no TPU of this name is known; nearest: v5litepod-64, v5litepod-4, v5litepod-16; there",
        ),
        ("v4-2x2", "v4-2x2: a topology of v4 is AxBxC with at most 4,096 chips; got 2x2"),
        ("v4-99x99x99", "v4-99x99x99: a topology of v4 is AxBxC with at most 4,096 chips; got 99x99x99"),
        ("v6e:0x4", "v6e:0x4: a topology of v6e is AxB with at most 256 chips; got 0x4"),
        ("v4:1x1x1", "v4:1x1x1: 1 chips do not fill machines of 4 chips each; choose a multiple"),
        ("tpu7x-15", "tpu7x-15: read as an xpk name, this means 15 TensorCores, and no topology is known"),
        ("tpu7x-24", "tpu7x-24: read as an xpk name, this means 24 TensorCores, and no topology is known"),
        ("tpu7x-32768", "tpu7x-32768: read as an xpk name, this means 32,768 TensorCores, and no topology is known"),
        (
            "v5e",
            "v5e: no TPU of this name is known; v5e is a generation, and its size is missing: write v5litepod-1, v5",
        ),
        (
            "trillium",
            "trillium: no TPU of this name is known; trillium is a generation, and its size is missing: write",
        ),
        ("7x", "7x: no TPU of this name is known; 7x is a generation, and its size is missing: write tpu7x-2x2x1"),
        (
            "a100",
            "a100: no TPU of this name is known; there are v2-8 to v2-512, v3-8 to v3-2048, v4-8 to v4-8192, "
            "v5litepod-1 to v5litepod-256, v5p-8 to v5p-12288, v6e-1 to v6e-256, tpu7x-2x2x1 and larger, and "
            "topologies such as v4:2x2x4",
        ),
        ("trillum-8", "trillum-8: no TPU of this name is known; nearest: trillium-8,"),
    ],
)
def test_names_of_no_tpu_are_refused_with_the_nearest(name, message):
    with pytest.raises(UsageError) as caught:
        parse_accelerator(name)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["v3", "v3-", "-8", "", ":", "v3:8", "v3-8-8", "v3--8", "v3-8x", "v3-٨"])
def test_an_incomplete_or_mistyped_tpu_name_is_refused(name):
    with pytest.raises(UsageError, match="no TPU of this name is known"):
        parse_accelerator(name)


def test_a_zone_that_no_page_names_for_a_generation_is_noted():
    found = parse_accelerator("v5e-16")
    assert known_zones("v5e", "flex-start") == ["us-central1-a", "us-west4-a"]
    assert [zone_note(found, place) for place in ("europe-west4-b", "europe-west4")] == ["", ""]
    assert zone_note(found, "europe-west4-a") == (
        "europe-west4-a is not known to have v5e; known zones: us-central1-a, us-south1-a, us-west1-c, us-west4-a, "
        "europe-west4-b, perhaps more"
    )


@given(st.text(max_size=20))
def test_any_text_is_a_tpu_or_a_usage_error(text):
    try:
        hosts, message = parse_accelerator(text).hosts, ""
    except UsageError as error:
        hosts, message = 1, str(error)
    assert hosts >= 1
    assert message.isprintable()


@given(st.sampled_from(EVERY_TYPE))
def test_machines_add_up_to_the_slice(name):
    found = parse_accelerator(name)
    assert found.hosts * found.machine.chips == found.chips <= found.generation.max_chips
    assert found.devices in (found.chips, 2 * found.chips)


def test_every_generation_has_its_software_and_every_machine_its_source():
    assert list(generations()) == ["v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"]
    for generation in generations().values():
        assert bool(generation.runtime_version) == generation.tpu_api
        assert generation.tpu_api or generation.compute_engine
    for machine in machines().values():
        assert machine.source
        assert machine.date.startswith("2026-")
        assert machine.generation in generations()
    assert [found.name for found in generations().values() if found.compute_engine] == ["v5p", "v6e", "7x"]


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("tpu7x-2", "tpu7x-1x1x1"),
        ("tpu7x-8", "tpu7x-2x2x1"),
        ("tpu7x-16", "tpu7x-2x2x2"),
        ("tpu7x-32", "tpu7x-2x2x4"),
        ("tpu7x-64", "tpu7x-2x4x4"),
        ("tpu7x-128", "tpu7x-4x4x4"),
        ("tpu7x-512", "tpu7x-4x8x8"),
    ],
)
def test_names_of_xpk_are_understood_with_a_note(name, means):
    found = parse_accelerator(name)
    assert replace(found, note="") == parse_accelerator(means)
    assert found.note.startswith(f"{name} is xpk's name for {found.cores} TensorCores: {means}, {found.chips}")


@pytest.mark.parametrize(
    ("name", "shape"),
    [("v4-32", "2x2x4"), ("v5p-128", "4x4x4"), ("v6e-8", "2x4"), ("v6e-1", "1x1"), ("v4:2x4x4", "2x4x4")],
)
def test_a_slice_has_the_most_compact_shape(name, shape):
    assert shape_of(parse_accelerator(name)) == shape


def test_an_unusual_number_of_chips_needs_its_topology():
    with pytest.raises(UsageError, match="v4-24: its topology is not known"):
        shape_of(parse_accelerator("v4-24"))


def test_the_document_names_the_machines_whose_network_is_not_published():
    (line,) = [line for line in (ROOT / "docs/capacity.md").read_text().splitlines() if "not published** (" in line]
    named = {name.strip("`,)") for name in line.partition("(")[2].partition(")")[0].split()}
    without = [each for each in machines().values() if each.nic_gbps is None and each.vcpus is not None]
    assert [each.machine_type for each in without if not {each.machine_type, each.generation} & named] == []
    assert [each.machine_type for each in machines().values() if each.vcpus is None] == ["tpu7x-standard-1t"]
    assert "`tpu7x-standard-1t`" in line


@pytest.mark.parametrize(
    ("machine_type", "hosts", "name"),
    [
        ("v3", 1, "v3-8"),
        ("v3", 5, "v3-64"),
        ("v3", 257, None),
        ("ct4p-hightpu-4t", 5, "v4-64"),
        ("ct5p-hightpu-4t", 1025, "v5p-12288"),
        ("ct5lp-hightpu-1t", 1, "v5litepod-1"),
        ("ct5lp-hightpu-8t", 2, None),
        ("ct6e-standard-4t", 3, "v6e-16"),
        ("tpu7x-standard-1t", 1, "tpu7x-1x1x1"),
        ("tpu7x-standard-4t", 3, "tpu7x-2x2x4"),
    ],
)
def test_the_smallest_slice_with_so_many_hosts_of_a_kind(machine_type, hosts, name):
    found = smallest_slice(machines()[machine_type], hosts)
    assert (found and found.name) == name
    if found:
        assert (found.machine.machine_type, found.hosts >= hosts) == (machine_type, True)
