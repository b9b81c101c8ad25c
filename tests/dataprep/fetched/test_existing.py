"""Datasets whose failed rows can be tried again: what lacks something is refused, and says what was expected."""

from __future__ import annotations

import hashlib

import pytest

from dataprep.errors import UsageError
from dataprep.fetched.existing import FetchedDataset, open_fetched
from dataprep.storage import open_storage
from tests.support.fetched import adopted


def test_a_place_without_a_dataset_is_refused(tmp_path):
    with pytest.raises(
        UsageError,
        match=r"no dataset there \(no dataset\.json\); check the URL, make shards of pictures",
    ):
        open_fetched(str(tmp_path))


def test_a_dataset_built_from_archives_is_refused(finished):
    with pytest.raises(UsageError, match="imagenet was not fetched from the web; expected a dataset of laion"):
        open_fetched(str(finished("imagenet-webdataset")))


def test_adopted_output_of_img2dataset_is_refused_with_the_commands_that_help(web, tmp_path):
    url = adopted(web, tmp_path / "cc 3m")
    with pytest.raises(UsageError, match=r"was fetched by img2dataset; .* dataprep inspect '.*cc 3m' --rejected lists"):
        open_fetched(url)


def test_a_dataset_is_identified_by_the_digest_of_its_manifest(finished):
    storage = open_storage(str(finished("imagenet-webdataset")))
    data = storage.read("dataset.json")
    dataset = FetchedDataset(storage, data, None, None)  # type: ignore[arg-type]
    assert dataset.sha256 == hashlib.sha256(data).hexdigest()
