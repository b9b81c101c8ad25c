"""Captions beside pictures: of every format, of fetched images, and none where there are none or they are damaged."""

import pytest

from dataprep.builder.finished import readable_manifest
from dataprep.inspection.captions import SHOWN_CHARACTERS, caption_field, captions_of_folder
from dataprep.inspection.contact_sheet import contact_sheet
from dataprep.storage import open_storage
from tests.support.own_data import annotated, annotated_rows, build_own, picture, write_files

FORMATS = ("imagefolder", "tfrecord", "webdataset")


def opened(root):
    storage = open_storage(str(root))
    manifest = readable_manifest(storage)
    return storage, manifest, manifest.splits[0]


def captions(root):
    return {each.key: each.caption for each in contact_sheet(*opened(root))}


@pytest.mark.parametrize("fmt", FORMATS)
def test_each_picture_has_the_caption_of_its_sample(tmp_path, fmt):
    build_own(annotated(tmp_path / "pets"), tmp_path / "out", fmt)
    expected = {row["file_name"].removesuffix(".jpg"): row["caption"].strip() for row in annotated_rows()}
    assert captions(tmp_path / "out") == expected


def test_long_captions_are_shortened(tmp_path):
    write_files(tmp_path / "pets", {"a.jpg": picture(1), "a.txt": "x" * 1000})
    build_own(tmp_path / "pets", tmp_path / "out", text_files=(("caption", "txt"),), options={"num_shards": 1})
    [caption] = captions(tmp_path / "out").values()
    assert caption == "x" * (SHOWN_CHARACTERS - 3) + "..."


@pytest.mark.parametrize("name", ["imagenet-webdataset", "imagenet-tfrecord", "imagenet-imagefolder"])
def test_a_dataset_without_captions_shows_none(finished, name):
    _, manifest, split = opened(finished(name))
    assert caption_field(manifest, split) == ""
    assert set(captions(finished(name)).values()) == {""}


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
def test_fetched_images_have_the_captions_of_their_table(fetched, fmt):
    found = captions(fetched(fmt))
    assert found
    assert all(caption.startswith("Bild ") for caption in found.values())


def test_annotations_that_are_damaged_or_gone_give_no_captions(tmp_path):
    build_own(annotated(tmp_path / "pets"), tmp_path / "out", "imagefolder")
    storage, manifest, split = opened(tmp_path / "out")
    path = tmp_path / "out/train/metadata.jsonl"
    assert len(captions_of_folder(storage, manifest, split, {0, 2})) == 2
    path.write_text("{}\n")
    assert captions_of_folder(storage, manifest, split, {0, 2}) == {}
    path.unlink()
    assert captions_of_folder(storage, manifest, split, {0, 2}) == {}
