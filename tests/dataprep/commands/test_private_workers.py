"""What workers without public addresses need is said before a build starts, with its price."""

from dataclasses import replace

import pytest

from dataprep.builder.output import claim_place
from dataprep.builder.recipe import BuildJob
from dataprep.commands.build_run import nat_cost, private_worker_lines, telling
from dataprep.fetched.recipe import ALIVE_SHARE, IMAGE_BYTES
from dataprep.storage import open_storage
from tests.support.markdown import ROOT
from tests.support.plans import planned, small_plan

PRIVATE = ("--project=p", "--no_use_public_ips")
LAION_ROWS = 413_871_335


def laion_plan(shards: int = 41_388, rows: int = 10_000):
    plan = small_plan((rows,) * shards)
    return replace(plan, options=replace(plan.options, dataset="laion"))


def test_workers_with_public_addresses_need_nothing():
    assert private_worker_lines(laion_plan(1), ("--project=p",)) == []


def test_a_build_from_buckets_needs_private_google_access_only():
    (line,) = private_worker_lines(small_plan(), PRIVATE)
    assert "subnetwork has Private Google Access: gcloud compute networks subnets update SUBNETWORK" in line


def test_a_build_from_the_web_needs_cloud_nat_with_its_price():
    _, line = private_worker_lines(laion_plan(), PRIVATE)
    assert "only through Cloud NAT, which costs about $2,241.04 for 53.5 TB of downloads" in line


def test_the_price_that_the_documents_give_for_laion_is_this_one():
    web_bytes = round(LAION_ROWS * ALIVE_SHARE * IMAGE_BYTES)
    assert web_bytes / 1e12 == pytest.approx(53, abs=0.5)
    assert nat_cost(web_bytes) == pytest.approx(2_200, abs=50)
    assert "about 2,200 USD for 53 TB" in (ROOT / "docs/clusters.md").read_text()


def test_needs_of_private_workers_are_said_before_the_first_shard(tmp_path):
    plan, said = small_plan(), []
    claim = claim_place(open_storage(str(tmp_path)), planned(plan))

    def engine(job, indexes):
        said.append(indexes)
        return iter(())

    job = BuildJob(str(tmp_path), "originals", claim.root, "archives")
    assert list(telling(engine, PRIVATE, said.append)(job, [0])) == []
    assert "Private Google Access" in said[0]
    assert said[1:] == [[0]]
