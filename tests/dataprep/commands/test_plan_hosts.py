"""`dataprep plan-input --accelerator all`: the smallest TPU of each kind whose hosts deliver a rate."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dataprep.cloud.accelerators import generations, machines
from dataprep.commands.plan_hosts import enough_hosts
from dataprep.commands.plan_input import command
from dataprep.errors import UsageError
from loaders.capacity.plan import ImageCost, Pod, plan_capacity

ALL = ("--accelerator", "all", "--model", "resnet50")


def planned(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    return result.exit_code, result.stdout


def test_every_tpu_of_the_list_is_fed_with_the_headroom_of_its_own_plan():
    code, out = planned(*ALL, "--images-per-s", 100_000, "--json")
    document = json.loads(out)
    assert (code, document["schema_version"], document["images_per_s"]) == (0, 1, 100_000)
    assert len(document["tpus"]) >= 6
    order = [(row["hosts"], -row["headroom"]) for row in document["tpus"]]
    assert order == sorted(order)
    for row in document["tpus"]:
        words = ("--accelerator", row["accelerator"], "--model", "resnet50", "--images-per-s", 100_000, "--json")
        code, out = planned(*words)
        one = json.loads(out)
        assert (code, one["plan"]["verdict"], one["accelerator"]["hosts"]) == (0, "fed", row["hosts"])
        assert one["accelerator"]["machine"]["machine_type"] == row["machine_type"]
        assert (one["plan"]["headroom"], one["plan"]["limit"]) == (pytest.approx(row["headroom"]), row["limit"])
        cores = {key: one["cost"][key] for key in ("core_speed", "core_basis")}
        assert document["cores"][row["generation"]] == cores
    listed = {row["machine_type"] for row in document["tpus"]} | document["left_out"].keys()
    assert listed == {name for name, machine in machines().items() if machine.slices}


def test_the_table_has_the_rows_of_the_json_and_fits_into_80_columns():
    rows = json.loads(planned(*ALL, "--images-per-s", 32_000, "--json")[1])["tpus"]
    code, out = planned(*ALL, "--images-per-s", 32_000)
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "Hosts for 32,000 images/s of 224 pixels with dataprep")
    table = lines[2 : lines.index("")]
    assert max(map(len, table)) <= 80
    assert [line.split()[:3] for line in table] == [
        [row["accelerator"], str(row["hosts"]), row["machine_type"]] for row in rows
    ]
    assert [("≥" in line) for line in table] == [row["at_least"] for row in rows]
    assert "tpu7x-standard-1t: its vCPUs are not known" in lines
    assert "ct6e-standard-1t: 2 hosts would be needed, more than the largest TPU with them has" in lines
    assert any(
        line.startswith("cores of v4, v5e: each counted as 0.63 of one that measured; assumed: ") for line in lines
    )


def test_a_rate_that_no_tpu_can_be_fed_with_exits_with_1():
    code, out = planned(*ALL, "--images-per-s", 1e12, "--json")
    document = json.loads(out)
    assert (code, document["tpus"]) == (1, [])
    assert set(document["left_out"]) == {name for name, machine in machines().items() if machine.slices}


@pytest.mark.parametrize("words", [("--vcpus", 4), ("--zone", "us-central1-a"), ("--resize", 256), ("--cache",)])
def test_options_of_one_tpu_are_refused(words):
    with pytest.raises(UsageError, match=f"{words[0]} is about one TPU; give its name instead of --accelerator all"):
        planned(*ALL, "--images-per-s", 1000, *words)


def test_the_rate_and_the_size_of_images_are_asked_for():
    with pytest.raises(UsageError, match="the images/s of the accelerator are missing"):
        planned(*ALL)
    with pytest.raises(UsageError, match="image size of the model is not known"):
        planned("--accelerator", "all", "--images-per-s", 1000)


costs = st.builds(
    ImageCost,
    loader=st.just("any"),
    cpu_ms=st.floats(0.1, 50),
    stored_ms=st.just(0.0),
    num_bytes=st.floats(1e3, 1e6),
    serial_ms=st.just(0.0) | st.floats(0.001, 1),
)


@given(st.floats(1, 1e7), costs)
def test_the_hosts_of_a_row_deliver_the_rate_and_one_fewer_than_needed_does_not(images_per_s, cost):
    def pod_of(machine):
        return Pod(hosts=1, vcpus=machine.vcpus, ram_bytes=1e11, nic_gbps=machine.nic_gbps)

    for row in enough_hosts(images_per_s, dict.fromkeys(generations(), cost), pod_of):
        if row.machine.vcpus is None:
            continue
        assert row.hosts * row.host_images_per_s >= images_per_s * (1 - 1e-9)
        assert (row.hosts - 1) * row.host_images_per_s < images_per_s * (1 + 1e-9)
        if row.accelerator is None:
            continue
        assert row.accelerator.machine == row.machine
        assert row.accelerator.hosts >= row.hosts
        pod = Pod(hosts=row.accelerator.hosts, vcpus=row.machine.vcpus, ram_bytes=1e11, nic_gbps=row.machine.nic_gbps)
        assert row.plan == plan_capacity(images_per_s, pod, cost)
        assert row.plan.headroom >= 1 - 1e-9
