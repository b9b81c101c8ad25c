"""Packs: the rows of the slow reference, and, as views, the same for any ranks and processes, and resumable."""

import itertools
import json
import random
import re
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dataprep.errors import FormatError, UsageError
from loaders import Packs, open_loader, open_packs, open_views
from loaders.decode.decoders import extension_available, image_of_patches
from loaders.packs import lay_out, plan_alone, plan_rows, starts_of
from tests.support.adapters import run_module
from tests.support.adoption import adopt_here
from tests.support.loading import files_of, samples_of
from tests.support.packs_loading import load_rows, packed_rows
from tests.support.packs_reference import alone, row_of, rows_of_batches
from tests.support.packs_soak import packs_killed_and_resumed, random_configuration
from tests.support.view_batches import GROUPS, load_views, view_rows

PACKS = Packs(tokens=48, images=4, patch=8)
SMALL = {"batch_size": 24, "packs": PACKS}


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


@pytest.fixture(scope="module", params=["packs", "views"])
def kind(request, dataset):
    """Opens packs or views; loads rows; the rows of a batch; settings; and ten batches, over more than one pass."""
    packs = open_packs, load_rows, packed_rows, SMALL
    views = open_views, load_views, view_rows, {"batch_size": 24, "views": GROUPS}
    found = packs if request.param == "packs" else views
    return *found, found[1](dataset("webdataset"), 10, **found[3], threads=1)


@pytest.mark.parametrize(("fmt", "processes", "threads"), [("tfrecord", 0, 4), ("imagefolder", 3, 1)])
def test_batches_are_the_same_for_every_format_and_any_number_of_workers(kind, dataset, fmt, processes, threads):
    _, loaded, _, settings, reference = kind
    assert loaded(dataset(fmt), 10, **settings, processes=processes, threads=threads) == reference


def test_ranks_together_load_the_rows_of_a_single_rank(kind, dataset):
    _, loaded, _, settings, reference = kind
    ranks = [loaded(dataset("webdataset"), 10, **settings, rank=rank, world_size=3) for rank in range(3)]
    for parts, expected in zip(zip(*ranks, strict=True), reference, strict=True):
        assert [row for rows in zip(*parts, strict=True) for row in rows] == expected


def test_a_state_resumes_after_its_batch_with_another_number_of_ranks(kind, dataset):
    door, _, rows_of, settings, reference = kind
    with door(str(dataset("webdataset")), **settings) as loader:
        states = [batch.state for batch in itertools.islice(itertools.chain(loader, loader), 9)]
    for step, world_size in ((0, 3), (4, 2), (8, 6)):
        state = json.loads(json.dumps(states[step]))
        for rank in (0, world_size - 1):
            with door(str(dataset("webdataset")), **settings, rank=rank, world_size=world_size, threads=1) as loader:
                loader.load_state_dict(state)
                batch = next(itertools.chain(loader, loader))
                assert rows_of(batch) == reference[step + 1][rank::world_size]


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
        batch, paths = next(iter(loader)), files_of(loader)
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
    return [loader.index.shard(shard).key(sample) for shard, sample in samples_of(loader)]


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
        files = files_of(loader)
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


SEEDS = st.integers(0, 2**32)
MAX_PADDING = 0.03


@st.composite
def packs(draw):
    images = draw(st.integers(1, 12))
    mean = draw(st.integers(1, 300))
    least, most = draw(st.integers(1, mean)), draw(st.integers(mean, mean * images))
    return Packs(
        tokens=mean * images + draw(st.integers(0, images - 1)), images=images, min_tokens=least, max_tokens=most
    )


def sides(rng, shape):
    """Usual sides, tiny ones and huge ones."""
    return rng.choice([rng.integers(200, 600, shape), rng.integers(1, 20, shape), rng.integers(1, 60_000, shape)])


