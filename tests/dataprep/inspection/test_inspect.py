"""What a dataset leaves out: rows of a table of URLs by their newest status, and originals from events."""

import io
import statistics
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dataprep.dataset.paths import readable
from dataprep.dataset.records import Event
from dataprep.errors import BuildError, FormatError, UsageError
from dataprep.inspection.inspect import (
    ASPECT_EDGES,
    ASPECT_LABELS,
    BYTE_EDGES,
    MAX_SIDE,
    BinCounts,
    Histogram,
    SideCounts,
    Spread,
    byte_labels,
    inspect_dataset,
    rejected,
)
from tests.support.adoption import adopt_here, upload
from tests.support.faults import Damaged
from tests.support.fetched import FAULTS, ROWS, SHARD_ROWS, build_table, retry
from tests.support.img2dataset import write_img2dataset
from tests.support.own_data import annotated, build_own, picture, write_files
from tests.support.picture_web import picture_web

NAMES = ("imagenet-webdataset", "imagenet-tfrecord", "imagenet-imagefolder", "coco-links")


def images_of(root, split):
    """The images of a split as an image folder holds them."""
    folder = root / split if not any(path.is_symlink() for path in (root / split).iterdir()) else root / "images"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.glob("*/*")}


def sides_of(image):
    with Image.open(io.BytesIO(image)) as opened:
        return opened.size


@pytest.mark.parametrize("name", ["imagenet-imagefolder", "coco-links"])
def test_numbers_equal_those_computed_from_the_files(finished, name):
    """Computed again with Pillow from the images themselves."""
    images = images_of(finished(name), "train")
    split = inspect_dataset(str(finished(name))).splits[0]
    sizes = [len(image) for image in images.values()]
    widths, heights = zip(*map(sides_of, images.values()), strict=True)
    assert (split.samples, split.image_bytes, split.num_bytes) == (len(images), sum(sizes), sum(sizes))
    assert split.bytes_per_image == pytest.approx(statistics.mean(sizes))
    assert split.image_bytes_extremes == (min(sizes), max(sizes))
    assert split.width == Spread(min(widths), statistics.median_low(widths), max(widths))
    assert split.height == Spread(min(heights), statistics.median_low(heights), max(heights))
    ratios = [width / height for width, height in zip(widths, heights, strict=True)]
    aspects = dict(zip(split.aspects.labels, split.aspects.counts, strict=True))
    assert aspects["about 4:3"] == sum(2 / 3**0.5 <= ratio < 2**0.5 for ratio in ratios)
    assert sum(split.aspects.counts) == sum(split.sizes.counts) == sum(split.widths.counts) == len(images)
    big = dict(zip(split.sizes.labels, split.sizes.counts, strict=True))["20 kB to 50 kB"]
    assert big == sum(20_000 <= size < 50_000 for size in sizes) > 0


def test_classes_are_counted(finished):
    root = finished("imagenet-imagefolder")
    classes = inspect_dataset(str(root)).splits[0].classes
    counts = Counter(name.split("/")[0] for name in images_of(root, "train"))
    ranked = sorted(counts.items(), key=lambda item: (item[1], item[0]))
    assert classes is not None
    assert (classes.classes, classes.counts) == (len(counts), tuple(sorted(counts.values(), reverse=True)))
    assert classes.samples == Spread(ranked[0][1], statistics.median_low(counts.values()), ranked[-1][1])
    assert classes.fewest == tuple(ranked[:3])
    assert [count for _, count in classes.most] == sorted(counts.values(), reverse=True)[:3]
    assert inspect_dataset(str(finished("coco-links"))).splits[0].classes is None


@pytest.mark.parametrize("name", NAMES)
def test_troubles_have_reasons_and_examples(finished, name):
    split = inspect_dataset(str(finished(name))).splits[0]
    manifest = Damaged(finished(name)).document["splits"][0]
    for kind in ("repaired", "rejected"):
        found = {trouble.reason: trouble.count for trouble in split.troubles if trouble.kind == kind}
        assert found == manifest[kind]
    rows = pq.read_table(finished(name) / "index/train-events.parquet").to_pylist()
    for trouble in split.troubles:
        events = [Event(**row) for row in rows if (row["kind"], row["reason"]) == (trouble.kind, trouble.reason)]
        assert trouble.examples == tuple(events[:3])


def test_one_split_or_all_splits_are_inspected(finished):
    url = str(finished("imagenet-webdataset"))
    assert [split.name for split in inspect_dataset(url).splits] == ["train", "val"]
    assert [split.name for split in inspect_dataset(url, "val").splits] == ["val"]
    with pytest.raises(UsageError, match="`split` test: the dataset has train, val"):
        inspect_dataset(url, "test")


def test_facts_and_repeats_come_from_the_manifest(finished):
    inspection = inspect_dataset(str(finished("coco-five-times")))
    document = Damaged(finished("coco-five-times")).document
    assert (inspection.checked, inspection.partial, inspection.shuffled) == ("decode", True, True)
    assert (inspection.licence, inspection.origin) == (document["licence"], document["origin"])
    assert inspection.splits[0].repeats == {"count": 5, "stored": 5}
    assert inspection.splits[0].shards == 15


