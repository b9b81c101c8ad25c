"""Several views of an image: those of the slow reference, the same for any ranks and workers, resumable."""

import itertools
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from dataprep.errors import FormatError, UsageError
from loaders import (
    AnnotationFields,
    AnnotationTransform,
    LoaderConfig,
    Packs,
    Views,
    mixture,
    open_loader,
    open_packs,
    open_views,
)
from loaders.decode.decoders import extension_available
from tests.support.adapters import run_module
from tests.support.crop_reference import reference_view
from tests.support.loading import files_of, samples_of
from tests.support.view_batches import GROUPS, described, load_views, view_rows

SMALL = {"batch_size": 24, "views": GROUPS}


def test_views_are_those_of_the_slow_reference(dataset):
    """Each image is opened by Pillow, and each view is drawn, cut out, scaled and mirrored on its own."""
    folder = dataset("imagefolder")
    with open_views(str(folder), **SMALL, seed=3, flip=0.3, ratio=(0.5, 2.0), rank=1, world_size=2) as loader:
        files = files_of(loader)
        for number, batch in enumerate(itertools.islice(itertools.chain(loader, loader), 6)):
            assert [images.shape for images in batch.images] == [(12, 2, 48, 48, 3), (12, 3, 24, 24, 3)]
            for row, position in enumerate(loader.positions(number)):
                found = [image for group in batch.images for image in group[row]]
                with Image.open(folder / files[batch.keys[row]]) as image:
                    for view, (pixels, expected) in enumerate(zip(found, slow_views(image, position), strict=True)):
                        most = 0 if extension_available() else 2
                        assert np.abs(pixels.astype(int) - expected).max() <= most, (position, view)


def slow_views(image, position):
    for number in range(5):
        size, scale = (48, (0.4, 1.0)) if number < 2 else (24, (0.05, 0.4))
        view = reference_view(3, position, image.height, image.width, size, scale, (0.5, 2.0), 0.3, number=number)
        box = view.left, view.top, view.left + view.width, view.top + view.height
        scaled = np.asarray(image.convert("RGB").crop(box).resize((size, size), Image.Resampling.BICUBIC), int)
        yield scaled[:, ::-1] if view.flip else scaled


def test_view_0_is_the_image_of_a_single_view_and_no_view_moves_another(dataset):
    url = str(dataset("webdataset"))
    with (
        open_loader(url, batch_size=24, image_size=48, scale=(0.4, 1.0)) as single,
        open_views(url, **SMALL) as several,
        open_views(url, batch_size=24, views=(GROUPS[0], Views(size=16), GROUPS[1])) as more,
    ):
        for one, some, many in itertools.islice(zip(single, several, more, strict=True), 3):
            assert one.keys == some.keys == many.keys
            assert np.array_equal(one.labels, some.labels)
            assert np.array_equal(one.images, some.images[0][:, 0])
            assert np.array_equal(some.images[0], many.images[0])


def invert(image_HWC, rng):
    return 255 - image_HWC


CHANGED = [
    ((Views(count=2, size=48, min_area=0.4), Views(count=4, size=24, min_area=0.05, max_area=0.4)), "views.1.count"),
    ((Views(count=2, size=40, min_area=0.4), GROUPS[1]), "views.0.size is 48 in the state, 40 here"),
    ((GROUPS[0], Views(count=3, size=24, min_area=0.05, max_area=0.5)), "views.1.scale is [0.05, 0.4]"),
    ((GROUPS[0],), "views.1 is "),
    ((GROUPS[0], Views(count=3, size=24, min_area=0.05, max_area=0.4, transform=invert)), "views.1.transform is null"),
]


@pytest.mark.parametrize(("views", "message"), CHANGED, ids=["count", "size", "area", "groups", "transform"])
def test_a_state_goes_on_with_other_views_and_says_what_differs(dataset, capsys, views, message):
    url = str(dataset("webdataset"))
    with open_views(url, **SMALL) as loader, open_views(url, batch_size=24, views=views) as other:
        other.load_state_dict(loader.state_dict())
    said = capsys.readouterr().err
    assert "continues with other images: " in said
    assert message in said


def test_a_state_of_several_views_goes_on_with_one_and_back(dataset):
    url = str(dataset("webdataset"))
    with open_views(url, **SMALL) as loader, open_loader(url, batch_size=24) as single:
        first, second, third = itertools.islice(loader, 3)
        assert len(json.dumps(first.state)) < 4096
        single.load_state_dict(first.state)
        batch = next(iter(single))
        assert batch.keys == second.keys
        loader.load_state_dict(batch.state)
        assert next(iter(loader)).keys == third.keys


def draw(image_HWC, rng):
    image_HWC[:2, :, :] = rng.integers(256, size=(2, image_HWC.shape[1], 3))
    return image_HWC


def test_a_transform_sees_each_view_with_a_generator_of_its_own(dataset):
    url, plain = str(dataset("webdataset")), {**SMALL, "batch_size": 8}
    one = replaced(GROUPS[1], transform=invert)
    with (
        open_views(url, **plain) as without,
        open_views(url, **plain, transform=draw, threads=1) as drawn,
        open_views(url, **plain, transform=draw, processes=2) as elsewhere,
        open_views(url, batch_size=8, views=(GROUPS[0], one), transform=draw) as two_kinds,
    ):
        batches = [next(iter(loader)) for loader in (without, drawn, elsewhere, two_kinds)]
    plain_images, images, same, mixed = (batch.images for batch in batches)
    for one_group, other in zip(images, same, strict=True):
        assert np.array_equal(one_group, other)
    heads = [image[:2, :24].tobytes() for group in images for row in group for image in row]
    assert len(set(heads)) == len(heads)
    assert np.array_equal(images[0][:, :, 2:], plain_images[0][:, :, 2:])
    assert np.array_equal(mixed[0], images[0])
    assert np.array_equal(mixed[1], 255 - plain_images[1])


