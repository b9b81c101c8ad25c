"""Trees of files: pictures, metadata and archives are found, the rest is counted, other pictures are refused."""

import zipfile

import pytest

from dataprep.errors import SourceError
from dataprep.sources.base import OwnData
from dataprep.sources.keys import Problems
from dataprep.sources.tree import read_tree
from dataprep.storage import open_originals, open_storage
from tests.support.own_data import picture, write_files
from tests.support.raw_tar import tar_of
from tests.support.raw_zip import zip_of

JPEG = picture(1)


def tree_of(root, **own):
    problems = Problems(str(root))
    with problems.together():
        return read_tree(open_originals(str(root)), OwnData(name="pets", **own), None, problems)


def paths(tree):
    return ["/".join(image.parts) for image in tree.images]


FILES = {
    "a.jpg": JPEG,
    "b/c/d.PNG": JPEG,
    "b/x.webp": JPEG,
    ".hidden.jpg": JPEG,
    "__MACOSX/b.jpg": JPEG,
    ".git/x.jpg": JPEG,
    "notes.txt": "x",
    "b/more.txt": "x",
    "b/Makefile": "x",
    "b/Thumbs.db": "x",
    "b/metadata.csv": "file_name\nx.webp\n",
}


def test_files_on_disk_and_in_a_bucket(tmp_path, bucket_url):
    write_files(tmp_path, FILES)
    for name, data in FILES.items():
        open_storage(bucket_url).create(name, data if isinstance(data, bytes) else data.encode())
    for root in (tmp_path, bucket_url):
        tree = tree_of(root)
        assert paths(tree) == ["a.jpg", "b/c/d.PNG", "b/x.webp"]
        assert list(tree.images)[1].source == "b/c/d.PNG"
        assert tree.passed_over == {".txt": 2, "no suffix": 1, "hidden or of the system": 4}
        (metadata,) = tree.metadata
        with metadata.open() as stream:
            assert (metadata.folder, stream.read()) == (("b",), b"file_name\nx.webp\n")


def test_links(tmp_path):
    write_files(tmp_path / "elsewhere", {"1.jpg": JPEG})
    (tmp_path / "root").mkdir()
    (tmp_path / "root/train").symlink_to(tmp_path / "elsewhere")
    assert paths(tree_of(tmp_path / "root")) == ["train/1.jpg"]
    (tmp_path / "elsewhere/deep").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="a link to a folder"):
        tree_of(tmp_path / "root")


@pytest.mark.parametrize(("kind", "pack"), [("zip", zip_of), ("tar", lambda files: tar_of([*files.items()]))])
def test_archives_are_read_as_if_they_were_unpacked(tmp_path, kind, pack):
    cats, dogs = {"1.jpg": JPEG, "notes.txt": b"x"}, {"dogs/1.jpg": JPEG, "__MACOSX/dogs/1.jpg": JPEG}
    write_files(tmp_path, {"loose.jpg": JPEG, f"cats.{kind}": pack(cats), f"dogs.{kind}": pack(dogs)})
    tree = tree_of(tmp_path)
    assert paths(tree) == ["cats/1.jpg", "dogs/1.jpg", "loose.jpg"]
    for image in tree.images:
        assert open_originals(str(tmp_path)).read_range(image.source, image.offset, image.num_bytes) == JPEG
    assert [source.name for source in tree.sources] == [f"cats.{kind}", f"dogs.{kind}"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["pets/cats/1.jpg", "pets/dogs/1.jpg"], ["cats/1.jpg", "dogs/1.jpg"]),
        (["pets/cats/1.jpg", "readme.jpg"], ["pets/cats/1.jpg", "readme.jpg"]),
        (["data/val/cats/1.jpg", "data/val/dogs/1.jpg"], ["val/cats/1.jpg", "val/dogs/1.jpg"]),
        (["pets/1.jpg", "pets/2.jpg"], ["pets/1.jpg", "pets/2.jpg"]),
    ],
)
def test_one_archive_is_the_root(tmp_path, names, expected):
    packed = dict.fromkeys(names, JPEG) | {f"{names[0].partition('/')[0]}/metadata.csv": b"file_name\n"}
    write_files(tmp_path, {"not me.jpg": JPEG, "x.zip": zip_of(packed)})
    tree = tree_of(tmp_path, archive="x.zip")
    assert paths(tree) == expected
    assert len(tree.metadata) == 1


