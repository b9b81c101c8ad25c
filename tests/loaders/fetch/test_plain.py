"""Plain data are indexed when a loader first opens them, and found again."""

from __future__ import annotations

import gc
import shutil
import tempfile
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.hashes import name_hash
from dataprep.errors import AccessError, SourceError, UsageError
from dataprep.storage import open_storage
from loaders import open_loader
from loaders.fetch import plain
from tests.support.adoption import image_of, tar_of
from tests.support.waiting import is_running

SMALL = {"batch_size": 4, "image_size": 16}


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """Two classes of three pictures, and a text beside them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number, name in enumerate(["cat", "cat", "cat", "dog", "dog", "dog"]):
        path = tmp_path / "pictures" / name / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image_of(number))
    (tmp_path / "pictures/cat/notes.txt").write_text("whiskers")
    return tmp_path / "pictures"


def seen(url, split="train", **settings):
    with open_loader(url, split, shuffle=False, **SMALL, **settings) as loader:
        found = [(key, label) for batch in loader for key, label in zip(batch.keys, batch.labels.tolist(), strict=True)]
        return [pair for pair in found if pair[0]], loader


def test_a_folder_of_pictures_is_loaded_as_it_is(pictures, tmp_path, capsys):
    before = sorted(pictures.rglob("*"))
    found, loader = seen(pictures)
    assert [label for _, label in sorted(found)] == [0, 0, 0, 1, 1, 1]
    assert loader.classes == ("cat", "dog")
    lines = capsys.readouterr().err.splitlines()
    assert any("1 file left out: 1 .txt" in line for line in lines), lines
    assert lines[-1].startswith(f"{pictures}: imagefolder, train of 6 images, 2 classes; index in {tmp_path}/cache/")
    assert sorted(pictures.rglob("*")) == before


def test_the_index_is_found_again_and_made_again_when_the_data_change(pictures, capsys):
    first, loader = seen(pictures)
    state = loader.state_dict()
    capsys.readouterr()
    again, loader = seen(pictures)
    assert again == first
    assert len(capsys.readouterr().err.splitlines()) == 1
    loader.load_state_dict(state)
    shutil.copyfile(pictures / "cat/0.jpg", pictures / "cat/new.jpg")
    changed, _ = seen(pictures)
    assert len(changed) == 7
    assert "changed since it was indexed (train: 7 images, 6 when they were adopted)" in capsys.readouterr().err


def test_warnings_name_the_data_and_not_their_index(pictures):
    with pytest.warns(UserWarning, match=f"^{pictures}: a batch of 8 is larger"):
        open_loader(pictures, batch_size=8).close()


def test_the_index_is_kept_where_it_is_asked_for(pictures, tmp_path):
    _, loader = seen(pictures, index=tmp_path / "index")
    assert loader.dataset.url == str(tmp_path / "index")
    assert not (tmp_path / "cache").exists()


def test_tars_in_a_bucket_are_loaded_as_they_are(tmp_path, bucket_url, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    members = [member for n in range(5) for member in ((f"{n}.jpg", image_of(n)), (f"{n}.cls", b"%d" % (n % 2)))]
    tar_of(tmp_path / "train.tar", members)
    open_storage(bucket_url).create("train.tar", (tmp_path / "train.tar").read_bytes())
    found, _ = seen(bucket_url)
    assert [label for _, label in found] == [0, 1, 0, 1, 0]


def test_pictures_inside_of_parquet_are_copied_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()

    def write(split, images):
        rows = [{"image": {"bytes": image_of(n), "path": f"{n}.jpg"}, "label": n % 2} for n in range(images)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"data/{split}-00000-of-00001.parquet")

    write("train", 6)
    write("test", 2)
    found, loader = seen(tmp_path / "data")
    assert sorted(label for _, label in found) == [0, 0, 0, 1, 1, 1]
    assert "copying the pictures in parquet files" in capsys.readouterr().err
    assert seen(tmp_path / "data", split="test")[1].dataset.split.samples == 2
    assert "copying" not in capsys.readouterr().err
    write("train", 7)
    assert len(seen(tmp_path / "data")[0]) == 7
    assert loader.dataset.url.startswith(str(tmp_path / "cache"))
    monkeypatch.setattr(plain.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(UsageError, match=r"copying .* has 10 B left; set index to another"):
        open_loader(tmp_path / "data", index=tmp_path / "other", **SMALL)


def test_a_value_that_parquet_lacks_matters_only_where_its_column_is_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    rows = [{"image": {"bytes": image_of(n), "path": None}, "caption": "a", "age": n or None} for n in range(6)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data/train.parquet")
    for _ in range(2):
        assert len(seen(tmp_path / "data", fields=("caption",))[0]) == 6
    told = capsys.readouterr().err
    assert told.count(f"left out of the copy: {tmp_path}/data/train.parquet row 1: column 'age' has no value") == 1
    assert "; --default age=VALUE keeps it (options of `dataprep build table" in told
    with pytest.raises(UsageError, match=r"its copy has no age, because a row has no value .*--default COLUMN=VALUE"):
        open_loader(tmp_path / "data", fields=("age",), **SMALL)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(SourceError, match="row 1: column 'age' has no value"):
        open_loader(tmp_path / "data", fields=("age",), **SMALL)


def test_a_label_that_parquet_lacks_is_always_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    rows = [{"image": {"bytes": image_of(n), "path": None}, "label": n or None} for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data/train.parquet")
    with pytest.raises(SourceError, match="column 'label' has no value"):
        open_loader(tmp_path / "data", **SMALL)


def test_tables_that_need_an_option_name_the_command_that_has_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pictures = pa.array([{"bytes": image_of(0), "path": None}])
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"image": pictures, "before": pictures}), tmp_path / "data/a.parquet")
    with pytest.raises(SourceError) as refused:
        open_loader(tmp_path / "data", **SMALL)
    command = f"dataprep build table --source {tmp_path}/data --output DIR --format webdataset"
    assert str(refused.value).endswith(
        "name it with --image-column image, and leave others out with --drop before "
        f"(options of `{command}`, whose DIR can then be loaded)"
    )


def test_a_copy_never_replaces_a_dataset_that_the_user_names(tmp_path):
    rows = [{"image": {"bytes": image_of(number), "path": f"{number}.jpg"}} for number in range(3)]
    for name, images in (("a", rows), ("b", rows[:2])):
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist(images), tmp_path / name / "train.parquet")
    assert len(seen(tmp_path / "a", index=tmp_path / "i")[0]) == 3
    with pytest.raises(UsageError, match=r"/i: holds a dataset that is not a copy of .*/b as it is now; name another"):
        seen(tmp_path / "b", index=tmp_path / "i")
    assert len(seen(tmp_path / "i")[0]) == 3


def test_a_bucket_whose_reader_pays_is_loaded_for_the_project_that_is_named(gcs, pictures, monkeypatch):
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "my-project")
    gcs.create_bucket("pictures-to-pay", reader_pays=True)
    bucket = open_storage("gs://pictures-to-pay")
    for path in pictures.rglob("*.jpg"):
        bucket.create(str(path.relative_to(pictures)), path.read_bytes())
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "")
    with pytest.raises(AccessError, match="name the project that pays, `billing_project` or"):
        seen(bucket.url)
    found, _ = seen(bucket.url, billing_project="my-project")
    assert len(found) == 6


@pytest.fixture
def many(pictures, bucket_url, monkeypatch):
    """Two classes of 21 pictures in a bucket, of which a loader knows 6 first, then 12."""
    monkeypatch.setattr(plain, "HEADS", (6, 12))
    for number in range(42):
        path = pictures / ("cat", "dog")[number % 2] / f"more-{number}.jpg"
        path.write_bytes(image_of(number))
    bucket = open_storage(bucket_url)
    for path in pictures.rglob("*.jpg"):
        bucket.create(str(path.relative_to(pictures)), path.read_bytes())
    return bucket_url


def taken(loader, epochs):
    return [list(batch.keys) for _ in range(epochs) for batch in loader]


def test_a_loader_begins_before_all_images_are_known_with_those_of_the_whole_order(many, pictures, tmp_path, capsys):
    with open_loader(pictures, **SMALL) as loader:  # on a disk: all are known at once
        expected = taken(loader, 3)
    capsys.readouterr()
    with open_loader(many, **SMALL) as loader:
        (first, second), known = [next(iter(loader)).keys for _ in range(2)], loader.dataset.split.samples
        assert (list(first), list(second)) == tuple(expected[:2])
        assert known == 12
        assert "train of 6 images, 2 classes are known; the others are listed meanwhile" in capsys.readouterr().err
        assert expected[2:] == taken(loader, 3)
        assert len(loader) == 12
    assert all(path.is_dir() for path in (tmp_path / "cache/dataprep/adopted").iterdir())  # indexes, and nothing beside
    shutil.rmtree(tmp_path / "cache")
    with open_loader(many, **SMALL) as loader:  # asked for its length while it knows the first images alone
        assert [(list(batch.keys), len(loader))[0] for batch in loader] == expected[:12]
    with open_loader(many, **SMALL) as loader:  # from the index in the cache
        assert taken(loader, 3) == expected
    everything = [key for batch in expected for key in batch]
    assert sorted(everything[:48]) == sorted(set(everything))


@pytest.mark.parametrize("batch", [1, 5])
def test_a_state_goes_on_whatever_is_known(many, monkeypatch, tmp_path, batch):
    with open_loader(many, **SMALL) as loader:
        sequence = [(list(each.keys), each.state) for _ in range(2) for each in loader]
    expected = [keys for keys, _ in sequence[batch:]]
    for cache in ("cache", "empty"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        rows = []
        for rank in range(2):
            with open_loader(many, rank=rank, world_size=2, **SMALL) as loader:
                loader.load_state_dict(sequence[batch - 1][1])
                rows.append(taken(loader, 2))
        assert [sorted(a + b) for a, b in zip(*rows, strict=True)] == list(map(sorted, expected))


def test_the_process_that_indexes_ends_with_the_loader(many):
    with open_loader(many, **SMALL) as loader:
        next(iter(loader))
        (maker,) = (each for each in psutil.Process().children() if "loaders.fetch.plain" in " ".join(each.cmdline()))
    assert not is_running(maker.pid)


def makers():
    return [each for each in psutil.Process().children() if "loaders.fetch.plain" in " ".join(each.cmdline())]


def test_the_process_that_indexes_ends_with_a_loader_that_is_not_closed(many):
    loader = open_loader(many, **SMALL)
    (maker,) = makers()
    del loader
    gc.collect()
    assert not is_running(maker.pid)


def test_refused_settings_leave_no_process_and_no_head(many, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with pytest.raises(UsageError, match="cannot be shared by 3 ranks") as refused:
        open_loader(many, world_size=3, **SMALL)
    assert refused and not makers()
    assert not any((tmp_path / "temporary").iterdir())


def test_a_loader_that_was_closed_before_it_knew_all_images_says_so(many):
    with open_loader(many, **SMALL) as loader:
        pass
    with pytest.raises(UsageError, match="the loader was closed before it knew all images; open another one"):
        next(iter(loader))


def test_an_index_that_cannot_be_kept_is_refused_before_the_first_batch(many, pictures, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for url in (many, pictures):
        with pytest.raises(UsageError, match=r"file/dataprep/.* cannot be kept there: .*file is not a folder that can"):
            open_loader(url, **SMALL)


def test_folders_that_a_head_did_not_see_are_classes_without_a_picture(pictures, bucket_url, monkeypatch, capfd):
    monkeypatch.setattr(plain, "HEADS", (6, 12))
    bucket = open_storage(bucket_url)
    for number in range(42):
        bucket.create(f"{('ant', 'yak')[number % 2]}/{number}.jpg", image_of(number))
    empty = next(name for name in "abcdefgh" if name_hash(name) > name_hash("ant"))  # a head takes the smallest hash
    bucket.create(f"{empty}/notes.txt", b"x")
    with open_loader(bucket_url, **SMALL) as loader:
        labels = {
            key[:3]: label for batch in loader for key, label in zip(batch.keys, batch.labels.tolist(), strict=True)
        }
    assert loader.classes == tuple(sorted(["ant", "yak", empty]))
    assert labels == {name: loader.classes.index(name) for name in ("ant", "yak")}
    assert f"no image in 1 class folder: {empty!r}" in capfd.readouterr().err


def test_a_folder_that_begins_with_empty_files_loads_again_and_again(many):
    for number in range(10):
        open_storage(many).create(f"cat/!{number}.jpg", b"")
        open_storage(many).create(f"dog/!{number}.jpg", b"")
    for _ in range(2):
        with open_loader(many, **SMALL) as loader:
            assert len({key for batch in taken(loader, 1) for key in batch}) == 48


def test_splits_that_differ_in_their_classes_are_refused_before_the_first_batch(many):
    for name in ("train/cat/0.jpg", "train/dog/1.jpg", "val/dog/0.jpg", "val/owl/0.jpg"):
        open_storage(f"{many}-splits").create(name, image_of(0))
    for number in range(20):
        open_storage(f"{many}-splits").create(
            f"train/{('cat', 'dog', 'emu')[number % 3]}/{number}-.jpg", image_of(number)
        )
    with pytest.raises(UsageError, match=r"val has class folders that train does not have \('owl'\).*dataprep adopt"):
        open_loader(f"{many}-splits", **SMALL)


def test_a_pattern_is_refused_as_one(many):
    with pytest.raises(UsageError, match="not a pattern of files"):
        open_loader(f"{many}/train-{{000..004}}.tar", **SMALL)


def test_files_that_change_while_they_are_listed_are_named(many, monkeypatch):
    files = plain.head_files(open_storage(many), 6)
    wrong = files._replace(files=[replace(info, num_bytes=9) for info in files.files])
    monkeypatch.setattr(plain, "head_files", lambda *args: wrong)
    with open_loader(many, **SMALL) as loader, pytest.raises(SourceError, match="files have changed since a loader"):
        len(loader)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such folder; expected the folder or URL of a dataset"),
        (lambda path: path.touch(), "a file, not a folder; expected the folder or URL of a dataset"),
        (lambda path: path.mkdir(), "no files found"),
        (lambda path: (path / "_build").mkdir(parents=True) or (path / "_build/plan.json").touch(), "is not finished"),
    ],
    ids=["nothing", "a file", "an empty folder", "an unfinished build"],
)
def test_what_cannot_be_indexed_is_refused_and_nothing_is_kept(tmp_path, monkeypatch, make, message):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make(tmp_path / "data")
    with pytest.raises(UsageError, match=message):
        open_loader(tmp_path / "data", **SMALL)
    assert not (tmp_path / "cache").exists()
