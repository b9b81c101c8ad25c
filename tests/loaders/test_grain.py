"""The Grain adapter: sources that Grain's own threads and processes read, and batches with the loader's states."""

from __future__ import annotations

import json

import numpy as np
import pytest
from absl import flags

from dataprep.errors import UsageError
from loaders import open_loader
from tests.support.on_use import on_use

grain = on_use("grain")
ElasticIterator = on_use("grain.experimental:ElasticIterator")
GrainSource = on_use("loaders.grain:GrainSource")
open_batches = on_use("loaders.grain:open_batches")

SMALL = {"image_size": 32, "seed": 3}
BATCH = 12


@pytest.fixture(scope="module", autouse=True)
def _flags():
    flags.FLAGS.mark_as_parsed()  # as absl's app.run does: Grain's worker processes are given its flags


@pytest.fixture(scope="module")
def batches(dataset):
    """Keys and images of the loader's first two epochs, on one rank."""
    with open_loader(str(dataset("webdataset")), batch_size=BATCH, **SMALL) as loader:
        return [(batch.keys, batch.images.copy()) for _ in range(2) for batch in loader]


@pytest.fixture(scope="module")
def source(dataset):
    source = GrainSource.open(dataset("webdataset"), **SMALL)
    yield source
    source.close()


def steps(iterators, count):
    """Sorted keys of the next steps of all ranks together."""
    taken = [[next(iterator) for iterator in iterators] for _ in range(count)]
    return [sorted(key for batch in step for key in np.asarray(batch.get("keys", batch.get("key")))) for step in taken]


def expected(batches, first, stop):
    return [sorted(keys) for keys, _ in batches[first:stop]]


