"""Loaders side by side: who takes part, on which files, what is measured, and what becomes of those that fail."""

import importlib.util
import json
import shutil
from unittest import mock

import pytest
from PIL import Image

from dataprep.commands.bench import BenchProgress
from dataprep.errors import DataprepError, UndecidedError, UsageError
from loaders.bench import compare as bench
from loaders.bench.compare import PEERS_PYTHON, BenchRequest, find_pythons, run_bench
from loaders.bench.peers import PEERS
from loaders.bench.runs import BenchSettings, Run
from loaders.bench.table import OURS, to_document

SETTINGS = BenchSettings(batch_size=8, image_size=32, workers=1, seconds=0, images=16)
QUIET = BenchProgress(quiet=True)


def bench_of(*urls, folder, **options):
    options = {"settings": SETTINGS, "rounds": 1, "loaders": (OURS,), **options}
    return run_bench(BenchRequest(urls=tuple(map(str, urls)), **options), folder, QUIET)


def run(**changes):
    values = dict.fromkeys(("images_per_s", "cpu_ms_per_image", "first_batch_s", "largest_mb", "sum_mb"), 1.0)
    return Run(**{**values, "images": 10, "stages": {}, "version": "1", **changes})


# Who takes part


def test_a_loader_is_measured_on_the_layout_that_it_reads(dataset, tmp_path):
    """Ours and two others; `make soak SHOW=bench-loaders` measures all that are installed."""
    measured_together(dataset("webdataset"), tmp_path, (OURS, "webdataset", "torchvision"))


def measured_together(url, folder, loaders):
    """Each on the layout that it reads; loaders that are not installed are listed with the way to install them.

    Others read 64 of the images, so our loader has one row with all and one with the same 64.
    """
    with mock.patch.object(bench, "warm_up"):  # each import of TensorFlow takes seconds
        table = bench_of(url, folder=folder, loaders=loaders, copied_images=64, copies=folder / "kept")

    (section,) = table.sections
    rows = {row.loader: row for row in section.rows if (row.loader, row.data) != (OURS, "copy")}
    assert len(section.rows) == len(rows) + 1
    left_out = {each.loader: each.reason for each in section.left_out}
    others = {name: PEERS[name] for name in loaders if name != OURS}
    here = {name for name, peer in others.items() if all(map(importlib.util.find_spec, peer.packages))}
    assert {OURS, *here} <= rows.keys() | {"mosaic", "grain"}
    assert rows.keys() | left_out.keys() == set(loaders)
    assert all("--peer-python" in reason for reason in left_out.values())
    assert [rows[name].data for name in (OURS, "webdataset", "torchvision")] == ["original", "original", "copy"]
    assert section.copied_images == len(list((folder / "kept").glob("*/imagefolder/*/*.jpg"))) == 64
    assert [row.images_per_s for row in section.rows] == sorted((r.images_per_s for r in section.rows), reverse=True)
    for row in section.rows:
        assert row.slowest_images_per_s == row.images_per_s == row.fastest_images_per_s
        size = section.bytes_per_image if row.data == "original" else section.copied_bytes_per_image
        assert row.mb_per_s == pytest.approx(row.images_per_s * size / 1e6)
        assert 0 < row.cpu_ms_per_image < 5e3
        assert row.first_batch_s > 0
        assert 20 < row.largest_mb <= row.sum_mb
        assert row.version[0].isdigit()
    stages = {stage.name: stage for stage in rows[OURS].stages}
    assert {"fetch", "decode"} <= stages.keys()
    assert stages["decode"].busy_ms_per_image > 0
    assert json.loads(json.dumps(to_document(table)))["sections"][0]["rows"][0]["loader"] == section.rows[0].loader
    return sorted(rows)


def test_other_loaders_are_left_out_for_a_bucket_without_a_copy(bucket_dataset, tmp_path):
    table = bench_of(bucket_dataset("webdataset"), folder=tmp_path, loaders=(OURS, "webdataset", "torchvision"))
    (section,) = table.sections
    assert [row.loader for row in section.rows] == [OURS]
    assert {each.loader for each in section.left_out} == {"webdataset", "torchvision"}
    assert all("--convert DIR" in each.reason for each in section.left_out)
    assert section.copied_images == 0


@pytest.mark.long
def test_a_loader_that_fails_is_left_out_and_says_why(tmp_path):
    """The originals contain half an image, which PIL refuses, and no repaired dataset exists."""
    for number in range(16):
        folder = tmp_path / f"images/class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((64, 64), 50).convert("RGB").save(folder / f"{number}.jpg")
        half = (folder / f"{number}.jpg").read_bytes()
        (folder / f"{number}.jpg").write_bytes(half[: len(half) // 2])
    with pytest.raises(UndecidedError, match=r"torchvision: OSError: .*truncated"):
        bench_of(tmp_path / "images", folder=tmp_path / "work", loaders=("torchvision",))


def test_our_own_failure_is_an_error(dataset, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(dataset("webdataset"), data)
    for shard in (data / "train").iterdir():
        shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(DataprepError, match=r"StorageError|FileNotFoundError|FormatError"):
        bench_of(data, folder=tmp_path / "work")


def test_a_loader_with_missing_packages_is_left_out_with_the_way_to_install_them(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "PEERS_PYTHON", tmp_path / "none")
    monkeypatch.setattr(PEERS["mosaic"], "packages", {"no_such_package": "mosaicml-streaming"})
    with pytest.raises(UndecidedError, match=r"mosaic: needs mosaicml-streaming: .*--peer-python"):
        bench_of(dataset("webdataset"), folder=tmp_path, loaders=("mosaic",))


def test_the_peer_environment_is_used_for_packages_that_only_it_has(tmp_path):
    request = BenchRequest(urls=("x",), loaders=("torchvision", "mosaic"))
    found = find_pythons(request)
    assert found["mosaic"] == PEERS_PYTHON
    assert found["torchvision"] != PEERS_PYTHON
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match=r"cannot be run .*expected --peer-python"):
        find_pythons(BenchRequest(urls=("x",), peer_python=broken))


def test_requests_out_of_range_are_refused(dataset, tmp_path):
    with pytest.raises(UsageError, match=r"loader 'torchvison', expected one of dataprep, .*; did you mean torchv"):
        BenchRequest(urls=("x",), loaders=("torchvison",))
    with pytest.raises(UsageError, match="batch_size must be 1 or more, got 0"):
        BenchSettings(batch_size=0)
    with pytest.raises(UsageError, match="rounds and images must be 1 or more, got 0 and 2000"):
        BenchRequest(urls=("x",), rounds=0)
    settings = BenchSettings(batch_size=4096, workers=2)
    with pytest.raises(UsageError, match=r"images in train, a batch takes 4,096; choose --batch-size"):
        bench_of(dataset("webdataset"), folder=tmp_path, settings=settings)