def test_compressed_members_are_refused_where_they_are_wanted(tmp_path):
    write_files(tmp_path, {"x.zip": zip_of({"1.bmp": bytes(1000)}, zipfile.ZIP_DEFLATED)})
    with pytest.raises(SourceError, match=r"compressed .* unpack it and give the folder"):
        tree_of(tmp_path)
    write_files(tmp_path, {"1.jpg": JPEG, "x.zip": zip_of({"1.txt": bytes(1000)}, zipfile.ZIP_DEFLATED)})
    assert paths(tree_of(tmp_path)) == ["1.jpg"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a/1.heic", "a picture of type heic, which is not read; convert such files to JPEG or PNG, or leave them out"),
        ("1.tiff", "a picture of type tiff"),
        ("all.tar.gz", "a compressed archive, in which images cannot be read in place; unpack it"),
    ],
)
def test_pictures_that_would_be_missed_are_refused(tmp_path, name, text):
    write_files(tmp_path, {"1.jpg": JPEG, name: b"x"})
    with pytest.raises(SourceError) as error:
        tree_of(tmp_path)
    assert text.format(root=tmp_path) in str(error.value)
    suffix = name.rpartition(".")[2]
    assert f"`exclude` {suffix}" in str(error.value)
    assert paths(tree_of(tmp_path, pass_over=(suffix,))) == ["1.jpg"]


@pytest.mark.parametrize("pattern", ["notes.txt", "n*.txt", "note?.txt", "[mn]otes*"])
def test_files_are_passed_over_by_a_pattern_of_their_name(tmp_path, pattern):
    write_files(
        tmp_path, {"1.jpg": JPEG, "1.txt": b"one", "Notes.txt": b"x", "a/notes.TXT": b"x", "notes.jpg.heic": b""}
    )
    tree = tree_of(tmp_path, pass_over=("heic", pattern), text_files=(("caption", "txt"),))
    assert ["/".join(text.parts) for text in tree.texts] == ["1.txt"]
    assert tree.passed_over == {".txt": 2, ".heic": 1}


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, "no image (found no file); expected one of bmp, gif"),
        ({"a.txt": b"x", "b.mp4": b"x"}, "no image (found 1 .txt, 1 .mp4)"),
        ({"deep/a b.zip": b"x"}, "give `source` '{root}/deep/a b.zip' for this one, or `source` {root}/deep for all"),
    ],
)
def test_trees_without_a_picture(tmp_path, files, text):
    write_files(tmp_path, files)
    with pytest.raises(SourceError) as error:
        tree_of(tmp_path)
    assert text.format(root=tmp_path) in str(error.value)


def test_places_that_are_not_there(tmp_path):
    with pytest.raises(SourceError, match="no such folder; check `source`"):
        tree_of(tmp_path / "nowhere")
    for name in ("nothing.zip", "nothing.tar.gz"):
        with pytest.raises(SourceError, match="not found; check `source`"):
            tree_of(tmp_path, archive=name)
    write_files(tmp_path, {"list.txt": "a"})
    with pytest.raises(SourceError, match="is a file, not a folder; check `source`"):
        tree_of(tmp_path / "list.txt")


def test_odd_names_and_links_matter_only_for_pictures(tmp_path):
    data = {"a.jpg": JPEG, "Icon\r": b"", "x/Icon\r": b"", "back\\slash.txt": b"", "$RECYCLE.BIN/b.jpg": JPEG}
    write_files(tmp_path, data)
    (tmp_path / "notes.md").symlink_to("/etc/hostname")
    (tmp_path / "gone.txt").symlink_to("nowhere")
    tree = tree_of(tmp_path)
    assert paths(tree) == ["a.jpg"]
    assert tree.passed_over == {"hidden or of the system": 3, ".txt": 2, ".md": 1}
    (tmp_path / "gone.jpg").symlink_to("nowhere")
    with pytest.raises(SourceError, match=r"'gone.jpg': cannot be read: .*; put the file .* with `exclude` NAME"):
        tree_of(tmp_path)
    assert paths(tree_of(tmp_path, pass_over=("gone.jpg",))) == ["a.jpg"]
    (tmp_path / "line\nend.jpg").write_bytes(JPEG)
    with pytest.raises(SourceError, match=r"backslash, NUL or line end; rename it, or .* with `exclude` NAME"):
        tree_of(tmp_path, pass_over=("gone.jpg",))
    assert paths(tree_of(tmp_path, pass_over=("gone.jpg", "line*"))) == ["a.jpg"]
