"""Views as readers open them: addresses, the samples that are kept, and what is refused before a row is used."""

import json
import pickle
import shutil

import pytest

import dataprep
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.views import address, read_view, viewed
from dataprep.errors import FormatError, UsageError
from dataprep.storage import open_storage
from tests.support.finished import build_here


@pytest.fixture(scope="module")
def made(originals, tmp_path_factory):
    """A dataset with a view `half`."""
    root = tmp_path_factory.mktemp("views") / "out"
    build_here("coco-dup5", originals["coco"], root, "webdataset")
    dataprep.select(root, name="half", sample=0.5)
    return root


@pytest.fixture
def copied(made, tmp_path):
    return shutil.copytree(made, tmp_path / "out")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("shards@clean", ("shards", "clean")),
        ("gs://bucket/a@b/shards@clean-2", ("gs://bucket/a@b/shards", "clean-2")),
        ("shards", ("shards", "")),
        ("gs://bucket/a@b/shards", ("gs://bucket/a@b/shards", "")),
        ("hf://datasets/me/pets@main", ("hf://datasets/me/pets@main", "")),
        ("@clean", ("@clean", "")),
    ],
)
def test_an_address_is_the_dataset_and_the_name_of_a_view(url, expected):
    assert address(url) == expected


def test_a_folder_with_an_at_in_its_name_is_itself(tmp_path):
    (tmp_path / "a@b").mkdir()
    assert address(str(tmp_path / "a@b")) == (str(tmp_path / "a@b"), "")
    assert address(f"{tmp_path}/a@b@view") == (f"{tmp_path}/a@b", "view")


def test_the_index_of_a_view_has_the_rows_of_its_samples(made):
    storage = open_storage(str(made))
    manifest = read_manifest(storage)
    opened = pickle.loads(pickle.dumps(read_view(storage, manifest, "half")))
    (split,) = opened.of(manifest).splits
    index, whole = open_index(storage, split, compare=True), open_index(storage, manifest.splits[0], compare=True)
    assert index.group_rows == [shard["samples"] for shard in split.shards]
    keys = []
    for number, stored in enumerate(manifest.splits[0].shards):
        kept = split.kept.numbers(number)
        assert len(kept) < stored["samples"] or stored["samples"] < 5
        keys += whole.read_group(number, ["key"]).column("key").take(kept).to_pylist()
    assert keys == [key for batch in index.batches(["key"]) for key in batch.column(0).to_pylist()]
    assert len(keys) == split.samples > 0


def test_an_unknown_view_is_refused_with_the_nearest_name(made):
    storage = open_storage(str(made))
    with pytest.raises(UsageError, match="no view 'hafl'; did you mean half"):
        viewed(storage, read_manifest(storage), "hafl")


def test_a_view_of_another_revision_is_refused(copied):
    storage = open_storage(str(copied))
    document = json.loads((copied / "views/half/view.json").read_text())
    (copied / "views/half/view.json").write_text(json.dumps(document | {"revision": 2}))
    with pytest.raises(UsageError, match=r"made of revision 2 .* the dataset has revision 1 .*`refresh`"):
        viewed(storage, read_manifest(storage), "half")


def counts(change):
    def damaged(root):
        path = root / "views/half/view.json"
        document = json.loads(path.read_text())
        change(document["splits"][0])
        path.write_text(json.dumps(document))

    return damaged


def swapped(root):
    (file,) = (root / "views/half").glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        counts(lambda split: split.update(kept=split["kept"][:-1])),
        counts(lambda split: split.update(kept=[10**9, *split["kept"][1:]])),
        counts(lambda split: split.update(kept=[split["kept"][0] - 1, *split["kept"][1:]])),
        counts(lambda split: split["file"].update(file="../../other.parquet")),
        counts(lambda split: split.update(kept=[-1] * len(split["kept"]))),
        swapped,
        lambda root: (root / "views/half/view.json").write_text("{}"),
    ],
)
def test_a_damaged_view_is_refused_before_a_sample_is_used(copied, damage):
    damage(copied)
    storage = open_storage(str(copied))
    with pytest.raises(FormatError, match="views/half"):
        list(open_index(storage, viewed(storage, read_manifest(storage), "half").splits[0]).batches(["key"]))
    assert dataprep.verify(copied, workers=1).counts == {"view": 1}
