"""From picks to rows: transforms, and shards that are missing or damaged."""

import itertools
import json
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from dataprep.errors import DataprepError, FormatError, StorageError
from loaders import Loader, LoaderConfig, Packs, Views, open_loader, open_packs, open_views
from loaders.dataset import open_dataset
from loaders.engine.batch import BatchPlan
from loaders.engine.pipeline import Place, place_images, transform_patches
from loaders.order import Order
from tests.support.adoption import adopt_here, image_of, tar_of
from tests.support.loading import REPOSITORY
from tests.support.slow_transforms import computing, failing, without_end

SMALL = {"batch_size": 12, "image_size": 64}
HOURS_S = 36_000.0
"""A limit that the suite's own, of a test that hangs, comes long before."""


def wrong_size(image_HWC, rng):
    return image_HWC[:10]


def test_a_transform_of_another_size_is_refused(dataset):
    with open_loader(str(dataset("webdataset")), **SMALL, transform=wrong_size) as loader:
        with pytest.raises(DataprepError, match=r"transform gave uint8 of shape \(10, 64, 3\), expected"):
            next(iter(loader))


@pytest.mark.parametrize("processes", [0, 1])
def test_the_error_of_a_transform_says_which_image_it_was_given(dataset, processes):
    url = str(dataset("webdataset"))
    with open_loader(url, **SMALL) as loader:
        keys = set(next(iter(loader)).keys)
    with open_loader(url, **SMALL, transform=failing, processes=processes) as loader:
        with pytest.raises((ZeroDivisionError, DataprepError), match="of the transform's own") as caught:
            next(iter(loader))
    said = "; ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    found = re.search(r"of the transform's own; the transform was given \S+\.tar: (.+)$", said)
    assert found, said
    assert found[1] in keys


def stages_after(loader, batches=2):
    with loader:
        for _ in itertools.islice(loader, batches):
            pass
        return loader.stats()["stages"]


WAYS = {
    "squares": lambda url, **settings: open_loader(url, **SMALL, **settings),
    "processes": lambda url, **settings: open_loader(url, **SMALL, processes=1, **settings),
    "packs": lambda url, **settings: open_packs(
        url, batch_size=12, packs=Packs(tokens=256, images=4, patch=16, max_tokens=64), **settings
    ),
    "views": lambda url, **settings: open_views(url, batch_size=12, views=Views(count=2, size=32), **settings),
}
CALLS = {"views": 2}
"""Calls of the transform for an image, if there are several."""


@pytest.mark.parametrize(("batch_size", "threads", "tasks"), [(12, 2, 2), (12, 5, 4), (2, 4, 2), (80, 1, 2)])
def test_every_thread_has_one_part_of_a_small_batch(dataset, batch_size, threads, tasks):
    """A task costs as much Python for one image as for some, so a batch is cut no finer than its threads need."""
    with open_loader(str(dataset("webdataset")), batch_size=batch_size, image_size=32, threads=threads) as loader:
        rows = next(loader._rows())
        assert [moment.stage for moment in rows.moments].count("decode") == tasks


@pytest.mark.parametrize("way", WAYS)
def test_the_time_of_a_transform_is_counted_as_a_part_of_decoding(dataset, way):
    found = stages_after(WAYS[way](str(dataset("webdataset")), split="val", transform=computing), batches=None)
    transform, decode = found["transform"], found["decode"]
    assert decode["items"] == transform["items"] == 6
    assert transform["cpu_s"] >= 0.005 * transform["items"] * CALLS.get(way, 1)
    assert transform["cpu_s"] <= 1.01 * transform["busy_s"]
    assert transform["busy_s"] < decode["busy_s"]
    assert transform["percentiles"].keys() == {"busy_s", "cpu_s"}
    assert decode["cpu_s"] is None


MEASURED = {
    "plan": {"busy_s", "put_wait_s"},
    "fetch": {"get_wait_s"},
    "decode": {"busy_s"},
    "transform": {"busy_s", "cpu_s"},
    "batch": {"get_wait_s"},
}
"""Times that each stage measures."""


def test_a_time_that_no_stage_measures_is_null_without_percentiles(dataset):
    found = stages_after(WAYS["squares"](str(dataset("webdataset")), transform=computing))
    assert {name: set(stage["percentiles"]) for name, stage in found.items()} == MEASURED
    for name, stage in found.items():
        unmeasured = {"busy_s", "get_wait_s", "put_wait_s", "cpu_s"} - MEASURED[name]
        assert [json.loads(json.dumps(stage))[time] for time in unmeasured] == [None] * len(unmeasured)
        assert all(stage[time] is not None for time in MEASURED[name])
    sentence = "A time that a stage did not measure is None and has no entry in its `percentiles`"
    assert sentence in " ".join((Loader.stats.__doc__ or "").split())


