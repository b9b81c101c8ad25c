"""Failed rows of img2dataset's output tried again: new shards like the old ones, each row with its newest status."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataprep.dataset.manifest import MANIFEST, read_manifest
from dataprep.errors import ConflictError
from dataprep.fetched.retry_shards import retry_shard
from dataprep.formats.tfds import DATASET_INFO
from dataprep.storage import open_storage
from loaders import open_loader
from tests.support.builds import digests
from tests.support.fetched import (
    ALL,
    FAULTS,
    MADE_SO,
    ROWS,
    adopt_here,
    adopted,
    check_adopted,
    img2dataset_tables,
    retry,
)
from tests.support.img2dataset import MADE, write_img2dataset
from tests.support.interop import read_features_with_tfds


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
    retried = retry(output, making=MADE_SO)
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
    old, new = img2dataset_tables(output)[0], img2dataset_tables(output)[4]
    assert new.schema.equals(old.schema)
    assert sorted(captions_of(output)) == sorted(f"Bild {n} ü" for n in range(ROWS) if n not in (5, 12, 30))
    check_adopted(output)


def test_repeated_retries_complete_the_dataset(web, tmp_path):
    """The second retry finds rows of the first tries and of the first retry; shards and keys have gaps."""
    url = adopted(web, tmp_path / "cc3m", numbers=(0, 3, 4, 9))
    del web.faults[11]
    assert retry(url, ALL, making=MADE_SO).came == 1
    web.faults = {30: 404}
    web.asked.clear()
    last = retry(url, ALL, making=MADE_SO)
    assert (last.rows, last.came, last.manifest.revision) == (6, 5, 3)
    assert sorted(web.asked) == [2, 5, 12, 13, 25, 30]
    assert [shard["file"] for shard in last.manifest.splits[0].shards[4:]] == ["00010.tar", "00011.tar"]
    check_adopted(url)


@pytest.mark.long
def test_tfds_reads_the_new_shards(web, tmp_path):
    columns = {"flag": [n % 3 == 0 for n in range(ROWS)]}
    url = adopted(web, tmp_path / "cc3m", "tfrecord", columns=columns)
    web.faults.clear()
    assert retry(url, ALL, making=MADE_SO).came == 7
    rows = {row["key"]: row for table in img2dataset_tables(url) for row in table.to_pylist()}
    read = read_features_with_tfds(tmp_path / "cc3m")
    assert len(read) == ROWS
    for example in read:
        row = rows[example["key"].decode()]
        assert (example["txt"].decode(), example["width"], example["flag"]) == (row["caption"], 32, row["flag"])


def test_an_interrupted_retry_keeps_its_options(web, tmp_path):
    url = adopted(web, tmp_path / "cc3m", encode=replace(MADE, resize_mode="keep_ratio"))
    web.faults.clear()
    making = MADE_SO | {"resize_mode": "keep_ratio"}

    def dies(job, indexes):
        yield retry_shard(job, indexes[0])
        raise ConflictError("killed")

    with pytest.raises(ConflictError, match="killed"):
        retry(url, ALL, dies, making=making)
    web.asked.clear()
    told = []
    assert retry(url, making={}, log=told.append).came == len(FAULTS)
    assert web.asked.total() == 0
    assert told == [
        "continuing with the options of an interrupted run: everything True, image_size 32, resize_mode keep_ratio"
    ]
    check_adopted(url)
