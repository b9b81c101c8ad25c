"""The table behind `dataprep plan-input` is what the recorded runs give, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.arena.arena_peers import PEERS
from benchmarks.input_costs import DOCUMENT, IMAGE_SIZES, LOADERS, STORED, TABLE, cases, stored_ms, table_of
from dataprep.cloud import prices
from dataprep.cloud.capacity import costs_of
from tests.support.markdown import ROOT

PIXELS = {"originals": 400_000.0, "256": 100_000.0, "320": 150_000.0, "512": 350_000.0}


def measured(rounds: int = 2) -> dict[str, Any]:
    """A document in which every loader takes 1 ms, 5 ms for each million of stored pixels, and 0.1 ms more each round
    and for the larger images."""
    runs = [
        {
            "loader": case.loader,
            "stored": case.stored,
            "image_size": case.image_size,
            "round": case.round,
            "commit": "abc",
            "cpu_ms_per_image": 1 + 5e-6 * PIXELS[case.stored] + 0.1 * case.round + 0.1 * (case.image_size == 448),
        }
        for case in cases(rounds)
    ]
    images = {
        stored: {"count": 10, "bytes_per_image": 0.25 * pixels, "pixels_per_image": pixels}
        for stored, pixels in PIXELS.items()
    }
    machine = {"cores": 2, "processor": "Some, with a comma", "measured": "2026-11-26T00:10:12Z"}
    return {"machine": machine, "batch_size": 128, "workers": 2, "images": images, "runs": runs}


def test_the_table_has_medians_and_the_slope_over_all_copies():
    """1 + 5 x 0.4 = 3 ms of originals of 0.4 million pixels, 0.05 more in the median of two rounds; 2 ms for pixels."""
    table = costs_of(prices.rows(table_of(measured()).splitlines()))
    assert set(table) == set(LOADERS) == {"dataprep", *PEERS}
    for rows in table.values():
        assert [row.image_size for row in rows] == list(IMAGE_SIZES)
        assert [row.cost.cpu_ms for row in rows] == [pytest.approx(3.05), pytest.approx(3.15)]
        assert [row.cost.stored_ms for row in rows] == [pytest.approx(2.0)] * 2
        assert {(row.cost.num_bytes, row.date, row.machine) for row in rows} == {
            (100_000, "2026-11-26", "Some, with a comma")
        }
    assert {loader for loader, rows in table.items() if rows[0].cost.decodes == "crop"} == {"dataprep", "tf.data"}


def test_the_shipped_table_is_that_of_the_recorded_runs():
    assert TABLE.read_text(encoding="utf-8") == table_of(json.loads(DOCUMENT.read_text(encoding="utf-8")))


@pytest.mark.parametrize("removed", [0, -1])
def test_a_round_that_is_not_whole_gives_no_table(removed):
    document = measured()
    del document["runs"][removed]
    with pytest.raises(ValueError, match="no run of Case"):
        table_of(document)
    with pytest.raises(ValueError, match="no run of Case"):
        table_of(document | {"runs": []})


def test_the_part_for_stored_pixels_is_between_nothing_and_all():
    falling, steep = (dict(zip(STORED, values, strict=True)) for values in ((1, 4, 3, 2), (4, 0.1, 0.5, 3.5)))
    assert stored_ms(falling, PIXELS) == 0
    assert stored_ms(steep, PIXELS) == 4
    with pytest.raises(ValueError, match="same number of pixels"):
        stored_ms(steep, dict.fromkeys(STORED, 100.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file; measure first, without --csv, or name the file of the runs with --json"),
        (json.dumps(measured() | {"runs": []}), "no run of Case("),
        ('"cut', "Unterminated string"),
    ],
    ids=["absent", "empty", "damaged"],
)
def test_the_command_without_whole_runs_says_what_is_wrong_and_writes_nothing(tmp_path, text, message):
    document, table = tmp_path / "runs.json", tmp_path / "table.csv"
    if text is not None:
        document.write_text(text)
    command = [sys.executable, ROOT / "benchmarks/input_costs.py", "--csv", "--json", document, "--table", table]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith(f"{document}: {message}")
    assert len(run.stderr.splitlines()) == 1
    assert not table.exists()
