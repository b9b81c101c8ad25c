"""Batches from several datasets: the same wherever and however they are made, resumed with other ranks and weights."""

import itertools
import json
import random
from collections import Counter
from functools import partial

import pytest

from dataprep.errors import UsageError
from loaders import MixtureSource, Packs, mixture, open_loader, open_packs
from loaders.mixtures.loader import MAX_CHANGES, MixedPlan
from tests.loaders.mixtures.test_order import mixed
from tests.support.loading import digest, load, mixture_killed_and_resumed
from tests.support.packs_loading import packed_rows
from tests.support.packs_reference import rows_of_batches

SMALL = {"batch_size": 12, "image_size": 32}


def splits_of(url, *, weights=(3, 1), **settings):
    """Both splits of a dataset, under names that are the same in every format and place."""
    source = partial(MixtureSource, url=str(url), **settings)
    return mixture(
        [source(weight=weights[0], name="t", split="train"), source(weight=weights[1], name="v", split="val")]
    )


def with_coco(dataset, weights=(2, 1), **settings):
    return mixture([(dataset("webdataset"), weights[0]), (dataset("coco"), weights[1])], **settings)


def keys_of(batches):
    return [sorted(batch.keys) for batch in batches]


@pytest.fixture(scope="module")
def expected(dataset):
    """Twelve batches by one thread."""
    return load(splits_of(dataset("webdataset")), 12, **SMALL, threads=1, fields=("height",))


@pytest.mark.parametrize(
    "settings",
    [{"fmt": "tfrecord"}, {"threads": 3}, {"processes": 2}, {"place": "bucket"}, {"place": "bucket", "processes": 2}],
    ids=str,
)
def test_batches_are_the_same_from_every_format_and_place_and_any_workers(
    expected, dataset, bucket_dataset, tmp_path, settings
):
    fmt, place = settings.pop("fmt", "webdataset"), settings.pop("place", "disk")
    url = dataset(fmt) if place == "disk" else bucket_dataset(fmt)
    cache = {"cache_dir": tmp_path} if place == "bucket" else {}
    assert load(splits_of(url), 12, **SMALL, fields=("height",), **settings, **cache) == expected


@pytest.mark.parametrize("world_size", [1, 4])
def test_positions_of_rows_are_those_of_one_rank(dataset, world_size):
    mix = with_coco(dataset, (1, 2))
    with open_loader(mix, **SMALL) as loader:
        batch = next(itertools.islice(loader, 4, None))
        expected = dict(zip(loader.positions(4), batch.keys, strict=True))
    assert sorted(expected) == list(range(48, 60))
    found = {}
    for rank in range(world_size):
        with open_loader(mix, **SMALL, rank=rank, world_size=world_size) as loader:
            batch = next(itertools.islice(loader, 4, None))
            found |= zip(loader.positions(4), batch.keys, strict=True)
    assert found == expected


def test_a_mixture_of_one_dataset_has_the_datasets_own_batches(dataset):
    url = dataset("webdataset")
    with open_loader(mixture([(url, 1)]), **SMALL) as mixed, open_loader(url, **SMALL) as alone:
        assert len(mixed) == len(alone)
        for ours, theirs in itertools.islice(zip(mixed, alone, strict=True), 6):
            assert ours.fields.pop("dataset") == ["imagenet-webdataset"] * 12
            assert digest(ours) == digest(theirs)
        assert list(mixed.positions(2)) == list(alone.positions(2))


def test_rows_say_which_dataset_they_are_from_in_the_given_proportions(dataset):
    with open_loader(with_coco(dataset, (3, 1)), **SMALL, fields=("dataset",)) as loader:
        batches = list(itertools.islice(loader, 20))
        own = {part.name: set() for part in loader.dataset.parts}
        for part, index in zip(loader.dataset.parts, loader.index.parts, strict=True):
            for shard in range(len(part.dataset.split.shards)):
                entries = index.shard(shard)
                own[part.name] |= {entries.key(entry) for entry in range(len(entries))}
    counts = Counter(name for batch in batches for name in batch.fields["dataset"])
    assert abs(counts["imagenet-webdataset"] - 180) <= 1
    assert counts.total() == 240
    for batch in batches:
        for key, name, label in zip(batch.keys, batch.fields["dataset"], batch.labels, strict=True):
            assert key in own[name]
            assert (label == -1) == (name == "coco-webdataset")


