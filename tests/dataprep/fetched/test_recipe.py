"""The recipe of rows from the web: what it takes, and what it plans to write."""

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

import dataprep.builder.plan as plans
import dataprep.fetched.recipe as recipe
from dataprep.builder.cards import write_cards
from dataprep.builder.driver import refuse_nested, run_build
from dataprep.builder.output import claim_place, open_build
from dataprep.builder.plan import BuildRequest
from dataprep.builder.recipe import BuildJob, begin_shard, build_shard
from dataprep.commands.progress import BuildProgress
from dataprep.dataset.manifest import MANIFEST, read_manifest
from dataprep.dataset.records import FileEntry, SplitManifest
from dataprep.errors import BuildError, UsageError
from dataprep.fetched.plan import build_options, metadata_files
from dataprep.fetched.recipe import WEB, nothing_came, top_reasons
from dataprep.fetched.shard import ShardSchema
from dataprep.sources.laion import LAION
from dataprep.sources.tables import TABLE_WINDOW_BYTES, Column
from dataprep.storage import open_storage
from dataprep.web.requests import Limits
from tests.dataprep.fetched.laion_tables import make_tables
from tests.support.build_here import Killed, in_this_process
from tests.support.builds import digests
from tests.support.fetched import FAULTS, ROWS, build_table, check_built, fetch_request, retry
from tests.support.picture_web import LIMITS as PICTURE_LIMITS
from tests.support.picture_web import picture, picture_web
from tests.support.plans import small_plan

LIMITS = Limits(contact="mailto:me@example.org")


@pytest.fixture
def request_of(tmp_path):
    make_tables(tmp_path, [{"URL": f"http://h/{i}", "TEXT": "t"} for i in range(25)])
    return lambda fmt, output: fetch_request(tmp_path / "table.parquet", output, fmt, limits=LIMITS)


@pytest.mark.parametrize(
    ("fmt", "metadata", "samples"),
    [
        ("webdataset", set(), "train/{:05d}.tar"),
        ("tfrecord", {"dataset_info.json", "features.json"}, "laion-train.tfrecord-{:05d}"),
    ],
)
def test_three_files_are_planned_for_each_shard(request_of, storage, fmt, metadata, samples):
    claim = claim_place(storage, WEB.plan(request_of(fmt, storage.url), BuildProgress(quiet=True), keep=True))
    sidecars = {f"train/{index:05d}{end}" for index in range(3) for end in (".parquet", "_stats.json")}
    expected = metadata | sidecars | {samples.format(index) for index in range(3)}
    assert set(WEB.planned_files(storage, claim)) == expected


@pytest.mark.parametrize(
    ("shards", "one_fetches_a_shard", "processes"),
    [(1, True, 1), (3, True, 3), (9, True, 4), (0, True, 1), (1, False, 4), (9, False, 4)],
)
def test_limits_are_divided_among_the_processes_that_can_fetch_at_once(
    request_of, tmp_path, shards, one_fetches_a_shard, processes
):
    asked = request_of("tfrecord", str(tmp_path / "out"))
    tables = dataclasses.replace(asked.tables, workers=4, one_fetches_a_shard=one_fetches_a_shard)
    job = WEB.job(dataclasses.replace(asked, tables=tables), "_build/0/1", shards)
    assert job.limits == LIMITS.divided(processes)


def test_requests_and_jobs_of_another_recipe_are_refused(tmp_path):
    options = build_options("webdataset")
    plain = BuildRequest(options=options, source_url="a", output_url=str(tmp_path), max_reject_ratio=0.0)
    with pytest.raises(UsageError, match="laion is built from a table of URLs, got no table"):
        WEB.plan(plain, BuildProgress(quiet=True), keep=False)
    with pytest.raises(UsageError, match="needs limits, got none"):
        WEB.build_shard(BuildJob(str(tmp_path), "a", "_build/0/1", "web"), 0)


def test_a_dataset_may_be_beside_its_tables_but_not_around_them(request_of, tmp_path):
    asked = request_of("tfrecord", str(tmp_path / "out"))
    refuse_nested(open_storage(asked.output_url), asked)
    inside = dataclasses.replace(asked, source_url=str(tmp_path / "out/tables"))
    with pytest.raises(UsageError, match="are inside one another"):
        run_build(inside, lambda job, indexes: iter(()), BuildProgress(quiet=True))


