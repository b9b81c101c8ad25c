"""Loaders side by side: who takes part, on which files, what is measured, and what becomes of those that fail."""

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dataprep.adopt import AdoptRequest, adopt
from dataprep.commands.bench import BenchProgress
from dataprep.errors import DataprepError, UndecidedError, UsageError
from loaders import bench, open_loader
from loaders.bench import LOADERS, PEERS_PYTHON, BenchRequest, find_pythons, run_bench
from loaders.bench_copy import Copy
from loaders.bench_data import expand_braces, grouped, open_bench_data
from loaders.bench_run import BenchSettings, Contender, Run, last_line, row_of, stage_shares
from loaders.bench_table import OURS, to_document
from loaders.peers import PEERS
from tests.loaders.conftest import FORMATS
from tests.loaders.test_adopted import foreign

SETTINGS = BenchSettings(batch_size=8, image_size=32, workers=2, seconds=0, images=16)
QUIET = BenchProgress(quiet=True)
RATES = st.floats(0.1, 1e6)


def bench_of(*urls, folder, **options):
    options = {"settings": SETTINGS, "rounds": 1, "loaders": (OURS,), **options}
    return run_bench(BenchRequest(urls=tuple(map(str, urls)), **options), folder, QUIET)


def open_here(url, folder):
    return open_bench_data((str(url),), "train", folder / "index", QUIET, 0)


def run(**changes):
    values = dict.fromkeys(("images_per_s", "cpu_ms_per_image", "first_batch_s", "largest_mb", "sum_mb"), 1.0)
    return Run(**{**values, "images": 10, "stages": {}, "version": "1", **changes})


# Datasets


def test_tars_are_one_dataset_and_everything_else_stands_for_itself():
    urls = ("shards", "/data/a-{00..02}.tar", "gs://b/c", "/data/b.tar", "shards")
    tars = ("/data/a-00.tar", "/data/a-01.tar", "/data/a-02.tar", "/data/b.tar")
    assert grouped(urls) == [("shards",), tars, ("gs://b/c",)]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("x", ["x"]),
        ("{train,val}/{8..10}.tar", [f"{split}/{n}.tar" for split in ("train", "val") for n in (8, 9, 10)]),
        ("{098..101}", ["098", "099", "100", "101"]),
    ],
)
def test_braces(pattern, found):
    assert list(expand_braces(pattern)) == found


@pytest.mark.parametrize("fmt", FORMATS)
def test_datasets_of_ours_as_others_read_them(dataset, tmp_path, fmt):
    data = open_bench_data((str(dataset(fmt)),), "train", tmp_path, QUIET, 0)
    assert (data.layout, data.is_local, data.closed) == (fmt, True, "")
    assert 5e3 < data.bytes_per_image < 5e5
    if fmt == "imagefolder":
        assert Path(data.root) == dataset(fmt) / "train"
    else:
        assert len(data.files) == 3
        assert all(Path(file).is_file() and "train" in Path(file).name for file in data.files)
    assert not list(tmp_path.iterdir())


def test_folders_of_classes_and_tars_and_tfds_directories(dataset, tmp_path):
    """Data without anything of ours are indexed elsewhere, and read where they are."""
    folder = foreign(dataset("imagefolder"), tmp_path / "images")
    tars = foreign(dataset("webdataset"), tmp_path / "tars") / "train"
    tfds = foreign(dataset("tfrecord"), tmp_path / "tfds")
    before = sorted(tmp_path.rglob("*"))
    name = next(tars.iterdir()).name
    pattern = f"{tars}/{name.replace(name[-17:-13], '{0000..0002}')[: -len('-of-00003.tar')]}-of-00003.tar"
    work = tmp_path / "work"

    table = bench_of(folder, folder / "train", pattern, tfds, folder=work)

    whole, classes, sharded, records = table.sections
    assert [each.layout for each in table.sections] == ["imagefolder", "imagefolder", "webdataset", "tfrecord"]
    assert len({each.samples for each in table.sections}) == 1
    assert sharded.url == " ".join(str(tars / f"{name[:-18]}{n:05d}-of-00003.tar") for n in range(3))
    for section in (whole, classes, sharded, records):
        (row,) = section.rows
        assert (row.loader, row.data) == (OURS, "original")
        assert section.bytes_per_image == pytest.approx(whole.bytes_per_image, rel=1e-6)
        assert not section.left_out
    assert sorted(path for path in tmp_path.rglob("*") if work not in (path, *path.parents)) == before
    for number, url in enumerate((folder, folder / "train")):
        data = open_bench_data((str(url),), "train", tmp_path / f"index-{number}", QUIET, 0)
        assert data.root.rstrip("/") == str(folder / "train")