def test_a_state_resumes_with_other_ranks_and_other_weights(dataset):
    with open_loader(with_coco(dataset, (2, 1)), **SMALL) as loader:
        states = [json.loads(json.dumps(batch.state)) for batch in itertools.islice(loader, 6)]
        after = keys_of(itertools.islice(loader, 2))
    assert max(len(json.dumps(state)) for state in states) < 1024
    (epoch,) = {state["sequence"]["epoch_samples"] for state in states}
    assert (states[0]["mixture"], states[0]["counts"]) == ([[0, epoch, 2, 1]], [0, 0])
    parts = []
    for rank in range(3):
        with open_loader(with_coco(dataset, (4, 2)), **SMALL, rank=rank, world_size=3) as loader:
            loader.load_state_dict(states[5])
            parts.append([batch.keys for batch in itertools.islice(loader, 2)])
    assert [sorted(itertools.chain(*keys)) for keys in zip(*parts, strict=True)] == after
    with open_loader(with_coco(dataset, (1, 5)), **SMALL) as loader:
        loader.load_state_dict(states[5])
        state = loader.state_dict()
        assert (state["mixture"][1:], state["counts"]) == ([[72, epoch, 1, 5]], [48, 24])
        batch = next(iter(loader))
        assert Counter(batch.fields["dataset"])["coco-webdataset"] >= 8
        assert batch.state["mixture"] == state["mixture"]
        loader.load_state_dict(states[2])  # before the change: it moves to where this state is
        assert [start for start, *_ in loader.state_dict()["mixture"]] == [0, 36]
        loader.load_state_dict(batch.state)
        assert loader.state_dict()["mixture"] == state["mixture"]
        loader.set_epoch(0)
        with open_loader(with_coco(dataset, (2, 1)), **SMALL) as first:
            assert next(iter(loader)).keys == next(iter(first)).keys


def test_a_run_killed_and_resumed_with_other_ranks_and_weights_has_every_sample_once(dataset, tmp_path):
    """A sample of the soak: several ranks, killed, then one."""
    mixes = []
    for number, weights in enumerate([(3, 1), (1, 1)]):
        datasets = [
            {"url": str(dataset("webdataset")), "weight": weights[0]},
            {"url": str(dataset("coco")), "weight": weights[1]},
        ]
        mixes.append(tmp_path / f"{number}.json")
        mixes[-1].write_text(json.dumps({"version": 1, "datasets": datasets, "epoch_samples": 100}))
    mixture_killed_and_resumed(mixes, tmp_path, random.Random(0), (3, 1))


