"""Failed rows tried again: new shards, old files untouched, every row with its newest status."""

import hashlib
import io
import json
import re
import shutil
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.builder.cards import cards_of, write_cards
from dataprep.builder.finished import ChangePlan, end_change, read_change
from dataprep.dataset.index import open_index_file
from dataprep.dataset.manifest import MANIFEST, read_manifest
from dataprep.dataset.paths import CHANGE_JSON, CROISSANT, README
from dataprep.dataset.records import Change
from dataprep.errors import ConflictError, FormatError, UsageError
from dataprep.fetched.collect import RowOptions
from dataprep.fetched.existing import MAY_PASS, Choice, open_fetched
from dataprep.fetched.retry import HTTP_CODE, RetryPlan, _retrier, check_reasons, retry_shard, rows_file, rows_schema
from dataprep.fetched.shard import built_names
from dataprep.storage import open_storage
from dataprep.storage.parquet import open_parquet
from dataprep.verification.run import verify
from loaders import open_loader
from tests.support.adoption import upload
from tests.support.builds import digests
from tests.support.fetched import ALL, FAULTS, PASSING, ROWS, Watcher, begin_retry, build_table, check_built, retry
from tests.support.markdown import ROOT
from tests.support.picture_web import picture, picture_web


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server, and a dataset of its pictures by format, whose copies the tests change."""
    with picture_web() as web:

        @cache
        def of(fmt):
            folder = tmp_path_factory.mktemp(fmt)
            web.faults = dict(FAULTS)
            build_table(web, folder, str(folder / "out"), fmt)
            return folder / "out"

        yield web, of


@pytest.fixture
def copied(served):
    """Function that puts a copy of a dataset with some failures at a URL; its manifest."""

    def put(url, fmt):
        source = served[1](fmt)
        upload(source, url) if "://" in url else shutil.copytree(source, url)
        return read_manifest(open_storage(url))

    return put


@pytest.fixture
def web(served, copied):
    """The server, as if the datasets had just been built."""
    web, of = served
    for fmt in ("webdataset", "tfrecord"):
        of(fmt)
    web.faults = dict(FAULTS)
    web.asked.clear()
    yield web
    web.__dict__.pop("answer", None)


@pytest.fixture
def built(request, web, copied, tmp_path):
    """The URL of a dataset with some failures."""
    fmt, place = getattr(request, "param", ("tfrecord", "disk"))
    url = str(tmp_path / "storage") if place == "disk" else request.getfixturevalue("bucket_url")
    copied(url, fmt)
    return url


@pytest.mark.parametrize("built", [("webdataset", "disk"), ("tfrecord", "bucket")], indirect=True, ids="-".join)
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
    assert manifest.changes == (Change(2, "train", "added", 4, first.splits[0].samples),)
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


def test_repeated_retries_complete_the_dataset(built, web):
    for number in (11, 25):
        del web.faults[number]
        assert retry(built).came == 1
    check_built(built)
    web.faults = {30: 404}
    last = retry(built, ALL)
    assert (last.rows, last.came, last.manifest.revision) == (5, 4, 4)
    check_built(built)
    assert retry(built).rows == 0
    assert not list(Path(built).glob("_*"))


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
    assert storage.stat(CHANGE_JSON) is not None
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
    plan = read_change(storage, RetryPlan)
    end_change(storage, plan.root, plan.files(open_fetched(built).names))
    storage.create(shard, other)
    for _ in range(2):
        with pytest.raises(ConflictError, match=rf"{shard}: another object exists"):
            retry(built, ALL)
    assert storage.read(shard) == other
    storage.delete(shard)
    assert retry(built, ALL).came
    check_built(built)


def test_a_crash_after_the_manifest_is_cleaned_up_by_the_next_run(built, web, monkeypatch):
    web.faults.clear()
    with monkeypatch.context() as patch:
        patch.setattr("dataprep.builder.finished.end_change", lambda *_: None)
        retry(built)
    assert Path(built, CHANGE_JSON).exists()
    again = retry(built)
    assert (again.rows, again.manifest.revision) == (0, 2)
    assert not Path(built, "_change").exists()
    open_storage(built).create("_change/0/receipts/00000.parquet", b"left by a cleaning up that was killed")
    assert retry(built).rows == 0
    assert not Path(built, "_change").exists()
    check_built(built)


def test_cards_get_the_new_revision_after_a_kill_before_them(web, copied, tmp_path, monkeypatch):
    url = str(tmp_path / "out")
    storage = open_storage(url)
    write_cards(storage, copied(url, "webdataset"))
    assert storage.replace(CROISSANT, b"edited", storage.read(CROISSANT))
    web.faults.clear()
    with monkeypatch.context() as patch:
        patch.setattr("dataprep.fetched.retry.replace_cards", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            retry(url)
    assert "revision 1" in storage.read(README).decode()
    assert retry(url).manifest.revision == 2
    assert storage.read(README) == cards_of(read_manifest(storage))[README]
    assert storage.read(CROISSANT) == b"edited"


def edit_plan(begun, root, **fields):
    """Copy a dataset of which a retry was begun, and change fields of its plan."""
    shutil.copytree(begun, root)
    plan = root / CHANGE_JSON
    plan.write_text(json.dumps(json.loads(plan.read_text()) | fields))


@pytest.mark.parametrize("first_shard", [0, 3, 5, 10**15])
def test_a_plan_that_begins_at_another_shard_is_refused(begun, tmp_path, first_shard):
    edit_plan(begun, tmp_path / "out", first_shard=first_shard)
    before = digests(tmp_path / "out")
    with pytest.raises(FormatError, match=f"its first shard is number {first_shard}, after 4 shards"):
        retry(str(tmp_path / "out"))
    assert digests(tmp_path / "out") == before


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


@pytest.fixture
def manifest(fetched):
    return read_manifest(open_storage(str(fetched("webdataset"))))


def documented() -> set[str]:
    """Reasons of failed rows that docs/fetching.md and docs/laion.md name."""
    statuses = (ROOT / "docs" / "fetching.md").read_text().split("## Statuses")[1].split("\n## ")[0]
    found = {name.replace("_", " ") for name in re.findall(r"^\| `(\w+)` \|", statuses, re.MULTILINE)}
    rows = re.findall(r"^\| `failed_\w+` \|(.*)\|$", (ROOT / "docs" / "laion.md").read_text(), re.MULTILINE)
    return found.union(*(re.findall(r"`([^`]+)`", row) for row in rows)) - {"http", "success"}


def test_every_reason_that_the_documents_name_is_known(manifest):
    names = documented()
    assert len(names) > 25
    check_reasons(Choice(reasons=tuple(names | MAY_PASS)), manifest)


def test_reasons_that_a_dataset_counts_are_known(manifest):
    reasons = manifest.splits[0].reasons
    assert any(HTTP_CODE.fullmatch(reason) for reason in reasons)
    reasons["made up"] = 1
    check_reasons(Choice(reasons=("http 404", "http 599", "made up")), manifest)


@pytest.mark.parametrize(
    ("reason", "nearest"),
    [
        ("Timeout", "timeout"),
        ("host_busy", "host busy"),
        ("404", "http 404"),
        ("HTTP 403", "http 403"),
        ("http403", "http 403"),
        ("undecodeable", "undecodable"),
    ],
)
def test_an_unknown_reason_is_refused_with_the_nearest(manifest, reason, nearest):
    with pytest.raises(UsageError, match=rf"^`reason` '{reason}': no row fails .*; did you mean {nearest}\?$"):
        check_reasons(Choice(reasons=("timeout", reason)), manifest)


@pytest.mark.parametrize(
    "reason", ["", "success", "failed_to_download", "http 200", "http 999", "http 4040", "http abc"]
)
def test_what_is_no_reason_is_refused(manifest, reason):
    with pytest.raises(UsageError, match="expected http and a status code such as http 404") as refused:
        check_reasons(Choice(reasons=(reason,)), manifest)
    assert f"did you mean {reason}?" not in str(refused.value)


PLAN = RetryPlan(
    id="a" * 32,
    revision=1,
    manifest_sha256="0" * 64,
    choice=Choice(reasons=("timeout",)),
    shard_rows=(3, 1),
    first_shard=4,
    first_number=4,
    codecs={"pillow": "12"},
)

NAMES = built_names("laion", "webdataset", "train", 5)


@pytest.fixture
def storage(tmp_path):
    """A place with the plan and its rows."""
    storage = open_storage(str(tmp_path))
    storage.create(CHANGE_JSON, json.dumps(asdict(PLAN)).encode())
    storage.create(rows_file(PLAN.root), b"rows")
    return storage


def names(storage):
    return [info.name for info in storage.list()]


def test_a_plan_is_read_as_it_was_written(storage):
    assert read_change(storage, RetryPlan) == PLAN
    assert read_change(storage, ChangePlan).root == PLAN.root


def test_where_no_retry_was_begun_there_is_no_plan(tmp_path):
    assert read_change(open_storage(str(tmp_path)), RetryPlan) is None


def test_only_its_own_plan_is_removed(storage):
    before = names(storage)
    end_change(storage, replace(PLAN, id="b" * 32).root, PLAN.files(NAMES))
    assert names(storage) == before
    end_change(storage, PLAN.root, PLAN.files(NAMES))
    assert names(storage) == []
    end_change(storage, PLAN.root, PLAN.files(NAMES))


def test_rows_are_a_row_group_for_each_new_shard(begun):
    storage = open_storage(str(begun))
    plan = read_change(storage, RetryPlan)
    rows = open_parquet(storage, rows_file(plan.root))
    assert plan.shard_rows == (len(PASSING),)
    pairs = [tuple(row.values()) for row in rows.read_row_group(0).to_pylist()]
    assert pairs == [divmod(number, 10) for number in PASSING]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "../../home"), ("id", None), ("id", "a" * 31), ("revision", "1"), ("revision", -1), ("revision", True),
        ("manifest_sha256", 3), ("choice", []), ("choice", {"reasons": "all"}), ("choice", {"reasons": [3]}),
        ("codecs", []), ("shard_rows", []), ("shard_rows", [0]), ("shard_rows", ["1"]), ("shard_rows", [1.5]),
        ("shard_rows", [True]), ("first_shard", -1), ("first_shard", None),
    ],
)  # fmt: skip
def test_a_plan_whose_field_is_of_another_kind_is_refused_by_name(begun, tmp_path, field, value):
    edit_plan(begun, tmp_path / "out", **{field: value})
    before = digests(tmp_path / "out")
    with pytest.raises(
        FormatError, match=rf"{CHANGE_JSON}: not a plan of a change: \$\.{field}.*, (got|in) .*; remove _change/"
    ):
        read_change(open_storage(str(tmp_path / "out")), RetryPlan)
    assert digests(tmp_path / "out") == before


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "null", "[" * 100_000, "{}", '{"id": 1}', '{"shard_rows": 7}', '{"shard_rows": null}']
)
def test_a_file_that_is_no_plan_of_a_retry_is_refused(begun, tmp_path, text):
    shutil.copytree(begun, tmp_path / "out")
    (tmp_path / "out" / CHANGE_JSON).write_text(text)
    with pytest.raises(FormatError, match=r"not a plan of a change: .*; remove _change/"):
        read_change(open_storage(str(tmp_path / "out")), RetryPlan)


@pytest.fixture
def root(web, copied, tmp_path):
    """The folder of a dataset with some failures."""
    copied(str(tmp_path / "out"), "webdataset")
    return tmp_path / "out"


@pytest.fixture
def job(root, web):
    """What a worker gets of a retry that was begun; nothing counts as asked for yet."""
    web.asked.clear()
    return begin_retry(str(root))


def test_a_shard_is_made_once_and_says_how_its_rows_had_ended(job, web):
    web.faults = {12: 404}
    receipt = retry_shard(job, 0)
    assert sorted(web.asked.elements()) == sorted(PASSING)
    assert (receipt.file, receipt.samples, receipt.split_index) == ("train/00004.tar", len(PASSING) - 1, 4)
    assert receipt.fetched.reasons == {"http 404": 1, "success": len(PASSING) - 1}
    assert receipt.fetched.before == {
        "statuses": {"failed_to_download": len(PASSING)},
        "reasons": {"http 429": 1, "http 500": 1, "http 503": 3},
    }
    _retrier.cache_clear()  # as in another process
    assert retry_shard(job, 0) == receipt
    assert web.asked.total() == len(PASSING)


def test_a_dataset_that_was_changed_meanwhile_is_left_alone(job, root, web):
    (root / MANIFEST).write_text((root / MANIFEST).read_text().replace('"revision": 1', '"revision": 2'))
    with pytest.raises(ConflictError, match="another process has changed the dataset meanwhile; run the same command"):
        retry_shard(job, 0)
    assert web.asked.total() == 0


@pytest.mark.parametrize("plan", [None, b"{}", json.dumps({"id": "b" * 32}).encode()])
def test_a_retry_whose_plan_is_gone_publishes_nothing(job, root, plan):
    (root / CHANGE_JSON).unlink()
    if plan is not None:
        (root / CHANGE_JSON).write_bytes(plan)
    with pytest.raises(ConflictError, match="another process has changed the dataset meanwhile"):
        retry_shard(job, 0)
    assert not (root / "train/00004.tar").exists()


@pytest.mark.parametrize(("shard", "row", "text"), [(9, 0, "shard 9 of 4"), (3, 4, "row 4 of 4 in shard 3")])
def test_rows_that_are_not_there_are_no_plan(job, root, shard, row, text):
    rows = root / rows_file(job.root)
    rows.unlink()
    pq.write_table(pa.table({"shard": [shard], "row": [row]}, rows_schema()), rows)
    with pytest.raises(FormatError, match=f"not a plan of a retry: {text}; remove _change/"):
        retry_shard(job, 0)


def test_a_worker_with_other_codecs_is_refused(job):
    with pytest.raises(UsageError, match=r"this worker has pillow \d.*, but the plan was made with pillow 0\.0\.1"):
        retry_shard(replace(job, codecs=job.codecs | {"pillow": "0.0.1"}), 0)


def test_the_new_index_begins_with_the_old_one(built, web):
    """Byte for byte except for the footer, so that a reader with the old footer reads the same rows."""
    old = open_storage(built).read("index/train.parquet")
    web.faults.clear()
    retry(built)
    new = open_storage(built).read("index/train.parquet")
    footer_bytes = int.from_bytes(old[-8:-4], "little") + 8
    assert new.startswith(old[:-footer_bytes])
    assert open_index_file(open_storage(built), "index/train.parquet").group_rows[-1] == 5


def test_the_stats_of_a_retry_list_the_counts_that_they_replace(built, web):
    web.faults = {2: 404}
    retry(built)
    stats = json.loads(Path(built, "train/00004_stats.json").read_text())
    assert stats["before"] == {
        "statuses": {"failed_to_download": 5},
        "reasons": {"http 429": 1, "http 500": 1, "http 503": 3},
    }
    assert (stats["count"], stats["successes"]) == (5, 4)
    # A lie about them is found.
    path = Path(built, MANIFEST)
    path.write_text(path.read_text().replace('"http 404": 3', '"http 404": 2', 1))
    assert verify(built, deep=False, workers=0, progress=Watcher()).verdict == "differs"


@pytest.mark.parametrize("name", ["index/train.parquet", MANIFEST])
def test_what_another_process_has_replaced_is_not_replaced_again(built, web, name):
    storage = open_storage(built)
    other = written_otherwise(name, storage.read(name))
    web.faults.clear()

    def overtaken(job, indexes):
        yield from (retry_shard(job, index) for index in indexes)
        assert storage.replace(name, other, storage.read(name))

    with pytest.raises(ConflictError, match="another process has changed the dataset meanwhile; run the same command"):
        retry(built, engine=overtaken)
    assert storage.read(name) == other
    assert read_manifest(storage).revision == 1


def written_otherwise(name, data):
    """The same content in other bytes."""
    if name == MANIFEST:
        return data + b" "
    file, sink = pq.ParquetFile(io.BytesIO(data)), io.BytesIO()
    with pq.ParquetWriter(sink, file.schema_arrow, compression="gzip") as writer:
        for group in range(file.num_row_groups):
            writer.write_table(file.read_row_group(group))
    return sink.getvalue()