def test_data_without_labels_are_closed_to_others(tmp_path):
    for number in range(16):
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.new("RGB", (40, 40), (number, 0, 0)).save(tmp_path / f"photos/{number}.jpg")
    adopt(
        AdoptRequest(url=str(tmp_path), index_url=str(tmp_path / "i"), labels="none", splits=(("train", "."),)), QUIET
    )
    data = open_bench_data((str(tmp_path / "i"),), "train", tmp_path / "index", QUIET, 0)
    assert "labels" in data.closed
    copied = Copy(data, tmp_path / "copies", 9, 1, QUIET)
    assert {file.parent.name for file in copied.layout("imagefolder").glob("*/*")} == {"00000"}
    assert (copied.images, copied.is_whole) == (9, False)


def test_what_cannot_be_opened(dataset, tmp_path):
    for urls, split, message in (
        ((str(tmp_path / "none"),), "train", "nothing is there"),
        ((str(tmp_path / "none.tar"), str(tmp_path / "x.tar")), "train", r"none\.tar and 1 more: not found"),
        ((str(dataset("webdataset")),), "test", "no split 'test'; it has train, val"),
    ):
        with pytest.raises(UsageError, match=message):
            open_bench_data(urls, split, tmp_path / "index", QUIET, 0)


# Copies


@pytest.mark.parametrize("layout", FORMATS)
def test_a_copy_holds_the_dataset_s_own_images(bucket_dataset, dataset, tmp_path, layout):
    """From a bucket, evenly over the split; our loader reads every layout of it; a second one finds it there."""
    data = open_bench_data((bucket_dataset("webdataset"),), "train", tmp_path / "index", QUIET, 0)
    copied = Copy(data, tmp_path / "copies", 30, 2, QUIET)
    with open_loader(copied.indexed(layout), batch_size=10, image_size=32) as loader:
        assert loader.order.num_samples == copied.images == 30
        assert sum(int(batch.mask.sum()) for batch in loader) == 30
    folder = copied.layout("imagefolder")
    originals = {path.read_bytes() for path in (dataset("imagefolder") / "train").rglob("*.*")}
    assert {path.read_bytes() for path in folder.rglob("*.jpg")} <= originals
    assert copied.bytes_per_image == sum(path.stat().st_size for path in folder.rglob("*.jpg")) / 30
    assert not copied.is_whole
    assert Copy(open_here(dataset(layout), tmp_path), tmp_path / "all", 2000, 2, QUIET).is_whole
    written_ns = folder.stat().st_mtime_ns
    assert Copy(data, tmp_path / "copies", 30, 2, QUIET).layout("imagefolder").stat().st_mtime_ns == written_ns


# Who takes part


def test_every_loader_that_is_installed_in_turn(dataset, tmp_path, monkeypatch):
    """Each on the layout that it wants; those that are not installed are listed with what to do.

    Others read 64 of the images, so our loader has one row with all and one with the same 64.
    """
    monkeypatch.setattr(bench, "warm_up", lambda *_: None)  # each import of TensorFlow takes seconds
    url = dataset("webdataset")
    table = bench_of(url, folder=tmp_path, loaders=LOADERS, copied_images=64, copies=tmp_path / "kept")

    (section,) = table.sections
    rows = {row.loader: row for row in section.rows if (row.loader, row.data) != (OURS, "copy")}
    assert len(section.rows) == len(rows) + 1
    left_out = {each.loader: each.reason for each in section.left_out}
    here = {name for name, peer in PEERS.items() if all(map(importlib.util.find_spec, peer.packages))}
    assert {OURS, *here} <= rows.keys() | {"mosaic", "grain"}
    assert rows.keys() | left_out.keys() == set(LOADERS)
    assert all("--peer-python" in reason for reason in left_out.values())
    assert [rows[name].data for name in (OURS, "webdataset", "torchvision")] == ["original", "original", "copy"]
    assert section.copied_images == len(list((tmp_path / "kept").glob("*/imagefolder/*/*.jpg"))) == 64
    assert [row.images_per_s for row in section.rows] == sorted((r.images_per_s for r in section.rows), reverse=True)
    for row in section.rows:
        assert row.slowest_images_per_s == row.images_per_s == row.fastest_images_per_s
        size = section.bytes_per_image if row.data == "original" else section.copied_bytes_per_image
        assert row.mb_per_s == pytest.approx(row.images_per_s * size / 1e6)
        assert 0 < row.cpu_ms_per_image < 5e3
        assert row.first_batch_s > 0.05
        assert 20 < row.largest_mb <= row.sum_mb
        assert row.version[0].isdigit()
    stages = {stage.name: stage for stage in rows[OURS].stages}
    assert {"fetch", "decode"} <= stages.keys()
    assert stages["decode"].busy_ms_per_image > 0
    assert json.loads(json.dumps(to_document(table)))["sections"][0]["rows"][0]["loader"] == section.rows[0].loader


def test_others_are_left_out_of_a_bucket_without_a_copy(bucket_dataset, tmp_path):
    table = bench_of(bucket_dataset("webdataset"), folder=tmp_path, loaders=(OURS, "webdataset", "torchvision"))
    (section,) = table.sections
    assert [row.loader for row in section.rows] == [OURS]
    assert {each.loader for each in section.left_out} == {"webdataset", "torchvision"}
    assert all("--convert DIR" in each.reason for each in section.left_out)
    assert section.copied_images == 0


