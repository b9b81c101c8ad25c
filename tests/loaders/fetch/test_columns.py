"""Columns are loaded as fields: each row has its sample's value, from any place, kind of loader and number of ranks."""

from __future__ import annotations

import shutil
from functools import cache
from itertools import islice

import numpy as np
import pytest

import dataprep
from dataprep.dataset.column_files import ColumnType
from dataprep.errors import FormatError, StorageError, UsageError
from loaders import Packs, Views, mixture, open_loader, open_packs, open_views
from loaders.samples import Samples
from tests.loaders.conftest import BUCKET
from tests.support.adapters import run_module
from tests.support.columns import of_key, write_column
from tests.support.finished import build_here

TYPES = {
    "number": ColumnType("array", "float32"),
    "hash": ColumnType("array", "uint64"),
    "flag": ColumnType("array", "bool"),
    "latent": ColumnType("array", "float16", (2, 3)),
    "tokens": ColumnType("array", "int32", (None, 2)),
    "words": ColumnType("text"),
    "raw": ColumnType("bytes"),
}
SMALL = {"batch_size": 12, "image_size": 32, "fields": tuple(TYPES)}
FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
PACKS = Packs(tokens=256, images=4, patch=16, max_tokens=64)


def with_columns(url):
    for name, kind in TYPES.items():
        write_column(url, name, kind)
    return str(url)


@pytest.fixture(scope="module")
def dataset(dataset, tmp_path_factory):
    """The URL of a dataset with columns, of its own: other tests compare all files of those that tests share."""
    return cache(lambda fmt: with_columns(shutil.copytree(dataset(fmt), tmp_path_factory.mktemp("columns") / fmt)))


@pytest.fixture(scope="module")
def bucket_dataset(originals, gcs):
    """The same in a bucket."""
    return cache(
        lambda fmt: with_columns(build_here("imagenet", originals["imagenet"], f"gs://{BUCKET}/columns/{fmt}", fmt))
    )


def agree(batch) -> bool:
    """Whether each row of a batch has the values of its sample's key, in the form that their type promises."""
    for name, kind in TYPES.items():
        values = batch.fields[name]
        if kind.is_free:
            assert isinstance(values, list)
        else:
            assert (values.dtype, values.shape) == (np.dtype(kind.dtype), (len(batch.keys), *kind.shape))
        for key, value in zip(batch.keys, values, strict=True):
            expected = of_key(kind, key) if key else None
            if key and kind.kind == "array":
                assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
                assert (value == expected).all()
            elif key:
                assert value == expected
            else:
                assert value is None if kind.is_free else not np.any(value)
    return True


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord", "imagefolder"])
def test_each_row_has_the_values_of_its_sample(dataset, fmt):
    with open_loader(dataset(fmt), **SMALL) as loader:
        assert all(agree(batch) for batch in islice(loader, 5))


def test_values_are_read_from_a_bucket_within_the_budget(bucket_dataset, tmp_path):
    settings = {**SMALL, "prefetch_bytes": 2**26, "cache_dir": str(tmp_path)}
    with open_loader(bucket_dataset("webdataset"), **settings) as loader:
        assert all(agree(batch) for batch in islice(loader, 5))
        assert loader.stats()["fetch"]["most_held_bytes"] <= settings["prefetch_bytes"]
        assert loader.stats()["fetch"]["held_bytes"] > 0
    with open_loader(bucket_dataset("webdataset"), **settings) as loader:
        assert agree(next(iter(loader)))
        assert loader.stats()["fetch"]["cache_hits"] > len(TYPES)


def test_values_are_read_once_or_by_pieces_or_alone_as_memory_allows(dataset):
    settings = {**SMALL, "num_streams": 1, "window": 1}
    with open_loader(dataset("webdataset"), **settings) as loader:
        stored = sum(map(loader.dataset.column_bytes, TYPES)) * loader.dataset.split.samples
        assert loader.order.samples_per_block > 1
    requests = []
    for budget, reads in ((8 * stored, "once"), (2 * stored, "piece"), (1, "sample")):
        with open_loader(dataset("webdataset"), prefetch_bytes=int(budget), **settings) as loader:
            assert loader.dataset.column_reads == reads
            assert all(map(agree, islice(loader, len(loader))))
            requests.append(loader.stats()["fetch"]["requests"])
    assert sorted(set(requests)) == requests


def test_the_tail_of_an_evaluation_has_no_values(dataset):
    with open_loader(dataset("webdataset"), "val", **{**SMALL, "batch_size": 11}) as loader:
        batches = list(loader)
    assert all(map(agree, batches))
    assert not batches[-1].mask.all()


def test_worker_processes_deliver_the_same(dataset):
    with open_loader(dataset("webdataset"), processes=2, **SMALL) as loader:
        assert all(agree(batch) for batch in islice(loader, 3))


def test_views_packs_and_mixtures_have_columns(dataset, tmp_path):
    settings = {name: value for name, value in SMALL.items() if name != "image_size"}
    with open_views(dataset("webdataset"), views=Views(size=32), **settings) as loader:
        assert agree(next(iter(loader)))
    both = mixture([(dataset("webdataset"), 1), (dataset("coco"), 1)])
    with open_loader(both, **SMALL) as loader:
        batch = next(iter(loader))
        assert agree(batch)
        assert set(batch.fields["dataset"]) == {"webdataset", "coco"}
    with open_packs(dataset("webdataset"), packs=PACKS, **settings) as loader:
        batch = next(iter(loader))
    assert batch.fields["latent"].shape == (3, 4, 2, 3)
    flat = batch.fields["latent"].reshape(12, 2, 3)
    assert all((value == of_key(TYPES["latent"], key)).all() for key, value in zip(batch.keys, flat, strict=True))