@pytest.mark.parametrize("processes", [0, 2])
def test_dropped_datasets_are_delivered_once_and_the_last_batch_is_padded(dataset, processes):
    with open_loader(splits_of(dataset("webdataset"), at_end="drop"), **SMALL, processes=processes) as loader:
        samples = loader.order.num_samples
        batches = [batch for _ in range(3) for batch in loader]
        assert len(loader) == 0
        assert list(loader) == []
    assert len(batches) == -(-samples // 12)
    keys = [key for batch in batches for key, real in zip(batch.keys, batch.mask, strict=True) if real]
    assert len(keys) == len(set(keys)) == samples
    assert (batches[-1].labels[~batches[-1].mask] == -1).all()
    assert len(loader.positions(len(batches) - 1)) == 12


def test_a_mixture_stops_when_a_dataset_has_ended(dataset):
    mix = splits_of(dataset("webdataset"), weights=(1, 1), at_end="stop")
    with open_loader(mix, **SMALL) as loader:
        first = min(part.dataset.split.samples for part in loader.dataset.parts)
        names = [name for _ in range(3) for batch in loader for name in batch.fields["dataset"]]
    counts = Counter(names)
    assert min(counts["t"], counts["v"]) == first
    assert abs(counts["t"] - counts["v"]) <= 2


def test_an_evaluation_has_every_sample_of_every_dataset_once(dataset):
    mix = mixture([(dataset("webdataset"), 5), (dataset("tfrecord"), 1, "train")])
    with open_loader(mix, "val", **SMALL) as loader:
        batches = list(loader)
        assert len(batches) == len(loader)
        samples = [part.dataset.split.samples for part in loader.dataset.parts]
        state = batches[0].state
        loader.load_state_dict(state)
        assert [batch.keys for batch in loader] == [batch.keys for batch in batches[1:]]
    rows = [name for batch in batches for name, real in zip(batch.fields["dataset"], batch.mask, strict=True) if real]
    assert rows == ["imagenet-webdataset"] * samples[0] + ["imagenet-tfrecord"] * samples[1]
    assert "mixture" not in state


def test_a_file_describes_the_same_mixture_as_a_list(dataset, tmp_path):
    url = dataset("webdataset")
    datasets = [
        {"url": str(url), "weight": 3, "name": "t", "split": "train"},
        {"url": str(url), "weight": 1, "name": "v", "split": "val"},
    ]
    (tmp_path / "mix.json").write_text(json.dumps({"version": 1, "datasets": datasets}))
    with open_loader(mixture(tmp_path / "mix.json"), **SMALL) as read, open_loader(splits_of(url), **SMALL) as listed:
        assert read.dataset.url == str(tmp_path / "mix.json")
        assert read.state_dict() == listed.state_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed is 0 in the state, 1 here"),
        ({"at_end": "drop"}, 'datasets.t.at_end is "repeat" in the state, "drop" here'),
        ({"fmt": "tfrecord"}, r"or is another build: t: \d+ images then \(plan \w+, revision 1\), "),
    ],
    ids=str,
)
def test_a_state_of_another_mixture_is_refused(dataset, change, message):
    with open_loader(splits_of(dataset("webdataset")), **SMALL) as loader:
        state = loader.state_dict()
    mix = splits_of(dataset(change.pop("fmt", "webdataset")), at_end=change.pop("at_end", "repeat"))
    with open_loader(mix, **SMALL, **change) as other, pytest.raises(UsageError, match=message):
        other.load_state_dict(state)


def test_a_state_belongs_to_the_labels_of_its_mixture(dataset):
    sources = splits_of(dataset("webdataset")).spec.sources
    with open_loader(mixture(sources), **SMALL) as loader:
        state = loader.state_dict()
    with open_loader(mixture(sources, labels="own"), **SMALL) as other:
        with pytest.raises(UsageError, match='labels is "joined" in the state, "own" here'):
            other.load_state_dict(state)


def test_an_epoch_ends_as_it_began_and_the_next_is_of_the_new_datasets(dataset):
    first, second = splits_of(dataset("webdataset")).spec.sources
    with open_loader(mixture([first], epoch_samples=30), **SMALL) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with open_loader(mixture([second, first], epoch_samples=100), **SMALL | {"batch_size": 8}) as other:
        other.load_state_dict(state)
        order = other.order
        assert [order.first_position(epoch) for epoch in range(4)] == [0, 30, 130, 230]
        again = json.loads(json.dumps(other.state_dict()))
        assert [epoch_samples for _, epoch_samples, *_ in again["mixture"]] == [30, 100]
        other.set_epoch(1)
        other.load_state_dict(again)
        assert other.state_dict() == again
        other.set_epoch(0)  # which was of the first dataset alone, and begins again
        assert other.state_dict()["mixture"] == [[0, 100, 1, 3]]


