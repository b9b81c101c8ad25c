"""Runs that go on through another view or a later revision: what is left of the epoch comes once, the rest after it."""

import itertools
import json
import random
import shutil
from functools import cache
from pathlib import Path

import pytest

import dataprep
from dataprep.errors import UsageError
from loaders import MixtureSource, mixture, open_loader
from loaders.samples import Samples, Steps
from tests.support.histories import history, revisions
from tests.support.living import SETTINGS, Ledger, Living, keys_of, killed_and_changed

SMALL = SETTINGS | {"batch_size": 4}


@pytest.fixture(scope="module")
def root(dataset, tmp_path_factory):
    """A dataset of its own, whose views the tests share; only the views differ from what others compare."""
    return str(shutil.copytree(dataset("webdataset"), tmp_path_factory.mktemp("resumed") / "data"))


@pytest.fixture(scope="module")
def viewed(root):
    """Address of a view of some samples."""

    @cache
    def address_of(seed, sample=0.6):
        return dataprep.select(root, name=f"v{seed}", sample=sample, seed=seed).url

    return address_of


def advance(url, batches, ledger, state=None, world_size=1, **settings):
    """Load batches by some ranks, count their samples, and return the state after the last one."""
    ranks = [open_loader(url, rank=rank, world_size=world_size, **SMALL | settings) for rank in range(world_size)]
    loaded = []
    for loader in ranks:
        with loader:
            if state is not None:
                loader.load_state_dict(state)
            epochs = itertools.chain.from_iterable(itertools.repeat(loader))
            loaded.append(list(itertools.islice(epochs, batches)))
    for parts in zip(*loaded, strict=True):
        assert len({json.dumps(part.state) for part in parts}) == 1
        for key in itertools.chain(*(part.keys for part in parts)):
            ledger.take(key)
    return json.loads(json.dumps(loaded[0][-1].state))


def test_an_epoch_goes_on_through_other_views_by_other_ranks(root, viewed, capsys):
    urls = [viewed(1), viewed(2), viewed(3), root]
    ledger, state = Ledger(keys_of(urls[0])), None
    for number, (url, world_size) in enumerate(zip(urls, [1, 2, 4, 1], strict=True)):
        out, added = ledger.change(keys_of(url))
        state = advance(url, 3, ledger, state, world_size)
        lines = [line for line in capsys.readouterr().err.splitlines() if "continued" in line]
        assert len(lines) == bool(number)
        assert all(f": {out} removed, {added} added from epoch " in line for line in lines)
    assert [each["dataset"].get("view", {}).get("name") for each in state["earlier"]] == ["v1", "v2", "v3"]
    state = advance(root, 2 * len(keys_of(root)) // 4, ledger, state, processes=2)
    assert state["position"] > state["earlier"][-1]["start"]
    views = Path(root, "views").rename(f"{root}/hidden")
    advance(root, 3, ledger, state)  # later epochs need no file of earlier views
    views.rename(f"{root}/views")


def test_a_state_within_what_is_left_resumes_exactly(root, viewed):
    first = advance(viewed(1), 5, Ledger(keys_of(viewed(1))))
    with open_loader(root, **SMALL) as loader:
        loader.load_state_dict(first)
        whole = [(batch.keys, batch.state) for _ in range(2) for batch in loader]
    for number in (0, 2, len(whole) - 3):
        with open_loader(root, **SMALL, rank=1, world_size=2) as half:
            half.load_state_dict(json.loads(json.dumps(whole[number][1])))
            epochs = itertools.chain.from_iterable(itertools.repeat(half))
            found = [batch.keys for batch in itertools.islice(epochs, 2)]
        assert found == [keys[1::2] for keys, _ in whole[number + 1 : number + 3]]


def test_an_epoch_of_which_nothing_came_has_all_samples_of_what_is_opened(root, viewed):
    with open_loader(viewed(1), **SMALL) as loader:
        state = loader.state_dict()
    advance(root, len(keys_of(root)) // 4, Ledger(keys_of(root)), state)


def test_an_epoch_that_another_view_began_can_begin_again(root, viewed):
    state = advance(viewed(1), 5, Ledger(keys_of(viewed(1))))
    with open_loader(root, **SMALL) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(loader.epoch)
        assert "earlier" not in loader.state_dict()
        ledger = Ledger(keys_of(root))
        for key in itertools.chain(*(batch.keys for batch in loader)):
            ledger.take(key)


def refused(url, state, message, **settings):
    with open_loader(url, **SMALL | settings) as loader, pytest.raises(UsageError, match=message):
        loader.load_state_dict(state)


def test_what_cannot_go_on_is_refused_with_what_to_do(root, viewed):
    state = advance(viewed(1), 5, Ledger(keys_of(viewed(1))))
    refused(root, state, "an evaluation cannot continue; begin it again", shuffle=False)
    later = json.loads(json.dumps(state))
    later["sequence"]["dataset"]["revision"] = 7
    refused(root, later, "the state is of revision 7, this is the older revision 1; open the changed dataset")
    gone = json.loads(json.dumps(state))
    gone["sequence"]["dataset"]["view"]["sha256"] = "0" * 64
    refused(root, gone, "view v1 as it was for revision 1, whose file is gone; restore the folder of views")
    shorter = json.loads(json.dumps(state))
    shorter["sequence"]["samples"] += 1
    refused(root, shorter, "samples, the state has")
    with (
        Samples.open(root, image_size=32).loader(4) as _,
        pytest.raises(UsageError, match="batches of open_loader can"),
    ):
        Steps(Samples.open(root, image_size=32), batch_size=4).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stop": 10**9}, "changes in the state do not follow each other"),
        ({"start": 10**9}, "contradicts the dataset's list of its changes"),
        ({"samples": 0}, "the state: "),
        (
            {"dataset": {"name": "x", "plan": "y", "revision": 1, "view": {"name": "../x", "sha256": "0"}}},
            "the state: ",
        ),
    ],
)
def test_a_damaged_account_of_changes_is_refused(root, viewed, change, message):
    state = advance(viewed(1), 5, Ledger(keys_of(viewed(1))))
    with open_loader(viewed(2), **SMALL) as loader:
        loader.load_state_dict(state)
        between = json.loads(json.dumps(loader.state_dict()))
    between["earlier"][0] |= change
    refused(viewed(2), between, message)