def test_datasets_of_a_mixture_have_a_column_with_one_type(dataset, tmp_path):
    other = shutil.copytree(dataset("coco"), tmp_path / "other")
    write_column(other, "latent", ColumnType("array", "float32", (2, 3)))
    shutil.rmtree(other / "columns/raw")
    both = mixture([(dataset("webdataset"), 1), (other, 1)])
    with pytest.raises(
        UsageError, match=r"'latent' must have the same type .* float16 \(2, 3\); other has float32 \(2, 3\)"
    ):
        open_loader(both, batch_size=12, fields=("latent",))
    with pytest.raises(UsageError, match=r"'raw' must have the same type .* webdataset has bytes; other has none"):
        open_loader(both, batch_size=12, fields=("raw",))


def test_rows_of_a_view_have_the_values_of_the_samples_that_it_keeps(dataset):
    found = dataprep.select(dataset("webdataset"), name="half", sample=0.5)
    with open_loader(found.url, **SMALL) as loader:
        assert all(agree(batch) for batch in islice(loader, 5))


@pytest.mark.parametrize("images", ["decoded", "encoded"])
def test_single_samples_have_columns(dataset, bucket_dataset, images):
    sizes = {} if images == "encoded" else {"image_size": 32}
    for url in (dataset("webdataset"), bucket_dataset("webdataset")):
        samples = Samples.open(url, images=images, fields=tuple(TYPES), **sizes)
        for sample in [samples[3], *samples.__getitems__([0, 9, 4])]:
            assert np.array_equal(sample["fields"]["latent"], of_key(TYPES["latent"], sample["key"]))
            assert sample["fields"]["words"] == of_key(TYPES["words"], sample["key"])
        samples.close()


def test_columns_do_not_change_the_order_and_a_state_continues_with_them(dataset):
    url, plain = dataset("webdataset"), {**SMALL, "fields": ()}
    with open_loader(url, **plain) as loader:
        batches = list(islice(loader, 4))
    with open_loader(url, **SMALL) as loader:
        loader.load_state_dict(batches[1].state)
        found = list(islice(loader, 2))
    assert [batch.keys for batch in found] == [batch.keys for batch in batches[2:]]
    assert all(map(agree, found))


def test_a_column_without_values_for_all_shards_is_refused_with_what_makes_them(dataset, tmp_path):
    root = shutil.copytree(dataset("webdataset"), tmp_path / "grown")
    write_column(root, "latent", TYPES["latent"], shards=1)
    with pytest.raises(
        UsageError, match=r"column latent has no values for .* shards? .*run the `dataprep map` that made it"
    ):
        open_loader(root, batch_size=12, fields=("latent",))


def test_a_field_that_is_neither_stored_nor_a_column_is_refused(dataset):
    with pytest.raises(UsageError, match="latnet"):
        open_loader(dataset("imagefolder"), batch_size=12, fields=("latnet",))


def test_a_file_of_values_that_is_missing_or_shorter_is_an_error_and_a_damaged_text_one_of_its_image(dataset, tmp_path):
    root = shutil.copytree(dataset("webdataset"), tmp_path / "damaged")
    files = sorted((root / "columns/latent").glob("train-*.arrow"))
    for file in files:
        file.write_bytes(file.read_bytes()[:-1])
    with open_loader(root, batch_size=12, fields=("latent",), on_error="skip") as loader, pytest.raises(StorageError):
        next(iter(loader))
    for file in files:
        file.unlink()
    with (
        open_loader(root, batch_size=12, fields=("latent",), on_error="skip") as loader,
        pytest.raises(StorageError, match=r"\.arrow: missing"),
    ):
        next(iter(loader))
    write_column(root, "words", TYPES["words"], lambda kind, key: "cat")
    for file in (root / "columns/words").glob("train-*.arrow"):
        file.write_bytes(file.read_bytes().replace(b"catcat", b"\xff\xffcatc"))
    with open_loader(root, batch_size=12, fields=("words",)) as loader, pytest.raises(FormatError, match="not UTF-8"):
        list(islice(loader, 20))


TENSORS = {"torch": "Tensor", "xla": "Tensor", "jax": "ArrayImpl", "tf": "EagerTensor"}


@pytest.mark.parametrize("adapter", TENSORS)
def test_columns_of_arrays_go_to_devices_and_others_stay_lists(dataset, adapter):
    found = run_module("tests.support.device_columns", adapter, dataset("webdataset"), **FOUR)
    with open_loader(dataset("webdataset"), **{**SMALL, "fields": ("latent", "hash", "words")}) as loader:
        expected = next(iter(loader)).fields
    kind = TENSORS[adapter]
    sums = {name: float(expected[name].astype(np.float64).sum()) for name in ("latent", "hash")}
    assert found["latent"] == [kind, "float16", [12, 2, 3], sums["latent"]]
    bits = "int64" if adapter == "xla" else "uint64"  # the same bits, in XLA's own type
    assert found["hash"] == ["ndarray" if adapter == "jax" else kind, bits, [12], sums["hash"]]
    assert found["words"] == ([kind, [12]] if adapter == "tf" else ["list", 12])