@pytest.mark.parametrize("do_shard", [build_shard, lambda job, index: begin_shard(job, index).result()])
def test_a_worker_with_other_codecs_fetches_nothing_and_names_both_versions(
    request_of, tmp_path, monkeypatch, do_shard
):
    """As an engine of Beam calls it, and as the local pool does."""

    def engine(job, indexes):
        here = plans.codec_versions
        monkeypatch.setattr(plans, "codec_versions", lambda *more: here(*more) | {"pillow": "0.0.1"})
        open_build.cache_clear()  # a worker is a process of its own
        with pytest.raises(UsageError, match=r"this worker has pillow 0.0.1, but the plan was made with pillow \d"):
            do_shard(job, 0)
        raise Killed
        yield

    with pytest.raises(Killed):
        run_build(request_of("webdataset", str(tmp_path / "out")), engine, BuildProgress(quiet=True))


def test_a_process_asks_a_host_once_for_its_rules_and_keeps_its_connections(tmp_path):
    """An engine calls `build_shard` for one shard after the other, and from several threads."""
    counts = {}

    def by_threads(job, indexes):
        with ThreadPoolExecutor(2) as threads:
            yield from threads.map(partial(build_shard, job), indexes)

    for name, engine in {"one by one": in_this_process, "threads": by_threads}.items():
        with picture_web() as web:
            folder = tmp_path / name
            folder.mkdir()
            web.write_table(folder / "table.parquet", 60)
            limits = dataclasses.replace(PICTURE_LIMITS, host_connections=4)
            asked = fetch_request(folder / "table.parquet", str(folder / "out"), limits=limits)
            manifest = run_build(asked, engine, BuildProgress(quiet=True)).manifest
            assert manifest.splits[0].samples == 60
            counts[name] = web.rules_asked, web.connections
            recipe._made_fetcher.cache_clear()  # a worker ends with its job
    assert {rules for rules, _ in counts.values()} == {1}
    assert max(connections for _, connections in counts.values()) <= 4


