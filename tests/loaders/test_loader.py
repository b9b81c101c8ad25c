"""Batches: the same wherever and however they are made, resumable after each, and an error instead of a hang."""

import copy
import gc
import itertools
import json
import multiprocessing
import os
import random
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dataprep.errors import StorageError, UsageError
from dataprep.storage import gcs_client
from dataprep.storage.gcs_client import Deadlines
from loaders import MixtureSource, Packs, Views, mixture, open_loader, open_packs, open_views
from loaders.loader import other_builds
from tests.support.adoption import upload
from tests.support.gcs_emulator import GCSEmulator
from tests.support.loading import digest, killed_and_resumed, load
from tests.support.markdown import blocks

SMALL = {"batch_size": 12, "image_size": 64}
HOURS_S = 36_000.0
"""A limit that the suite's own, of a test that hangs, comes long before."""


@pytest.fixture(scope="module")
def reference(dataset):
    """Twenty batches, over more than one pass, by one thread."""
    return load(dataset("webdataset"), 20, **SMALL, threads=1)


@pytest.mark.parametrize(
    ("fmt", "place"),
    [("webdataset", "bucket"), ("tfrecord", "disk"), ("imagefolder", "disk"), ("imagefolder", "bucket")],
)
def test_batches_are_the_same_from_every_format_and_place(reference, dataset, bucket_dataset, fmt, place):
    url = dataset(fmt) if place == "disk" else bucket_dataset(fmt)
    assert load(url, 20, **SMALL, threads=2) == reference


@pytest.mark.parametrize(("processes", "threads"), [(0, 4), (2, 2)])
def test_batches_are_the_same_for_any_number_of_workers(reference, dataset, processes, threads):
    assert load(dataset("webdataset"), 20, **SMALL, processes=processes, threads=threads) == reference


def test_ranks_together_load_the_batches_of_a_single_rank(reference, dataset):
    url = dataset("tfrecord")
    ranks = [[keys for keys, _ in load(url, 20, **SMALL, rank=rank, world_size=4)] for rank in range(4)]
    for batch, (expected, _) in enumerate(reference):
        rows = zip(*(keys[batch] for keys in ranks), strict=True)
        assert [key for row in rows for key in row] == expected


def test_images_and_labels_belong_to_their_keys(dataset):
    with open_loader(str(dataset("imagefolder")), **SMALL) as loader:
        assert len(loader) == loader.order.num_samples // 12
        batch = next(iter(loader))
        assert batch.images.shape == (12, 64, 64, 3)
        assert batch.images.dtype == np.uint8
        assert batch.mask.all()
        classes = loader.dataset.manifest.classes
        assert [key.partition("/")[0] for key in batch.keys] == [classes[label] for label in batch.labels]
        assert batch.images.std(axis=(1, 2, 3)).min() > 1  # pictures, not blanks


def test_epochs_follow_each_other_and_can_be_set(dataset):
    with open_loader(str(dataset("webdataset")), **SMALL) as loader:
        epochs = [[batch.keys for batch in loader] for _ in range(3)]
        assert [len(epoch) for epoch in epochs] == [loader.order.steps(epoch) for epoch in range(3)]
        assert loader.epoch == 3
        loader.set_epoch(1)
        assert [batch.keys for batch in loader] == epochs[1]
        assert epochs[0] != epochs[1]


def test_coco_makes_five_passes_an_epoch(dataset):
    with open_loader(str(dataset("coco")), **SMALL) as loader:
        assert len(loader) == 5 * loader.order.num_samples // 12
        keys = [key for batch in loader for key in batch.keys]
    counts = {key: keys.count(key) for key in set(keys)}
    assert len(counts) == loader.order.num_samples
    assert max(counts.values()) == 5
    assert sum(5 - count for count in counts.values()) < 12  # the rest of the last batch


