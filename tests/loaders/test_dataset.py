"""Datasets as loaders see them."""

import pickle

import pytest

from dataprep.errors import UsageError
from loaders import open_loader
from loaders.dataset import open_dataset


def test_a_missing_dataset_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(UsageError, match="dataprep adopt"):
        open_loader(str(tmp_path), batch_size=1)


def test_a_dataset_is_picklable_and_opens_one_storage(dataset):
    opened = open_dataset(str(dataset("webdataset")), "train")
    assert opened.storage is opened.storage
    other = pickle.loads(pickle.dumps(opened))
    assert other == opened
    assert other.storage.url == opened.storage.url
    assert other.open_index(5.0).shard(0).keys[0] == opened.open_index(5.0).shard(0).keys[0]


def test_an_unknown_split_is_an_error_that_lists_the_splits(dataset):
    with pytest.raises(UsageError, match=r"no split 'test'; it has train, val"):
        open_dataset(str(dataset("webdataset")), "test")


def test_the_file_of_a_mixture_is_no_dataset(tmp_path):
    (tmp_path / "mix.json").write_text("{}")
    with pytest.raises(UsageError, match=r"mix.json: expected a dataset, got what may be the file of a mixture"):
        open_dataset(str(tmp_path / "mix.json"), "train")