def test_a_loader_that_fails_is_left_out_and_says_why(tmp_path):
    """Half an image in the originals, which PIL refuses, and no dataset for ours to read instead."""
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
        shard.unlink()
    with pytest.raises(DataprepError, match=r"StorageError|FileNotFoundError|FormatError"):
        bench_of(data, folder=tmp_path / "work")


def test_a_loader_whose_packages_are_missing(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "PEERS_PYTHON", tmp_path / "none")
    monkeypatch.setattr(PEERS["mosaic"], "packages", {"no_such_package": "mosaicml-streaming"})
    with pytest.raises(UndecidedError, match=r"mosaic: needs mosaicml-streaming: .*--peer-python"):
        bench_of(dataset("webdataset"), folder=tmp_path, loaders=("mosaic",))


def test_the_other_environment_is_used_for_what_only_it_has(tmp_path):
    request = BenchRequest(urls=("x",), loaders=("torchvision", "mosaic"))
    found = find_pythons(request)
    if not PEERS_PYTHON.exists():
        pytest.skip("not installed; run: make bench-setup")
    assert found["mosaic"] == PEERS_PYTHON
    assert found["torchvision"] != PEERS_PYTHON
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match=r"cannot be run .*expected --peer-python"):
        find_pythons(BenchRequest(urls=("x",), peer_python=broken))


def test_values_that_make_no_sense(dataset, tmp_path):
    with pytest.raises(UsageError, match=r"loader 'torchvison', expected one of dataprep, .*; did you mean \"torchv"):
        BenchRequest(urls=("x",), loaders=("torchvison",))
    with pytest.raises(UsageError, match="batch_size must be 1 or more, got 0"):
        BenchSettings(batch_size=0)
    with pytest.raises(UsageError, match="rounds and images must be 1 or more, got 0 and 2000"):
        BenchRequest(urls=("x",), rounds=0)
    settings = BenchSettings(batch_size=4096, workers=2)
    with pytest.raises(UsageError, match=r"images in train, a batch takes 4,096; choose --batch-size"):
        bench_of(dataset("webdataset"), folder=tmp_path, settings=settings)


# Rows


@given(st.lists(RATES, min_size=1, max_size=9), st.floats(1, 1e6))
def test_a_row_has_the_median_and_the_spread(rates, bytes_per_image):
    contender = Contender(loader=OURS, layout="tfrecord", root="x")
    row = row_of(contender, [run(images_per_s=rate) for rate in rates], bytes_per_image)
    assert row.rounds_images_per_s == tuple(rates)
    assert (row.slowest_images_per_s, row.fastest_images_per_s) == (min(rates), max(rates))
    below = sum(rate <= row.images_per_s for rate in rates)
    above = sum(rate >= row.images_per_s for rate in rates)
    assert min(below, above) * 2 >= len(rates)
    assert row.mb_per_s == pytest.approx(row.images_per_s * bytes_per_image / 1e6)


@given(st.lists(st.tuples(RATES, RATES, RATES), min_size=1, max_size=4))
def test_stage_shares_add_up(times):
    runs = [
        run(stages={"decode": {"items": 5, "busy_s": busy_s, "get_wait_s": get_s, "put_wait_s": put_s}})
        for busy_s, get_s, put_s in times
    ]
    (share,) = stage_shares(runs)
    assert share.busy_share + share.get_wait_share + share.put_wait_share == pytest.approx(1)
    assert share.busy_ms_per_image == pytest.approx(1e3 * sum(busy_s for busy_s, _, _ in times) / (10 * len(times)))


def test_a_stage_that_did_nothing_has_no_shares():
    (share,) = stage_shares([run(stages={"fetch": dict.fromkeys(("items", "busy_s", "get_wait_s", "put_wait_s"), 0)})])
    assert asdict(share) == {
        "name": "fetch",
        "busy_share": 0,
        "get_wait_share": 0,
        "put_wait_share": 0,
        "busy_ms_per_image": 0,
    }


def test_a_loader_that_hangs_is_given_up():
    code = "import time; from loaders import contestant; contestant.STALL_S = 0.2; next(contestant._watched(iter(H())))"
    hangs = "class H:\n  def __iter__(self): return self\n  def __next__(self): time.sleep(60)\n"
    done = subprocess.run([sys.executable, "-c", hangs + code], capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 1
    assert last_line(done.stderr).startswith("Timeout (0:00:00.2")


def test_the_last_line_of_a_failure():
    assert last_line("Traceback\n  File x\nOSError: broken\n\n") == "OSError: broken"
    assert last_line("Timeout (0:02:00)!\nThread 1\n  File y\n") == "Timeout (0:02:00)!"
    assert last_line("") == "no word"
