"""Packs: the rows of the slow reference, the same for any ranks and processes, resumable, with no sample lost."""

import itertools
import json
import random
import shutil

import numpy as np
import pytest
from PIL import Image

from dataprep.errors import FormatError, UsageError
from loaders import LoaderConfig, Packs, open_loader, open_packs
from loaders.decode.decoders import extension_available, image_of_patches
from loaders.loader import Loader
from tests.support.adapters import run_module
from tests.support.adoption import adopt_here
from tests.support.packs_loading import load_rows, packed_rows
from tests.support.packs_reference import alone, rows_of_batches
from tests.support.packs_soak import packs_killed_and_resumed, random_configuration

PACKS = Packs(tokens=48, images=4, patch=8)
SMALL = {"batch_size": 24, "packs": PACKS}


@pytest.fixture(scope="module")
def reference(dataset):
    """Ten batches of six rows, over more than one pass."""
    return load_rows(dataset("webdataset"), 10, **SMALL, threads=1)


def sizes_of(loader):
    shards = [loader.index.shard(shard) for shard in range(len(loader.dataset.split.shards))]
    return [list(zip(each.height.tolist(), each.width.tolist(), strict=True)) for each in shards]


def test_rows_are_those_of_the_slow_reference(dataset):
    with open_packs(str(dataset("webdataset")), **SMALL, threads=1) as loader:
        loader.set_epoch(1)
        expected = rows_of_batches(PACKS, loader.order, sizes_of(loader), loader.order.first_batch(1))
        for batch, rows in zip(loader, expected, strict=False):
            keys = [[loader.index.shard(shard).key(sample) for shard, sample, _ in row] for row in rows]
            assert batch.keys == [key for row in keys for key in row]
            assert [[tuple(grid) for grid in row] for row in batch.grids.tolist()] == [
                [grid for _, _, grid in row] for row in rows
            ]


@pytest.mark.parametrize(("fmt", "processes", "threads"), [("tfrecord", 0, 4), ("imagefolder", 3, 1)])
def test_batches_are_the_same_for_every_format_and_any_number_of_workers(reference, dataset, fmt, processes, threads):
    assert load_rows(dataset(fmt), 10, **SMALL, processes=processes, threads=threads) == reference


def test_ranks_together_load_the_rows_of_a_single_rank(reference, dataset):
    ranks = [load_rows(dataset("webdataset"), 10, **SMALL, rank=rank, world_size=3) for rank in range(3)]
    for parts, expected in zip(zip(*ranks, strict=True), reference, strict=True):
        assert [row for rows in zip(*parts, strict=True) for row in rows] == expected


def test_a_state_resumes_after_its_batch_with_another_number_of_ranks(reference, dataset):
    with open_packs(str(dataset("webdataset")), **SMALL) as loader:
        states = [batch.state for batch in itertools.islice(itertools.chain(loader, loader), 9)]
    for step, world_size in ((0, 3), (4, 2), (8, 6)):
        state = json.loads(json.dumps(states[step]))
        for rank in (0, world_size - 1):
            settings = {**SMALL, "rank": rank, "world_size": world_size, "threads": 1}
            with open_packs(str(dataset("webdataset")), **settings) as loader:
                loader.load_state_dict(state)
                batch = next(itertools.chain(loader, loader))
                assert packed_rows(batch) == reference[step + 1][rank::world_size]


def test_a_state_of_packs_goes_on_with_squares_and_other_packs(dataset):
    url = str(dataset("webdataset"))
    with open_packs(url, **SMALL) as loader:
        state, following = (batch for batch in itertools.islice(loader, 2))
    with (
        open_loader(url, batch_size=24) as squares,
        open_packs(url, batch_size=24, packs=Packs(tokens=64, images=4, patch=8)) as other,
    ):
        for each in (squares, other):
            each.load_state_dict(state.state)
            assert sorted(next(iter(each)).keys)[:24] == sorted(following.keys)[:24]


