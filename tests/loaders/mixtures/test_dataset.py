"""Several datasets read as one: shards numbered on, fields that agree, labels, and fetchers that share the budget."""

from dataclasses import replace

import pytest

from dataprep.dataset.features import Feature
from dataprep.errors import FormatError, UsageError
from loaders import mixture
from loaders.dataset import Origin
from loaders.fetch.fetcher import FetchSettings
from loaders.mixtures.dataset import joined_dataset, joined_labels
from loaders.order import Pick, Piece


@pytest.fixture
def mixed(dataset):
    return mixture([(dataset("imagefolder"), 2), (dataset("coco"), 1), (dataset("tfrecord"), 1)]).open_dataset("train")


def described(part, **changes):
    return replace(part, dataset=replace(part.dataset, manifest=replace(part.dataset.manifest, **changes)))


def test_shards_are_numbered_on_from_dataset_to_dataset(mixed):
    counts = [len(part.dataset.split.shards) for part in mixed.parts]
    assert mixed.first_shards == (0, counts[0], counts[0] + counts[1])
    assert [mixed.part_of(shard) for shard in (0, counts[0] - 1, counts[0], sum(counts) - 1)] == [
        (0, 0),
        (0, counts[0] - 1),
        (1, 0),
        (2, counts[2] - 1),
    ]
    index, coco = mixed.open_index(5.0), mixed.parts[1].dataset
    assert index.shard(counts[0]).keys[0] == coco.open_index(5.0).shard(0).keys[0]
    file = index.file_of(counts[0], index.shard(counts[0]), 0)
    assert file == index.shard_file(counts[0]) == coco.split.shards[0]["file"]
    assert mixed.url_of(counts[0], file) == f"{coco.url}/{file}"
    assert [mixed.origin_of(shard).name for shard in (0, counts[0])] == [mixed.parts[0].name, mixed.parts[1].name]


def test_what_needs_a_single_dataset_is_refused(mixed):
    with pytest.raises(UsageError, match=r"a mixture of 3 datasets, expected a single one: .* neither diagnosed nor"):
        _ = mixed.storage


def test_a_fetcher_gives_up_what_other_ranks_take(mixed):
    shard = mixed.first_shards[1]
    index = mixed.open_index(5.0)
    piece = Piece(shard, 0, 3, 0)
    with mixed.open_fetcher(index, FetchSettings()) as fetcher:
        first = Pick(0, piece, 0, 3)
        assert fetcher.shards_needed([first]) == {shard}
        image = fetcher.request(first).wait()
        second = fetcher.request(Pick(9, piece, 2, 3, (Pick(5, piece, 1, 3),)))
        assert image != second.wait()
        assert fetcher._parts[1]._known == {}  # all three samples of the piece are accounted for
        assert fetcher.stats()["requests"] == 2


def test_fields_of_other_types_are_refused(mixed):
    caption = {"caption": Feature("string")}
    parts = (described(mixed.parts[1], features=caption), described(mixed.parts[2], features={}))
    with pytest.raises(UsageError, match=r"field 'caption' must be the same in all datasets of a mixture, got .* none"):
        joined_dataset("m", parts, "joined").check_fields(("caption",))
    same = tuple(described(part, features=caption) for part in mixed.parts)
    joined_dataset("m", same, "joined").check_fields(("caption", "dataset"))
    with pytest.raises(UsageError, match=r"imagenet-imagefolder: fields caption: imagefolder holds only images"):
        mixed.check_fields(("caption", "dataset"))


def test_a_stored_field_with_the_name_of_the_mixtures_own_is_refused(mixed):
    parts = (described(mixed.parts[1], features={"dataset": Feature("string")}), mixed.parts[2])
    with pytest.raises(UsageError, match="field 'dataset' of a mixture is the name of each row's dataset, and coco"):
        joined_dataset("m", parts, "joined").check_fields(("dataset",))


def test_classes_of_one_name_are_joined(mixed):
    first, coco, second = mixed.parts
    parts = (described(first, classes=("cat", "dog")), coco, described(second, classes=("dog", "emu")))
    classes, origins = joined_labels(parts, "joined")
    assert classes == ("cat", "dog", "emu")
    assert [origin.labels for origin in origins] == [(0, 1), (), (1, 2)]
    assert [origins[2].label_of(label) for label in (-1, 0, 1)] == [-1, 1, 2]
    with pytest.raises(FormatError, match="label 2, expected one of the 2 classes of imagenet-tfrecord"):
        origins[2].label_of(2)
    classes, origins = joined_labels(parts, "own")
    assert (classes, [origin.labels for origin in origins]) == ((), [None, None, None])


def test_equal_classes_stay_as_they_are(mixed):
    assert mixed.manifest.classes == mixed.parts[0].dataset.manifest.classes
    assert all(origin.labels is None for origin in mixed.origins)
    assert Origin("a", None).label_of(7) == 7
