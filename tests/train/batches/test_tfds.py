"""Where tensorflow-datasets put a dataset: the newest version, wherever the root is."""

import pytest

from dataprep.errors import UsageError
from train.train_resnet_jax import find_tfds


@pytest.fixture
def prepared(tmp_path):
    """A folder of datasets with several versions of one."""
    for version in ("9.0.0", "10.0.0", "notes"):
        folder = tmp_path / "imagenet_fake" / version
        folder.mkdir(parents=True)
        (folder / "dataset_info.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("below", ["", "imagenet_fake", "imagenet_fake/10.0.0"])
def test_the_newest_version_is_found_from_every_folder_above_it(prepared, below):
    assert find_tfds(str(prepared / below), "imagenet_fake") == str(prepared / "imagenet_fake/10.0.0")


def test_a_folder_of_a_version_is_used_itself(prepared):
    older = str(prepared / "imagenet_fake/9.0.0")
    assert find_tfds(older, "") == older


def test_a_folder_without_a_dataset_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"has neither dataset_info.json nor a version of flowers below it"):
        find_tfds(str(tmp_path), "flowers")
