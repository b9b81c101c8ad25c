"""Failed rows tried again: new shards, old files untouched, every row with its newest status."""

from __future__ import annotations

import hashlib
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.builder.cards import cards_of, write_cards
from dataprep.dataset.manifest import MANIFEST, read_manifest
from dataprep.dataset.paths import CROISSANT, README, RETRY_JSON
from dataprep.errors import ConflictError, FormatError, UsageError
from dataprep.fetched.collect import RowOptions
from dataprep.fetched.existing import open_fetched
from dataprep.fetched.newest import Choice
from dataprep.fetched.retry_plan import clean_up, read_plan
from dataprep.fetched.retry_shards import retry_shard
from dataprep.storage import open_storage
from dataprep.verification.run import verify
from loaders import open_loader
from tests.support.builds import digests
from tests.support.fetched import ALL, FAULTS, ROWS, Watcher, build_table, check_built, retry
from tests.support.picture_web import picture


@pytest.fixture(
    params=[
        ("webdataset", "disk"),
        ("tfrecord", "bucket"),
        pytest.param(("webdataset", "bucket"), marks=pytest.mark.long),
        pytest.param(("tfrecord", "disk"), marks=pytest.mark.long),
    ],
    ids="-".join,
)
def built(request, web, tmp_path):
    """The URL of a dataset with some failures."""
    fmt, place = request.param
    url = str(tmp_path / "storage") if place == "disk" else request.getfixturevalue("bucket_url")
    build_table(web, tmp_path, url, fmt)
    return url


def test_retried_images_are_added_and_nothing_else_changes(built, web):
    before = digests(built)
    first = read_manifest(open_storage(built))
    web.faults = {5: 404, 12: 404, 30: 404}
    web.asked.clear()
    retried = retry(built)
    assert (retried.rows, retried.came, retried.shards) == (5, 4, 1)
    assert sorted(web.asked) == [2, 11, 12, 13, 25]  # 5 and 30 are not there, and were not asked for again
    after = digests(built)
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed <= {MANIFEST, "index/train.parquet", "dataset_info.json"}
    number = "00004"
    sample = f"train/{number}.tar" if first.format == "webdataset" else f"laion-train.tfrecord-{number}"
    assert after.keys() - before.keys() == {sample, f"train/{number}.parquet", f"train/{number}_stats.json"}
    manifest = read_manifest(open_storage(built))
    assert (manifest.revision, manifest.plan_hash) == (2, first.plan_hash)
    split = manifest.splits[0]
    assert split.shards[:4] == first.splits[0].shards
    assert split.shards[4]["samples"] == 4
    assert split.reasons == {"http 404": 3, "success": ROWS - 3}
    check_built(built)


def test_loaders_read_the_samples_of_a_retry(built, web):
    web.faults.clear()
    retry(built, ALL)
    with open_loader(built, batch_size=5, image_size=32, shuffle=False, fields=("caption",)) as loader:
        captions = [
            caption
            for batch in loader
            for caption, there in zip(batch.fields["caption"], batch.mask, strict=True)
            if there
        ]
    assert sorted(captions) == sorted(f"Bild {number} ü" for number in range(ROWS))


def test_repeated_retries_complete_the_dataset(web, tmp_path):
    url = str(tmp_path / "out")
    build_table(web, tmp_path, url, "tfrecord")
    del web.faults[11]
    assert retry(url).came == 1
    del web.faults[25]
    assert retry(url).came == 1
    check_built(url)
    web.faults = {30: 404}
    last = retry(url, ALL)
    assert (last.rows, last.came, last.manifest.revision) == (5, 4, 4)
    check_built(url)
    assert retry(url).rows == 0
    assert not list((tmp_path / "out").glob("_*"))


def test_a_retry_without_success_changes_nothing(built):
    before = digests(built)
    retried = retry(built)
    assert (retried.rows, retried.came, retried.manifest.revision) == (5, 0, 1)
    assert digests(built) == before


def test_an_interrupted_retry_resumes_without_repeated_requests(web, tmp_path):
    url = str(tmp_path / "out")
    build_table(web, tmp_path, url, "webdataset", rows=60)
    web.faults = {}
    storage = open_storage(url)
    dataset = open_fetched(url)

    def dies(job, indexes):
        yield retry_shard(job, indexes[0])
        raise ConflictError("killed")

    with pytest.raises(ConflictError, match="killed"):
        retry(url, ALL, dies)
    assert storage.stat(RETRY_JSON) is not None
    assert open_fetched(url).data == dataset.data  # readers see the old one
    assert {finding.kind for finding in verify(url, deep=False, workers=0, progress=Watcher()).findings} <= {
        "leftover",
        "extra",
    }
    web.asked.clear()
    told = []
    assert retry(url, log=told.append).came == len(FAULTS)  # with its own choice
    assert told == ["continuing with the options of an interrupted run: everything True"]
    assert web.asked.total() == 0
    check_built(url)


def shards_without_manifest(url: str) -> None:
    """Run a retry that is killed when its shards are in place and before the manifest lists them."""

    def dies(job, indexes):
        yield from (retry_shard(job, index) for index in indexes)
        raise ConflictError("killed")

    with pytest.raises(ConflictError, match="killed"):
        retry(url, ALL, dies)


