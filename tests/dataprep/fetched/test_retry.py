"""Failed rows tried again: new shards, old files untouched, every row with its newest status."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.build.driver import run_build
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import MANIFEST, read_manifest
from dataprep.errors import ConflictError, FormatError, UsageError
from dataprep.fetched.collect import RowOptions
from dataprep.fetched.existing import open_fetched
from dataprep.fetched.newest import Choice, may_pass, rows_to_try
from dataprep.fetched.plan import FetchRequest, TableRequest, build_options
from dataprep.fetched.retry import retry_failed
from dataprep.fetched.retry_plan import RETRY_JSON
from dataprep.fetched.retry_shards import retry_shard
from dataprep.fetched.shards import ShardFetcher
from dataprep.storage import open_storage
from dataprep.verify.run import verify
from loaders import open_loader
from tests.support.builds import dataprep, digests
from tests.support.other_codecs import other_pillow
from tests.support.picture_web import LIMITS, WEB, picture, picture_web

ROWS = 34
DEFAULT = Choice()
FAULTS = {2: 503, 5: 404, 11: 503, 12: 500, 13: 429, 25: 503, 30: 404}


class Watcher:
    """Takes what builds and verifications tell."""

    def __getattr__(self, name):
        return lambda *_: None


@pytest.fixture
def web():
    with picture_web() as server:
        server.faults = dict(FAULTS)
        yield server


def build_table(web, folder, url, fmt, rows=ROWS, options=None):
    table = folder / "laion.parquet"
    if rows:
        web.write_table(table, rows)
    request = FetchRequest(
        options=build_options(fmt),
        source_url=str(folder),
        output_url=url,
        max_reject_ratio=1.0,
        tables=TableRequest(sources=(str(table),), rows_per_shard=10, limits=LIMITS, rows=options or RowOptions()),
    )
    return run_build(request, lambda job, indexes: map(ShardFetcher(job).build, indexes), Watcher()).manifest


@pytest.fixture(params=["webdataset", "tfrecord"])
def built(request, web, tmp_path, storage_url):
    """The URL of a dataset with some failures."""
    build_table(web, tmp_path, storage_url, request.param)
    return storage_url


def retry(url, choice=DEFAULT, engine=None, log=lambda _: None, making=None):
    engine = engine or (lambda job, indexes: (retry_shard(job, index) for index in indexes))
    progress = SimpleNamespace(shards=lambda *_: None, shard_done=lambda _: None, log=log)
    return retry_failed(url, choice, LIMITS, engine, progress, making)


def newest(url):
    """By key, the newest status and reason: the last shard wins."""
    found = {}
    storage = open_storage(url)
    names = sorted(info.name for info in storage.list("train/") if info.name.endswith(".parquet"))
    for name in names:
        for row in pq.read_table(pa.BufferReader(storage.read(name))).to_pylist():
            found[row["key"]] = (row["status"], row["error_message"])
    return found


def check_whole(url):
    report = verify(url, deep=True, workers=0, progress=Watcher())
    assert report.findings == ()
    split = read_manifest(open_storage(url)).splits[0]
    assert Counter(status for status, _ in newest(url).values()) == Counter(split.statuses)
    assert Counter(reason or status for status, reason in newest(url).values()) == Counter(split.reasons)


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
    check_whole(built)


def test_loaders_read_the_samples_of_a_retry(built, web):
    web.faults.clear()
    retry(built, Choice(everything=True))
    with open_loader(built, batch_size=5, image_size=32, shuffle=False, fields=("caption",)) as loader:
        captions = [
            caption
            for batch in loader
            for caption, there in zip(batch.fields["caption"], batch.mask, strict=True)
            if there
        ]
    assert sorted(captions) == sorted(f"Bild {number} ü" for number in range(ROWS))


def test_the_new_index_begins_with_the_old_one(built, web):
    """Byte for byte except for the footer, so that a reader with the old footer reads the same rows."""
    old = open_storage(built).read("index/train.parquet")
    web.faults.clear()
    retry(built)
    new = open_storage(built).read("index/train.parquet")
    footer_bytes = int.from_bytes(old[-8:-4], "little") + 8
    assert new.startswith(old[:-footer_bytes])
    assert open_index(open_storage(built), "train").group_rows[-1] == 5


def test_repeated_retries_complete_the_dataset(web, tmp_path):
    url = str(tmp_path / "out")
    build_table(web, tmp_path, url, "tfrecord")
    del web.faults[11]
    assert retry(url).came == 1
    del web.faults[25]
    assert retry(url).came == 1
    check_whole(url)
    web.faults = {30: 404}
    last = retry(url, Choice(everything=True))
    assert (last.rows, last.came, last.manifest.revision) == (5, 4, 4)
    check_whole(url)
    assert retry(url).rows == 0
    assert not list((tmp_path / "out").glob("_*"))


def test_a_retry_without_success_changes_nothing(built):
    before = digests(built)
    retried = retry(built)
    assert (retried.rows, retried.came, retried.manifest.revision) == (5, 0, 1)
    assert digests(built) == before


def test_only_rows_with_the_chosen_reasons_are_retried(web, tmp_path):
    url = str(tmp_path / "out")
    build_table(web, tmp_path, url, "webdataset")

    def chosen(choice):
        dataset = open_fetched(url)
        return [(place.shard, place.row) for place in rows_to_try(dataset.storage, dataset.layout, choice)]

    assert chosen(Choice(reasons=("http 404", "http 429"))) == [(0, 5), (1, 3), (3, 0)]
    assert len(chosen(Choice(everything=True))) == len(FAULTS)
    with pytest.raises(UsageError, match="--all takes every reason"):
        Choice(reasons=("timeout",), everything=True)


@pytest.mark.parametrize(
    ("reason", "passes"),
    [("timeout", True), ("http 503", True), ("http 429", True), ("http 404", False), ("robots", False)],
)
def test_transient_reasons_are_retryable(reason, passes):
    assert may_pass(reason) is passes


def test_an_interrupted_retry_resumes_without_repeated_requests(web, tmp_path):
    url = str(tmp_path / "out")
    build_table(web, tmp_path, url, "webdataset", rows=60)
    web.faults = {}
    storage = open_storage(url)
    choice = Choice(everything=True)
    # One row a new shard, so that there are several.
    dataset = open_fetched(url)
    assert len(list(rows_to_try(storage, dataset.layout, choice))) == len(FAULTS)

    def dies(job, indexes):
        yield retry_shard(job, indexes[0])
        raise ConflictError("killed")

    with pytest.raises(ConflictError, match="killed"):
        retry(url, choice, dies)
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
    check_whole(url)


def test_a_worker_with_another_pillow_ends_the_retry_and_names_both(web, tmp_path):
    url = str(tmp_path / "out")
    build_table(web, tmp_path, url, "webdataset")
    web.faults = {}
    arguments = ("retry-failed", url, *WEB, "--workers", 1)
    run = dataprep(*arguments, **other_pillow(tmp_path))
    assert run.returncode == 2, run.stderr
    assert "this worker has pillow 0.0.1, the plan was made with pillow " in run.stderr
    again = dataprep(*arguments)
    assert again.returncode == 0, again.stderr
    check_whole(url)


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
    check_whole(url)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A dataset of which a retry was begun, and no row tried."""
    folder = tmp_path_factory.mktemp("begun")
    with picture_web() as server:
        server.faults = dict(FAULTS)
        build_table(server, folder, str(folder / "out"), "webdataset")

    def killed(job, indexes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retry(str(folder / "out"), engine=killed)
    return folder / "out"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "../../home"), ("id", None), ("id", "a" * 31), ("revision", "1"), ("revision", -1), ("revision", True),
        ("manifest_sha256", 3), ("choice", []), ("choice", {"reasons": "all"}), ("choice", {"reasons": [3]}),
        ("making", []), ("shard_rows", []), ("shard_rows", [0]), ("shard_rows", ["1"]), ("shard_rows", [1.5]),
        ("shard_rows", [True]), ("first_shard", -1), ("first_shard", None),
    ],
)  # fmt: skip
def test_a_plan_whose_field_is_of_another_kind_is_refused_by_name(begun, tmp_path, field, value):
    shutil.copytree(begun, tmp_path / "out")
    plan = tmp_path / "out" / RETRY_JSON
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {field: value}))
    before = digests(tmp_path / "out")
    with pytest.raises(
        FormatError, match=rf"{RETRY_JSON}: no plan of a retry: \$\.{field}.*, (got|in) .*; remove _retry/"
    ):
        retry(str(tmp_path / "out"))
    assert digests(tmp_path / "out") == before


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "null", "[" * 100_000, "{}", '{"id": 1}', '{"shard_rows": 7}', '{"shard_rows": null}']
)
def test_a_file_that_is_no_plan_of_a_retry_is_refused(begun, tmp_path, text):
    shutil.copytree(begun, tmp_path / "out")
    (tmp_path / "out" / RETRY_JSON).write_text(text)
    with pytest.raises(FormatError, match=r"no plan of a retry: .*; remove _retry/"):
        retry(str(tmp_path / "out"))


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
    with pytest.raises(
        UsageError, match=r"coco-dup5 was not fetched from the web; expected .*, or one of img2dataset that was adopted"
    ):
        retry(str(finished("coco-tfrecord")))
    with pytest.raises(UsageError, match="no dataset there"):
        retry(str(tmp_path / "nothing"))


