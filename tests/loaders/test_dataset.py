"""Datasets as loaders see them."""

from __future__ import annotations

import pickle
import shutil
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dataprep.errors import DataprepError, StorageError, UsageError, VerificationError
from dataprep.storage import gcs_client
from loaders import LoaderConfig, mixture, open_loader
from loaders.dataset import open_dataset
from loaders.samples import Samples
from tests.conftest import BUCKET
from tests.support.adoption import adopt_here, image_of, tar_of
from tests.support.builds import FORMATS
from tests.support.own_data import annotated, annotated_rows, build_own, class_folders, stored_values
from train.batches.data import open_data


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
    listed, data, loader = mixture([(name, 1)]), open_data(name), open_loader(name, **settings, processes=1)
    monkeypatch.chdir("/")
    with loader:
        expected = next(iter(loader)).keys
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
    with pytest.raises(UsageError, match=r"mix.json: expected a dataset, got what looks like the file of a mixture"):
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
    (root / "_change").mkdir()
    (root / "_change/plan.json").write_text("{}")
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


OPENED = {
    "loader": lambda url, **deadline: open_loader(url, batch_size=1, **deadline),
    "dataset": lambda url, **deadline: open_dataset(url, "train", **deadline),
    "mixture": lambda url, **deadline: open_loader(mixture([(url, 1)]), batch_size=1, **deadline),
    "samples": lambda url, **deadline: Samples.open(url, **deadline),
}


@pytest.mark.parametrize("what", OPENED)
def test_opening_a_bucket_that_never_answers_ends_at_the_deadline(silent_bucket, monkeypatch, what):
    monkeypatch.setattr(gcs_client, "RETRY_DEADLINE_S", 36_000.0)  # the suite's limit of a test comes long before
    with pytest.raises(StorageError, match=r"gs://silent/imagenet/dataset.json: .*timed out"):
        OPENED[what](silent_bucket, deadline_s=1.0)


NAMES = ("caption", "indoor", "objects", "patient", "score", "tags", "year")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return annotated(tmp_path_factory.mktemp("source"))


def fields_of(url, **settings):
    """Values by key, as a loader delivers them."""
    found = {}
    settings = {"batch_size": 4, "image_size": 16, "fields": NAMES, "shuffle": False} | settings
    with open_loader(str(url), **settings) as loader:
        for batch in loader:
            for row, key in enumerate(batch.keys):
                if batch.mask[row]:
                    found[key] = {name: batch.fields[name][row] for name in NAMES}
    return found


EXPECTED = {row["file_name"].removesuffix(".jpg"): stored_values(row) for row in annotated_rows()}


@pytest.fixture(scope="module")
def built(source, gcs, tmp_path_factory):
    """The same on a disk and in a bucket, by format."""

    @cache
    def of(fmt):
        outputs = tmp_path_factory.mktemp("built") / fmt, f"gs://{BUCKET}/fields/{fmt}"
        for output in outputs:
            build_own(source, output, fmt)
        return outputs

    return of


@pytest.mark.parametrize("fmt", FORMATS)
def test_fields_are_those_of_the_metadata(built, fmt):
    disk, bucket = built(fmt)
    assert fields_of(disk) == fields_of(bucket) == EXPECTED
    assert fields_of(disk, processes=1) == EXPECTED
    assert fields_of(disk, shuffle=True, batch_size=9) == EXPECTED


def test_fields_that_an_image_folder_does_not_have(source, tmp_path):
    build_own(source, tmp_path / "out", "imagefolder")
    with pytest.raises(UsageError, match=r"field 'captions', expected one of caption, .*did you mean caption"):
        open_loader(str(tmp_path / "out"), batch_size=1, image_size=16, fields=("captions",))
    build_own(class_folders(tmp_path / "classes"), tmp_path / "plain", "imagefolder")
    with pytest.raises(UsageError, match="imagefolder holds only images"):
        open_loader(str(tmp_path / "plain"), batch_size=1, image_size=16, fields=("caption",))


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
@pytest.mark.parametrize("settings", [{}, {"on_error": "skip"}, {"shuffle": False, "processes": 1}])
def test_fields_that_no_record_has_are_refused_when_the_loader_is_opened(built, fmt, settings):
    for output in built(fmt):
        with pytest.raises(UsageError) as caught:
            open_loader(str(output), batch_size=1, image_size=16, fields=("caption", "captions"), **settings)
        message = str(caught.value)
        assert f"{output}: field 'captions', expected one of caption, indoor, objects, patient, " in message
        assert message.endswith("; did you mean caption?")
        assert "\n" not in message


def test_fields_that_only_later_samples_have_are_not_refused(tmp_path):
    """Tars of a user, of which the first sample has no caption: whoever loads it decides what becomes of it."""
    tars = tmp_path / "tars"
    tars.mkdir()
    tar_of(tars / "photos-train-00000.tar", [("a.jpg", image_of(0))])
    tar_of(tars / "photos-train-00001.tar", [("b.jpg", image_of(1)), ("b.txt", b"a cat")])
    adopt_here(tars, tmp_path / "index")
    settings = {"batch_size": 2, "image_size": 16, "shuffle": False, "on_error": "skip"}
    with open_loader(tmp_path / "index", **settings, fields=("caption",)) as loader:
        (batch,) = loader
    assert batch.mask.tolist() == [False, True]
    assert batch.fields["caption"] == [None, "a cat"]
    with pytest.raises(UsageError, match="field 'captain', expected one of "):
        open_loader(tmp_path / "index", **settings, fields=("captain",))


def test_a_damaged_shard_does_not_hide_behind_its_fields(dataset, tmp_path):
    copy = shutil.copytree(dataset("webdataset"), tmp_path / "copy")
    for shard in sorted(copy.glob("train/*.tar")):
        shard.write_bytes(bytes(shard.stat().st_size))
    with open_loader(copy, batch_size=4, image_size=16, fields=("height",)) as loader:
        with pytest.raises(DataprepError):
            next(iter(loader))


@pytest.mark.parametrize("change", [lambda data: data[:-1] + b" ", lambda data: b"", None])
def test_annotations_that_are_damaged(source, tmp_path, change):
    build_own(source, tmp_path / "out", "imagefolder")
    file = tmp_path / "out/train/metadata.jsonl"
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_bytes()))
    with pytest.raises(VerificationError, match=r"metadata.jsonl: .* the manifest lists"):
        fields_of(tmp_path / "out")
