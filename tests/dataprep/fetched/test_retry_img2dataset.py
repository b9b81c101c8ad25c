"""Failed rows of img2dataset's output tried again: new shards like the old ones, each row with its newest status."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.adopt import AdoptRequest, adopt
from dataprep.commands.adopt import AdoptProgress
from dataprep.dataset.manifest import MANIFEST, read_manifest
from dataprep.errors import ConflictError, FormatError, UsageError
from dataprep.fetched.encode import encode_image
from dataprep.fetched.existing import open_fetched
from dataprep.fetched.filters import RowFilter
from dataprep.fetched.newest import Choice, rows_to_try
from dataprep.fetched.retry import retry_failed
from dataprep.fetched.retry_plan import RETRY_JSON
from dataprep.fetched.retry_shards import retry_shard
from dataprep.formats.img2dataset import reason_of
from dataprep.formats.tfds import DATASET_INFO
from dataprep.storage import open_storage
from loaders import open_loader
from tests.support.builds import dataprep, digests
from tests.support.img2dataset import MADE, write_img2dataset
from tests.support.img2dataset import MADE_SO as MADE_SO_FLAGS
from tests.support.interop import read_features_with_tfds
from tests.support.picture_web import LIMITS, WEB, picture, picture_web

ROWS = 34
DEFAULT, ALL = Choice(), Choice(everything=True)
MADE_SO = {"image_size": MADE.image_size, "resize_mode": MADE.resize_mode}
FAULTS = {2: 503, 5: 404, 11: 503, 12: 500, 13: 429, 25: 503, 30: 404}


@pytest.fixture
def web():
    with picture_web() as server:
        server.faults = dict(FAULTS)
        yield server


def adopt_here(url, **options):
    return adopt(AdoptRequest(url=str(url), **options), AdoptProgress(quiet=True)).manifest


def adopted(web, folder, fmt="webdataset", count=ROWS, **how):
    """The URL of an adopted dataset."""
    adopt_here(write_img2dataset(web, folder, fmt, count, **how))
    web.asked.clear()
    return str(folder)


@pytest.fixture(params=["webdataset", "tfrecord"])
def output(request, web, tmp_path, storage_url):
    """The URL of an adopted dataset with some failures, on disk or in a bucket."""
    folder = write_img2dataset(web, tmp_path / "cc3m", request.param, ROWS)
    storage = open_storage(storage_url)
    for path in folder.iterdir():
        storage.create(path.name, path.read_bytes())
    adopt_here(storage_url)
    web.asked.clear()
    return storage_url


def retry(url, choice=DEFAULT, engine=None, making=MADE_SO, log=lambda _: None):
    engine = engine or (lambda job, indexes: (retry_shard(job, index) for index in indexes))
    progress = SimpleNamespace(shards=lambda *_: None, shard_done=lambda _: None, log=log)
    return retry_failed(url, choice, LIMITS, engine, progress, making)


def tables(url):
    """The parquet files, in the order of the shards."""
    storage = open_storage(url)
    names = sorted(info.name for info in storage.list() if info.name.endswith(".parquet") and "/" not in info.name)
    return [pq.read_table(pa.BufferReader(storage.read(name))) for name in names]


def check_whole(url):
    """The newest status of every row is what the manifest counts, and what adopting it anew would count."""
    manifest = read_manifest(open_storage(url))
    newest = {row["key"]: row for table in tables(url) for row in table.to_pylist()}
    split = manifest.splits[0]
    assert Counter(row["status"] for row in newest.values()) == Counter(split.statuses)
    reasons = Counter(reason_of(row["error_message"] or "success") for row in newest.values())
    assert reasons == Counter(split.reasons)
    assert split.samples == split.statuses["success"]
    assert not [info.name for info in open_storage(url).list("_")]
    again = adopt_here(url, overwrite=True)
    assert (again.revision, again.splits[0].samples) == (manifest.revision + 1, split.samples)
    assert (again.splits[0].statuses, again.splits[0].reasons) == (split.statuses, split.reasons)
    shards = [[(shard["file"], shard["samples"]) for shard in found.splits[0].shards] for found in (again, manifest)]
    assert shards[0] == shards[1]


def captions_of(url):
    with open_loader(url, batch_size=5, image_size=32, shuffle=False, fields=("caption",)) as loader:
        return [
            caption
            for batch in loader
            for caption, there in zip(batch.fields["caption"], batch.mask, strict=True)
            if there
        ]


def test_retried_images_are_added_in_img2datasets_layout(output, web):
    before = digests(output)
    first = read_manifest(open_storage(output))
    web.faults = {5: 404, 12: 404, 30: 404}
    retried = retry(output)
    assert (retried.rows, retried.came, retried.shards) == (5, 4, 1)
    assert sorted(web.asked) == [2, 11, 12, 13, 25]
    after = digests(output)
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {MANIFEST, "index/train.parquet"} | ({DATASET_INFO} if first.format == "tfrecord" else set())
    suffix = "tar" if first.format == "webdataset" else "tfrecord"
    assert after.keys() - before.keys() == {f"00004.{suffix}", "00004.parquet", "00004_stats.json"}
    manifest = read_manifest(open_storage(output))
    assert (manifest.revision, manifest.plan_hash) == (2, first.plan_hash)
    assert manifest.splits[0].shards[:4] == first.splits[0].shards
    assert manifest.splits[0].reasons == {"http 404": 3, "success": ROWS - 3}
    assert manifest.options["allow_networks"] == ["127.0.0.0/8"]
    old, new = tables(output)[0], tables(output)[4]
    assert new.schema.equals(old.schema)
    assert sorted(captions_of(output)) == sorted(f"Bild {n} ü" for n in range(ROWS) if n not in (5, 12, 30))
    check_whole(output)


def test_repeated_retries_complete_the_dataset(web, tmp_path):
    """The second retry finds rows of the first tries and of the first retry; shards and keys have gaps."""
    url = adopted(web, tmp_path / "cc3m", numbers=(0, 3, 4, 9))
    del web.faults[11]
    assert retry(url, ALL).came == 1
    web.faults = {30: 404}
    web.asked.clear()
    last = retry(url, ALL)
    assert (last.rows, last.came, last.manifest.revision) == (6, 5, 3)
    assert sorted(web.asked) == [2, 5, 12, 13, 25, 30]
    assert [shard["file"] for shard in last.manifest.splits[0].shards[4:]] == ["00010.tar", "00011.tar"]
    check_whole(url)


def test_tfds_reads_the_new_shards(web, tmp_path):
    columns = {"flag": [n % 3 == 0 for n in range(ROWS)]}
    url = adopted(web, tmp_path / "cc3m", "tfrecord", columns=columns)
    web.faults.clear()
    assert retry(url, ALL).came == 7
    rows = {row["key"]: row for table in tables(url) for row in table.to_pylist()}
    read = read_features_with_tfds(tmp_path / "cc3m")
    assert len(read) == ROWS
    for example in read:
        row = rows[example["key"].decode()]
        assert (example["txt"].decode(), example["width"], example["flag"]) == (row["caption"], 32, row["flag"])


def test_members_and_fields_are_those_of_the_old_shards(web, tmp_path):
    columns = {"flag": [n % 3 == 0 for n in range(ROWS)], "weight": [None if n == 2 else 0.5 for n in range(ROWS)]}
    url = adopted(web, tmp_path / "cc3m", columns=columns, digest="md5")
    web.faults.clear()
    retry(url, ALL)
    documents = []
    for name in ("00000.tar", "00004.tar"):
        with tarfile.open(tmp_path / "cc3m" / name) as tar:
            members = {member.name: tar.extractfile(member).read() for member in tar}
        documents.append([json.loads(data) for name, data in members.items() if name.endswith(".json")])
        assert {name.partition(".")[2] for name in members} == {"jpg", "json", "txt"}
    old, new = documents[0][0], {document["key"]: document for document in documents[1]}["000002"]
    assert list(new) == list(old)
    body = picture(2)
    assert new | {"key": old["key"]} == old | {
        "similarity": 2 / ROWS, "flag": False, "weight": None, "caption": "Bild 2 ü",
        "url": old["url"].rpartition("/")[0] + "/2.jpg", "md5": hashlib.md5(body).hexdigest(),
    }  # fmt: skip
    with tarfile.open(tmp_path / "cc3m" / "00004.tar") as tar:
        assert tar.extractfile("000002.jpg").read() == encode_image(body, MADE, RowFilter()).data
    assert tables(url)[4].schema.field("flag").type == pa.bool_()
    check_whole(url)


def test_a_dataset_of_png_images_without_captions_is_retried(web, tmp_path):
    encode = replace(MADE, encode_format="png", encode_quality=3, resize_mode="keep_ratio")
    url = adopted(web, tmp_path / "cc3m", captions=False, encode=encode)
    web.faults.clear()
    with pytest.raises(UsageError, match="--encode-quality 95: png takes 0 to 9"):
        retry(url)
    making = MADE_SO | {"encode_quality": 3, "resize_mode": "keep_ratio"}
    assert retry(url, making=making).came == 5
    with tarfile.open(tmp_path / "cc3m" / "00004.tar") as tar:
        assert {name.partition(".")[2] for name in tar.getnames()} == {"json", "png"}
    check_whole(url)


def test_options_that_contradict_the_existing_images_are_refused(web, tmp_path):
    url = adopted(web, tmp_path / "cc3m", encode=replace(MADE, resize_mode="keep_ratio"))
    text = "an image of 64 x 48 is stored as 43 x 32; border at 32 makes 32 x 32; say with --image-size, --resize-mode"
    with pytest.raises(UsageError, match=text):
        retry(url)
    with pytest.raises(UsageError, match="keep_ratio at 256 makes 341 x 256"):
        retry(url, making={"resize_mode": "keep_ratio"})
    assert not open_storage(url).stat(RETRY_JSON)
    assert retry(url, making=MADE_SO | {"resize_mode": "keep_ratio"}).rows == 5


def test_images_stored_without_reencoding_are_retried_without_reencoding(web, tmp_path):
    """And numbers that img2dataset wrote as empty texts, because it had none, are texts in new records, too."""
    folder = write_img2dataset(web, tmp_path / "cc3m", "tfrecord", ROWS, encode=None)
    for path in folder.glob("0000?.parquet"):
        table = pq.read_table(path)
        score = pa.array([0.25 if key == "000002" else None for key in table.column("key").to_pylist()], pa.float64())
        pq.write_table(table.set_column(table.column_names.index("LICENSE"), "LICENSE", score), path)
    adopt_here(folder)
    web.faults.clear()
    with pytest.raises(UsageError, match="--disable_all_reencoding"):
        retry(str(folder))
    assert retry(str(folder), making={"resize_mode": "no", "skip_reencode": True}).came == 5
    check_whole(str(folder))
    read = {example["key"].decode(): example for example in read_features_with_tfds(folder)}
    assert (read["000002"]["jpg"], read["000002"]["width"], read["000002"]["LICENSE"]) == (picture(2), b"64", b"0.25")
    assert (read["000003"]["jpg"], read["000003"]["width"], read["000003"]["LICENSE"]) == (picture(3), b"", b"")
    assert len(read) == ROWS - 2


def test_a_limit_by_which_rows_failed_must_be_given(web, tmp_path):
    url = adopted(web, tmp_path / "cc3m", messages={3: "image too small", 4: "hash mismatch"})
    told = []
    with pytest.raises(UsageError, match=r"rows failed for 'image too small'; .*--min-image-size"):
        retry(url)
    web.faults.clear()
    retried = retry(url, ALL, making=MADE_SO | {"min_image_size": 49}, log=told.append)
    assert (retried.rows, retried.came) == (9, 0)
    assert told == ["img2dataset kept no hashes of rows that failed, so their downloads are not verified"]


def test_reasons_are_chosen_in_our_words(web, tmp_path):
    url = adopted(web, tmp_path / "cc3m", messages={3: "<urlopen error timed out>", 4: "weird"})

    def chosen(choice):
        dataset = open_fetched(url)
        rows = rows_to_try(dataset.storage, dataset.layout, choice)
        return sorted((place.shard, place.reason) for place in rows)

    assert chosen(Choice(reasons=("http 404",))) == [(0, "http 404"), (3, "http 404")]
    assert chosen(DEFAULT)[:2] == [(0, "http 503"), (0, "timeout")]
    assert (0, "weird") in chosen(ALL)


def test_data_that_cannot_be_retried_are_refused_with_the_reason(web, tmp_path):
    folder = write_img2dataset(web, tmp_path / "cc3m", "webdataset", ROWS)
    adopt_here(folder, index_url=str(tmp_path / "index"))
    with pytest.raises(UsageError, match="its shards lie elsewhere"):
        retry(str(tmp_path / "index"))
    adopt_here(folder, splits=(("a", "00000.tar"), ("b", "0000[123].tar")))
    with pytest.raises(UsageError, match="2 splits, expected one"):
        retry(str(folder))
    (folder / "00001_stats.json").unlink()
    adopt_here(folder, overwrite=True)
    with pytest.raises(UsageError, match="the statuses of its rows are not known"):
        retry(str(folder))
    lists = adopted(web, tmp_path / "lists", columns={"boxes": [[1, 2]] * ROWS})
    with pytest.raises(UsageError, match="column boxes of list"):
        retry(lists)
    tars = tmp_path / "tars"
    tars.mkdir()
    (tars / "00000.tar").write_bytes((folder / "00000.tar").read_bytes())
    adopt_here(tars)
    with pytest.raises(UsageError, match="adopted webdataset data have no table of rows"):
        retry(str(tars))


def test_an_interrupted_retry_keeps_its_options(web, tmp_path):
    url = adopted(web, tmp_path / "cc3m", encode=replace(MADE, resize_mode="keep_ratio"))
    web.faults.clear()
    making = MADE_SO | {"resize_mode": "keep_ratio"}

    def dies(job, indexes):
        yield retry_shard(job, indexes[0])
        raise ConflictError("killed")

    with pytest.raises(ConflictError, match="killed"):
        retry(url, ALL, dies, making)
    web.asked.clear()
    told = []
    assert retry(url, making={}, log=told.append).came == len(FAULTS)
    assert web.asked.total() == 0
    assert told == [
        "continuing with the options of an interrupted run: everything True, image_size 32, resize_mode keep_ratio"
    ]
    check_whole(url)


def test_retry_failed_on_the_command_line_adds_images(web, tmp_path):
    url = adopted(web, tmp_path / "cc3m", "tfrecord")
    web.faults.clear()
    arguments = ["retry-failed", url, *WEB, "--workers", 1, "--json"]
    run = dataprep(*arguments, "--dry-run")
    assert json.loads(run.stdout) == {
        "url": url,
        "rows": 5,
        "reasons": {"http 503": 3, "http 429": 1, "http 500": 1},
    }
    run = dataprep(*arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert "img2dataset does not record how it resized its images; give its --resize-mode" in run.stderr
    run = dataprep(*arguments, "--all", *MADE_SO_FLAGS)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["came"] == 7
    check_whole(url)


def test_keys_that_are_no_numbers_are_refused(web, tmp_path):
    url = adopted(web, tmp_path / "cc3m")
    path = tmp_path / "cc3m" / "00003.parquet"
    table = pq.read_table(path)
    keys = ["x" if number == 1 else key for number, key in enumerate(table.column("key").to_pylist())]
    pq.write_table(table.set_column(table.column_names.index("key"), "key", pa.array(keys)), path)
    assert retry(url, Choice(reasons=("http 429",))).rows == 1
    with pytest.raises(FormatError, match="key 'x', expected numbers of shard and row"):
        retry(url, Choice(reasons=("http 404",)))
