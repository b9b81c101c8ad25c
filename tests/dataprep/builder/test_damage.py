"""A finished dataset whose files are missing or have another size: a build that finds it does not call it whole."""

import shutil
from importlib.metadata import version

import pytest

from dataprep.builder.driver import damaged_files
from dataprep.builder.finished import readable_manifest
from dataprep.errors import UsageError, VerificationError
from dataprep.storage import open_storage
from tests.support.build_here import in_formats, request, standing, whole
from tests.support.builds import digests
from tests.support.finished import CHECKED
from tests.support.other_codecs import made_with_pillow


@pytest.mark.parametrize("name", CHECKED)
def test_no_file_of_a_whole_dataset_is_damaged(finished, name):
    storage = open_storage(str(finished(name)))
    assert list(damaged_files(storage, readable_manifest(storage))) == []


def a_file(storage, fmt):
    """The name of a shard, or of an image of an image folder."""
    return next(info.name for info in storage.list("val" if fmt != "tfrecord" else "") if info.num_bytes > 9_000)


@in_formats("imagefolder", "damage", webdataset=["deleted"], tfrecord=["longer"], imagefolder=["longer"])
def test_a_build_that_finds_a_damaged_dataset_names_the_file_and_overwrite_mends_it(
    originals, storage_url, fmt, damage
):
    standing(originals, storage_url, fmt)
    before, storage = digests(storage_url), open_storage(storage_url)
    name = a_file(storage, fmt)
    data = storage.read(name)
    storage.delete(name)
    if damage == "longer":
        storage.create(name, data + b"x")
    what = "is missing" if damage == "deleted" else f"has {len(data) + 1:,} bytes, expected {len(data):,}"
    with pytest.raises(VerificationError) as error:
        whole(request(originals, storage_url, fmt))
    assert f"{storage_url}: the dataset is damaged, 1 file of it: {name} {what}. " in str(error.value)
    assert "`overwrite`" in str(error.value) and f"replicate the copy to {storage_url}" in str(error.value)
    whole(request(originals, storage_url, fmt, overwrite=True))
    assert digests(storage_url) == before


@in_formats("webdataset", webdataset=[], imagefolder=[])
def test_a_damaged_dataset_of_other_codecs_is_named_with_both_versions(originals, storage_url, fmt):
    with made_with_pillow("99.0.0"):
        whole(request(originals, storage_url, fmt))
    storage = open_storage(storage_url)
    with pytest.raises(UsageError) as refused:
        whole(request(originals, storage_url, fmt))
    versions = f"made with pillow 99.0.0 (this is {version('pillow')})"
    assert f"{storage_url}: the dataset is there already, {versions}; choose another `output`" in str(refused.value)
    name = a_file(storage, fmt)
    storage.delete(name)
    with pytest.raises(VerificationError) as error:
        whole(request(originals, storage_url, fmt))
    assert f"the dataset is damaged, 1 file of it: {name} is missing. It was {versions}" in str(error.value)
    assert "install those versions to repair it" in str(error.value) and "`overwrite`" in str(error.value)
    whole(request(originals, storage_url, fmt, overwrite=True))
    assert readable_manifest(storage).codecs["pillow"] == version("pillow")


def test_a_missing_index_is_named_before_images_that_only_it_lists(originals, tmp_path):
    standing(originals, tmp_path / "out", "imagefolder")
    (tmp_path / "out/index/val.parquet").unlink()
    with pytest.raises(VerificationError, match=r"1 file of it: index/val\.parquet is missing"):
        whole(request(originals, tmp_path / "out", "imagefolder"))


def test_other_files_beside_the_images_are_no_damage(originals, tmp_path):
    standing(originals, tmp_path / "out", "imagefolder")
    (tmp_path / "out/val/notes.txt").write_text("mine")
    whole(request(originals, tmp_path / "out", "imagefolder"))


def test_more_than_three_damaged_files_are_counted(originals, tmp_path):
    standing(originals, tmp_path / "out", "imagefolder")
    shutil.rmtree(tmp_path / "out/val")
    with pytest.raises(VerificationError, match=r"the dataset is damaged, \d+ files of it: .*; .*; .* and \d+ more\. "):
        whole(request(originals, tmp_path / "out", "imagefolder"))


def test_files_that_a_retry_is_changing_are_not_compared(originals, tmp_path):
    standing(originals, tmp_path / "out")
    next((tmp_path / "out/val").glob("*.tar")).unlink()
    open_storage(str(tmp_path / "out")).create("_change/plan.json", b"{}")
    whole(request(originals, tmp_path / "out"))
