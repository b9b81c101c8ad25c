"""Datasets as loaders see them."""

import pickle
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dataprep.errors import StorageError, UsageError, VerificationError
from dataprep.storage import gcs_client
from loaders import LoaderConfig, mixture, open_loader
from loaders.dataset import open_dataset
from loaders.grain import open_batches
from loaders.torch import TorchSamples
from train.batches.data import open_data


def test_a_missing_dataset_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(UsageError, match="dataprep adopt"):
        open_loader(str(tmp_path), batch_size=1)


def test_a_dataset_is_picklable_and_opens_one_storage(dataset):
    opened = open_dataset(str(dataset("webdataset")), "train")
    assert opened.storage is opened.storage
    other = pickle.loads(pickle.dumps(opened))
    assert other == opened
    assert other.storage.url == opened.storage.url
    assert other.open_index(5.0).shard(0).keys[0] == opened.open_index(5.0).shard(0).keys[0]


def test_a_relative_path_is_the_same_after_the_process_has_gone_elsewhere(dataset, tmp_path, monkeypatch):
    """As Hydra does. Whatever is read later, by this process or another, is read where it was opened."""
    settings = {"batch_size": 4, "image_size": 16}
    home = dataset("webdataset").parent
    name = dataset("webdataset").name
    (tmp_path / "mix.json").write_text(f'{{"version": 1, "datasets": [{{"url": "{home}/{name}"}}]}}')
    monkeypatch.chdir(tmp_path)
    by_file = mixture("mix.json")
    config = LoaderConfig(**settings, cache_dir="cache")
    monkeypatch.chdir(home)
    listed, samples = mixture([(name, 1)]), TorchSamples.open(name, image_size=16)
    batches, data = open_batches(name, **settings), open_data(name)
    loader = open_loader(name, **settings, processes=1)
    monkeypatch.chdir("/")
    with loader:
        expected = next(iter(loader)).keys
    assert [each["key"] for each in pickle.loads(pickle.dumps(samples)).__getitems__([0, 1, 2, 3])] == expected
    assert next(iter(batches))["keys"] == expected
    for opened in (open_loader(listed, **settings), open_loader(by_file, **settings)):
        with opened:
            assert next(iter(opened)).keys == expected
    with data.training_loader(LoaderConfig(**settings)) as opened:
        assert next(iter(opened)).keys == expected
    assert config.cache_dir == f"{tmp_path}/cache"


def test_an_unknown_split_is_an_error_that_lists_the_splits(dataset):
    with pytest.raises(UsageError, match=r"no split 'test'; it has train, val"):
        open_dataset(str(dataset("webdataset")), "test")


def test_the_file_of_a_mixture_is_no_dataset(tmp_path):
    (tmp_path / "mix.json").write_text("{}")
    with pytest.raises(UsageError, match=r"mix.json: expected a dataset, got what may be the file of a mixture"):
        open_dataset(str(tmp_path / "mix.json"), "train")


@pytest.fixture
def copy(dataset, tmp_path):
    """Return a copy of the dataset in a format, to damage, and the shards of its train."""

    def copied(fmt):
        shutil.copytree(dataset(fmt), tmp_path / fmt)
        return tmp_path / fmt, sorted((tmp_path / fmt).rglob("*-train*-of-*"))

    return copied


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
def test_shards_of_other_sizes_than_the_manifest_lists_are_named_when_a_loader_is_opened(copy, fmt):
    root, shards = copy(fmt)
    with shards[0].open("r+b") as file:
        file.truncate(1000)
    shards[1].unlink()
    first, second = (shard.relative_to(root) for shard in shards[:2])
    words = rf"{root}: 2 shards of train not as .*: {first} has 1,000 bytes, expected [\d,]+; {second} is missing; run "
    with pytest.raises(VerificationError, match=words + rf'"dataprep verify {root}"'):
        open_loader(root, batch_size=4)
    open_loader(root, "val", batch_size=2).close()


def test_shards_of_a_built_dataset_are_compared_for_a_training_too(copy):
    root, shards = copy("webdataset")
    for shard in shards:
        shard.write_bytes(b"")
    with pytest.raises(VerificationError, match="3 shards of train not as"):
        open_dataset(str(root), "train", compare=False)


def test_shards_are_not_compared_while_a_retry_replaces_them(copy):
    root, shards = copy("webdataset")
    shards[0].write_bytes(b"")
    (root / "_retry").mkdir()
    (root / "_retry/plan.json").write_text("{}")
    assert open_dataset(str(root), "train").split.name == "train"


@pytest.fixture
def silent_bucket(monkeypatch):
    """URL of a bucket whose server accepts connections and never answers."""
    gone = threading.Event()

    class Silent(BaseHTTPRequestHandler):
        def handle(self):
            gone.wait()

    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        yield "gs://silent/imagenet"
        gone.set()
        server.shutdown()


def open_mixture(url, deadline_s):
    open_loader(mixture([(url, 1)]), batch_size=1, deadline_s=deadline_s)


OPENED = {
    "loader": lambda url, deadline_s: open_loader(url, batch_size=1, deadline_s=deadline_s),
    "dataset": lambda url, deadline_s: open_dataset(url, "train", deadline_s=deadline_s),
    "mixture": open_mixture,
    "samples": lambda url, deadline_s: TorchSamples.open(url, deadline_s=deadline_s),
}


@pytest.mark.parametrize("what", OPENED)
def test_opening_a_bucket_that_never_answers_ends_at_the_deadline(silent_bucket, monkeypatch, what):
    monkeypatch.setattr(gcs_client, "RETRY_DEADLINE_S", 36_000.0)  # the suite's limit of a test comes long before
    with pytest.raises(StorageError, match=r"gs://silent/imagenet/dataset.json: .*timed out"):
        OPENED[what](silent_bucket, 1.0)


@pytest.mark.parametrize("name", ["", "/mix.json"])
def test_training_does_not_wait_longer_for_the_data_than_loaders_do(silent_bucket, monkeypatch, name):
    monkeypatch.setattr(gcs_client, "RETRY_DEADLINE_S", 36_000.0)
    with pytest.raises(StorageError, match="gs://silent/imagenet/"):
        open_data(silent_bucket + name)
