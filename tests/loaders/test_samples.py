"""Samples by position: the loader's pixels, in any order, from disk and bucket, in any process."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from dataprep.errors import FormatError, UsageError
from loaders import open_loader
from loaders.samples import PADDING, Samples, Steps
from tests.loaders.conftest import FORMATS

SMALL = {"image_size": 48, "views": True}
FIELDS = {"imagefolder": (), "webdataset": ("class_name", "height"), "tfrecord": ("height",)}


def loaded(url, count, split="train", **settings):
    """The first samples of a loader, at the positions 0, 1, 2, …: keys, labels, images and fields."""
    rows = []
    with open_loader(str(url), split, batch_size=8, **settings) as loader:
        while len(rows) < count:
            for batch in loader:
                fields = [{name: values[row] for name, values in batch.fields.items()} for row in range(8)]
                found = zip(batch.keys, batch.labels.tolist(), batch.images.copy(), fields, batch.mask, strict=True)
                rows += [row for *row, is_sample in found if is_sample]
    return rows[:count]


def is_equal(sample, row):
    key, label, image, fields = row
    same = (sample["key"], sample["label"], sample.get("fields", {}), sample["mask"]) == (key, label, fields, True)
    return same and np.array_equal(sample["image"], image)


@pytest.mark.parametrize("fmt", FORMATS)
def test_positions_are_those_of_the_loader_in_any_order(dataset, fmt):
    settings = {**SMALL, "fields": FIELDS[fmt]}
    rows = loaded(dataset(fmt), 150, **settings)
    samples = Samples.open(dataset(fmt), **settings)
    for position in (130, 3, 149, 0, 117):
        assert is_equal(samples[position], rows[position])
    found = samples.__getitems__([40, 7, 7, 149])
    assert all(is_equal(sample, rows[at]) for sample, at in zip(found, (40, 7, 7, 149), strict=True))
    assert found[0]["view"] is not None
    samples.close()


def test_a_bucket_gives_the_same_in_few_requests(bucket_dataset, dataset, monkeypatch):
    monkeypatch.setattr("loaders.fetch.fetcher.FREE_HEDGES", -1e9)  # on a slow machine a read would be made once more
    rows = loaded(dataset("webdataset"), 1, "val", fields=("height",), image_size=48)
    samples = Samples.open(bucket_dataset("webdataset"), "val", fields=("height",), image_size=48)
    found = samples.__getitems__(range(len(samples)))
    assert is_equal(found[0], rows[0])
    (opened,) = samples._opened.values()
    assert opened.pipeline.fetch_stats()["requests"] == len(opened._stops)  # of a shard, neighbours are read at once
    samples.close()
    rows = loaded(dataset("webdataset"), 20, **SMALL)
    ordered = Samples.open(bucket_dataset("webdataset"), **SMALL)
    assert all(map(is_equal, ordered.__getitems__(range(20)), rows))
    copy = pickle.loads(pickle.dumps(ordered))
    assert is_equal(copy[3], rows[3])
    for each in (copy, ordered):
        each.close()


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_many_threads_ask_for_single_samples_at_once(dataset, bucket_dataset, place):
    url = (dataset if place == "disk" else bucket_dataset)("webdataset")
    samples = Samples.open(url, images="encoded")
    expected = samples.__getitems__(range(60))
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(samples.__getitem__, range(60))) == expected
    samples.close()


def test_encoded_images_are_the_stored_files(dataset):
    folder = Path(dataset("imagefolder"))
    samples = Samples.open(folder, shuffle=False, images="encoded")
    stored = [path.read_bytes() for path in (folder / "train").rglob("*.JPEG")]
    assert sorted(sample["image"] for sample in samples) == sorted(stored)
    assert len(samples) == len(stored)
    shuffled = Samples.open(dataset("webdataset"), images="encoded", epochs=1)
    assert sorted(sample["image"] for sample in shuffled) == sorted(stored)
    for each in (samples, shuffled):
        each.close()


def _keys(samples: Samples) -> list[str]:
    return [sample["key"] for sample in samples.__getitems__([5, 9])]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_other_processes_open_what_they_need(dataset, start):
    samples = Samples.open(dataset("webdataset"), images="encoded")
    expected = _keys(samples)
    with multiprocessing.get_context(start).Pool(1) as pool:
        assert pool.apply(_keys, (samples,)) == expected
    samples.close()


def test_lengths_and_padding(dataset):
    samples = Samples.open(dataset("coco"), epochs=3, image_size=32)
    stored = Samples.open(dataset("coco"), shuffle=False, image_size=32)
    assert len(samples) == 3 * 5 * len(stored)
    assert len(Samples.open(dataset("coco"))) == sys.maxsize
    padding = stored[PADDING]
    assert (padding["mask"], padding["label"], padding["key"]) == (False, -1, "")
    assert not padding["image"].any()
    for wrong in (len(stored), -2):
        with pytest.raises(IndexError, match=r"expected 0 to \d+, or -1 for padding"):
            stored[wrong]
    assert stored.__getitems__([]) == []


def test_an_image_that_cannot_be_decoded_is_an_error_or_masked(originals, tmp_path_factory):
    from tests.support.finished import finished_dataset

    url = finished_dataset("unchecked", originals, tmp_path_factory)
    with pytest.raises(FormatError, match="cannot be decoded"):
        list(Samples.open(url, shuffle=False, image_size=32))
    found = list(Samples.open(url, shuffle=False, image_size=32, on_error="skip"))
    assert {sample["mask"] for sample in found} == {True, False}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 4}, "batch_size: not a setting of single samples"),
        ({"rank": 1, "world_size": 2}, "rank, world_size: not a setting of single samples"),
        ({"images": "bytes"}, "images 'bytes', expected one of decoded, encoded"),
        ({"images": "encoded", "image_size": 32}, "image_size: not a setting of encoded images"),
        ({"image_sise": 32}, "did you mean image_size"),
        ({"epochs": 0}, "epochs must be None, or 1 or more of shuffled data, got 0"),
        ({"epochs": 2, "shuffle": False}, "epochs must be None, or 1 or more of shuffled data, got 2"),
        ({"split": "test"}, "no split 'test'; it has train, val"),
    ],
)
def test_wrong_use_is_one_line(dataset, settings, message):
    with pytest.raises(UsageError, match=message):
        Samples.open(dataset("webdataset"), **settings)


@pytest.fixture(scope="module")
def samples(dataset):
    samples = Samples.open(dataset("webdataset"), image_size=32)
    yield samples
    samples.close()


def keys(samples, positions):
    return [sample["key"] for sample in samples.__getitems__(positions)]


@pytest.mark.parametrize("world_size", [1, 3])
def test_batches_are_those_of_the_loader(dataset, samples, world_size):
    for rank in range(world_size):
        settings = {"batch_size": 18, "rank": rank, "world_size": world_size}
        steps = Steps(samples, **settings)
        with open_loader(str(dataset("webdataset")), image_size=32, **settings) as loader:
            batches = (batch for _ in range(3) for batch in loader)
            for _ in range(2):
                assert len(steps) == loader.order.equal_steps
                due = [batch.keys for batch in islice(batches, len(steps))]
                assert [keys(samples, positions) for positions in steps] == due
                assert steps.state_dict() == loader.state_dict()


def test_states_go_from_one_number_of_ranks_to_another_and_to_a_loader(dataset, samples):
    whole = Steps(samples, batch_size=12)
    expected = [sorted(positions) for _ in range(2) for positions in whole]
    steps = [Steps(samples, batch_size=12, rank=rank, world_size=3) for rank in range(3)]
    for each in steps:
        list(islice(each, 5))
    state = json.loads(json.dumps(steps[2].state_dict()))
    resumed = [Steps(samples, batch_size=12, rank=rank, world_size=2) for rank in range(2)]
    for each in resumed:
        each.load_state_dict(state)
    rest = [sorted(a + b) for a, b in zip(*resumed, strict=True)]
    assert rest == expected[5 : 5 + len(rest)]
    assert resumed[0].epoch == 1
    with open_loader(str(dataset("webdataset")), batch_size=12, image_size=32) as loader:
        loader.load_state_dict(state)
        assert sorted(next(iter(loader)).keys) == sorted(keys(samples, expected[5]))


def test_the_state_of_an_evaluation_resumes_after_its_step(dataset):
    samples = Samples.open(dataset("webdataset"), "val", image_size=32)
    whole = list(Steps(samples, batch_size=2))
    steps = Steps(samples, batch_size=2)
    for done in range(1, len(whole) + 1):
        list(islice(steps, done))
        resumed = Steps(samples, batch_size=2)
        resumed.load_state_dict(steps.state_dict())
        assert list(resumed) == whole[done:]
        assert list(resumed) == whole
    assert list(steps) == whole
    assert steps.state_dict()["position"] == 0
    samples.close()


def test_an_epoch_can_be_chosen(samples):
    steps = Steps(samples, batch_size=12)
    first, second = list(steps), list(steps)
    steps.set_epoch(1)
    assert list(steps) == second
    steps.set_epoch(0)
    assert list(steps) == first