@given(packs(), st.integers(1, 3), SEEDS)
def test_rows_are_those_of_the_slow_reference_and_within_their_bounds(packs, rows, seed):
    rng, shape = np.random.default_rng(seed), (rows, packs.images)
    heights, widths, draws = sides(rng, shape), sides(rng, shape), rng.random(shape)
    grids = plan_rows(packs, heights, widths, draws)
    for row in range(rows):
        sizes = list(zip(heights[row].tolist(), widths[row].tolist(), strict=True))
        assert [tuple(grid) for grid in grids[row].tolist()] == row_of(packs, sizes, draws[row].tolist())
    tokens = grids.astype(np.int64).prod(axis=-1)
    assert grids.min() >= 1
    assert tokens.max() <= packs.most
    assert tokens.sum(axis=1).max() <= packs.tokens
    assert (tokens >= packs.least - grids.sum(axis=-1) - 1)[:, :-1].all()  # less than one row and one column less


@given(packs(), SEEDS)
def test_in_an_evaluation_the_grid_of_an_image_depends_on_no_other(packs, seed):
    rng = np.random.default_rng(seed)
    heights, widths = sides(rng, 9), sides(rng, 9)
    grids = plan_alone(packs, heights, widths)
    sizes = zip(heights.tolist(), widths.tolist(), strict=True)
    assert [tuple(grid) for grid in grids.tolist()] == [alone(packs, size) for size in sizes]
    assert grids.prod(axis=1).max() * packs.images <= packs.tokens


def photographs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Sizes like ImageNet's: 4:3 and 3:2 upright and not, squares, and a few panoramas."""
    rng = np.random.default_rng(7)
    shape = np.exp(rng.normal(0.2, 0.3, count))
    area = np.exp(rng.normal(np.log(190_000), 0.5, count))
    return (np.maximum(1, np.rint(np.sqrt(area / shape))), np.maximum(1, np.rint(np.sqrt(area * shape))))


@pytest.mark.parametrize(("tokens", "images"), [(1024, 8), (1024, 4), (512, 4), (256, 2), (2048, 16), (256, 8)])
def test_padding_of_photographs_is_small_and_their_shape_is_kept(tokens, images):
    heights, widths = (sides[: 400 * images].reshape(-1, images).astype(np.int64) for sides in photographs(8000))
    draws = np.random.default_rng(1).random(heights.shape)
    packs = Packs(tokens=tokens, images=images)
    grids = plan_rows(packs, heights, widths, draws)
    padding = 1 - grids.astype(np.int64).prod(axis=-1).sum() / (len(heights) * tokens)
    assert 0 <= padding <= MAX_PADDING
    distortion = np.abs(np.log(grids[..., 1] / grids[..., 0] * heights / widths))
    assert distortion.mean() < 0.08
    areas = grids.astype(np.int64).prod(axis=-1)
    assert areas.std() > 0.15 * areas.mean()  # resolutions differ


def test_an_image_smaller_than_a_patch_and_a_long_thin_one_have_grids():
    packs = Packs(tokens=64, images=2, min_tokens=8)
    grids = plan_rows(packs, np.array([[1, 1]]), np.array([[1, 5000]]), np.zeros((1, 2)))
    assert grids[0, 0, 0] == grids[0, 0, 1]
    assert grids[0, 1, 0] == 1


GRIDS = st.tuples(st.integers(1, 5), st.integers(1, 5)) | st.just((0, 0))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 7), st.data())
@settings(max_examples=25)
def test_every_token_is_a_patch_of_its_image_or_padding(rows, images, spare, data):
    row = st.lists(st.tuples(GRIDS, st.booleans()), min_size=images, max_size=images)
    given = [data.draw(row) for _ in range(rows)]
    grids = np.array([[grid for grid, _ in each] for each in given], np.int32)
    mask = np.array([[real and grid != (0, 0) for grid, real in each] for each in given])
    tokens = max(1, int(grids.prod(axis=-1).sum(axis=1).max()) + spare)
    layout = lay_out(grids, mask, tokens)
    for number, each in enumerate(given):
        expected = []
        for image, ((height, width), _) in enumerate(each):
            assert starts_of(grids)[number, image] == len(expected)
            patches = [(image + 1, row, column) for row in range(height) for column in range(width)]
            expected += patches if mask[number, image] else [(0, 0, 0)] * len(patches)
        expected += [(0, 0, 0)] * (tokens - len(expected))
        found = np.concatenate([layout.segments_RT[number][:, None], layout.positions_RT2[number]], axis=1)
        assert [tuple(token) for token in found.tolist()] == expected
    assert layout.segments_RT.dtype == layout.positions_RT2.dtype == np.int32