def test_unknown_sides_are_counted(finished):
    split = inspect_dataset(str(finished("unchecked"))).splits[0]
    index = pq.read_table(finished("unchecked") / "index/train.parquet")
    assert split.unknown_sides == index.column("height").null_count > 0
    assert sum(split.widths.counts) + split.unknown_sides == split.samples


def test_a_dataset_in_a_bucket_gives_the_same_numbers(bucket_url, finished):
    url = upload(finished("imagenet-webdataset"), bucket_url)
    assert inspect_dataset(url).splits == inspect_dataset(str(finished("imagenet-webdataset"))).splits


def test_a_missing_dataset_and_a_manifest_with_strange_names_are_refused(damaged, tmp_path):
    with pytest.raises(
        UsageError, match=r"no dataset there \(no dataset.json\); check the URL, make shards of pictures"
    ):
        inspect_dataset(str(tmp_path))
    copy = damaged("imagenet-webdataset")
    document = copy.document
    document["splits"][0]["shards"][0]["file"] = "../../etc/passwd"
    copy.write_document(document)
    with pytest.raises(FormatError, match=r"expected train/imagenet-train-00000-of-00003\.tar; see all faults with"):
        inspect_dataset(str(copy.root))
    copy = damaged("imagenet-webdataset")
    copy.write("index/train.parquet", b"x")
    with pytest.raises(FormatError, match=r"1 bytes, the manifest has .*: it is damaged, or belongs to another"):
        inspect_dataset(str(copy.root))
    copy.sign()
    with pytest.raises(FormatError, match="not the parquet file of a build"):
        inspect_dataset(str(copy.root))


def test_of_a_build_that_is_not_finished_the_list_of_rejected_images_is_named(tmp_path):
    files = {f"{number}.jpg": picture(number) for number in range(4)}
    with pytest.raises(BuildError):
        build_own(write_files(tmp_path / "in", files | {"bad.jpg": b"<html>"}), tmp_path / "out")
    with pytest.raises(UsageError) as raised:
        inspect_dataset(str(tmp_path / "out"))
    assert str(raised.value) == (
        f"{tmp_path}/out: no dataset there (no dataset.json); a build there is not finished: run it again to finish "
        f"it; dataprep inspect {tmp_path}/out --rejected lists the images that it has rejected so far"
    )


def test_features_are_described(finished, tmp_path):
    build_own(annotated(tmp_path / "pets"), tmp_path / "out")
    features = inspect_dataset(str(tmp_path / "out")).features
    assert features["objects"] == "records of bbox, category, name"
    assert features["tags"] == "lists of text"
    assert list(features) == sorted(features)
    assert inspect_dataset(str(finished("imagenet-webdataset"))).features == {}


examples = settings(derandomize=True)


def counted(sides):
    counts = SideCounts()
    for start in range(0, len(sides), 7):
        counts.add(np.asarray(sides[start : start + 7], np.int64))
    return counts


def bounds(label):
    """The smallest and largest side that a bin's label names."""
    numbers = [int(word.replace(",", "")) for word in label.split() if word[0].isdigit()]
    if label.startswith("under"):
        return 0, numbers[0] - 1
    if label.endswith("more"):
        return numbers[0], MAX_SIDE
    return numbers[0], numbers[-1]


@examples
@given(st.lists(st.integers(1, MAX_SIDE), min_size=1, max_size=60) | st.lists(st.integers(300, 520), min_size=1))
def test_every_side_is_in_the_bin_that_names_it(sides):
    histogram = counted(sides).histogram()
    assert len(histogram.labels) <= 14
    expected = [sum(low <= side <= high for side in sides) for low, high in map(bounds, histogram.labels)]
    assert list(histogram.counts) == expected
    assert sum(expected) == len(sides)


