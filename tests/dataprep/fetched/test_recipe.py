"""The recipe of rows from the web: what it takes, and what it plans to write."""

import pickle

import pytest

from dataprep.build.claim import claim_place
from dataprep.build.job import BuildJob
from dataprep.build.request import BuildRequest
from dataprep.commands.progress import BuildProgress
from dataprep.errors import UsageError
from dataprep.fetched.plan import FetchRequest, TableRequest, build_options
from dataprep.fetched.recipe import WEB
from dataprep.fetched.shards import FetchJob
from dataprep.storage import open_storage
from dataprep.web.limits import Limits
from tests.dataprep.fetched.laion_tables import make_tables

LIMITS = Limits(contact="mailto:me@example.org")


@pytest.fixture
def request_of(tmp_path):
    make_tables(tmp_path, [{"URL": f"http://h/{i}", "TEXT": "t"} for i in range(25)])
    tables = TableRequest(sources=(str(tmp_path / "table.parquet"),), rows_per_shard=10, limits=LIMITS)
    return lambda fmt, output: FetchRequest(
        options=build_options(fmt), source_url=str(tmp_path), output_url=output, max_reject_ratio=1.0, tables=tables
    )


@pytest.mark.parametrize(
    ("fmt", "metadata", "samples"),
    [
        ("webdataset", set(), "train/{:05d}.tar"),
        ("tfrecord", {"dataset_info.json", "features.json"}, "laion-train.tfrecord-{:05d}"),
    ],
)
def test_three_files_are_planned_for_each_shard(request_of, storage_url, fmt, metadata, samples):
    storage = open_storage(storage_url)
    claim = claim_place(storage, WEB.plan(request_of(fmt, storage_url), BuildProgress(quiet=True), keep=True))
    sidecars = {f"train/{index:05d}{end}" for index in range(3) for end in (".parquet", "_stats.json")}
    expected = metadata | sidecars | {samples.format(index) for index in range(3)}
    assert set(WEB.planned_files(storage, claim)) == expected


def test_job_carries_the_limits_of_a_worker(request_of, tmp_path):
    job = WEB.job(request_of("tfrecord", str(tmp_path / "out")), "_build/0/1")
    assert isinstance(job, FetchJob)
    assert (job.recipe, job.limits) == ("web", LIMITS)
    assert pickle.loads(pickle.dumps(job)) == job


def test_requests_and_jobs_of_another_recipe_are_refused(tmp_path):
    options = build_options("webdataset")
    plain = BuildRequest(options=options, source_url="a", output_url=str(tmp_path), max_reject_ratio=0.0)
    with pytest.raises(UsageError, match="laion is built from a table of URLs, got no table"):
        WEB.plan(plain, BuildProgress(quiet=True), keep=False)
    with pytest.raises(UsageError, match="built within limits, got none"):
        WEB.build_shard(BuildJob(str(tmp_path), "a", "_build/0/1", "web"), 0)