@pytest.mark.parametrize(
    "changes",
    [
        None,
        [],
        [{"start": 0}],
        [{"start": 5, "weights": [1, 1], "counts": [0, 0]}],
        [{"start": 0, "weights": [1], "counts": [0, 0]}],
        [{"start": 0, "weights": [1, 1], "counts": [0, 0]}, {"start": 12, "weights": [1, 3], "counts": [12, 0]}],
        [{"start": 0, "weights": [1, 1], "counts": [0, 2**64]}],
        [{"start": 0, "weights": [0, 0], "counts": [0, 0]}],
        [{"start": 0, "weights": [1, 1], "counts": [7, 0]}],
        [{"start": 0, "weights": [1, 1], "counts": [0, -1]}],
        [{"start": 0, "weights": [1, 1], "counts": [0, 0]}] * 2,
        [{"start": n, "weights": [1, 1], "counts": [0, 0]} for n in range(MAX_CHANGES + 1)],
        [[0, 20]],
        [[0, 0, 1, 1]],
        [[0, 20, 1, 1, 1]],
        [[5, 20, 1, 1]],
        [[0, 20, 1, 1], [12, 20, 1, 3]],
        [[0, 20, 1, 2**64]],
        [[0, 20, 0, 0]],
        [[0, 20, 1, 1]] * 2,
        [[n, 20, 1, 1] for n in range(MAX_CHANGES + 1)],
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_a_damaged_state_is_refused(dataset, changes):
    with open_loader(splits_of(dataset("webdataset")), **SMALL) as loader:
        state = {**loader.state_dict(), "mixture": changes, "position": 24}
        with pytest.raises(UsageError, match=r"the state.*mixture.*; use a state that a loader returned"):
            loader.load_state_dict(state)


@pytest.mark.parametrize("counts", [None, [], [0], [1, 0], [0, -1], [0, 0, 0], "00"])
def test_counts_that_do_not_follow_from_the_weights_are_refused(dataset, counts):
    with open_loader(splits_of(dataset("webdataset")), **SMALL) as loader:
        with pytest.raises(UsageError, match=r"^the state.*; use a state that a loader returned"):
            loader.load_state_dict({**loader.state_dict(), "counts": counts})


@pytest.mark.parametrize(
    "change",
    [{"revision": -1}, {"samples": 0}, {"plan": 7}, {"at_end": "never"}, {"earlier": [[1, 2]]}, {"name": None}],
    ids=str,
)
def test_a_damaged_dataset_of_a_state_is_refused(dataset, change):
    with open_loader(splits_of(dataset("webdataset")), **SMALL) as loader:
        state = loader.state_dict()
        first, *others = state["sequence"]["datasets"]
        with pytest.raises(UsageError, match=r"^the state's datasets: .*; use a state that a loader returned"):
            loader.load_state_dict({**state, "sequence": {**state["sequence"], "datasets": [first | change, *others]}})


def test_a_state_of_0_1_0_is_continued(dataset):
    """Such a state has whole hashes, everything of a dataset by name, and the counts of each change."""
    with open_loader(splits_of(dataset("webdataset")), **SMALL) as loader:
        datasets = {name: dict(each) for name, each in loader._sequence["datasets"].items()}
        for part in loader.dataset.parts:
            datasets[part.name]["dataset"] = {**datasets[part.name]["dataset"], "plan": part.dataset.plan}
        batches = list(itertools.islice(loader, 4))
        old = {**batches[2].state, "sequence": {**batches[2].state["sequence"], "datasets": datasets}}
        del old["counts"]
        weights = old["mixture"][0][2:]
        loader.load_state_dict({**old, "mixture": [{"start": 0, "weights": weights, "counts": [0, 0]}]})
        assert next(iter(loader)).keys == batches[3].keys


def test_datasets_with_the_same_images_are_refused(dataset):
    url = dataset("webdataset")
    with pytest.raises(UsageError, match="mixture: imagenet-webdataset and again have the same images"):
        open_loader(mixture([(url, 1), MixtureSource(url=str(url), split="train", name="again")]), **SMALL)


def test_memory_that_is_too_small_for_all_datasets_is_refused_with_their_shares(bucket_dataset):
    settings = {**SMALL, "num_streams": 1, "window": 1, "prefetch_bytes": 1000, "block_bytes": 10**6}
    with pytest.raises(UsageError, match=r"prefetch_bytes 1,000 must be [\d,]+ or more .*\(t [\d,]+\)"):
        open_loader(splits_of(bucket_dataset("webdataset")), **settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7,), "a mixture must be the URL of a file or a list of datasets, got 7"),
        (([],), "mixture: 0 datasets, expected 1 to 256"),
        (("nowhere.json",), "nowhere.json: not found; expected the file of a mixture"),
    ],
    ids=str,
)
def test_what_is_no_mixture_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        mixture(*arguments)


def test_splits_that_all_datasets_have(dataset):
    assert with_coco(dataset).split_names() == ("train",)
    assert mixture([(dataset("webdataset"), 1), (dataset("tfrecord"), 1)]).split_names() == ("train", "val")
    assert splits_of(dataset("webdataset")).split_names() == ("train",)
    with pytest.raises(UsageError, match=r"no dataset there"):
        mixture([("nowhere", 1)]).split_names()


PACKS = Packs(tokens=48, images=4, patch=8)