def test_patches_are_those_of_the_image_at_its_own_shape(dataset):
    files = dataset("imagefolder")
    packs = Packs(tokens=256, images=4, patch=8)
    with open_packs(str(files), batch_size=4, packs=packs, flip=0.0) as loader:
        batch = next(iter(loader))
        paths = {
            loader.index.shard(shard).key(sample): loader.index.file(shard, sample) for shard, sample in _all(loader)
        }
    assert batch.images.shape == (1, 256, 192)
    stop = 0
    for number, key in enumerate(batch.keys, 1):
        tokens = batch.segments[0] == number
        rows, columns = batch.grids[0, number - 1].tolist()
        assert batch.positions[0][tokens].tolist() == [
            [row, column] for row in range(rows) for column in range(columns)
        ]
        with Image.open(files / paths[key]) as image:
            assert abs(np.log(columns / rows * image.height / image.width)) < 0.25
            expected = np.asarray(image.convert("RGB").resize((columns * 8, rows * 8), Image.Resampling.BICUBIC))
        found = image_of_patches(batch.images[0][tokens], columns)
        most = 0 if extension_available() else 2
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= most
        stop += rows * columns
    assert not batch.images[0, stop:].any()
    assert not batch.token_mask[0, stop:].any()
    assert batch.token_mask[0, :stop].all()


def _all(loader):
    shards = loader.dataset.split.shards
    return [(shard, sample) for shard, entry in enumerate(shards) for sample in range(entry["samples"])]


