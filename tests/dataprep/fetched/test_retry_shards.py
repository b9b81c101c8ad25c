"""New shards of a retry, as workers make them: each row is asked for once, and a retry that was overtaken ends."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.paths import RETRY_JSON
from dataprep.errors import ConflictError, FormatError, UsageError
from dataprep.fetched.newest import RowPlaces
from dataprep.fetched.retry_plan import rows_file
from dataprep.fetched.retry_shards import _retrier, retry_shard
from tests.support.builds import dataprep, dataprep_anew
from tests.support.fetched import PASSING, begin_retry, build_table, check_built
from tests.support.other_codecs import other_pillow
from tests.support.picture_web import WEB


@pytest.fixture
def root(web, tmp_path):
    """The folder of a dataset with some failures."""
    build_table(web, tmp_path, str(tmp_path / "out"), "webdataset")
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
    (root / RETRY_JSON).unlink()
    if plan is not None:
        (root / RETRY_JSON).write_bytes(plan)
    with pytest.raises(ConflictError, match="another process has changed the dataset meanwhile"):
        retry_shard(job, 0)
    assert not (root / "train/00004.tar").exists()


@pytest.mark.parametrize(("shard", "row", "text"), [(9, 0, "shard 9 of 4"), (3, 4, "row 4 of 4 in shard 3")])
def test_rows_that_are_not_there_are_no_plan(job, root, shard, row, text):
    rows = root / rows_file(job.root)
    rows.unlink()
    pq.write_table(pa.table({"shard": [shard], "row": [row]}, RowPlaces.schema()), rows)
    with pytest.raises(FormatError, match=f"no plan of a retry: {text}; remove _retry/"):
        retry_shard(job, 0)


def test_a_worker_with_other_codecs_is_refused(job):
    with pytest.raises(UsageError, match=r"this worker has pillow \d.*, the plan was made with pillow 0\.0\.1"):
        retry_shard(replace(job, codecs=job.codecs | {"pillow": "0.0.1"}), 0)


@pytest.mark.long
def test_a_worker_with_another_pillow_ends_the_command_and_names_both(root, web, tmp_path):
    web.faults = {}
    arguments = ("retry-failed", root, *WEB, "--workers", 1)
    run = dataprep_anew(*arguments, **other_pillow(tmp_path))
    assert run.returncode == 2, run.stderr
    assert "this worker has pillow 0.0.1, the plan was made with pillow " in run.stderr
    again = dataprep(*arguments)
    assert again.returncode == 0, again.stderr
    check_built(str(root))