def test_manifest_says_how_retried_images_are_made(web, tmp_path):
    url = str(tmp_path / "out")
    build_table(web, tmp_path, url, "webdataset")
    with pytest.raises(UsageError, match=r"--image-size: the manifest of .*out says how images are made; leave it out"):
        retry(url, making={"image_size": 256})


def test_the_stats_of_a_retry_list_the_counts_that_they_replace(web, tmp_path):
    url = str(tmp_path / "out")
    build_table(web, tmp_path, url, "webdataset")
    web.faults = {2: 404}
    retry(url)
    stats = json.loads((tmp_path / "out" / "train" / "00004_stats.json").read_text())
    assert stats["before"] == {
        "statuses": {"failed_to_download": 5},
        "reasons": {"http 429": 1, "http 500": 1, "http 503": 3},
    }
    assert (stats["count"], stats["successes"]) == (5, 4)
    # A lie about them is found.
    path = tmp_path / "out" / MANIFEST
    path.write_text(path.read_text().replace('"http 404": 3', '"http 404": 2', 1))
    assert verify(url, deep=False, workers=0, progress=Watcher()).verdict == "differs"


def test_a_hash_of_the_table_is_compared_again(web, tmp_path):
    """The table's own column of it is kept beside the shards; `sha256` there is that of what came."""
    rows = [row | {"sha256": hashlib.sha256(picture(number)).hexdigest()} for number, row in enumerate(web.rows(12))]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "laion.parquet")

    def wrong_at_first(number):
        web.asked[number] += 1
        return 200, picture(number + (number % 2 == 1 and web.asked[number] == 1))

    web.answer = wrong_at_first
    url = str(tmp_path / "out")
    manifest = build_table(web, tmp_path, url, "webdataset", rows=None, options=RowOptions(verify_hash="sha256"))
    assert manifest.splits[0].reasons == {"hash mismatch": 6, "success": 6}
    retried = retry(url, Choice(reasons=("hash mismatch",)))
    assert (retried.rows, retried.came) == (6, 6)
    check_whole(url)
