import io
import statistics
from collections import Counter

import pyarrow.parquet as pq
import pytest
from PIL import Image

from dataprep.dataset.records import Event
from dataprep.errors import BuildError, FormatError, UsageError
from dataprep.inspection.histograms import Spread
from dataprep.inspection.inspect import inspect_dataset
from tests.support.faults import Damaged
from tests.support.finished import build_here
from tests.support.own_data import annotated, build_own, picture, write_files

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
    big = dict(zip(split.sizes.labels, split.sizes.counts, strict=True))["100 kB to 200 kB"]
    assert big == sum(100_000 <= size < 200_000 for size in sizes)


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
    with pytest.raises(UsageError, match="--split test: the dataset has train, val"):
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


def test_a_dataset_in_a_bucket_gives_the_same_numbers(originals, bucket_url, finished):
    url = build_here("imagenet", originals["imagenet"], bucket_url, "webdataset")
    assert inspect_dataset(url).splits == inspect_dataset(str(finished("imagenet-webdataset"))).splits


def test_a_missing_dataset_and_a_manifest_with_strange_names_are_refused(damaged, tmp_path):
    with pytest.raises(
        UsageError,
        match=r"no dataset there \(no dataset.json\); check the URL, make shards of pictures",
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
    with pytest.raises(FormatError, match=r"1 bytes, the manifest has .*: damaged, or of another dataset"):
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
