"""One plan holds a place: who comes second joins it, is refused with what differs, or overwrites; remains are kept."""

import dataclasses
import json
from importlib.metadata import version

import pytest

from dataprep import __version__
from dataprep.builder.cards import write_cards
from dataprep.builder.driver import damaged_files, prepare, run_build
from dataprep.builder.output import (
    OvertakenError,
    card_plan,
    claim_place,
    is_over_remains,
    may_be_left,
    open_build,
    read_claim,
    refuse_overtaken,
    withdraw,
)
from dataprep.builder.recipe import build_shard
from dataprep.dataset.manifest import MANIFEST, manifest_bytes, read_manifest
from dataprep.dataset.paths import BUILD, OVERWRITING, OVERWRITTEN, PLAN_JSON
from dataprep.errors import BuildError, ConflictError, FormatError, UsageError
from dataprep.storage import open_storage
from tests.support.build_here import Killed, Quiet, in_formats, interrupted, request, standing, whole
from tests.support.builds import digests
from tests.support.other_codecs import made_with_pillow
from tests.support.plans import planned, small_plan


def claimed(storage, **options):
    return claim_place(storage, planned(small_plan(**options)))


def test_second_build_of_a_plan_joins_the_first(storage):
    first = claimed(storage)
    assert claimed(storage) == first == read_claim(storage)
    assert first.root.startswith(f"{BUILD}/{small_plan().plan_hash}/")
    refuse_overtaken(storage, first)


def test_version_of_the_package_is_named_beside_the_plan_and_not_in_its_hash(storage, monkeypatch):
    first = claimed(storage)
    document = json.loads(first.pointer)
    assert document["version"] == __version__
    assert document["plan_hash"] == small_plan().plan_hash
    assert "version" not in small_plan().document()
    monkeypatch.setattr("dataprep.builder.output.__version__", "9.9.9")
    assert claimed(storage) == first, "a newer version goes on with the same plan"


def test_other_plan_is_refused_with_what_differs(storage):
    claimed(storage)
    with pytest.raises(UsageError, match=r"another plan is under way there: `seed` is 0 there, 7 here"):
        claimed(storage, seed=7)


def test_withdrawn_place_can_be_claimed_again(storage):
    withdraw(storage, claimed(storage))
    assert read_claim(storage) is None
    assert not list(storage.list(f"{BUILD}/"))
    assert claimed(storage, seed=7).plan.options.seed == 7


def test_build_whose_plan_was_removed_or_replaced_is_overtaken(storage):
    claim = claimed(storage)
    storage.delete(PLAN_JSON)
    with pytest.raises(OvertakenError, match="was overtaken: it was removed, or another run has finished it"):
        refuse_overtaken(storage, claim)
    other = claimed(storage, seed=7)
    with pytest.raises(OvertakenError, match=f"plan {other.plan.plan_hash[:12]} owns the output"):
        refuse_overtaken(storage, claim)


def test_no_build_begins_during_an_overwrite(storage):
    storage.create(OVERWRITING, b"[]")
    with pytest.raises(UsageError, match="an `overwrite` is under way there"):
        claimed(storage)
    assert storage.stat(PLAN_JSON) is None


@pytest.mark.parametrize("change", [{"codecs": {}}, {"build": "../.."}, {"options": None}])
def test_edited_plan_is_refused(storage, change):
    claim = claimed(storage)
    storage.replace(PLAN_JSON, json.dumps(json.loads(claim.pointer) | change).encode(), claim.pointer)
    with pytest.raises(FormatError, match=rf"{PLAN_JSON}.*start over with `overwrite`"):
        read_claim(storage)


def test_build_is_opened_once_a_process(storage):
    claim = claimed(storage)
    build = open_build(storage.url, claim.root)
    assert open_build(storage.url, claim.root) is build
    assert (build.root, build.plan.plan_hash) == (claim.root, small_plan().plan_hash)
    build.check()
    withdraw(storage, claim)
    with pytest.raises(OvertakenError):
        build.check()


def test_overtaken_build_is_not_opened(storage):
    old = claimed(storage)
    withdraw(storage, old)
    with pytest.raises(OvertakenError, match=rf"expected plan {old.plan.plan_hash[:12]}, found none"):
        open_build(storage.url, old.root)
    claimed(storage, seed=7)
    with pytest.raises(OvertakenError, match="missing, or from a different build"):
        open_build(storage.url, old.root)


def test_build_is_opened_by_what_another_process_has_read_of_it(storage):
    claim = claimed(storage)
    withdraw(storage, claim)
    build = open_build(storage.url, claim.root, claim.pointer)
    assert (build.claim, build.plan) == (claim, small_plan())
    with pytest.raises(OvertakenError):
        build.check()
    with pytest.raises(OvertakenError, match="missing, or from a different build"):
        open_build(storage.url, f"{claim.root}0", claim.pointer)