@pytest.mark.parametrize("processes", [0, 2])
def test_an_evaluation_sees_every_image_once_at_its_own_resolution(dataset, processes):
    pixels = []
    for images, world_size in ((4, 1), (2, 2)):
        packs, found = Packs(tokens=24 * images, images=images, patch=4), {}
        for rank in range(world_size):
            settings = {"rank": rank, "world_size": world_size, "processes": processes, "packs": packs}
            with open_packs(str(dataset("webdataset")), "val", batch_size=16, **settings) as loader:
                batches = [packed_rows(batch) for batch in loader]
                sizes = dict(zip(_keys(loader), itertools.chain(*sizes_of(loader)), strict=True))
                assert len(batches) == len(loader) == -(-len(sizes) // 16)
            for key, image in ((image[0], image) for rows in batches for row in rows for image in row if image[0]):
                assert image[1] == alone(packs, sizes[key])
                assert key not in found
                found[key] = image
        assert set(found) == set(sizes)
        pixels.append(found)
    assert pixels[0] == pixels[1]  # whatever is beside an image


def _keys(loader):
    return [loader.index.shard(shard).key(sample) for shard, sample in _all(loader)]


def test_a_crop_keeps_the_shape_and_a_transform_sees_whole_images(dataset):
    shapes = []

    def invert(image_HWC, rng):
        shapes.append(image_HWC.shape)
        return 255 - image_HWC

    url, packs = str(dataset("webdataset")), Packs(tokens=48, images=4, patch=8, crop=(0.3, 0.6))
    with open_packs(url, batch_size=8, packs=packs, threads=1) as plain:
        expected = next(iter(plain))
        images = [image.tolist() for image in expected.images]
    assert expected.grids.tolist() != load_rows(url, 1, batch_size=8, packs=PACKS)
    with open_packs(url, batch_size=8, packs=packs, threads=1, transform=invert) as loader:
        batch = next(iter(loader))
    assert np.array_equal(batch.images[batch.token_mask], 255 - np.array(images, np.uint8)[batch.token_mask])
    assert not batch.images[~batch.token_mask].any()
    sides = [(8 * rows, 8 * columns, 3) for row in batch.grids.tolist() for rows, columns in row]
    assert sorted(shapes[:8]) == sorted(sides)


def test_an_image_that_is_skipped_becomes_padding(dataset, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(dataset("imagefolder"), folder, symlinks=True)
    settings = {**SMALL, "threads": 1, "fields": ()}
    with open_packs(str(folder), **settings) as loader:
        good = next(iter(loader))
        good = {name: getattr(good, name).copy() for name in ("segments", "images", "grids", "mask")} | {
            "keys": good.keys
        }
        files = {
            loader.index.shard(shard).key(sample): loader.index.file(shard, sample) for shard, sample in _all(loader)
        }
    damaged = folder / files[good["keys"][5]]
    damaged.unlink()
    damaged.write_bytes(b"x" * 9)
    with open_packs(str(folder), **settings) as loader, pytest.raises(FormatError, match="9 bytes, the index says"):
        next(iter(loader))
    with open_packs(str(folder), **settings, on_error="skip") as loader:
        batch = next(iter(loader))
        assert sum(loader.stats()["skipped"].values()) == 1
    lost = good["segments"] == 2
    lost[[row for row in range(6) if row != 1]] = False
    assert batch.mask.sum() == 23
    assert not batch.mask[1, 1]
    assert batch.labels[1, 1] == -1
    assert batch.grids[1, 1].tolist() == [0, 0]
    assert np.array_equal(batch.segments, np.where(lost, 0, good["segments"]))
    assert np.array_equal(batch.images, np.where(lost[..., None], 0, good["images"]))


def test_images_whose_size_the_index_does_not_know_are_refused(dataset, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(dataset("imagefolder"), data, symlinks=True)
    (data / "dataset.json").unlink()
    shutil.rmtree(data / "index")
    adopt_here(data)
    with open_packs(str(data), **SMALL) as loader:
        with pytest.raises(UsageError, match=r"packs: the index has no height and width of .*dataprep convert"):
            next(iter(loader))


WRONG = [
    (
        {"batch_size": 30},
        "packs: 30 images in rows of 4 cannot be shared by 1 rank; choose a batch_size that is a mult",
    ),
    ({"world_size": 4}, "packs: 24 images in rows of 4 cannot be shared by 4 ranks; .* a multiple of 16"),
    ({"processes": 4}, "packs: 6 rows of a rank cannot be shared by 4 processes; choose processes that divide them"),
    ({"views": True}, "packs have no views"),
    ({"packs": (48, 4)}, "packs must be loaders.Packs, got "),
    ({"packz": 1}, "no setting packz; did you mean packs"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_settings_that_do_not_fit_are_refused_with_what_would(settings, message):
    with pytest.raises(UsageError, match=message):
        open_packs(**{"url": "nowhere", **SMALL, **settings})


def test_packs_and_squares_have_doors_of_their_own(dataset):
    with pytest.raises(UsageError, match="open_loader has no setting packs; call open_packs"):
        open_loader("nowhere", batch_size=24, packs=PACKS)
    with open_packs(str(dataset("webdataset")), **SMALL) as loader:
        with pytest.raises(UsageError, match="packs are loaded by a PackLoader"):
            Loader(loader.dataset, loader.config)
        with pytest.raises(UsageError, match="packs are loaded by a PackLoader"):
            type(loader)(loader.dataset, LoaderConfig(batch_size=24))


@pytest.fixture(scope="module")
def two_epochs(dataset):
    """Keys and sums of the pixels of every batch of two epochs."""
    with open_packs(str(dataset("webdataset")), batch_size=32, packs=PACKS, threads=1) as loader:
        return [(batch.keys, int(batch.images.astype(np.int64).sum())) for batch in itertools.chain(loader, loader)]


def test_in_jax_a_step_compiles_once_over_two_epochs_on_four_devices(dataset, two_epochs):
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    report = run_module("tests.support.packs_devices", "jax", dataset("webdataset"), **devices)
    assert report["compiled"] == 1
    assert list(zip(report["keys"], report["sums"], strict=True)) == two_epochs
    assert report["shapes"] == [[[8, 4], [8, 4, 2], 4]] * len(two_epochs)


def test_random_configurations_are_those_of_the_slow_reference():
    """`make soak SHOW=packs` runs 4,000 of them, and kills real ranks."""
    for number in range(20):
        random_configuration(number)


def test_ranks_that_are_killed_and_resumed_as_fewer_load_the_rows_of_one(dataset, tmp_path):
    assert packs_killed_and_resumed(dataset("webdataset"), tmp_path, random.Random(3), (2, 1)) > 2