# What goes wrong in the middle of an epoch


@pytest.fixture
def broken(dataset, tmp_path):
    """A copy of the dataset, to break."""
    shutil.copytree(dataset("webdataset"), tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("processes", [0, 1])
def test_a_deleted_shard_is_named(broken, processes):
    shard = sorted(broken.glob("train/*.tar"))[1]
    with open_loader(str(broken), **SMALL, processes=processes, stall_s=HOURS_S) as loader:
        shard.unlink()
        whole = list(itertools.takewhile(lambda pick: pick.piece.shard != 1, loader.order.picks(0)))
        batches = iter(loader)
        given = [next(batches) for _ in range(len(whole) // SMALL["batch_size"])]
        with pytest.raises(DataprepError, match=shard.name):
            next(batches)
    assert sum(len(batch.keys) for batch in given) == len(whole) // 12 * 12


@pytest.mark.parametrize("processes", [0, 1])
def test_a_damaged_shard_is_named_or_its_images_are_masked_and_counted(broken, processes):
    shard = sorted(broken.glob("train/*.tar"))[1]
    data = bytearray(shard.read_bytes())
    for at in range(2000, len(data), 3000):
        data[at] ^= 0xFF
    shard.write_bytes(data)
    with open_loader(str(broken), **SMALL, processes=processes) as loader:
        with pytest.raises(DataprepError, match=f"{shard.name}.*CRC32C"):
            for _ in loader:
                pass
    with open_loader(str(broken), **SMALL, processes=processes, on_error="skip") as loader:
        batches = [(batch.keys, batch.mask, batch.labels) for batch in loader]
        masked = sum(int((~mask).sum()) for _, mask, _ in batches)
        assert masked == sum(loader.stats()["skipped"].values()) > 10
        assert all((labels[~mask] == -1).all() for _, mask, labels in batches)


@pytest.fixture
def images(tmp_path):
    """An adopted image folder, whose index is elsewhere: no digest is known of its files."""
    for number in range(8):
        folder = tmp_path / f"data/train/class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(image_of(number))
    adopt_here(tmp_path / "data", tmp_path / "index")
    return tmp_path


def masks(folder, between, **settings):
    """Load all images after something has happened to them; return which of them were delivered."""
    with open_loader(folder / "index", batch_size=8, image_size=16, shuffle=False, **settings) as loader:
        between()
        (batch,) = loader
        assert sum(loader.stats()["skipped"].values()) == (~batch.mask).sum()
    return {key: bool(real) for key, real in zip(batch.keys, batch.mask, strict=True)}


@pytest.mark.parametrize("change", ["removed", "grown", "shrunk"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_file_that_is_gone_or_has_another_size_is_left_out(images, change, on_error):
    file = images / "data/train/class1/3.jpg"

    def spoil():
        if change == "removed":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes() + b"1" if change == "grown" else file.read_bytes()[:-1])

    if on_error == "raise":
        with pytest.raises(FormatError, match=r"3\.jpg: (missing|.* bytes, the index says)"):
            masks(images, spoil)
        return
    found = masks(images, spoil, on_error="skip")
    assert {key for key, real in found.items() if not real} == {"class1/3"}


@pytest.mark.parametrize("processes", [0, 1])
def test_a_disk_that_goes_away_ends_the_run(images, broken, processes):
    """Whatever on_error says: all images would be left out, and nobody would notice."""
    settings = {"on_error": "skip", "processes": processes, "stall_s": HOURS_S}
    with pytest.raises(StorageError, match="missing, but the index lists it"):
        masks(images, lambda: (images / "data/train").rename(images / "away"), **settings)
    with open_loader(str(broken), **SMALL, **settings, prefetch_batches=1) as loader:
        (broken / "train").rename(broken / "away")
        with pytest.raises(StorageError, match=r"\.tar: missing, but the index lists it"):
            list(loader)


def test_too_many_open_files_end_the_run(broken):
    program = f"""
import os, resource
from loaders import open_loader
with open_loader({str(broken)!r}, batch_size=12, image_size=64, on_error="skip") as loader:
    loader.index.mean_image_bytes()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 1, hard))
    for batch in loader:
        print(batch.mask.all())
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 1
    assert "False" not in run.stdout
    assert "too many open files; raise the limit on open files" in run.stderr.splitlines()[-1]


def test_an_adopted_shard_that_has_grown_ends_the_run(tmp_path):
    (tmp_path / "data").mkdir()
    tar_of(tmp_path / "data/00000.tar", [(f"{number}.jpg", image_of(number)) for number in range(8)])
    adopt_here(tmp_path / "data", tmp_path / "index")

    def grow():
        with (tmp_path / "data/00000.tar").open("ab") as file:
            file.write(bytes(512))

    with pytest.raises(StorageError, match=r"00000\.tar: .* bytes, the index says"):
        masks(tmp_path, grow, on_error="skip")


PACKS = Packs(tokens=40, images=4, patch=2)


@pytest.mark.parametrize("augment", [True, False])
def test_places_do_not_overlap_and_are_the_same_for_parts_of_a_batch(dataset, augment):
    data = open_dataset(str(dataset("webdataset")), "train")
    index = data.open_index(5.0)
    config = LoaderConfig(batch_size=24, packs=PACKS, augment=augment)
    counts = tuple(shard["samples"] for shard in data.split.shards)
    order = Order(shard_samples=counts, seed=0, global_batch=24, samples_per_block=2)
    placed = []
    for part, parts in ((0, 1), (0, 2), (1, 2)):
        plan = BatchPlan(
            order=order, shuffle=True, rank=0, world_size=1, first_batch=3, part=part, parts=parts, row_images=4
        )
        picks, grids = next(iter(plan)), np.zeros((24, 2), np.int32)
        places = place_images(picks, index, config, grids)
        placed.append({slot: place for (slot, _), place in zip(picks, places, strict=True)})
        for slot, place in placed[-1].items():
            assert place.patches == grids[slot].prod()
            assert place.columns == grids[slot, 1]
            assert (place.view.resized_height, place.view.resized_width) == tuple(2 * grids[slot])
    whole, *halves = placed
    assert halves[0] | halves[1] == whole
    assert not halves[0].keys() & halves[1].keys()
    taken = [token for place in whole.values() for token in range(place.start, place.start + place.patches)]
    assert len(taken) == len(set(taken))
    assert all(place.start // 40 == slot // 4 for slot, place in whole.items())
    assert place_images([], index, config, grids) == []


def test_a_transform_changes_the_patches_of_its_image_alone():
    rows = np.arange(2 * 6 * 12, dtype=np.uint8).reshape(2, 6, 12)
    before = rows.copy()
    seen = []

    def invert(image_HWC):
        seen.append(image_HWC.shape)
        image_HWC[...] = 255 - image_HWC

    transform_patches(invert, rows, Place(None, 7, 4, 2))
    assert seen == [(4, 4, 3)]
    changed = (rows != before).any(axis=2)
    assert np.flatnonzero(changed).tolist() == [7, 8, 9, 10]
    assert np.array_equal(rows[changed], 255 - before[changed])


SETTINGS = {"batch_size": 8, "image_size": 32, "threads": 1}


@pytest.mark.parametrize(("processes", "stall_s"), [(0, 2), pytest.param(2, 10, marks=pytest.mark.long)])
def test_a_hanging_transform_is_an_error_that_names_batch_shard_and_key(dataset, processes, stall_s, capfd):
    """A worker process needs some time to start."""
    hanging = {**SETTINGS, "processes": processes, "transform": without_end, "stall_s": stall_s}
    with open_loader(dataset("webdataset"), **hanging) as loader, pytest.raises(StorageError) as caught:
        next(iter(loader))
    told = rf"loader: batch 0: no image was read or decoded for \d+ s \(stall_s {stall_s}\); in progress: transforming "
    assert re.match(told + r"\S+train/\S+\.tar: \S+", str(caught.value))
    assert "raise stall_s, and resume from the last state" in str(caught.value)
    assert f"s; an error after {stall_s} s; in progress: " in capfd.readouterr().err


def test_a_program_can_end_while_a_thread_of_its_loader_hangs(dataset):
    program = (
        "from loaders import open_loader\n"
        "from tests.support.slow_transforms import without_end\n"
        f"loader = open_loader({str(dataset('webdataset'))!r}, batch_size=8, image_size=32, transform=without_end, "
        "stall_s=1)\n"
        "next(iter(loader))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=800, check=False
    )
    assert run.returncode == 1
    assert "StorageError: loader: batch 0: no image was read or decoded for 1 s" in run.stderr


def test_closing_leaves_a_hanging_thread_behind_and_the_loader_can_be_used_again(dataset):
    release = threading.Event()

    def held(image_HWC, rng):
        release.wait()
        return image_HWC

    with open_loader(dataset("webdataset"), **SETTINGS, transform=held, stall_s=3) as loader:
        with pytest.raises(StorageError, match="no image was read or decoded"):
            next(iter(loader))
        release.set()
        assert len(next(iter(loader)).keys) == 8
