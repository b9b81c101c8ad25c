"""Several datasets read as one: shards numbered on, fields that agree, labels, and fetchers that share the budget."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dataprep.dataset.features import Feature
from dataprep.errors import FormatError, UsageError
from dataprep.storage import open_storage
from loaders import mixture
from loaders.fetch.fetcher import FetchSettings
from loaders.mixtures import dataset
from loaders.mixtures.dataset import (
    MixtureSource,
    MixtureSpec,
    joined_dataset,
    joined_labels,
    listed_sources,
    read_spec,
)
from loaders.order import Pick, Piece
from tests.conftest import BUCKET


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
    with pytest.raises(
        UsageError, match=r"field 'caption' must have the same type in all datasets of a mixture, got .* none"
    ):
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


@pytest.mark.parametrize("source", [("a",), ("a", 1, "val", 2), (1, 2), "ab", 7])
def test_a_source_of_another_form_is_refused(source):
    with pytest.raises(UsageError, match=r"dataset 1 of the mixture must be \(url, weight\), "):
        mixture([("a", 1), source])


DATASETS = [{"url": "imagenet", "weight": 3}, {"url": "gs://other/coco", "weight": 0.5, "split": "val"}]


def written(folder, **changes):
    path = folder / "mix.json"
    path.write_text(json.dumps({"version": 1, "datasets": DATASETS, **changes}))
    return str(path)


def spec(*weights, **settings):
    sources = tuple(MixtureSource(url=f"d{number}", weight=weight) for number, weight in enumerate(weights))
    return MixtureSpec(where="", sources=sources, **settings)


def test_a_file_is_read_with_urls_relative_to_its_folder(tmp_path):
    found = read_spec(written(tmp_path, labels="own", epoch_samples=1000))
    assert (found.labels, found.epoch_samples, found.weights) == ("own", 1000, (6, 1))
    first, second = found.sources
    assert (first.url, first.name, first.split, first.at_end) == (f"{tmp_path}/imagenet", "imagenet", None, "repeat")
    assert (second.url, second.name, second.split) == ("gs://other/coco", "coco", "val")


@pytest.mark.parametrize(
    ("folder", "url", "expected"),
    [
        ("/data/mixes", "../coco", "/data/coco"),
        ("/data/mixes", "/coco", "/coco"),
        (".", "coco/", "coco"),
        ("mixes", "coco", "mixes/coco"),
        ("gs://bucket/mixes", "../coco", "gs://bucket/coco"),
        ("gs://bucket", "coco", "gs://bucket/coco"),
        ("gs://bucket/mixes", "file:///coco", "file:///coco"),
    ],
)
def test_places_of_datasets(folder, url, expected):
    assert dataset._located(url, folder) == expected


def test_a_file_in_a_bucket_cannot_lead_out_of_it(gcs):
    data = json.dumps({"version": 1, "datasets": [{"url": "../../other/coco"}]}).encode()
    open_storage(f"gs://{BUCKET}/mixes").create("mix.json", data)
    with pytest.raises(UsageError, match=r"\$.datasets\[0\]: url '../../other/coco' leads out of the bucket"):
        read_spec(f"gs://{BUCKET}/mixes/mix.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "version 2, expected 1"),
        ({"datasets": []}, "$.datasets: expected array of length >= 1, got []"),
        ({"datasets": [{"url": "a"}] * 257}, "$.datasets: expected array of length <= 256"),
        ({"datasets": [{"weight": 1}]}, "$.datasets[0]: the field url is missing"),
        ({"datasets": [{"url": 7}]}, "$.datasets[0].url: expected str, got 7"),
        ({"datasets": [{"url": "a", "weight": -1}]}, "$.datasets[0].weight: expected"),
        ({"datasets": [{"url": "a", "weight": "3"}]}, '$.datasets[0].weight: expected int | float, got "3"'),
        ({"datasets": [{"url": "a", "weight": 1e300}]}, "$.datasets[0].weight: expected"),
        ({"datasets": [{"url": "a", "wieght": 3}]}, "$.datasets[0]: Object contains unknown field `wieght`"),
        ({"datasets": [{"url": "a", "at_end": "loop"}]}, "$.datasets[0].at_end: Invalid enum value"),
        ({"datasets": [{"url": "a", "epochs": 2}]}, "epochs 2 with at_end 'repeat', which has no end"),
        ({"datasets": [{"url": "a\u001b[2J"}]}, "$.datasets[0]: url must be a printable text"),
        ({"datasets": [{"url": "a"}, {"url": "b/a"}]}, "two datasets are called 'a'"),
        ({"datasets": [{"url": "a", "weight": 0}]}, "all weights are 0, expected one above 0"),
        ({"labels": "mixed"}, "$.labels: Invalid enum value"),
        ({"epoch_samples": 0}, "$.epoch_samples: expected"),
        ({"shuffle": True}, "$: Object contains unknown field `shuffle`"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_file_is_refused_with_the_place_in_it(tmp_path, changes, message):
    with pytest.raises(UsageError) as error:
        read_spec(written(tmp_path, **changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{" * 100_000, b"\xff", b'{"version": 1e999}', b"null"])
def test_anything_else_than_a_mixture_is_refused(tmp_path, data):
    (tmp_path / "mix.json").write_bytes(data)
    with pytest.raises(UsageError, match=r"mix.json: not a mixture: .*in docs/batches.md"):
        read_spec(str(tmp_path / "mix.json"))


def test_a_missing_or_too_large_file_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"mix.json: not found; expected the file of a mixture"):
        read_spec(str(tmp_path / "mix.json"))
    with pytest.raises(UsageError, match=r"expected the name of a file such as mix.json"):
        read_spec(f"{tmp_path}/")
    monkeypatch.setattr(dataset, "MAX_BYTES", 10)
    with pytest.raises(FormatError, match=r"mix.json"):
        read_spec(written(tmp_path))


def test_a_list_has_tuples_and_sources(tmp_path):
    own = MixtureSource(url="b", weight=2, name="own", at_end="stop", epochs=3)
    found = listed_sources([(tmp_path / "a", 1), ("gs://x/c", 0.25, "val"), own], "drop")
    assert [source.name for source in found] == ["a", "c", "own"]
    assert [source.at_end for source in found] == ["drop", "drop", "stop"]
    assert [source.split for source in found] == [None, "val", None]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"url": ""}, "url must be a printable text of 1 to 1,024 characters, got ''"),
        ({"url": "/"}, "name must be a printable text of 1 to 100 characters, got ''"),
        ({"weight": True}, "weight must be a number from 0 to 4,294,967,296, got True"),
        ({"weight": "3"}, "weight must be a number from 0 to 4,294,967,296, got '3'"),
        ({"weight": math.nan}, "weight must be a number from 0 to 4,294,967,296, got nan"),
        ({"weight": math.inf}, "weight must be a number from 0 to 4,294,967,296, got inf"),
        ({"weight": 1e-9}, "weight 1e-09 is closer to 0 than to 1/1,000,000; make all weights larger"),
        ({"split": 3}, "split must be a printable text of 1 to 1,024 characters, got 3"),
        ({"at_end": "stopp"}, "at_end 'stopp', expected one of repeat, drop, stop; did you mean stop?"),
        ({"epochs": 0, "at_end": "drop"}, "epochs must be a whole number from 1 to 1,000,000, got 0"),
        ({"name": "a" * 101}, "name must be a printable text of 1 to 100 characters, got 'aaa"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_wrong_values_of_a_dataset_are_refused(values, message):
    with pytest.raises(UsageError) as error:
        MixtureSource(**{"url": "a", **values})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((3, 1), (3, 1)),
        ((6, 2, 0), (3, 1, 0)),
        ((0.7, 0.2, 0.1), (7, 2, 1)),
        ((1 / 3, 2 / 3), (1, 2)),
        ((Fraction(1, 7), 1), (1, 7)),
        ((np.int64(4), np.float32(2)), (2, 1)),
        ((1_281_167, 118_287), (1_281_167, 118_287)),
    ],
    ids=lambda value: str(value)[:60],
)
def test_weights_become_whole_numbers(weights, expected):
    assert spec(*weights).weights == expected


def test_wrong_settings_of_a_mixture_are_refused():
    with pytest.raises(UsageError, match="labels 'join', expected one of joined, own; did you mean joined"):
        spec(1, labels="join")
    with pytest.raises(UsageError, match="epoch_samples must be a whole number from 1 to"):
        spec(1, epoch_samples=0.5)
    with pytest.raises(UsageError, match="mixture: 0 datasets, expected 1 to 256"):
        spec()
    twice = MixtureSource(url="d0/", name="other")
    with pytest.raises(UsageError, match="two datasets are the split and URL"):
        MixtureSpec(where="", sources=(MixtureSource(url="d0"), twice))
