"""The arena of loaders: what its tables say follows from the rounds of one run, and its peers keep one protocol."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from benchmarks.loader_arena import BY_DEFAULT, CONTENDERS, read_ahead
from benchmarks.tables import ARENA_FORMATS, arena_ratios, arena_table, arena_verdicts, formats_table
from tests.support.markdown import ROOT


def row(name: str, cpu_ms: list[float], rates: list[float], size: int = 224) -> dict[str, Any]:
    return {
        "name": name,
        "version": "1.0",
        "image_size": size,
        "interpolation": "bicubic",
        "rounds_cpu_ms": cpu_ms,
        "rounds_images_per_s": rates,
    }


def test_ratios_are_of_medians_of_the_same_size_and_interpolation() -> None:
    ours, peer = row("ours", [1.0, 1.2, 0.9], [2000, 1800, 2100]), row("DALI", [1.9, 2.1, 2.0], [900, 1000, 1100])
    assert arena_ratios(peer, [ours, peer]) == (pytest.approx(2.0), pytest.approx(2.0))
    assert arena_ratios(ours, [ours, peer]) is None
    assert arena_ratios(row("DALI", [2.0], [1000], 448), [ours, peer]) is None


def test_a_table_shows_the_range_and_names_what_is_short() -> None:
    document = {"rows": [row("ours", [1.0, 1.1], [2000, 1800]), row("DALI", [1.9, 2.0], [900, 1000])]}
    assert "| DALI 1.0 | 224 | bicubic | 1.95 | 1.90 to 2.00 | 950 | 900 to 1,000 | 2 | 1.86 | 2.00 |" in arena_table(
        document
    )
    assert (
        arena_verdicts(document)[-1] == "| 224 | bicubic | originals | 1.86 times DALI, short of 2 | 2.00 times DALI |"
    )


def test_shards_with_restart_markers_have_ratios_of_their_own() -> None:
    marked, ours, peer = (
        row(name, [cpu_ms], [1 / cpu_ms])
        for name, cpu_ms in (("ours, restart markers", 0.5), ("ours", 1.0), ("DALI", 2.5))
    )
    rows = [marked, ours, peer]
    assert arena_ratios(peer, rows) == (pytest.approx(2.5), pytest.approx(2.5))
    assert arena_ratios(peer, rows, marked=True) == (pytest.approx(5.0), pytest.approx(5.0))
    assert [line.split(" | ")[2:4] for line in arena_verdicts({"rows": rows})[2:]] == [
        ["originals", "2.50 times DALI"],
        ["`--jpeg restart`", "5.00 times DALI"],
    ]


def test_peers_are_compared_with_ours_from_tars_alone() -> None:
    ours, peer = row("ours", [1.0], [2000]), row("DALI", [2.0], [1000])
    others = [row(name, [4.0], [500]) for name in ARENA_FORMATS]
    assert arena_ratios(peer, [*others, ours, peer]) == (pytest.approx(2.0), pytest.approx(2.0))
    assert {*BY_DEFAULT, *ARENA_FORMATS} == {*CONTENDERS}


def test_our_formats_are_compared_with_the_fastest_of_them_and_with_a_full_decode() -> None:
    more = {"first_batch_s": [0.3], "sum_mb": [290]}
    rows = [
        row("full decode", [1.0], [2000]) | more,
        row("ours", [0.5], [4000]) | more | {"layout": "webdataset"},
        row("ours, tfrecord", [0.5], [3900]) | more | {"layout": "tfrecord"},
        row("ours, imagefolder", [0.6], [3000]) | more | {"layout": "imagefolder"},
        row("full decode", [1.0], [2000], 448) | more,
        row("ours, imagefolder", [0.8], [1500], 448) | more | {"layout": "imagefolder"},
    ]
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in formats_table({"rows": rows})]
    assert [(line[0], *line[-2:]) for line in cells[2:]] == [
        ("full decode", "1.00", ""),
        ("webdataset", "0.50", "1.00"),
        ("tfrecord", "0.50", "0.97"),
        ("imagefolder", "0.60", "0.75, short of 0.95"),
        ("full decode", "1.00", ""),
        ("imagefolder", "0.80", "1.00"),
    ]
    assert {len(line) for line in cells} == {11}


def test_a_peer_that_decoded_its_images_before_the_clock_ran_has_no_figures() -> None:
    assert read_ahead(0.1, [0.88]) == (
        "0.10 ms of processor time an image: it had decoded its images before the clock ran"
    )
    assert read_ahead(-4.8, [0.88])  # its processes ended, and their time with them
    assert read_ahead(0.45, [0.88]) is None
    assert read_ahead(0.1, []) is None


def test_a_fast_peer_is_a_class_with_its_packages_and_an_iterator() -> None:
    """Read as text: their packages are in environments that only `make bench-setup` creates."""
    tree = ast.parse((ROOT / "benchmarks/arena/fast_peers.py").read_text())
    bodies = {node.name: ast.unparse(node) for node in tree.body if isinstance(node, ast.ClassDef)}
    wanted = {entry.loader.rpartition(":")[2] for entry in CONTENDERS.values() if "fast_peers.py:" in entry.loader}
    assert wanted <= bodies.keys()
    for name in wanted - {"HuggingFaceTensors", "Spdl"}:
        assert "packages: ClassVar" in bodies[name] and "def iterate(self)" in bodies[name], name
