"""Positions of a rank's batches: the loader's batches and states, for any number of ranks."""

import json
from itertools import islice

import pytest

from dataprep.errors import UsageError
from loaders import open_loader
from loaders.samples.source import PADDING, Samples
from loaders.samples.steps import Steps


@pytest.fixture(scope="module")
def samples(dataset):
    samples = Samples.open(dataset("webdataset"), image_size=32)
    yield samples
    samples.close()


def keys(samples, positions):
    return [sample["key"] for sample in samples.__getitems__(positions)]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_batches_are_those_of_the_loader(dataset, samples, world_size):
    for rank in range(world_size):
        settings = {"batch_size": 18, "rank": rank, "world_size": world_size}
        steps = Steps(samples, **settings)
        with open_loader(str(dataset("webdataset")), image_size=32, **settings) as loader:
            for _ in range(2):
                assert len(steps) == len(loader)
                assert [keys(samples, positions) for positions in steps] == [batch.keys for batch in loader]
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


def test_an_evaluation_is_padded_and_begins_anew(dataset):
    samples = Samples.open(dataset("webdataset"), "val", image_size=32)
    ranks = [Steps(samples, batch_size=16, rank=rank, world_size=2) for rank in range(2)]
    for _ in range(2):
        found = [list(steps) for steps in ranks]
        assert len(found[0]) == len(found[1]) == len(ranks[0])
        assert {len(positions) for of_rank in found for positions in of_rank} == {8}
        positions = sorted(each for of_rank in found for step in of_rank for each in step)
        padding = -len(samples) % 16
        assert positions == [PADDING] * padding + list(range(len(samples)))
    samples.close()


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


def test_another_sequence_and_another_world_are_refused(dataset, samples):
    other = Steps(Samples.open(dataset("webdataset"), image_size=32, seed=1), batch_size=12)
    with pytest.raises(UsageError, match=r"the state is of another sequence: .*seed"):
        Steps(samples, batch_size=12).load_state_dict(other.state_dict())
    with pytest.raises(UsageError, match="a batch of 12 cannot be shared by 5 ranks"):
        Steps(samples, batch_size=12, world_size=5)