WRONG_PACKS = [
    ({"tokens": "512"}, "packs: tokens must be a whole number, got '512'"),
    ({"tokens": True}, "packs: tokens must be a whole number, got True"),
    ({"tokens": 2**20}, "packs: tokens must be 1 to 65,536, got 1,048,576"),
    ({"images": 0}, "packs: images must be 1 to 65,536, got 0"),
    ({"patch": 1.5}, "packs: patch must be a whole number, got 1.5"),
    ({"patch": 513}, "packs: patch must be 1 to 512, got 513"),
    ({"images": 600}, "packs: 600 images do not fit into 512 tokens; give more tokens"),
    ({"min_tokens": 513}, "packs: min_tokens must be 1 to 512, got 513"),
    ({"max_tokens": None, "min_tokens": "a"}, "packs: min_tokens must be a whole number, got 'a'"),
    (
        {"max_tokens": 100},
        "packs: 4 images of 64 to 100 tokens cannot fill 512 tokens, 128 each; "
        "change images, tokens, min_tokens or max_tokens",
    ),
    ({"crop": 0.5}, "packs: crop must be a range within 0 to 1, or None, got 0.5"),
    ({"crop": (0.5, 0.2)}, "packs: crop must be a range within 0 to 1, or None, got (0.5, 0.2)"),
    ({"crop": (0, 1)}, "packs: crop must be a range within 0 to 1, or None, got (0, 1)"),
    ({"crop": (0.5, float("nan"))}, "packs: crop must be a range within 0 to 1, or None, got (0.5, nan)"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG_PACKS, ids=lambda value: str(value)[:40])
def test_a_wrong_value_says_what_was_got_and_expected(settings, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        Packs(**{"tokens": 512, "images": 4, **settings})


def test_bounds_are_half_and_twice_the_mean_by_default():
    packs = Packs(tokens=np.int64(512), images=4)
    assert (type(packs.tokens), packs.least, packs.most, packs.patch_bytes) == (int, 64, 256, 768)
    assert Packs(tokens=4, images=4).least == 1
    assert Packs(tokens=6, images=1).most == 6


def test_a_document_holds_what_the_batches_depend_on():
    assert Packs(tokens=512, images=4, patch=14, max_tokens=200, crop=[0.5, 1]).document() == {
        "tokens": 512,
        "images": 4,
        "patch": 14,
        "min_tokens": 64,
        "max_tokens": 200,
        "crop": [0.5, 1.0],
    }


WRONG = [
    (
        {"batch_size": 30},
        "packs: 30 images in rows of 4 cannot be shared by 1 rank; choose a batch_size that is a mult",
    ),
    ({"world_size": 4}, "packs: 24 images in rows of 4 cannot be shared by 4 ranks; .* a multiple of 16"),
    ({"processes": 4}, "packs: 6 rows of a rank cannot be shared by 4 processes; choose processes that divide them"),
    ({"views": True}, "packs have no views"),
    ({"packs": (48, 4)}, "packs must be loaders.Packs, got "),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_settings_that_do_not_fit_are_refused_with_what_would(settings, message):
    with pytest.raises(UsageError, match=message):
        open_packs(**{"url": "nowhere", **SMALL, **settings})


def test_packs_and_squares_have_doors_of_their_own():
    with pytest.raises(UsageError, match="open_loader has no setting packs; call open_packs"):
        open_loader("nowhere", batch_size=24, packs=PACKS)


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