def replaced(group, **values):
    return Views(**{**{name: getattr(group, name) for name in ("count", "size", "min_area", "max_area")}, **values})


def test_an_image_that_is_skipped_has_no_view(dataset, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(dataset("imagefolder"), folder, symlinks=True)
    settings = {**SMALL, "threads": 1, "check_digests": False}
    with open_views(str(folder), **settings) as loader:
        good = next(iter(loader))
        images, keys, paths = [each.copy() for each in good.images], good.keys, files_of(loader)
    path = folder / paths[keys[5]]
    num_bytes = path.stat().st_size
    path.unlink()
    path.write_bytes(b"x" * num_bytes)
    with open_views(str(folder), **settings) as loader, pytest.raises(FormatError, match="cannot be decoded"):
        next(iter(loader))
    with open_views(str(folder), **settings, on_error="skip") as loader:
        batch = next(iter(loader))
    assert np.flatnonzero(~batch.mask).tolist() == [5]
    for expected, found in zip(images, batch.images, strict=True):
        expected[5] = 0
        assert np.array_equal(expected, found)


def test_the_stored_order_has_views_of_every_image_once(dataset):
    url = str(dataset("webdataset"))
    passes = [load_views(url, None, **SMALL, split="val", world_size=2, rank=1) for _ in range(2)]
    assert passes[0] == passes[1]
    with open_views(url, "val", **SMALL) as loader:
        keys = [key for batch in loader for key, real in zip(batch.keys, batch.mask, strict=True) if real]
        assert sorted(keys) == sorted(loader.index.shard(shard).key(sample) for shard, sample in samples_of(loader))
        *_, last = loader
        assert not last.mask.all()
        assert not any(images[~last.mask].any() for images in last.images)


def test_a_mixture_draws_views_of_several_datasets(dataset):
    mix = mixture([(str(dataset("webdataset")), 2), (str(dataset("coco")), 1)])
    expected = load_views(mix, 4, **SMALL, threads=1)
    assert load_views(mix, 4, **SMALL, processes=2) == expected
    with open_views(mix, **SMALL) as loader, open_loader(mix, batch_size=24, image_size=48) as single:
        batch = next(iter(loader))
        assert set(batch.fields["dataset"]) == set(next(iter(single)).fields["dataset"])
        shared = []
        for rank in range(2):
            with open_views(mix, **SMALL, rank=rank, world_size=2, threads=1) as half:
                half.load_state_dict(batch.state)
                shared += view_rows(next(iter(half)))
        assert sorted(shared) == sorted(expected[1])
        single.load_state_dict(batch.state)
        assert sorted(next(iter(single)).keys) == sorted(key for key, *_ in expected[1])


WRONG = [
    ({"image_size": 96}, "open_views has no setting image_size; set size and area in each `Views` instead"),
    ({"scale": (0.1, 1), "resize": 9}, "open_views has no setting resize, scale; "),
    ({"augment": False}, "open_views has no setting augment"),
    ({"packs": Packs(tokens=48, images=4)}, "several views of an image are squares, packs are not: choose one"),
    ({"views": (48, 4)}, r"views must be loaders.Views or a tuple of them, got \(48, 4\)"),
    (
        {"transform": AnnotationTransform(AnnotationFields(size=None)), "fields": ("objects",)},
        "a transform cannot change annotations of several views; use open_loader, or a transform without",
    ),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_settings_that_do_not_fit_are_refused_with_what_would(settings, message):
    with pytest.raises(UsageError, match=message):
        open_views(**{"url": "nowhere", **SMALL, **settings})


def test_views_and_single_images_have_doors_of_their_own():
    with pytest.raises(UsageError, match="open_loader has no setting view_groups; call open_views"):
        open_loader("nowhere", batch_size=24, view_groups=GROUPS)
    with pytest.raises(UsageError, match="several views of an image are squares, packs are not: choose one"):
        open_packs("nowhere", batch_size=24, packs=Packs(tokens=48, images=4), view_groups=GROUPS)
    with pytest.raises(UsageError, match=r"batch.views has the crop of a single view: set views=False"):
        LoaderConfig(batch_size=24, view_groups=GROUPS, views=True)
    with pytest.raises(UsageError, match="several views of an image are random crops: set augment=True"):
        LoaderConfig(batch_size=24, view_groups=GROUPS, augment=False)


@pytest.fixture(scope="module")
def sums(dataset):
    """Keys, and shapes and sums of the groups, of every batch of two epochs."""
    with open_views(str(dataset("webdataset")), batch_size=32, views=GROUPS, threads=1) as loader:
        return [(batch.keys, *described(batch.images)) for batch in itertools.chain(loader, loader)]


@pytest.mark.parametrize("kinds", [("xla", "torch"), pytest.param(("jax", "tf"), marks=pytest.mark.long)], ids=" ".join)
def test_adapters_deliver_every_group(sums, dataset, kinds):
    for report in run_module("tests.support.view_batches", *kinds, dataset("webdataset")):
        assert [tuple(batch) for batch in report] == sums
