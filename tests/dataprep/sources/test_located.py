"""Paths in a table lead below the source, and nowhere else."""

import pytest

from dataprep.errors import SourceError
from dataprep.sources.image_tables import LocatedImages
from dataprep.storage import open_originals, open_storage
from tests.support.own_data import write_files

FILES = {"images/1.jpg": b"1", "images/2.jpg": b"22", "lists/train.csv": "", "lists/near.jpg": b"333"}


def located(root, table="lists/train.csv"):
    return LocatedImages(open_originals(str(root)), table, str(root))


@pytest.mark.parametrize(
    ("first", "path", "name"),
    [
        ("near.jpg", "near.jpg", "lists/near.jpg"),
        ("near.jpg", "./x//y.jpg", "lists/x/y.jpg"),
        ("near.jpg", "../images/1.jpg", "images/1.jpg"),
        ("images/1.jpg", "images/2.jpg", "images/2.jpg"),
        ("images/1.jpg", "near.jpg", "near.jpg"),
    ],
)
def test_relative_paths_begin_where_the_first_one_is(tmp_path, first, path, name):
    found = located(write_files(tmp_path, FILES))
    found.name_of(first)
    assert found.name_of(path) == name


def test_absolute_paths_are_below_the_source(tmp_path):
    found = located(write_files(tmp_path / "data", FILES))
    assert found.name_of(f"{tmp_path}/data/images/1.jpg") == "images/1.jpg"
    for outside in (f"{tmp_path}/other/1.jpg", f"{tmp_path}/database/1.jpg", "/etc/passwd"):
        with pytest.raises(SourceError, match=r"is not below .*/data: give as `source` a folder"):
            found.name_of(outside)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("../../secret.jpg", "climbs out of"),
        ("x/../../../secret.jpg", "climbs out of"),
        ("gs://other-bucket/1.jpg", "is not below"),
        ("file:///etc/passwd", "is not below"),
        ("https://example.org/1.jpg", "is on the web; .* dataprep build laion `source` \\S+ `name` NAME$"),
        ("a\\b.jpg", "backslash"),
        ("a\nb.jpg", "line end"),
        ("a\0b.jpg", "NUL"),
        ("x" * 5000, "at most 4,096"),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(tmp_path, path, text):
    with pytest.raises(SourceError, match=text):
        located(tmp_path).name_of(path)


def test_an_absolute_path_climbs_no_further_than_the_source(tmp_path):
    with pytest.raises(SourceError, match="climbs out of"):
        located(tmp_path).name_of(f"{tmp_path}/../secret.jpg")


def test_links_lead_to_files_inside_the_source(tmp_path):
    root = write_files(tmp_path / "data", FILES)
    write_files(tmp_path / "other", {"secret.jpg": b"4444", "folder/5.jpg": b"55555"})
    (root / "inside.jpg").symlink_to("images/2.jpg")
    (root / "outside.jpg").symlink_to("../other/secret.jpg")
    (root / "images/outside.jpg").symlink_to("../../other/secret.jpg")
    (root / "images/folder").symlink_to("../../other/folder")
    (root / "volume").symlink_to("../other")
    (tmp_path / "other/twin.jpg").symlink_to("secret.jpg")
    found = located(root)
    assert [found.size_on_disk(name) for name in ("inside.jpg", "volume/twin.jpg", "volume/absent.jpg")] == [2, 4, None]
    for name in ("outside.jpg", "images/outside.jpg", "images/folder/5.jpg"):
        with pytest.raises(SourceError, match=r"outside|leads out|link out of"):
            found.size_on_disk(name)


@pytest.mark.parametrize("count", [2, 70])
def test_sizes_in_a_bucket(bucket_url, count):
    root = open_storage(f"{bucket_url}/originals")
    names = [f"images/{number:03d}.jpg" for number in range(count)]
    for number, name in enumerate(names):
        root.create(name, b"x" * number)
    root.create("other.jpg", b"")
    found = LocatedImages(root, "train.csv", root.url)
    assert found.sizes([*names, "images/absent.jpg"]) == {name: number for number, name in enumerate(names)}
    assert found.name_of(f"{bucket_url}/originals/images/1.jpg") == "images/1.jpg"
    with pytest.raises(SourceError, match="is not below"):
        found.name_of(f"{bucket_url}/elsewhere/1.jpg")