@in_formats("imagefolder")
def test_an_overwritten_build_can_no_longer_publish_anything(fmt, originals, storage_url):
    """A worker of the old build continues after the first shard of the new one, and after all of them."""
    late = interrupted(request(originals, storage_url, fmt, seed=1))

    def other(job, indexes):
        yield build_shard(job, 0)
        with pytest.raises(OvertakenError, match=r"was overtaken: plan [0-9a-f]{12} owns the output"):
            build_shard(late, 1)
        yield from (build_shard(job, index) for index in indexes[1:])

    manifest = run_build(request(originals, storage_url, fmt, overwrite=True), other, Quiet()).manifest
    expected = digests(storage_url)
    with pytest.raises(OvertakenError):
        build_shard(late, 2)
    assert digests(storage_url) == expected
    assert manifest.options["seed"] == 0
    assert not [name for name in expected if name.startswith(f"{BUILD}/")]


def test_only_files_of_the_dataset_are_removed(originals, tmp_path):
    output = tmp_path / "out"
    standing(originals, output)
    foreign = ("notes/run1/my.labels.txt", "notes/x.tfrecord-00000-of-00001", "mine.jpg")
    for name in (*foreign, "train/mine.txt"):
        open_storage(str(output)).create(name, b"precious")
    with pytest.raises(BuildError, match=r"would treat as part of the dataset, .* written: train/mine\.txt; move"):
        whole(request(originals, output, seed=5, overwrite=True))
    assert (output / "train/mine.txt").read_bytes() == b"precious"
    (output / "train/mine.txt").unlink()
    whole(request(originals, output, seed=5))
    whole(request(originals, output, "imagefolder", overwrite=True))
    assert all((output / name).read_bytes() == b"precious" for name in foreign)
    assert not list(output.glob("val/*.tar"))


def test_a_file_that_no_build_writes_is_not_removed_though_the_manifest_lists_it(originals, tmp_path):
    output = tmp_path / "out"
    standing(originals, output)
    storage = open_storage(str(output))
    storage.create("notes/t.tex", b"thesis")
    manifest = read_manifest(storage)
    listed = [*manifest.files, {"file": "notes/t.tex", "bytes": 6, "sha256": "0" * 64}]
    (output / MANIFEST).write_bytes(manifest_bytes(dataclasses.replace(manifest, files=listed)))
    with pytest.raises(UsageError, match=r"files: 'notes/t\.tex' is not a file that a build writes\. `overwrite`"):
        whole(request(originals, output, seed=5, overwrite=True))
    assert (output / "notes/t.tex").read_bytes() == b"thesis"


def test_adopted_originals_are_not_removed(originals, tmp_path):
    output = tmp_path / "out"
    manifest = standing(originals, output)
    storage = open_storage(str(output))
    storage.delete(MANIFEST)
    adopted = dataclasses.replace(manifest, options={"adopted": {"kind": "folder", "data_url": None}})
    storage.create(MANIFEST, manifest_bytes(adopted))
    before = digests(output)
    with pytest.raises(UsageError, match="your own originals"):
        whole(request(originals, output, seed=1, overwrite=True))
    assert digests(output) == before


def test_a_build_killed_before_it_claims_its_place_may_continue_with_any_options(originals, storage, monkeypatch):
    put = "dataprep.builder.output._put_pointer"
    for more in ({"seed": 1}, {"seed": 2, "overwrite": True}):
        with monkeypatch.context() as patch:
            patch.setattr(put, lambda *_: (_ for _ in ()).throw(Killed))
            with pytest.raises(Killed):
                whole(request(originals, storage.url, **more))
    assert whole(request(originals, storage.url, seed=3)).options["seed"] == 3


def test_the_marker_of_a_removal_killed_before_it_began_is_removed_by_the_next_run(originals, tmp_path):
    output = tmp_path / "out"
    standing(originals, output)
    expected = digests(output)
    open_storage(str(output)).create(OVERWRITING, b"[]")
    whole(request(originals, output))
    assert digests(output) == expected


def left(originals, url, fmt="webdataset", make=standing):
    """A dataset with its cards, whose manifest was deleted; its digests before."""
    manifest, storage = make(originals, url, fmt), open_storage(str(url))
    write_cards(storage, manifest)
    before = digests(url)
    storage.delete(MANIFEST)
    return before


def without_build(url):
    return {name: digest for name, digest in digests(url).items() if "_build" not in name}


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
    assert without_build(tmp_path / "out") == before


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
    assert without_build(storage_url) == before
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
    assert without_build(tmp_path / "out") == before


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
