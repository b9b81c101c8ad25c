"""Captions beside pictures: of every format, of fetched images, and none where there are none or they are damaged."""

import io
from functools import cache

import pyarrow.parquet as pq
import pytest
from PIL import Image

from dataprep.builder.finished import readable_manifest
from dataprep.inspection.contact_sheet import (
    SHEET_IMAGES,
    SHOWN_CHARACTERS,
    THUMBNAIL_PIXELS,
    caption_field,
    captions_of_folder,
    open_sheet,
)
from dataprep.storage import open_storage
from tests.support.adoption import upload
from tests.support.finished import change_cell
from tests.support.own_data import annotated, annotated_rows, build_own, picture, write_files


def sheet(root, split=0):
    return [shown for shown, _ in open_sheet(*opened(root, split)).spread]


whole_sheet = cache(sheet)
"""The sheet of a dataset that is only ever read."""


def opened(root, split=0):
    storage = open_storage(str(root))
    manifest = readable_manifest(storage)
    return storage, manifest, manifest.splits[split]


@pytest.mark.parametrize("name", ["imagenet-webdataset", "imagenet-tfrecord", "imagenet-imagefolder", "coco-links"])
def test_pictures_are_spread_evenly_and_small(finished, name):
    pictures = whole_sheet(finished(name))
    keys = pq.read_table(finished(name) / "index/train.parquet").column("key").to_pylist()
    count = min(SHEET_IMAGES, len(keys))
    assert [picture.key for picture in pictures] == [keys[(2 * i + 1) * len(keys) // (2 * count)] for i in range(count)]
    assert [picture.problem for picture in pictures] == [""] * count
    for each in pictures:
        with Image.open(io.BytesIO(each.jpeg)) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert max(image.size) <= THUMBNAIL_PIXELS
            assert "exif" not in image.info


def test_the_picture_is_that_of_the_key(finished):
    folder, shards = (whole_sheet(finished(f"imagenet-{fmt}")) for fmt in ("imagefolder", "webdataset"))
    assert folder == shards
    assert {picture.class_name for picture in folder} == {picture.key.partition("/")[0] for picture in folder}


def test_a_small_split_is_shown_whole(finished):
    keys = pq.read_table(finished("imagenet-webdataset") / "index/val.parquet").column("key").to_pylist()
    assert [picture.key for picture in sheet(finished("imagenet-webdataset"), split=1)] == keys


def test_a_dataset_in_a_bucket_gives_the_same_pictures(bucket_url, finished):
    whole = finished("imagenet-imagefolder")
    assert sheet(upload(whole, bucket_url)) == whole_sheet(whole)


def test_an_image_that_cannot_be_shown_has_a_reason(damaged):
    copy = damaged("imagenet-imagefolder")
    shown = [picture.key for picture in sheet(copy.root)]
    paths = [copy.root / "train" / f"{key}.JPEG" for key in shown]
    paths[0].unlink()
    copy.write(str(paths[1].relative_to(copy.root)), b"x")
    copy.write(str(paths[2].relative_to(copy.root)), bytes(1 << 20))
    pictures = sheet(copy.root)
    assert [bool(picture.jpeg) for picture in pictures[:4]] == [False, False, False, True]
    assert pictures[0].problem == "its file is missing"
    assert "it ends at 1" in pictures[1].problem
    assert "undecodable" in pictures[2].problem


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("key", "../../../../etc/passwd", "expected a key of"),
        ("image_bytes", -1, "the index says -1 bytes"),
        ("image_bytes", 1 << 40, "the index says 1,099,511,627,776 bytes"),
        ("image_bytes", 1 << 27, "it ends at"),
        ("image_offset", -5, "must not be negative"),
    ],
)
def test_a_hostile_index_shows_nothing(damaged, column, value, problem):
    copy = damaged("imagenet-imagefolder")
    change_cell(copy, "index/val.parquet", column, value)
    copy.sign()
    first, *others = sheet(copy.root, split=1)
    assert first.jpeg == b""
    assert problem in first.problem
    assert all(picture.jpeg for picture in others)


FORMATS = ("imagefolder", "tfrecord", "webdataset")


def captions(root):
    return {each.key: each.caption for each in sheet(root)}


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
    assert {each.caption for each in whole_sheet(finished(name))} == {""}


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
