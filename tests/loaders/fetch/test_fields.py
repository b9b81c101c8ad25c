"""Fields of a user's own data, the same from every format, from disk and from a bucket."""

from __future__ import annotations

import shutil

import pytest

from dataprep.errors import DataprepError, UsageError, VerificationError
from loaders import open_loader
from tests.support.adoption import adopt_here, image_of, tar_of
from tests.support.builds import FORMATS
from tests.support.own_data import annotated, annotated_rows, build_own, class_folders, stored_values

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


@pytest.mark.parametrize("fmt", FORMATS)
def test_fields_are_those_of_the_metadata(source, tmp_path, bucket_url, fmt):
    for output in (tmp_path / "out", f"{bucket_url}/out"):
        build_own(source, output, fmt)
        assert fields_of(output) == EXPECTED
    assert fields_of(tmp_path / "out", processes=1) == EXPECTED
    assert fields_of(tmp_path / "out", shuffle=True, batch_size=9) == EXPECTED


def test_fields_that_an_image_folder_does_not_have(source, tmp_path):
    build_own(source, tmp_path / "out", "imagefolder")
    with pytest.raises(UsageError, match=r"field 'captions', expected one of caption, .*did you mean caption"):
        open_loader(str(tmp_path / "out"), batch_size=1, image_size=16, fields=("captions",))
    build_own(class_folders(tmp_path / "classes"), tmp_path / "plain", "imagefolder")
    with pytest.raises(UsageError, match="imagefolder holds only images"):
        open_loader(str(tmp_path / "plain"), batch_size=1, image_size=16, fields=("caption",))


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
@pytest.mark.parametrize("settings", [{}, {"on_error": "skip"}, {"shuffle": False, "processes": 1}])
def test_fields_that_no_record_has_are_refused_when_the_loader_is_opened(source, tmp_path, bucket_url, fmt, settings):
    for output in (tmp_path / "out", f"{bucket_url}/out"):
        build_own(source, output, fmt)
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