@pytest.mark.parametrize("processes", [0, 1])
def test_an_evaluation_sees_every_sample_once(dataset, processes):
    seen = []
    for rank in range(2):
        with open_loader(
            str(dataset("webdataset")),
            "val",
            batch_size=16,
            image_size=64,
            rank=rank,
            world_size=2,
            processes=processes,
        ) as loader:
            for _ in range(2):  # it starts again each time
                batches = [(batch.keys, batch.labels, batch.mask, batch.images) for batch in loader]
            assert len(batches) == len(loader) == -(-loader.order.num_samples // 16)
        for keys, labels, mask, images in batches:
            assert (labels[~mask] == -1).all()
            assert not images[~mask].any()
            seen += [key for key, real in zip(keys, mask, strict=True) if real]
    assert len(seen) == len(set(seen)) == loader.order.num_samples


@pytest.mark.parametrize(
    ("place", "settings"),
    [
        ("bucket", {}),
        ("disk", {}),
        ("disk", {"processes": 1}),
        ("disk", {"world_size": 2}),
        ("disk", {"world_size": 2, "rank": 1}),
    ],
)
def test_the_state_of_an_evaluation_resumes_after_its_batch(dataset, bucket_dataset, place, settings):
    def seen(loader):
        return [(batch.keys, batch.mask.tolist(), digest(batch)) for batch in loader]

    url = str(dataset("webdataset") if place == "disk" else bucket_dataset("webdataset"))
    evaluation = {"batch_size": 2, "image_size": 32, **settings}
    with open_loader(url, "val", **evaluation) as loader:
        whole = seen(loader)
        assert loader.state_dict()["position"] == 0  # of the next evaluation
    with open_loader(url, "val", **{**evaluation, "world_size": 1, "rank": 0, "processes": 0}) as other:
        states = [json.loads(json.dumps(batch.state)) for batch in other]
    assert len(states) == len(whole) > 2
    with open_loader(url, "val", **evaluation) as loader:
        for done in (1, len(states) // 2, len(states)):
            loader.load_state_dict(states[done - 1])
            assert loader.state_dict() == states[done - 1]
            assert seen(loader) == whole[done:]
        assert seen(loader) == whole  # the next evaluation begins anew


def test_the_state_of_an_evaluation_is_for_one_iteration(dataset):
    with open_loader(str(dataset("webdataset")), "val", batch_size=2, image_size=32) as loader:
        whole = [batch.keys for batch in loader]
        state = next(iter(loader)).state
        loader.load_state_dict(state)
        assert next(iter(loader)).keys == whole[1]
        assert next(iter(loader)).keys == whole[0]  # left early: it starts again
        batches = iter(loader)
        next(batches)
        next(batches)
        loader.load_state_dict(state)
        assert [batch.keys for batch in batches] == whole[1:]
        assert next(iter(loader)).keys == whole[0]


def test_a_state_resumes_after_its_batch_with_another_number_of_ranks(reference, dataset):
    with open_loader(str(dataset("webdataset")), **SMALL) as loader:
        states = [batch.state for batch in itertools.islice(itertools.chain(loader, loader, loader), 19)]
    assert max(len(json.dumps(state)) for state in states) < 4096
    for step in (0, 7, 18):
        state = json.loads(json.dumps(states[step]))
        for rank in range(3):
            with open_loader(str(dataset("webdataset")), **SMALL, rank=rank, world_size=3) as loader:
                loader.load_state_dict(state)
                keys = next(iter(loader)).keys
            assert keys == reference[step + 1][0][rank::3]


@pytest.mark.parametrize("door", ["squares", "mixture", "processes"])
def test_growing_batches_have_the_same_samples_and_resume_anywhere(dataset, door):
    """The sizes hold from the first batch on that begins at their position or later, for any number of ranks."""
    url, sizes = str(dataset("webdataset")), [6] * 4 + [12] * 5 + [24] * 3
    source = mixture([(url, 2), (str(dataset("coco")), 1)]) if door == "mixture" else url
    settings = {"image_size": 16, "threads": 1, "processes": int(door == "processes")}

    def taken(count, state=None, **ranks):
        with open_loader(source, batch_size=24, **settings, **ranks) as loader:
            loader.ramp_batches(((0, 6), (20, 12), (75, 24)))
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            epochs = itertools.chain.from_iterable(itertools.repeat(loader))
            found = list(itertools.islice(epochs, count))
            last = loader.order.batch_at(found[-1].state["position"]) - 1
            assert len(loader.positions(last)) == len(found[-1].keys)
            return found

    whole = taken(len(sizes))
    assert [len(batch.keys) for batch in whole] == sizes
    with open_loader(source, batch_size=6, **settings) as loader:
        epochs = itertools.chain.from_iterable(itertools.repeat(loader))
        plain = [key for batch in itertools.islice(epochs, sum(sizes) // 6) for key in batch.keys]
    assert [key for batch in whole for key in batch.keys] == plain
    for step in (3,) if settings["processes"] else (1, 3, 6, 8, 10):
        ranks = [taken(1, whole[step].state, rank=rank, world_size=3)[0] for rank in range(3)]
        assert sorted(key for batch in ranks for key in batch.keys) == sorted(whole[step + 1].keys)
        assert ranks[0].state == whole[step + 1].state


def test_the_documented_lines_save_and_load_a_state(reference, dataset, tmp_path, monkeypatch):
    (lines,) = (block.text for block in blocks("docs/loaders.md") if "state.json" in block.text)
    monkeypatch.chdir(tmp_path)
    with open_loader(str(dataset("webdataset")), **SMALL) as first, open_loader(first.dataset.url, **SMALL) as loader:
        batch = next(iter(first))
        exec(lines, {"batch": batch, "loader": loader})  # noqa: S102  the document's own lines
        assert next(iter(loader)).keys == reference[1][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed is 0 in the state, 1 here"),
        ({"num_streams": 6}, "num_streams is 192 in the state, 6 here"),
    ],
)
def test_a_state_of_another_sequence_is_refused(dataset, change, message):
    with open_loader(str(dataset("webdataset")), **SMALL) as loader:
        state = next(iter(loader)).state
    with open_loader(str(dataset("webdataset")), **{**SMALL, **change}) as other:
        with pytest.raises(UsageError, match=message):
            other.load_state_dict(state)


@pytest.mark.parametrize(
    "change", [{"image_size": 32}, {"interpolation": "bilinear"}, {"views": True, "scale": (0.5, 1.0)}], ids=str
)
def test_a_state_goes_on_with_other_pixels_of_the_same_images(reference, dataset, capsys, change):
    with open_loader(str(dataset("webdataset")), **SMALL) as loader:
        state = next(iter(loader)).state
    with open_loader(str(dataset("webdataset")), **{**SMALL, **change}) as other:
        other.load_state_dict(state)
        assert ": continues with other images: " in capsys.readouterr().err
        assert next(iter(other)).keys == reference[1][0]


def test_another_decoder_is_named_unless_its_pixels_are_the_same(dataset, capsys):
    with open_loader(str(dataset("webdataset")), **SMALL) as loader:
        state = next(iter(loader)).state
        for pixels, other in ((state["sequence"]["pixels"], ""), ("00000000", "turbo 9")):
            theirs = {**state, "sequence": {**state["sequence"], "decoder": "turbo 9", "pixels": pixels}}
            assert loader.other_decoder(theirs) == other
            loader.load_state_dict(theirs)
            assert ('decoder is "turbo 9" in the state' in capsys.readouterr().err) == bool(other)
        del state["sequence"]["pixels"]  # as older states have it
        assert loader.other_decoder(state) == ""
        state["sequence"]["decoder"] = "another"
        assert loader.other_decoder(state) == "another"


def test_an_evaluation_goes_on_only_after_whole_batches(dataset):
    with open_loader(str(dataset("webdataset")), "val", **SMALL) as loader:
        state = next(iter(loader)).state
    with open_loader(str(dataset("webdataset")), "val", **SMALL | {"batch_size": 5}) as other:
        with pytest.raises(UsageError, match=r"12 images are not a multiple of 5; use its batch_size of 12, or begin"):
            other.load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": -12}, r"the state: \$.position: expected int >= 0, got -12; use a state that a loader returned"),
        ({"position": 7}, "the state's position must be 0 and a multiple of the batch of 12, got 7; use a state that"),
        ({"position": None}, r"the state: \$.position: expected int, got null"),
        ({"position": 2**63}, r"the state: \$.position: expected int <= 9007199254740991"),
        ({"batches": [3, 48]}, "the state's position must be 48 and a multiple of the batch of 12, got"),
        ({"sequence": {}}, "the state's batch_size must be a number of images, got None"),
        ({"sequence": None}, "a state must be what state_dict\\(\\) returned, got {.*'sequence': None}"),
    ],
    ids=str,
)
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_damaged_state_is_refused_and_changes_nothing(dataset, split, change, message):
    with open_loader(str(dataset("webdataset")), split, **SMALL) as loader:
        next(iter(loader))
        before = loader.state_dict()
        with pytest.raises(UsageError, match=message):
            loader.load_state_dict({**before, **change})
        assert loader.state_dict() == before


def test_what_is_no_state_is_refused(dataset):
    with open_loader(str(dataset("webdataset")), **SMALL) as loader:
        for state in (None, [], "state.json"):
            with pytest.raises(UsageError, match=r"a state must be what state_dict\(\) returned, got"):
                loader.load_state_dict(state)


@pytest.mark.parametrize("epoch", [-1, 1.0, "1", None])
def test_an_epoch_that_cannot_be_is_refused(dataset, epoch):
    with open_loader(str(dataset("webdataset")), **SMALL) as loader:
        with pytest.raises(UsageError, match=f"epoch must be a whole number, 0 or more, got {epoch!r}"):
            loader.set_epoch(epoch)
        assert loader.epoch == 0


def test_a_run_killed_and_resumed_on_fewer_ranks_loads_every_sample_once(dataset, tmp_path):
    """A sample of the soak: three epochs on four ranks, killed, then two, killed, then one."""
    killed_and_resumed(dataset("webdataset"), tmp_path, random.Random(0))


def test_fields_and_a_transform_are_the_same_for_any_workers(dataset):
    settings = {**SMALL, "fields": ("class_name", "height"), "transform": noisy}
    plain = load(dataset("webdataset"), 6, **SMALL)
    one = load(dataset("webdataset"), 6, **settings, threads=1)
    assert [keys for keys, _ in one] == [keys for keys, _ in plain]
    assert one != plain
    assert load(dataset("webdataset"), 6, **settings, threads=4) == one
    assert load(dataset("webdataset"), 6, **settings, processes=1) == one
    with open_loader(str(dataset("webdataset")), **settings) as loader:
        batch = next(iter(loader))
        assert batch.fields["class_name"] == [key.partition("/")[0] for key in batch.keys]


def noisy(image_HWC, rng):
    return (image_HWC // 2 + rng.integers(0, 100, image_HWC.shape)).astype(np.uint8)


@pytest.mark.parametrize(("processes", "on_error"), [(0, "skip"), pytest.param(2, "raise", marks=pytest.mark.long)])
def test_a_lost_bucket_is_an_error_within_the_deadline(dataset, monkeypatch, processes, on_error):
    """Also where images that cannot be read are skipped: all of them would be, as long as the bucket is lost."""
    monkeypatch.setattr("dataprep.storage.gcs_client.Deadlines", partial(Deadlines, refused_s=HOURS_S))
    monkeypatch.setattr(gcs_client, "RETRY_DEADLINE_S", HOURS_S)
    with GCSEmulator() as emulator:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.url)
        emulator.create_bucket("gone")
        url = upload(dataset("webdataset"), "gs://gone/imagenet")
        settings = {"processes": processes, "prefetch_batches": 1, "stall_s": HOURS_S, "on_error": on_error}
        with open_loader(url, **SMALL, **settings) as loader:
            batches = iter(loader)
            next(batches)
            emulator.stop()
            with pytest.raises(StorageError, match=r"gs://gone/imagenet/train/imagenet-train-0000[0-2]"):
                list(batches)
            assert loader.stats()["skipped"] == {}


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("door", ["squares", "views", "packs", "mixture"])
def test_a_loader_that_is_not_closed_ends_with_its_last_reference(dataset, door, processes):
    """As in a cell of a notebook that is run again, or where an iterator is left early."""
    if processes and door != "squares":
        return
    url, before = dataset("webdataset"), set(threading.enumerate())
    settings = {"batch_size": 12, "processes": processes, "threads": 2}
    if door == "views":
        loader = open_views(url, **settings, views=Views(count=2, size=16))
    elif door == "packs":
        loader = open_packs(url, **settings, packs=Packs(patch=16, tokens=64, images=4))
    else:
        loader = open_loader(mixture([(url, 1)]) if door == "mixture" else url, **settings, image_size=16)
    held = [iter(loader)]
    next(held[0])
    del loader
    assert not set(threading.enumerate()) <= before or processes
    others = set(multiprocessing.active_children())
    assert len(others) >= processes
    with pytest.warns(ResourceWarning, match="a loader was not closed; open it in a `with` block"):
        held.clear()
    assert set(threading.enumerate()) <= before
    assert len(others - set(multiprocessing.active_children())) >= processes


def test_an_evaluation_that_has_ended_holds_nothing(dataset):
    before = threading.active_count()
    loader = open_loader(dataset("webdataset"), "val", batch_size=12, image_size=16)
    counts = [sum(int(batch.mask.sum()) for batch in loader) for _ in range(2)]
    assert counts[0] == counts[1] > 0
    assert threading.active_count() == before


def test_closing_leaves_no_memory_descriptor_thread_or_process(dataset):
    def held():
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        return maps.count("memfd:dataprep"), len(os.listdir("/proc/self/fd")), threading.active_count()

    others = set(multiprocessing.active_children())  # pools of tests before this one
    for processes in (0, 1):
        with open_loader(str(dataset("webdataset")), **SMALL, processes=processes) as loader:
            next(iter(loader))
        before = held()
        for _ in range(2):
            with open_loader(str(dataset("webdataset")), **SMALL, processes=processes) as loader:
                next(iter(loader))
        after = held()
        assert all(last <= first for last, first in zip(after, before, strict=True)), (before, after)
        assert before[0] == 0
        assert set(multiprocessing.active_children()) <= others


def test_a_batch_larger_than_the_split_is_a_warning_with_both_numbers(dataset):
    url = str(dataset("webdataset"))
    words = r"a batch of 1,000 is larger than the split train, which has \d+ images"
    with pytest.warns(UserWarning, match=words) as found:
        open_loader(url, batch_size=1000, image_size=32).close()
    assert len(found) == 1
    assert found[0].filename == __file__
    with open_loader(url, batch_size=1000, image_size=32, shuffle=False) as evaluation:  # a batch that is filled up
        images = evaluation.order.num_samples
    open_loader(url, batch_size=images, image_size=32).close()
    open_loader(url, batch_size=1000, image_size=32, rank=1, world_size=2).close()  # the first rank says it


def test_fields_of_rows_that_fill_up_an_evaluation_are_none(dataset):
    with open_loader(str(dataset("webdataset")), "val", batch_size=64, image_size=32, fields=("class_name",)) as loader:
        (batch,) = loader
    assert 0 < batch.mask.sum() < 64
    assert [name is None for name in batch.fields["class_name"]] == [not is_sample for is_sample in batch.mask]


OURS = {"dataset": {"name": "pets", "plan": "0123456789abcdef", "revision": 1}, "samples": 7100, "seed": 0}


def other(**changes):
    found = copy.deepcopy(OURS)
    found["dataset"] |= changes
    return found


def test_another_plan_is_another_build_and_a_later_revision_is_not():
    before = {**other(plan="fedcba9876543210"), "samples": 5900}
    assert other_builds(OURS, before) == [
        "5,900 images then (plan fedcba987654, revision 1), 7,100 images now (plan 0123456789ab, revision 1)"
    ]
    assert other_builds(OURS, other(revision=2)) == []
    assert other_builds(OURS, {**OURS, "seed": 1}) == []


def test_datasets_of_a_mixture_are_compared_by_name():
    ours, theirs = ({"datasets": {"pets": each, "cats": OURS}} for each in (OURS, other(plan="f")))
    (line,) = other_builds(ours, theirs)
    assert line.startswith("pets: 7,100 images then (plan f, revision 1), 7,100 images now ")
    assert other_builds(ours, {"datasets": {}}) == []


@pytest.mark.parametrize("mixed", [False, True])
def test_a_loader_refuses_the_state_of_another_build_and_says_what_to_do(dataset, mixed):
    url = str(dataset("webdataset"))
    mix = mixture([MixtureSource(url=url, name="pets")])
    with open_loader(mix if mixed else url, batch_size=4, image_size=32) as loader:
        state = json.loads(json.dumps(loader.state_dict()))
        sequence = state["sequence"]["datasets"][0] if mixed else state["sequence"]
        where = sequence if mixed else sequence["dataset"]
        plan, images = where["plan"], sequence["samples"]
        where["plan"], sequence["samples"] = "f" * 16, images - 9
        with pytest.raises(UsageError) as caught:
            loader.load_state_dict(state)
    assert str(caught.value).partition(": the dataset was ")[2] == (
        f"built or adopted again since the state was made, or is another build: {'pets: ' if mixed else ''}"
        f"{images - 9} images then (plan ffffffffffff, revision 1), {images} images now (plan {plan[:12]}, "
        "revision 1); its images have another order: load the weights of the model alone, without this state, to begin "
        'the new order at its first image ("PyTorch" in docs/loaders.md shows how)'
    )
