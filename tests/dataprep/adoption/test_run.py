"""Data made by other libraries, adopted: what is found, what is refused, and what a second run does."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq
import pytest

from dataprep.adoption import AdoptRequest, find
from dataprep.dataset.adopted import open_linked
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.records import Manifest
from dataprep.errors import ConflictError, DataprepError, UsageError
from dataprep.storage import open_storage
from dataprep.storage.gcs import StagedGCS
from dataprep.storage.local import LocalStorage
from tests.support.adoption import adopt_here, image_of, read_all, tar_of
from tests.support.own_data import write_files


def test_data_of_a_build_can_be_adopted_without_their_manifest(finished, tmp_path):
    for name in ("imagenet-webdataset", "imagenet-tfrecord"):
        copy = shutil.copytree(finished(name), tmp_path / name)
        before = pq.read_table(copy / "index" / "train.parquet").to_pylist()
        (copy / "dataset.json").unlink()
        shutil.rmtree(copy / "index")
        adopt_here(copy, digest=True)
        assert read_all(copy)[1] == before


def found_in(storage, *splits):
    return find(storage, AdoptRequest(url=storage.url, splits=splits))


def test_splits_are_found_by_file_names_or_given_patterns(tmp_path):
    for name in ("a-train-0", "a-train-1", "a-val-0", "extra"):
        tar_of(tmp_path / f"{name}.tar", [(f"{name}.jpg", image_of(1))])
    storage = open_linked(str(tmp_path))
    with pytest.raises(UsageError, match=r"train, val, and others whose names have no split \('extra\.tar'\)"):
        found_in(storage)
    (tmp_path / "extra.tar").unlink()
    assert [(shard.split, shard.name) for shard in found_in(storage).shards] == [
        ("train", "a-train-0.tar"), ("train", "a-train-1.tar"), ("val", "a-val-0.tar"),
    ]  # fmt: skip
    found = found_in(storage, ("train", "*-1.tar"), ("dev", "*val*"))
    assert [(shard.split, shard.name) for shard in found.shards] == [("dev", "a-val-0.tar"), ("train", "a-train-1.tar")]
    with pytest.raises(UsageError, match=r"no file for `split` test=t\*"):
        found_in(storage, ("test", "t*"))
    with pytest.raises(UsageError, match=r"`split` a and b; expected one of them"):
        found_in(storage, ("a", "*"), ("b", "*val*"))
    with pytest.raises(UsageError, match=r"split '\.\./x', expected a name"):
        found_in(storage, ("../x", "*"))


NOTHING = {
    "empty": ([], "no files found"),
    "compressed": (
        ["a.tar.gz"],
        "compressed; only plain tars and TFRecords can be read in parts: uncompress it first, such as with gunzip",
    ),
    "both": (["a.tar", "b.tfrecord"], "webdataset and tfrecord files exist; choose one with `format`"),
    "no images": (
        ["a/b.txt"],
        r"no image \(found 1 \.txt\); expected .*, in class folders as in <class>/x.jpg or without classes",
    ),
    "splits beside others": (["train/a/x.jpg", "more/a/x.jpg"], r"folders train next to others \('more'\)"),
}


@pytest.mark.parametrize("case", NOTHING)
def test_ambiguous_or_empty_folders_are_refused(case, tmp_path):
    names, message = NOTHING[case]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UsageError, match=message):
        adopt_here(tmp_path)


def test_pictures_next_to_tars_are_left_out_with_a_line(tmp_path):
    tar_of(tmp_path / "a.tar", [("0.jpg", image_of(0))])
    write_files(tmp_path / "cat", {"1.jpg": image_of(1)})
    line = "1 picture next to the shards left out, such as 'cat/1.jpg'; `format` imagefolder reads pictures instead"
    assert line in adopt_here(tmp_path, tmp_path / "i").notes
    assert [key for key, *_ in read_all(adopt_here(tmp_path, tmp_path / "j", format="imagefolder").url)[0]] == ["cat/1"]


def test_a_second_run_does_nothing_and_overwriting_indexes_anew(folder, tmp_path):
    index = tmp_path / "index"
    first = adopt_here(folder, index)
    again = adopt_here(folder, index)
    assert (first.already, again.already, again.manifest) == (False, True, first.manifest)
    (folder / "train" / "ant" / "new.jpg").write_bytes(image_of(77))
    assert adopt_here(folder, index).manifest == first.manifest
    newer = adopt_here(folder, index, overwrite=True)
    assert (newer.manifest.revision, newer.manifest.splits[0].samples) == (2, 28)
    assert newer.manifest.plan_hash != first.manifest.plan_hash
    assert sorted(path.name for path in index.rglob("*") if path.is_file()) == [
        "dataset.json", "train-events.parquet", "train.parquet", "val-events.parquet", "val.parquet",
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"the index of .*photos exists there already; choose another `index`"):
        adopt_here(tmp_path / "elsewhere", index)


def test_an_interrupted_run_leaves_no_manifest_and_a_rerun_finishes(folder, monkeypatch):
    def interrupt(manifest):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dataprep.adoption.run.manifest_bytes", interrupt)
        with pytest.raises(KeyboardInterrupt):
            adopt_here(folder)
    assert (folder / "index" / "train.parquet").exists()
    assert not (folder / "dataset.json").exists()
    (folder / "train" / "ant" / "new.jpg").write_bytes(image_of(77))  # the index that lies there is of other data now
    assert adopt_here(folder).manifest.splits[0].samples == 28
    assert not (folder / "_build").exists()


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tars")
    for shard in range(2):
        samples = [(f"{number}.{suffix}", data) for number in range(shard, 10, 2)
                   for suffix, data in (("jpg", image_of(number)), ("cls", b"%d" % (number % 3)))]  # fmt: skip
        tar_of(folder / f"{shard}.tar", samples)
    return folder


def test_concurrent_runs_adopt_the_same_data_once(tars, tmp_path):
    """As the processes of a training do when they adopt into one cache."""
    with ThreadPoolExecutor(4) as threads:
        adoptions = list(threads.map(lambda _: adopt_here(tars, tmp_path), range(8)))
    assert len({adoption.manifest.plan_hash for adoption in adoptions}) == 1
    assert len(read_all(tmp_path)[0]) == 10


@pytest.mark.parametrize(("place", "overwrite"), [("disk", False), ("disk", True), ("bucket", True)])
@pytest.mark.parametrize("stop", ["index/train.parquet", "dataset.json"])
def test_one_of_two_adoptions_with_other_options_ends(place, stop, overwrite, tars, tmp_path, request, monkeypatch):
    """The first is suspended before it puts a file in place, and goes on when the second is about to end."""
    index = str(tmp_path / "index") if place == "disk" else request.getfixturevalue("bucket_url")
    if overwrite:
        adopt_here(tars, index)
    second: list[Manifest | None] = []

    def suspend(call):
        def suspended(self, what, name, *rest):
            here = what if isinstance(what, str) else name
            if here == stop and not second:
                second.append(None)
                second[0] = adopt_here(tars, index, labels="none", overwrite=overwrite).manifest
            return call(self, what, name, *rest)

        return suspended

    for kind in (LocalStorage, StagedGCS):
        for method in ("create", "publish"):
            monkeypatch.setattr(kind, method, suspend(getattr(kind, method)))
    with pytest.raises(ConflictError, match="an adoption with other options has taken over this output"):
        adopt_here(tars, index, overwrite=overwrite)
    monkeypatch.undo()
    assert read_manifest(open_storage(index)) == second[0]
    assert len(read_all(index)[0]) == 10
    assert not list(open_storage(index).list("_build"))


def test_names_in_a_strangers_intent_are_not_removed(folder):
    (folder / "_build").mkdir()
    names = ["train/ant/plain.jpg", "index/../notes.txt", "README.md"]
    intent = {"content": "0", "names": names, "removes": ["notes.txt"]}
    (folder / "_build" / "adopting.json").write_text(json.dumps(intent))
    for name in ("notes.txt", "README.md"):
        (folder / name).write_text("{}")
    adopt_here(folder)
    assert all((folder / name).exists() for name in ("notes.txt", "README.md", "train/ant/plain.jpg"))
    assert not (folder / "_build").exists()


def test_a_foreign_index_is_not_replaced(folder):
    (folder / "index").mkdir()
    (folder / "index" / "train.parquet").write_bytes(b"mine")
    with pytest.raises(DataprepError, match=r"train\.parquet"):
        adopt_here(folder)
    assert (folder / "index" / "train.parquet").read_bytes() == b"mine"


def test_a_dataset_of_a_build_is_not_adopted(finished, tmp_path):
    copy = shutil.copytree(finished("imagenet-webdataset"), tmp_path / "built")
    assert adopt_here(copy).already
    with pytest.raises(UsageError, match="a dataset of `dataprep build` exists there already"):
        adopt_here(copy, overwrite=True)


def test_an_index_is_not_written_to_a_place_that_is_only_read():
    with pytest.raises(
        UsageError, match="s3://bucket/x: dataprep only reads from there; keep the index elsewhere: `ind"
    ):
        adopt_here("s3://bucket/x")
