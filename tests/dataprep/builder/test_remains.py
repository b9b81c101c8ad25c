"""Files of a dataset whose manifest is gone: a build of the same plan goes on there, and another one leaves them."""

from importlib.metadata import version

import pytest

from dataprep.builder.cards import write_cards
from dataprep.builder.driver import damaged_files, prepare
from dataprep.builder.output import card_plan, is_over_remains, may_be_left
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.paths import OVERWRITTEN
from dataprep.errors import ConflictError, UsageError
from dataprep.storage import open_storage
from tests.support.build_here import Quiet, in_formats, request, standing, whole
from tests.support.builds import digests
from tests.support.other_codecs import made_with_pillow


def left(originals, url, fmt="webdataset", make=standing):
    """A dataset with its cards, whose manifest was deleted; its digests before."""
    manifest, storage = make(originals, url, fmt), open_storage(str(url))
    write_cards(storage, manifest)
    before = digests(url)
    storage.delete(MANIFEST)
    return before


def damage_a_file(storage, fmt):
    """Replace a shard of val, or an image of an image folder; its name."""
    name = next(info.name for info in storage.list("val" if fmt != "tfrecord" else "") if info.num_bytes > 9_000)
    storage.delete(name)
    storage.create(name, b"damaged")
    return name


@in_formats("imagefolder", "overwrite", webdataset=[False], tfrecord=[True], imagefolder=[False])
def test_a_build_goes_on_where_only_the_manifest_is_gone(originals, storage_url, fmt, overwrite):
    before = left(originals, storage_url, fmt)
    whole(request(originals, storage_url, fmt, overwrite=overwrite))
    assert digests(storage_url) == before


@in_formats("webdataset", "fails_first", webdataset=[True], tfrecord=[False], imagefolder=[False])
def test_overwrite_replaces_a_damaged_file_where_the_card_names_the_plan(originals, storage_url, fmt, fails_first):
    """Also after the same command without it has failed."""
    before, storage = left(originals, storage_url, fmt), open_storage(storage_url)
    damage_a_file(storage, fmt)
    if fails_first:
        with pytest.raises(ConflictError, match="another object exists there already"):
            whole(request(originals, storage_url, fmt))
    whole(request(originals, storage_url, fmt, overwrite=True))
    assert digests(storage_url) == before


def test_an_unfinished_build_is_over_remains_until_they_are_removed(originals, tmp_path):
    left(originals, tmp_path / "out")
    storage = open_storage(str(tmp_path / "out"))
    plan = prepare(request(originals, tmp_path / "out"), Quiet(), keep=False).plan
    assert is_over_remains(storage, plan)
    storage.create(OVERWRITTEN, b"[]")
    assert not is_over_remains(storage, plan)


def test_a_build_goes_on_without_cards_beside_files_of_its_own_plan(originals, storage):
    before = left(originals, storage.url)
    storage.delete("README.md")
    storage.delete("croissant.json")
    storage.delete("_info.json")
    whole(request(originals, storage.url))
    assert digests(storage.url) == before


def test_without_a_card_overwrite_removes_nothing(originals, tmp_path):
    left(originals, tmp_path / "out")
    (tmp_path / "out/README.md").write_text("# My notes\n")
    shard = next((tmp_path / "out/val").glob("*.tar"))
    shard.write_bytes(b"damaged")
    with pytest.raises(ConflictError, match="another object exists there already"):
        whole(request(originals, tmp_path / "out", overwrite=True))
    assert (shard.read_bytes(), (tmp_path / "out/README.md").read_text()) == (b"damaged", "# My notes\n")


def test_files_of_another_plan_are_refused_and_left_unchanged(originals, tmp_path):
    left(originals, tmp_path / "out")
    before = digests(tmp_path / "out")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"files of a dataset are left there without its dataset\.json, of plan"):
            whole(request(originals, tmp_path / "out", seed=1, overwrite=overwrite))
    assert {name: digest for name, digest in digests(tmp_path / "out").items() if "_build" not in name} == before


@in_formats("imagefolder", tfrecord=[], imagefolder=[])
def test_files_made_with_other_codecs_are_named_and_replaced_by_overwrite_alone(originals, storage_url, fmt):
    with made_with_pillow("99.0.0"):
        left(originals, storage_url, fmt, lambda *where: whole(request(*where)))
    storage = open_storage(storage_url)
    storage.create("notes.txt", b"mine")
    name = damage_a_file(storage, fmt)
    before = digests(storage_url)
    with pytest.raises(UsageError) as refused:
        whole(request(originals, storage_url, fmt))
    assert f"made with pillow 99.0.0 (this is {version('pillow')})" in str(refused.value)
    assert "install those versions to repair it, or build all of it again with `overwrite`" in str(refused.value)
    left_there = {name: digest for name, digest in digests(storage_url).items() if "_build" not in name}
    assert left_there == before
    manifest = whole(request(originals, storage_url, fmt, overwrite=True))
    assert manifest.codecs["pillow"] == version("pillow")
    assert storage.read("notes.txt") == b"mine" and storage.read(name) != b"damaged"
    assert list(damaged_files(storage, manifest)) == []


def test_a_card_that_names_codecs_its_plan_was_not_made_with_proves_nothing(originals, tmp_path):
    left(originals, tmp_path / "out")
    card = tmp_path / "out/README.md"
    card.write_text(card.read_text().replace(f"pillow {version('pillow')}", "pillow 99.0.0"))
    before = digests(tmp_path / "out")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"made with pillow 99\.0\.0 .*build with the options and versions"):
            whole(request(originals, tmp_path / "out", seed=1, overwrite=overwrite))
    assert {name: digest for name, digest in digests(tmp_path / "out").items() if "_build" not in name} == before


def test_an_index_beside_files_of_no_plan_is_refused_and_they_are_left_unchanged(originals, tmp_path):
    storage = open_storage(str(tmp_path / "out"))
    storage.create("index/val.parquet", b"theirs")
    storage.create("val/mine.jpg", b"precious")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"holds no dataset of ours \(found val/mine\.jpg\)"):
            whole(request(originals, tmp_path / "out", overwrite=overwrite))
    assert (storage.read("index/val.parquet"), storage.read("val/mine.jpg")) == (b"theirs", b"precious")
    assert storage.stat("_build/plan.json") is None


def test_a_card_that_a_user_wrote_is_no_sign_of_a_dataset(originals, tmp_path):
    storage = open_storage(str(tmp_path / "out"))
    storage.create("README.md", b"# Notes\n- Plan: buy milk\n")
    assert card_plan(storage) is None and not may_be_left(storage)
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"holds no dataset of ours \(found README\.md\)"):
            whole(request(originals, tmp_path / "out", overwrite=overwrite))
