"""Captions beside pictures: of every format, of fetched images, and none where there are none or they are damaged."""

import io
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dataprep.builder.finished import readable_manifest
from dataprep.inspection import contact_sheet
from dataprep.inspection.contact_sheet import (
    NEIGHBOURS,
    SHEET_IMAGES,
    SHOWN_CHARACTERS,
    THUMBNAIL_PIXELS,
    caption_field,
    captions_of_folder,
    find_oddities,
    open_sheet,
)
from dataprep.storage import open_storage
from tests.support.adoption import upload
from tests.support.builds import build
from tests.support.finished import change_cell
from tests.support.jpeg_forms import by_pillow
from tests.support.jpeg_forms import picture as noise
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


SIZES = [(40, 40), (64, 32), (30, 90), (40, 40), (90, 31), (48, 48), (40, 40), (120, 118)]
"""Height and width of each picture; those of 40 by 40 pixels have the same bytes."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("oddities")
    (folder / "pictures").mkdir()
    for number, (height, width) in enumerate(SIZES):
        data = by_pillow(noise(np.random.default_rng(height), height, width))
        (folder / "pictures" / f"{number}.jpg").write_bytes(data)
    build("folder", folder / "pictures", folder / "built", "webdataset", "--num-shards", 3)
    return folder / "built"


def rows(root):
    return pq.read_table(root / "index/train.parquet").to_pylist()


def test_positions_are_those_of_the_most_extreme_images(built):
    storage, _, split = opened(built)
    _, extremes = find_oddities(storage, split)
    index = rows(built)
    pixels = [row["height"] * row["width"] for row in index]
    shapes = [row["width"] / row["height"] for row in index]
    density = [row["image_bytes"] / count for row, count in zip(index, pixels, strict=True)]
    measures = {"widest": [-shape for shape in shapes], "narrowest": shapes, "fewest pixels": pixels}
    measures |= {"most pixels": [-count for count in pixels], "fewest bytes a pixel": density}
    for name, values in measures.items():
        assert list(extremes[name]) == sorted(range(len(values)), key=lambda at, v=values: v[at])[:4]


def test_a_measure_in_which_all_images_are_the_same_has_no_extremes(tmp_path):
    write_files(tmp_path / "pictures", {f"{number}.jpg": picture(number) for number in range(5)})
    storage, _, split = opened(build_own(tmp_path / "pictures", tmp_path / "out") and tmp_path / "out")
    assert find_oddities(storage, split)[1].keys() <= {"fewest bytes a pixel", "most bytes a pixel"}


def test_images_of_the_same_bytes_are_one_group(built):
    storage, _, split = opened(built)
    same = tuple(at for at, row in enumerate(rows(built)) if (row["height"], row["width"]) == (40, 40))
    assert find_oddities(storage, split)[0] == (same,)


def test_a_sheet_has_duplicates_extremes_and_neighbours(built):
    sheet = open_sheet(*opened(built))
    index = rows(built)
    [group] = sheet.duplicates
    assert len({each.sha256 for each in group}) == 1
    assert {each.key for each in group} == {row["key"] for row in index if row["height"] == row["width"] == 40}
    assert sheet.extremes[0][0] == "narrowest"
    keys = [row["key"] for row in index]
    for shown, near in sheet.spread:
        at = keys.index(shown.key)
        assert [each.key for each in near] == keys[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1]


def test_equal_checksums_of_different_bytes_are_no_duplicates(built, monkeypatch):
    """CRC32C says only where to look."""
    storage, manifest, split = opened(built)
    index = rows(built)
    assert index[0]["image_crc32c"] != index[1]["image_crc32c"]
    monkeypatch.setattr("dataprep.inspection.contact_sheet.find_oddities", lambda *_: (((0, 1),), {}))
    assert open_sheet(storage, manifest, split).duplicates == ()


def test_an_index_without_checksums_has_no_duplicates(monkeypatch, built):
    class Index:
        def batches(self, columns):
            yield pa.record_batch([[5, 5], [4, 4], [4, 4], pa.array([None, 1], pa.uint32())], names=columns)

    monkeypatch.setattr(contact_sheet, "open_index", lambda *_, **__: Index())
    storage, _, split = opened(built)
    assert find_oddities(storage, split)[0] == ()