@examples
@given(st.lists(st.integers(1, MAX_SIDE), min_size=1, max_size=60))
def test_smallest_median_and_largest_are_exact(sides):
    ranked = sorted(sides)
    assert counted(sides).spread() == Spread(ranked[0], ranked[(len(ranked) - 1) // 2], ranked[-1])


def test_outliers_share_a_bin():
    histogram = counted([500] * 500 + [375] * 490 + [20] * 4 + [6_000] * 6).histogram()
    assert histogram.labels[0] == "under 360"
    assert histogram.counts[0] == 4
    assert (histogram.labels[-1], histogram.counts[-1]) == ("520 and more", 6)


def test_a_histogram_of_nothing_is_empty():
    assert SideCounts().spread() is None
    assert SideCounts().histogram() == Histogram((), ())
    assert BinCounts(ASPECT_EDGES, ASPECT_LABELS).histogram(trim=False) == Histogram((), ())


@pytest.mark.parametrize(
    ("width", "height", "label"),
    [
        (500, 375, "about 4:3"),
        (375, 500, "about 3:4"),
        (1920, 1080, "about 16:9"),
        (1080, 1920, "about 9:16"),
        (640, 427, "about 3:2"),
        (427, 640, "about 2:3"),
        (299, 300, "about square"),
        (2000, 1000, "2:1 and wider"),
        (100, 201, "narrower than 1:2"),
    ],
)
def test_aspects_of_cameras_have_a_bin_each(width, height, label):
    counts = BinCounts(ASPECT_EDGES, ASPECT_LABELS)
    counts.add(np.asarray([width / height]))
    histogram = counts.histogram(trim=False)
    assert histogram.labels == ASPECT_LABELS
    assert dict(zip(histogram.labels, histogram.counts, strict=True))[label] == 1


def test_empty_bins_at_the_end_are_trimmed():
    counts = BinCounts(BYTE_EDGES, byte_labels())
    counts.add(np.asarray([999, 4_999, 5_000, 2_000_000], np.float64))
    histogram = counts.histogram(trim=True)
    assert histogram.labels[:4] == ("under 1 kB", "1 kB to 2 kB", "2 kB to 5 kB", "5 kB to 10 kB")
    assert histogram.labels[-1] == "2 MB to 5 MB"
    assert histogram.counts == (1, 0, 1, 1, *[0] * 7, 1)


def key_of(row: int) -> str:
    return f"{row // SHARD_ROWS:05d}{row % SHARD_ROWS}"


def test_each_failed_row_is_listed_once_with_its_newest_reason(tmp_path):
    url = str(tmp_path / "out")
    with picture_web() as web:
        web.faults = dict(FAULTS)
        build_table(web, tmp_path, url, "webdataset")
        at = f"http://127.0.0.1:{web.port}"
        expected = {key_of(row): (f"http {code}", f"{at}/{row}.jpg") for row, code in FAULTS.items()}
        found = list(rejected(url))
        assert {row.key: (row.reason, row.origin) for row in found} == expected
        assert len(found) == len(FAULTS)
        assert {(row.split, row.status, row.detail) for row in found} == {("train", "failed_to_download", "")}
        web.faults = {2: 404}
        retry(url)
        left = dict.fromkeys((2, 5, 30), 404)
    assert sorted((row.key, row.reason) for row in rejected(url, "train")) == [
        (key_of(row), f"http {code}") for row, code in left.items()
    ]


def test_rejected_originals_are_listed_with_their_paths(finished):
    url = str(finished("imagenet-webdataset"))
    counts = {
        (split.name, trouble.reason): trouble.count
        for split in inspect_dataset(url).splits
        for trouble in split.troubles
        if trouble.kind == "rejected"
    }
    found = list(rejected(url))
    assert Counter((image.split, image.reason) for image in found) == counts
    assert counts
    assert all(image.status == "rejected" and image.origin == readable(image.key) and image.detail for image in found)


def test_a_build_that_was_not_finished_is_listed_with_files_and_splits(tmp_path):
    good = {f"{split}/dog/{number}.jpg": picture(number) for split in ("train", "test") for number in range(4)}
    bad = {"train/dog/broken_html.jpg": b"<html>", "test/dog/b.png": b"no picture"}
    source = write_files(tmp_path / "in", good | bad)
    with pytest.raises(BuildError):
        build_own(source, tmp_path / "out")
    found = list(rejected(str(tmp_path / "out")))
    assert {(image.split, image.key, image.origin) for image in found} == {
        ("train", "dog/broken_html", "train/dog/broken_html.jpg"),
        ("test", "dog/b", "test/dog/b.png"),
    }
    assert all(image.status == "rejected" and image.reason == "undecodable" and image.detail for image in found)
    assert [image.split for image in rejected(str(tmp_path / "out"), "test")] == ["test"]
    with pytest.raises(UsageError, match="`split` val: the build has train, test"):
        list(rejected(str(tmp_path / "out"), "val"))


def test_a_place_without_a_dataset_or_a_build_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no dataset there"):
        list(rejected(str(tmp_path)))


def test_an_unknown_split_is_refused(fetched):
    with pytest.raises(UsageError, match="`split` val: the dataset has train"):
        list(rejected(str(fetched("webdataset")), "val"))


def test_rows_that_img2dataset_failed_to_fetch_have_their_urls_and_our_reasons(tmp_path):
    folder = tmp_path / "cc3m"
    with picture_web() as web:
        write_img2dataset(web, folder, "webdataset", ROWS, messages={2: "<urlopen error timed out>", 5: "weird"})
    adopt_here(folder, tmp_path / "index")
    found = {row.key: row for row in rejected(str(tmp_path / "index"))}
    assert {key: row.reason for key, row in found.items()} == {"000002": "timeout", "000005": "weird"}
    assert found["000002"].status == "failed_to_download"
    assert found["000002"].origin.endswith("/2.jpg")


def test_the_rows_of_each_split_are_listed_once_and_with_it(tmp_path):
    folder = tmp_path / "two"
    with picture_web() as web:
        web.faults = dict(FAULTS)
        for split in ("train", "val"):
            write_img2dataset(web, folder / split, "webdataset", ROWS)
        adopt_here(folder)
    found = list(rejected(str(folder)))
    keys = sorted(row.key for row in rejected(str(folder), "val"))
    assert sorted((row.split, row.key) for row in found) == [(split, key) for split in ("train", "val") for key in keys]
    assert len(set(keys)) == len(keys) > 0
