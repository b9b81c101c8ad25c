"""Costs of an image: between our measurements, and from the user's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.arena.arena_peers import PEERS
from dataprep.errors import UndecidedError, UsageError
from loaders.bench.table import BenchSection, BenchTable
from loaders.bench.table import to_document as bench_document
from loaders.capacity.input_costs import cost_from_table, costs_from_document, measured_here
from loaders.diagnosis.findings import Diagnosis, StageRate
from loaders.diagnosis.findings import to_document as diagnosis_document
from tests.support.costs import cost_by_hand
from tests.support.markdown import ROOT

ROW = {
    "images_per_s": 1000.0,
    "slowest_images_per_s": 990.0,
    "fastest_images_per_s": 1010.0,
    "mb_per_s": 100.0,
    "first_batch_s": 1.0,
    "largest_mb": 300.0,
    "sum_mb": 300.0,
    "rounds_images_per_s": (1000.0,),
    "stages": (),
}


def bench(*cpu_ms: float, image_size: int = 224) -> dict:
    """A document with a section for each CPU time."""
    sections = tuple(
        BenchSection(
            url="shards",
            split="train",
            layout="webdataset",
            samples=1000,
            bytes_per_image=90_000.0,
            cpu_ms_per_image=each,
            **ROW,
        )
        for each in cpu_ms
    )
    return bench_document(BenchTable(sections=sections, settings={"image_size": image_size}, machine={}))


def diagnosis() -> dict:
    stages = [("fetch", 0.0001), ("prepare", 0.0015), ("transfer", 0.002), ("compute", 0.1)]
    return diagnosis_document(
        Diagnosis(
            url="shards",
            device="cpu (resnet50)",
            verdict="",
            limit="prepare",
            observed_images_per_s=1.0,
            predicted_images_per_s=1.0,
            contention="",
            utilisation=1.0,
            stages=tuple(StageRate(name=name, images_per_s=1.0, cpu_s_per_image=cpu_s) for name, cpu_s in stages),
            wait_share=0.0,
            transfer_share=0.0,
            compute_share=1.0,
            timeline=(),
            fixes=(),
            applied=None,
            bytes_per_image=120_000.0,
            settings={"image_size": 448},
            machine={},
        )
    )


def test_measured_sizes_have_the_figures_of_the_table():
    assert cost_by_hand("dataprep", 224, 113_000).cpu_ms == 1.27
    assert cost_by_hand("dataprep", 448, 113_000).cpu_ms == 1.53
    assert cost_by_hand("torchvision", 224, 113_000).cpu_ms == 3.99
    assert cost_by_hand("webdataset", 224, 113_000).decodes == "whole"


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
    with pytest.raises(UndecidedError, match="webdataset at 448 pixels was not measured, only at 224; measure it with"):
        cost_by_hand("webdataset", 448, 113_000)


@given(st.sampled_from(["dataprep", "torchvision", "tf.data"]), st.integers(16, 1024), st.floats(1e3, 1e7))
def test_costs_are_above_0_and_the_part_for_stored_pixels_is_no_larger_than_the_whole(loader, image_size, num_bytes):
    cost = cost_from_table(loader, image_size, num_bytes)
    assert 0 <= cost.stored_ms <= cost.cpu_ms
    assert cost.cpu_ms > 0


def test_the_document_has_the_figures_of_the_table():
    cost = measured_here()["dataprep"][0].cost
    text = " ".join((ROOT / "docs/capacity.md").read_text(encoding="utf-8").split())
    assert (
        f"({cost.cpu_ms:.2f} ms an image for our loader at 224 pixels, of which {cost.stored_ms:.2f} grow with" in text
    )


def test_costs_are_read_from_the_json_of_bench():
    found = costs_from_document(bench(2.54), "bench.json")
    assert found.image_size == 224
    assert {name: (cost.cpu_ms, cost.num_bytes) for name, cost in found.costs.items()} == {
        "dataprep": (2.54, 90_000.0),
    }
    ours = measured_here()["dataprep"][0].cost
    assert found.costs["dataprep"].stored_ms == pytest.approx(2.54 * ours.stored_ms / ours.cpu_ms)


def test_the_costliest_section_counts():
    document = bench(1.0, 3.0, 2.0)
    assert costs_from_document(document, "bench.json").costs["dataprep"].cpu_ms == 3.0


def test_costs_read_from_the_json_of_diagnose_are_those_of_fetch_and_prepare():
    found = costs_from_document(diagnosis(), "diagnosis.json")
    assert (list(found.costs), found.image_size) == (["dataprep"], 448)
    cost = found.costs["dataprep"]
    assert (cost.cpu_ms, cost.num_bytes) == (pytest.approx(1.6), 120_000.0)


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
        ({"schema_version": 1, "sections": []}, "no loader has a CPU time above 0"),
        (bench(0.0), "no loader has a CPU time above 0"),
    ],
)
def test_other_documents_are_refused(document, message):
    with pytest.raises(UsageError, match=message):
        costs_from_document(document, "x.json")
