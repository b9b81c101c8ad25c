"""The next revision of a dataset: what follows the old one, what is counted anew, and what is not replaced."""

from __future__ import annotations

import io
import json

import pyarrow.parquet as pq
import pytest

from dataprep.dataset.index import open_index_file
from dataprep.dataset.manifest import MANIFEST, read_manifest
from dataprep.errors import ConflictError
from dataprep.fetched.retry_shards import retry_shard
from dataprep.storage import open_storage
from dataprep.verification.run import verify
from tests.support.fetched import Watcher, build_table, retry


@pytest.fixture
def built(web, tmp_path, storage_url):
    """The URL of a dataset with some failures."""
    build_table(web, tmp_path, storage_url, "webdataset")
    return storage_url


def test_the_new_index_begins_with_the_old_one(built, web):
    """Byte for byte except for the footer, so that a reader with the old footer reads the same rows."""
    old = open_storage(built).read("index/train.parquet")
    web.faults.clear()
    retry(built)
    new = open_storage(built).read("index/train.parquet")
    footer_bytes = int.from_bytes(old[-8:-4], "little") + 8
    assert new.startswith(old[:-footer_bytes])
    assert open_index_file(open_storage(built), "index/train.parquet").group_rows[-1] == 5


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