def test_a_dataset_of_a_mixture_that_ends_does_not_go_on_through_another_view(root, viewed):
    ending = {"name": "pets", "at_end": "drop"}
    with open_loader(mixture([MixtureSource(url=viewed(1), **ending)]), **SMALL) as loader:
        state = loader.state_dict()
    refused(mixture([MixtureSource(url=root, **ending)]), state, r"datasets.pets.dataset.view")


def test_a_run_goes_on_in_a_dataset_that_grew_and_lost_samples(tmp_path, capsys):
    living = Living(tmp_path, 60, random.Random(0))
    ledger, state = Ledger(keys_of(living.root)), None
    for change, revision in (("grow", 2), ("lose", 3)):
        state = advance(living.root, 4, ledger, state)
        getattr(living, change)(0.2)
        out, added = ledger.change(keys_of(living.root))
        capsys.readouterr()
        with open_loader(living.root, **SMALL) as loader:
            loader.load_state_dict(state)
        assert capsys.readouterr().err.splitlines() == [
            f"{living.root}: continued from revision {revision - 1} to revision {revision}: {out} removed, "
            f"{added} added from epoch 1 on"
        ]
    advance(living.root, 2 * len(keys_of(living.root)) // 4, ledger, state, world_size=2)


def test_a_killed_run_goes_on_through_changes_of_its_dataset(tmp_path):
    """One of the 200 histories of `make soak SHOW=living`."""
    killed_and_changed(tmp_path, random.Random(0))


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    return revisions(tmp_path_factory.mktemp("histories"))


@pytest.mark.filterwarnings("ignore:.* a batch of .* is larger than the split")
@pytest.mark.parametrize("seed", range(6))
def test_a_run_with_changes_has_every_sample_once(histories, seed):
    """Some of the 500 histories of `make soak SHOW=histories`."""
    _, state_bytes = history(random.Random(seed), histories)
    assert state_bytes < 1_100