@pytest.mark.parametrize(("fmt", "place"), [("webdataset", "disk"), ("tfrecord", "disk"), ("tfrecord", "bucket")])
def test_a_removed_shard_is_fetched_again_and_the_others_stay(fmt, place, web, tmp_path, request):
    """The web gives other images now, and the repair keeps those that it cannot give again."""
    url = str(tmp_path / "out") if place == "disk" else request.getfixturevalue("bucket_url")
    storage = open_storage(url)
    web.faults = {3: 404}
    write_cards(storage, build_table(web, tmp_path, url, fmt))
    before = digests(url)
    shards = [entry["file"] for entry in read_manifest(storage).splits[0].shards]
    web.answer = lambda number: (web.asked.update([number]), (200, picture(number + 1000)))[1]
    web.asked.clear()
    damaged = bytearray(storage.read(shards[2]))
    damaged[len(damaged) // 2] ^= 1
    for name in (MANIFEST, shards[1], shards[2]):
        storage.delete(name)
    storage.create(shards[2], bytes(damaged))
    build_table(web, tmp_path, url, fmt)
    assert set(web.asked) == set(range(10, 30))
    after = digests(url)
    kept = {name for name in before if "00000" in name or "00003" in name}
    assert len(kept) == 6
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert after.keys() == before.keys()
    check_built(url)


def test_a_repair_names_shards_that_only_the_lost_manifest_lists(web, tmp_path):
    url = str(tmp_path / "out")
    storage = open_storage(url)
    web.faults = {3: 503}
    write_cards(storage, build_table(web, tmp_path, url, "webdataset"))
    web.faults = {}
    assert retry(url).came == 1
    for name in (MANIFEST, "train/00001.tar"):
        storage.delete(name)
    with pytest.raises(BuildError, match=r"train/00004.tar: retry-failed added this shard, but the dataset.json"):
        build_table(web, tmp_path, url, "webdataset")
    assert storage.stat("train/00004.tar")
    for name in ("train/00004.tar", "train/00004.parquet", "train/00004_stats.json"):
        storage.delete(name)
    assert build_table(web, tmp_path, url, "webdataset").splits[0].reasons == {"http 503": 1, "success": 33}
    web.asked.clear()
    assert retry(url).came == 1
    check_built(url)


def plan_of(num_shards: int, table_bytes: int = 1000):
    plan = small_plan((100,) * num_shards)
    split = replace(plan.splits[0], sources=({"name": "t.parquet", "bytes": table_bytes},), source_bytes=0)
    return replace(plan, splits=(split,))


def test_output_of_a_shard_is_three_files_and_a_receipt():
    one, three = (WEB.output_traffic(plan_of(count), workers=1) for count in (1, 3))
    assert (three.inserts - one.inserts, three.gets - one.gets) == (2 * 8, 2 * 2)
    assert one.num_bytes == 0  # not known before the images came


def test_listings_have_a_page_for_each_thousand_objects():
    few, many = (WEB.output_traffic(plan_of(count), workers=1) for count in (1, 1001))
    assert many.inserts - few.inserts == 8 * 1000 + 3 * 4 + 1  # four objects a shard thrice, and receipts once more


def test_tables_are_measured_and_read_once():
    small, large = WEB.source_traffic(plan_of(2)), WEB.source_traffic(plan_of(2, 10 * TABLE_WINDOW_BYTES))
    assert (small.num_bytes, large.num_bytes) == (1000, 10 * TABLE_WINDOW_BYTES)
    assert large.gets - small.gets == 10 - 2


ENTRY: FileEntry = {"file": "x", "bytes": 0, "sha256": ""}


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
def test_receipts_are_summed_up_in_the_manifest(fetched, fmt):
    root = fetched(fmt)
    manifest = read_manifest(open_storage(str(root)))
    (split,) = manifest.splits
    assert (split.samples, [shard["samples"] for shard in split.shards]) == (ROWS - len(FAULTS), [8, 7, 9, 3])
    assert split.statuses["failed_to_download"] == len(FAULTS)
    assert split.reasons == {"http 404": 2, "http 429": 1, "http 500": 1, "http 503": 3, "success": ROWS - len(FAULTS)}
    assert list(split.reasons) == sorted(split.reasons)
    assert manifest.options["allow_networks"] == ["127.0.0.0/8"]
    assert [(source["split"], source["name"], source["rows"]) for source in manifest.sources] == [
        ("train", "laion.parquet", ROWS)
    ]
    assert (manifest.shuffled, manifest.checked) == (False, "decode")
    files = [entry["file"] for entry in manifest.files]
    assert files == sorted(files)
    assert len(files) == 2 * len(split.shards) + (2 if fmt == "tfrecord" else 0)
    assert all(
        (root / name).stat().st_size == entry["bytes"] for name, entry in zip(files, manifest.files, strict=True)
    )


def test_the_most_frequent_failures_are_told():
    reasons = {"success": 9, "timeout": 3, "http 404": 1_200, "dns": 3, "a": 2, "b": 2, "c": 1, "d": 1}
    assert top_reasons(reasons) == "http 404 1,200, timeout 3, dns 3, a 2, b 2"
    assert top_reasons({"success": 9}) == ""


def test_a_build_without_an_image_says_how_its_rows_ended():
    split = SplitManifest(
        name="train", samples=0, num_bytes=0, shards=(), class_counts=(), repeats={"count": 1, "stored": 1},
        repaired={}, rejected={}, index=ENTRY, events=ENTRY,
        statuses={"failed_to_download": 1_002}, reasons={"timeout": 1_000, "dns": 2},
    )  # fmt: skip
    error = nothing_came("gs://bucket/laion", split)
    assert isinstance(error, BuildError)
    assert str(error).startswith(
        "gs://bucket/laion: none of 1,002 rows became an image (timeout 1,000, dns 2), and nothing is kept; check "
        "the table, the filters and the network, and run the same command again"
    )
    refused = nothing_came("out", replace(split, reasons={"refused address": 2, "dns": 1}))
    assert str(refused) == (
        "out: none of 1,002 rows became an image (refused address 2, dns 1), and nothing is kept; refused addresses "
        "are not public: if they belong to your own network, name it with `allow_network` CIDR, else check the "
        "table, and run the command again"
    )


@pytest.mark.parametrize(("image_name", "encoding"), [("jpg", "jpeg"), ("png", "png")])
def test_features_are_the_columns_the_caption_and_the_image(image_name, encoding):
    carried = (Column("weight", "float"), Column("number", "int"), Column("note", "string"))
    schema = ShardSchema(image_name=image_name, carried=carried, duplicates=False)
    files = metadata_files(LAION, schema, {"train": [3, 0]}, {"train": 5})
    features = json.loads(files["features.json"])["featuresDict"]["features"]
    assert set(features) == {column.name for column in schema.columns} | {"txt", image_name}
    assert features[image_name]["image"]["encodingFormat"] == encoding
    assert features["weight"]["tensor"]["dtype"] == "float32"
    assert features["number"]["tensor"]["dtype"] == "int64"
    assert features["note"] == features["txt"]
    (split,) = json.loads(files["dataset_info.json"])["splits"]
    assert (split["shardLengths"], split["numBytes"]) == (["3", "0"], "5")