def listed(url: str) -> set[str]:
    """Return the names of a dataset's shards and sidecars, as its manifest has them."""
    manifest = read_manifest(open_storage(url))
    shards = {shard["file"] for split in manifest.splits for shard in split.shards}
    return shards | {entry["file"] for entry in manifest.files if entry["file"].startswith("train/")}


def found(url: str) -> set[str]:
    names = {info.name for info in open_storage(url).list()}
    return {name for name in names if name.startswith(("train/", "laion-train.")) or name.startswith("_")}


def test_overwrite_removes_the_shards_of_a_killed_retry(built, web, tmp_path):
    web.faults = {}
    shards_without_manifest(built)
    assert found(built) - listed(built)
    build_table(web, tmp_path, built, read_manifest(open_storage(built)).format, overwrite=True)
    assert found(built) == listed(built)
    check_built(built)


def test_a_retry_of_another_manifest_leaves_no_shard_behind(built, web):
    web.faults = {}
    shards_without_manifest(built)
    storage = open_storage(built)
    manifest = storage.read(MANIFEST)
    assert storage.replace(MANIFEST, manifest + b" ", manifest)
    web.faults = FAULTS
    assert retry(built).came == 0
    assert found(built) == listed(built)


def test_a_conflict_remains_one_when_the_retry_runs_again(built, web):
    """The other file has the size of the shard that belongs there, as tars often have."""
    web.faults = {}
    shards_without_manifest(built)
    storage = open_storage(built)
    shard = max(name for name in found(built) - listed(built) if name.endswith(("00004.tar", "rd-00004")))
    other = bytes(len(storage.read(shard)))
    clean_up(storage, read_plan(storage), open_fetched(built).layout.names)
    storage.create(shard, other)
    for _ in range(2):
        with pytest.raises(ConflictError, match=rf"{shard}: another object exists"):
            retry(built, ALL)
    assert storage.read(shard) == other
    storage.delete(shard)
    assert retry(built, ALL).came
    check_built(built)


def test_a_crash_after_the_manifest_is_cleaned_up_by_the_next_run(web, tmp_path, monkeypatch):
    url = str(tmp_path / "out")
    build_table(web, tmp_path, url, "tfrecord")
    web.faults.clear()
    shutil.copytree(url, tmp_path / "before")
    import dataprep.fetched.retry as module

    with monkeypatch.context() as patch:
        patch.setattr(module, "clean_up", lambda *_: None)
        retry(url)
    assert (tmp_path / "out" / RETRY_JSON).exists()
    again = retry(url)
    assert (again.rows, again.manifest.revision) == (0, 2)
    assert not (tmp_path / "out" / "_retry").exists()
    open_storage(url).create("_retry/0/receipts/00000.parquet", b"left by a cleaning up that was killed")
    assert retry(url).rows == 0
    assert not (tmp_path / "out" / "_retry").exists()
    check_built(url)


def test_cards_get_the_new_revision_after_a_kill_before_them(web, tmp_path, monkeypatch):
    url = str(tmp_path / "out")
    storage = open_storage(url)
    write_cards(storage, build_table(web, tmp_path, url, "webdataset"))
    assert storage.replace(CROISSANT, b"edited", storage.read(CROISSANT))
    web.faults.clear()
    import dataprep.fetched.retry as module

    with monkeypatch.context() as patch:
        patch.setattr(module, "replace_cards", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            retry(url)
    assert "revision 1" in storage.read(README).decode()
    assert retry(url).manifest.revision == 2
    assert storage.read(README) == cards_of(read_manifest(storage))[README]
    assert storage.read(CROISSANT) == b"edited"


@pytest.mark.parametrize("first_shard", [0, 3, 5, 10**15])
def test_a_plan_that_begins_at_another_shard_is_refused(begun, tmp_path, first_shard):
    shutil.copytree(begun, tmp_path / "out")
    plan = tmp_path / "out" / RETRY_JSON
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"first_shard": first_shard}))
    before = digests(tmp_path / "out")
    with pytest.raises(FormatError, match=f"its first shard is number {first_shard}, after 4 shards"):
        retry(str(tmp_path / "out"))
    assert digests(tmp_path / "out") == before


def test_a_dataset_that_was_not_fetched_has_no_rows_to_retry(finished, tmp_path):
    with pytest.raises(UsageError, match=r"coco-dup5 was not fetched from the web; expected a dataset of laion"):
        retry(str(finished("coco-tfrecord")))
    with pytest.raises(UsageError, match="no dataset there"):
        retry(str(tmp_path / "nothing"))


def test_a_hash_of_the_table_is_compared_again(web, tmp_path):
    """The table's own column of it is kept beside the shards; `sha256` there is that of what came."""
    rows = [row | {"sha256": hashlib.sha256(picture(number)).hexdigest()} for number, row in enumerate(web.rows(12))]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "laion.parquet")

    def wrong_at_first(number):
        web.asked[number] += 1
        return 200, picture(number + (number % 2 == 1 and web.asked[number] == 1))

    web.answer = wrong_at_first
    url = str(tmp_path / "out")
    manifest = build_table(web, tmp_path, url, "webdataset", rows=0, options=RowOptions(verify_hash="sha256"))
    assert manifest.splits[0].reasons == {"hash mismatch": 6, "success": 6}
    retried = retry(url, Choice(reasons=("hash mismatch",)))
    assert (retried.rows, retried.came) == (6, 6)
    check_built(url)
