"""The ranking of changes."""

import math
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.config import LoaderConfig
from loaders.dataset import open_dataset
from loaders.diagnosis.fixes import TIE, advice_to_shrink, conversion, ranked
from tests.support.adoption import adopt_here
from tests.support.builds import dataprep
from tests.support.findings import diagnosis
from tests.support.own_data import SPLITS, build_own, class_folders, picture
from tests.support.raw_tar import tar_of


def fix(name, images_per_s, needs="restart", *, is_tried=False):
    return replace(diagnosis().fixes[0], name=name, images_per_s=images_per_s, needs=needs, is_tried=is_tried)


def names(*fixes):
    return [each.name for each in ranked(fixes)]


def test_changes_are_ranked_by_rate_and_the_best_of_each_name_stays():
    found = ranked([fix("workers", 100), fix("cache", 300), fix("workers", 200)])
    assert [(each.name, each.images_per_s) for each in found] == [("cache", 300), ("workers", 200)]
    assert ranked([]) == []


def test_among_the_best_the_least_effort_comes_first():
    assert names(fix("resize", 1000, "rebuild"), fix("workers", 1000 * TIE + 1)) == ["workers", "resize"]
    assert names(fix("resize", 1000, "rebuild"), fix("workers", 1000 * TIE - 1)) == ["resize", "workers"]


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        (
            {"image_size": 96},
            "Store the images with a short side of 110 pixels (random crops are then enlarged, the "
            "smallest of a square image from 49 to 96 pixels: check the accuracy): COMMAND",
        ),
        ({"image_size": 96, "augment": False}, "Store the images with a short side of 110 pixels: COMMAND"),
        ({"image_size": 96, "scale": (0.8, 1.0)}, "Store the images with a short side of 110 pixels: COMMAND"),
        (
            {"image_size": 224, "scale": (0.08, 1.0)},
            "Store the images with a short side of 256 pixels (random crops are then enlarged, the "
            "smallest of a square image from 72 to 224 pixels: check the accuracy): COMMAND",
        ),
    ],
)
def test_the_advice_to_store_smaller_images_says_how_much_crops_of_them_are_enlarged(settings, advice):
    assert advice_to_shrink(LoaderConfig(batch_size=8, **settings), "COMMAND") == advice


@given(image_size=st.integers(8, 512), smallest=st.floats(0.01, 1.0))
def test_the_side_that_the_advice_names_is_that_of_the_smallest_crop_of_a_square_image(image_size, smallest):
    config = LoaderConfig(batch_size=8, image_size=image_size, scale=(smallest, 1.0), ratio=(1.0, 1.0))
    advice = advice_to_shrink(config, "COMMAND")
    side = config.short_side * math.sqrt(smallest)
    assert ("enlarged" in advice) == (round(side) < image_size)
    assert "enlarged" not in advice or f"from {round(side)} to {image_size} pixels:" in advice


@pytest.mark.parametrize("is_adopted", [False, True])
def test_the_advice_to_store_smaller_images_is_a_command_that_runs_as_printed(tmp_path, is_adopted):
    source = class_folders(tmp_path / "my pets")
    if is_adopted:
        adopt_here(source, tmp_path / "my shards")
    else:
        build_own(source, tmp_path / "my shards")
    words = shlex.split(conversion(open_dataset(str(tmp_path / "my shards"), "train"), 12))
    run = dataprep(*words[1:], "--workers", "1")
    assert run.returncode == 0, run.stderr
    assert [word for word in words if word.startswith("--")] == ["--output", "--format", "--resize"]
    smaller = open_dataset(str(tmp_path / ("my pets-12" if is_adopted else "my shards-12")), "train")
    assert smaller.manifest.options["images"]["short_side"] == 12
    assert smaller.split.samples == 2 * SPLITS["train"]


def test_the_command_that_stores_smaller_images_keeps_the_captions(tmp_path):
    (tmp_path / "pairs").mkdir()
    members = [("a.jpg", picture(1)), ("a.txt", b"one"), ("b.jpg", picture(2)), ("b.txt", b"two")]
    (tmp_path / "pairs/0.tar").write_bytes(tar_of(members))
    adopt_here(tmp_path / "pairs")
    words = shlex.split(conversion(open_dataset(str(tmp_path / "pairs"), "train"), 12))
    run = dataprep(*words[1:], "--workers", "1")
    assert run.returncode == 0, run.stderr
    assert list(open_dataset(str(tmp_path / "pairs-12"), "train").manifest.features) == ["txt"]
