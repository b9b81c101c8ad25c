"""Unpacked folders: sorted by the bytes of their names, on disk and in a bucket, and links only where they may be."""

import pytest

from dataprep.errors import SourceError
from dataprep.sources.folders import folder_files, followed_links, tree_files
from dataprep.storage import open_originals, open_storage

NAMES = ["b/2.jpg", "b/10.jpg", "a.jpg", "B/x.jpg", "é.jpg", "b.jpg", "b/é.jpg"]


@pytest.fixture
def filled(storage):
    for i, name in enumerate([*NAMES, "c/.hidden/deep/er.jpg", "__MACOSX/a/b/c.jpg"]):
        storage.create(f"train/{name}", b"x" * i)
    storage.create("train2/other.jpg", b"x")
    storage.create("other.jpg", b"x")
    return storage


def test_files_are_sorted_by_bytes_and_hidden_files_are_skipped(filled):
    found = folder_files(filled, "train", depth=2)
    names = ["/".join(file.parts) for file in found]
    assert names == sorted(NAMES, key=lambda name: name.encode())
    assert {name: file.num_bytes for name, file in zip(names, found, strict=True)} == {
        n: i for i, n in enumerate(NAMES)
    }


def test_a_missing_folder_has_no_files(filled):
    assert list(folder_files(filled, "val", depth=2)) == []
    assert list(folder_files(filled, "other.jpg", depth=2)) == []


def test_folders_nested_too_deep_are_refused(filled):
    with pytest.raises(SourceError, match=r"train: '[bBc](/.*)?': an unexpected folder|in an unexpected folder"):
        folder_files(filled, "train", depth=1)


@pytest.fixture
def outside(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "1.jpg").write_bytes(b"one")
    (tmp_path / "root").mkdir()
    return tmp_path / "elsewhere"


def test_each_link_out_of_the_source_is_named(tmp_path, outside):
    root = tmp_path / "root"
    (root / "own").mkdir()
    for name, target in (("train", outside), ("inside", "own"), (".hidden", outside), ("broken", "nowhere")):
        (root / name).symlink_to(target)
    line = f"warning: 'train' is a link to '{outside}', which is read as a part of the source"
    assert followed_links(open_originals(str(root))) == [line]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    (tmp_path / "train").mkdir()

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(SourceError, match="train: cannot be listed: Permission denied"):
        folder_files(open_storage(str(tmp_path)), "train", depth=1)


def snapshot(tmp_path, leads_to="../../../blobs/ff"):
    """A snapshot of the Hub's cache with one file, which is a link."""
    repo = tmp_path / "datasets--me--dogs"
    (repo / "snapshots/0123/data").mkdir(parents=True)
    (repo / "blobs").mkdir()
    (repo / "blobs/ff").write_bytes(b"12345")
    (repo / "refs").write_bytes(b"12")
    (tmp_path / "secret").write_bytes(b"12")
    (repo / "snapshots/0123/data/x.jpg").symlink_to(leads_to)
    return repo / "snapshots/0123"


@pytest.mark.parametrize("below", ["", "data"])
def test_a_snapshot_of_the_hubs_cache_is_read_through_its_links(tmp_path, below):
    root = open_originals(str(snapshot(tmp_path) / below))
    ((parts, num_bytes),) = tree_files(root)
    assert (parts[-1], num_bytes) == ("x.jpg", 5)
    assert root.read("/".join(parts)) == b"12345"


@pytest.mark.parametrize("leads_to", ["../../../refs", "../../../../secret", "/etc/passwd", "../../../blobs/../refs"])
def test_a_link_of_a_snapshot_leads_to_its_blobs_alone(tmp_path, leads_to):
    with pytest.raises(SourceError, match="a link that leads outside the folder"):
        tree_files(open_originals(str(snapshot(tmp_path, leads_to))))


def test_a_blobs_folder_that_is_a_link_is_not_believed(tmp_path):
    root = snapshot(tmp_path)
    (root.parent.parent / "blobs").rename(tmp_path / "elsewhere")
    (root.parent.parent / "blobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="a link that leads outside the folder"):
        tree_files(open_originals(str(root)))
