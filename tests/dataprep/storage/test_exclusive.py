"""A file is put in a free place in one step, with hard links or without."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep.errors import ConflictError, StorageError
from dataprep.storage import exclusive
from dataprep.storage.exclusive import put_exclusively
from dataprep.storage.local import LocalStorage
from tests.support.refusals import refuse
from tests.support.storages import in_process


def _publish_without_links_or_exclusive_renames(folder: Path) -> None:
    refuse({"link": errno.EPERM, "linkat": errno.EPERM, "renameat2": errno.EINVAL})
    storage = LocalStorage(folder / "root")
    with pytest.raises(
        StorageError, match=r"neither hard links nor a rename that replaces nothing.*choose a folder on"
    ):
        storage.create("x", b"1")
    assert storage.stat("x") is None


def _publish_without_links(folder: Path) -> None:
    refuse({"link": errno.EPERM, "linkat": errno.EPERM})
    storage = LocalStorage(folder / "root")
    assert storage.create("x", b"1")
    assert not storage.create("x", b"1")
    with pytest.raises(ConflictError, match="another object exists there already"):
        storage.create("x", b"2")
    assert storage.read("x") == b"1"
    # As another writer would come between looking and renaming: nothing here says that the place is taken.
    exists, Path.exists = Path.exists, lambda path: False  # type: ignore[method-assign, assignment]
    with pytest.raises(ConflictError, match="another object exists there already"):
        storage.create("x", b"2")
    Path.exists = exists  # type: ignore[method-assign]
    assert storage.read("x") == b"1"
    assert not list((storage.root / "_build/tmp").iterdir())


def test_without_hard_links_a_rename_replaces_nothing(tmp_path: Path) -> None:
    assert in_process(_publish_without_links, tmp_path) == 0


def test_where_nothing_can_be_put_in_place_safely_the_error_says_so(tmp_path: Path) -> None:
    assert in_process(_publish_without_links_or_exclusive_renames, tmp_path) == 0


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Descriptors of two folders, `from` and `to`; `from` holds the file x."""
    descriptors = []
    for name in ("from", "to"):
        (tmp_path / name).mkdir()
        descriptors.append(os.open(tmp_path / name, os.O_RDONLY | os.O_DIRECTORY))
    (tmp_path / "from/x").write_bytes(b"ours")
    yield descriptors[0], descriptors[1]
    for descriptor in descriptors:
        os.close(descriptor)


def _without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", refuse_links)


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_is_moved_only_to_a_name_that_is_free(
    folders: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    source, target = folders
    if not has_links:
        _without_links(monkeypatch)
    assert put_exclusively("x", source, "y", target)
    assert (tmp_path / "to/y").read_bytes() == b"ours"
    assert (tmp_path / "from/x").exists() == has_links
    (tmp_path / "from/x").unlink(missing_ok=True)
    (tmp_path / "from/x").write_bytes(b"second")
    assert not put_exclusively("x", source, "y", target)
    assert (tmp_path / "to/y").read_bytes() == b"ours"


@pytest.mark.parametrize("has_links", [True, False])
def test_other_errors_are_passed_on(folders: tuple[int, int], monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    if not has_links:
        _without_links(monkeypatch)
    with pytest.raises(FileNotFoundError):
        put_exclusively("nothing", folders[0], "y", folders[1])


def test_without_links_and_exclusive_renames_the_system_supports_neither(
    folders: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_links(monkeypatch)
    monkeypatch.setattr(exclusive, "_renameat2", lambda: None)
    with pytest.raises(OSError) as caught:
        put_exclusively("x", folders[0], "y", folders[1])
    assert caught.value.errno == errno.EOPNOTSUPP