def packed(mix, count, **settings):
    """The rows of the first batches of packs, with the dataset that each image is from."""
    found = []
    with open_packs(mix, batch_size=12, packs=PACKS, **settings) as loader:
        while len(found) < count:
            for batch in itertools.islice(loader, count - len(found)):
                names = batch.fields["dataset"]
                rows = packed_rows(batch)
                found.append([(row, names[4 * place : 4 * place + 4]) for place, row in enumerate(rows)])
    return found


@pytest.fixture(scope="module")
def expected_packs(dataset):
    """Ten batches of three rows, by one thread."""
    return packed(with_coco(dataset), 10, threads=1)


def test_packs_have_the_rows_of_the_slow_reference(dataset, expected_packs):
    with open_packs(with_coco(dataset), batch_size=12, packs=PACKS, threads=1) as loader:
        shards = [loader.index.shard(shard) for shard in range(len(loader.dataset.split.shards))]
        sizes = [list(zip(each.height.tolist(), each.width.tolist(), strict=True)) for each in shards]
        batches = rows_of_batches(PACKS, loader.order, sizes, 0)
        for rows, found in zip(batches, expected_packs, strict=False):
            keys = [[(shards[shard].key(sample), grid) for shard, sample, grid in row] for row in rows]
            assert [[(key, grid) for key, grid, *_ in row[:-1]] for row, _ in found] == keys
            origins = [[loader.dataset.origin_of(shard).name for shard, *_ in row] for row in rows]
            assert [names for _, names in found] == origins


@pytest.mark.parametrize(
    ("world_size", "settings"), [(1, {"processes": 3}), (3, {}), (1, {"place": "bucket"})], ids=str
)
def test_packs_are_the_same_for_any_ranks_processes_and_places(
    dataset, bucket_dataset, expected_packs, world_size, settings
):
    place = bucket_dataset if settings.pop("place", "disk") == "bucket" else dataset
    first = MixtureSource(url=str(place("webdataset")), weight=2, name="imagenet-webdataset")
    mix = mixture([first, (dataset("coco"), 1)])
    ranks = [packed(mix, 10, rank=rank, world_size=world_size, **settings) for rank in range(world_size)]
    assert [[row for rows in zip(*parts, strict=True) for row in rows] for parts in zip(*ranks, strict=True)] == (
        expected_packs
    )


def test_packs_resume_on_another_number_of_ranks_and_with_other_weights(dataset, expected_packs):
    with open_packs(with_coco(dataset), batch_size=12, packs=PACKS) as loader:
        state = json.loads(json.dumps([batch.state for batch in itertools.islice(loader, 4)][-1]))
    with open_packs(with_coco(dataset), batch_size=12, packs=PACKS, rank=2, world_size=3) as loader:
        loader.load_state_dict(state)
        assert packed_rows(next(iter(loader))) == [expected_packs[4][2][0]]
    with open_packs(with_coco(dataset, (0, 1)), batch_size=12, packs=PACKS) as loader:
        loader.load_state_dict(state)
        assert set(next(iter(loader)).fields["dataset"]) == {"coco-webdataset"}


def test_pieces_are_read_by_one_rank_and_few_samples_are_read_elsewhere():
    order = mixed([600, 900, 300], (3, 2, 1), batch=96)
    readers, alone, count = {}, 0, 0
    for rank in range(6):
        plan = MixedPlan(order=order, shuffle=True, rank=rank, world_size=6, first_batch=0)
        for batch in itertools.islice(plan, 18):  # less than a pass of each dataset
            for _, pick in batch:
                count += 1
                if pick.of_piece == 1 and pick.piece.stop - pick.piece.first == 1:
                    alone += 1
                else:
                    readers.setdefault(pick.piece, set()).add(rank)
    assert all(len(ranks) == 1 for ranks in readers.values())
    assert alone < 0.1 * count


def test_a_mixture_that_ends_has_a_last_batch_with_some_rows():
    order = mixed([10, 15], (1, 1), "drop")
    plans = [MixedPlan(order=order, shuffle=True, rank=rank, world_size=2, first_batch=0) for rank in range(2)]
    assert [plan.batches_left for plan in plans] == [3, 3]
    lengths = [[len(batch) for batch in plan] for plan in plans]
    assert [sum(batch) for batch in zip(*lengths, strict=True)] == [12, 12, 1]
    after = MixedPlan(order=order, shuffle=True, rank=0, world_size=2, first_batch=9)
    assert (after.batches_left, list(after)) == (0, [])
