"""Loaders over a view: each kept sample once an epoch, for any ranks, format and place, and resumed exactly."""

import re
import shutil
from collections import Counter
from functools import cache

import pytest

import dataprep
from dataprep.errors import UsageError
from loaders import open_loader
from tests.loaders.conftest import BUCKET, FORMATS
from tests.support.adoption import upload
from tests.support.loading import load

SMALL = {"batch_size": 12, "image_size": 32}


@pytest.fixture(scope="module")
def dataset(dataset, tmp_path_factory):
    """The path of a dataset of its own for a format: other tests compare all files of those that tests share."""
    return cache(lambda fmt: shutil.copytree(dataset(fmt), tmp_path_factory.mktemp("selected") / fmt))


@pytest.fixture(scope="module")
def bucket_dataset(dataset, gcs):
    """The same in a bucket."""
    return cache(lambda fmt: upload(dataset(fmt), f"gs://{BUCKET}/selected/{fmt}"))


def viewed(url, **choice):
    """Return the address of a view."""
    name = "test-" + re.sub("[^a-z0-9]+", "-", repr(choice))
    return dataprep.select(url, name=name, overwrite=True, **choice).url


@pytest.mark.parametrize("sample", [0.1, 0.5, 0.9])
def test_an_epoch_has_each_kept_sample_once(dataset, sample):
    url = viewed(dataset("webdataset"), sample=sample, seed=1)
    counted = dataprep.select(dataset("webdataset"), name="count", sample=sample, seed=1, dry_run=True)
    with open_loader(url, "val", batch_size=1, image_size=32) as loader:
        val = [key for batch in loader for key in batch.keys]
    with open_loader(url, batch_size=1, image_size=32) as loader:
        train = Counter(key for batch in loader for key in batch.keys)
        assert len(loader) == loader.order.epoch_samples
    assert set(train.values()) == {1}
    assert counted.samples == {"train": len(train), "val": len(set(val))}
    assert len(val) == len(set(val))


@pytest.mark.parametrize("fmt", FORMATS)
def test_batches_of_a_view_are_the_same_from_every_format_and_place(dataset, bucket_dataset, fmt):
    reference = load(viewed(dataset("webdataset"), sample=0.5), 20, **SMALL, threads=1)
    assert load(viewed(dataset(fmt), sample=0.5), 20, **SMALL, threads=2) == reference
    assert load(viewed(bucket_dataset(fmt), sample=0.5), 20, **SMALL, threads=2) == reference


def test_ranks_together_load_the_batches_of_a_single_rank(dataset):
    url = viewed(dataset("tfrecord"), sample=0.4)
    ranks = [[keys for keys, _ in load(url, 8, **SMALL, rank=rank, world_size=4)] for rank in range(4)]
    for batch, (expected, _) in enumerate(load(url, 8, **SMALL)):
        rows = zip(*(keys[batch] for keys in ranks), strict=True)
        assert [key for row in rows for key in row] == expected


def test_a_state_of_a_view_resumes_it(dataset):
    url = viewed(dataset("webdataset"), sample=0.5)
    with open_loader(url, **SMALL) as loader:
        batches = [batch for batch, _ in zip(loader, range(6), strict=False)]
    with open_loader(url, **SMALL) as loader:
        loader.load_state_dict(batches[2].state)
        assert [batch.keys for batch, _ in zip(loader, range(3), strict=False)] == [each.keys for each in batches[3:]]


def test_a_view_without_samples_is_refused(dataset):
    with pytest.raises(UsageError, match="keeps no sample of train"):
        open_loader(viewed(dataset("webdataset"), where="width < 0"), **SMALL)
