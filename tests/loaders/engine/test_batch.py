"""Arrays of batches by name, as adapters take them: of squares, packs and views."""

from __future__ import annotations

import numpy as np
import pytest

import loaders
from loaders import Packs, Views, open_loader, open_packs, open_views
from loaders.engine.batch import ViewBatch, array_dimensions, arrays_of, image_groups

PACKS = Packs(tokens=256, images=4, patch=16, max_tokens=64)
VIEWS = (Views(count=2, size=32), Views(count=3, size=16))
KINDS = {
    "squares": lambda url: open_loader(url, batch_size=12, image_size=32),
    "packs": lambda url: open_packs(url, batch_size=12, packs=PACKS),
    "views": lambda url: open_views(url, batch_size=12, views=VIEWS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_arrays_of_a_batch_have_the_names_and_dimensions_that_its_loader_promises(dataset, kind):
    with KINDS[kind](str(dataset("webdataset"))) as loader:
        batch = next(iter(loader))
    arrays = arrays_of(batch)
    assert {name: array.ndim for name, array in arrays.items()} == array_dimensions(loader.config)
    assert all(isinstance(array, np.ndarray) for array in arrays.values())


def test_the_groups_of_views_are_found_again_among_the_arrays(dataset):
    with KINDS["views"](str(dataset("webdataset"))) as loader:
        batch = next(iter(loader))
    assert isinstance(batch, ViewBatch)
    groups = image_groups(arrays_of(batch))
    assert [group.shape for group in groups] == [(12, 2, 32, 32, 3), (12, 3, 16, 16, 3)]
    assert all(ours is theirs for ours, theirs in zip(groups, batch.images, strict=True))


@pytest.mark.parametrize("name", ["Batch", "PackBatch", "ViewBatch"])
def test_batches_are_public(name):
    assert getattr(loaders, name).__module__ == "loaders.engine.batch"