@pytest.mark.parametrize("world_size", [1, 3])
def test_slices_of_a_source_are_the_loaders_ranks(source, batches, world_size):
    datasets = [grain.MapDataset.source(source)[rank::world_size] for rank in range(world_size)]
    ranks = [iter(each.to_iter_dataset().batch(BATCH // world_size)) for each in datasets]
    assert steps(ranks, len(batches)) == expected(batches, 0, len(batches))
    for rank in ranks:
        rank.close()


def test_grains_elastic_iterator_goes_on_with_another_number_of_ranks(source, batches):
    def rank(number, world_size):
        shard = grain.sharding.ShardOptions(number, world_size)
        return iter(ElasticIterator(grain.MapDataset.source(source), BATCH, shard, read_options=READ))

    READ = grain.ReadOptions(num_threads=4, prefetch_buffer_size=2)
    before = [rank(number, 3) for number in range(3)]
    assert steps(before, 5) == expected(batches, 0, 5)
    state = json.loads(json.dumps(before[2].get_state()))
    after = [rank(number, 2) for number in range(2)]
    for each in after:
        each.set_state(state)
    assert steps(after, 8) == expected(batches, 5, 13)
    for each in before + after:
        each.close()


def test_worker_processes_read_the_loaders_pixels(source, batches):
    halves = grain.MapDataset.source(source).batch(BATCH // 2).to_iter_dataset(grain.ReadOptions(2, 2))
    iterator = iter(halves.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))
    for keys, images in batches[:3]:
        first, second = next(iterator), next(iterator)
        assert [*first["key"], *second["key"]] == keys
        assert np.array_equal(np.concatenate([first["image"], second["image"]]), images)
    iterator.close()


def test_a_data_loaders_checkpoint_fits_a_copy_of_the_dataset_and_no_other_sequence(
    source, batches, dataset, bucket_dataset
):
    def data_loader(source):
        sampler = grain.samplers.SequentialSampler(5 * BATCH, grain.sharding.NoSharding())
        return iter(grain.DataLoader(data_source=source, sampler=sampler, operations=[grain.transforms.Batch(BATCH)]))

    before = data_loader(source)
    assert steps([before], 2) == expected(batches, 0, 2)
    state = before.get_state()
    in_bucket = GrainSource.open(bucket_dataset("webdataset"), **SMALL)
    after = data_loader(in_bucket)
    after.set_state(state)
    assert steps([after], 1) == expected(batches, 2, 3)
    in_bucket.close()
    with pytest.raises(ValueError, match="DataSource in checkpoint does not match"):
        data_loader(GrainSource.open(dataset("webdataset"), image_size=32, seed=4)).set_state(state)


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_batches_resume_on_another_number_of_ranks(dataset, bucket_dataset, batches, place):
    url = dataset("webdataset") if place == "disk" else bucket_dataset("webdataset")

    def rank(number, world_size):
        return iter(open_batches(url, batch_size=BATCH, rank=number, world_size=world_size, **SMALL))

    before = [rank(number, 3) for number in range(3)]
    assert steps(before, 5) == expected(batches, 0, 5)
    state = json.loads(json.dumps(before[1].get_state()))
    for world_size in (2, 1):
        after = [rank(number, world_size) for number in range(world_size)]
        for each in after:
            each.set_state(state)
        assert steps(after, 8) == expected(batches, 5, 13)
        for each in after:
            each.close()
    with open_loader(str(url), batch_size=BATCH, **SMALL) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)).keys == batches[5][0]
    for each in before:
        each.close()


def test_batches_go_through_grains_own_transformations(dataset, batches):
    url = dataset("webdataset")
    settings = {"fields": ("height",), "views": True}
    plain = open_batches(url, batch_size=BATCH, epochs=1, **SMALL, **settings)
    mapped = plain.map(lambda batch: {**batch, "mean": batch["images"].mean()})
    grain.experimental.assert_equal_output_after_checkpoint(mapped.map(lambda batch: batch["labels"]))
    iterator = iter(mapped)
    found = list(iterator)
    assert [batch["keys"] for batch in found] == [keys for keys, _ in batches[: len(found)]]
    assert len(found[0]["fields"]["height"]) == len(found[0]["views"]) == BATCH
    assert next(iterator, None) is None
    iterator.close()


def test_batches_of_a_relative_path_are_read_where_they_were_opened(dataset, batches, monkeypatch):
    monkeypatch.chdir(dataset("webdataset").parent)
    opened = open_batches(dataset("webdataset").name, batch_size=4, image_size=16)
    monkeypatch.chdir("/")
    with open_loader(str(dataset("webdataset")), batch_size=4, image_size=16) as loader:
        assert next(iter(opened))["keys"] == next(iter(loader)).keys


def test_an_evaluation_resumes_after_any_batch(dataset):
    dataset = open_batches(dataset("webdataset"), "val", batch_size=2, image_size=32)
    iterator = iter(dataset)
    states, keys = [iterator.get_state()], []
    for batch in iterator:
        keys.append(batch["keys"])
        states.append(json.loads(json.dumps(iterator.get_state())))
    assert iterator.get_state() == states[-1]
    for done, state in enumerate(states):
        iterator.set_state(state)
        assert [batch["keys"] for batch in iterator] == keys[done:]
    iterator.close()


def test_wrong_use_is_one_line(dataset):
    url = dataset("webdataset")
    batches = open_batches(url, batch_size=BATCH, **SMALL)
    with pytest.raises(UsageError, match="set `processes` of open_batches instead"):
        batches.set_slice(slice(0, None, 2))
    other = iter(open_batches(url, batch_size=BATCH, image_size=32))
    with pytest.raises(UsageError, match=r"the state is of another sequence: .*seed"):
        other.set_state(iter(batches).get_state())
    with pytest.raises(UsageError, match="epochs must be None, or 1 or more of shuffled data, got 0"):
        open_batches(url, batch_size=BATCH, epochs=0)
    with pytest.raises(UsageError, match="no setting bach_size"):
        open_batches(url, batch_size=BATCH, bach_size=3)
    with pytest.raises(UsageError, match="rank: not a setting of single samples"):
        GrainSource.open(url, rank=1)
    assert "imagenet" in str(batches)
