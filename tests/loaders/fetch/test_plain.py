"""Plain data are indexed when a loader first opens them, and found again."""

from __future__ import annotations

import shutil

import pytest

from dataprep.errors import UsageError
from dataprep.storage import open_storage
from loaders import open_loader
from tests.support.adoption import image_of, tar_of

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


def seen(url, **settings):
    with open_loader(url, shuffle=False, **SMALL, **settings) as loader:
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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such folder; expected a dataset of `dataprep build`, an image folder, tars"),
        (lambda path: path.mkdir(), "no files found"),
        (lambda path: (path / "_build").mkdir(parents=True) or (path / "_build/plan.json").touch(), "is not finished"),
    ],
    ids=["nothing", "an empty folder", "an unfinished build"],
)
def test_what_cannot_be_indexed_is_refused_and_nothing_is_kept(tmp_path, monkeypatch, make, message):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make(tmp_path / "data")
    with pytest.raises(UsageError, match=message):
        open_loader(tmp_path / "data", **SMALL)
    assert not (tmp_path / "cache").exists()
