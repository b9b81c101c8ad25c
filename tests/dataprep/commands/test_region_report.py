"""What is found out about one URL: what a pass reads, what it costs, and which copy costs less."""

import json

import pytest

from dataprep.cloud.cost import gib
from dataprep.cloud.prices import published_prices
from dataprep.cloud.region import CO_LOCATED, PAID
from dataprep.commands.check_region import CheckRegion, RegionReport, examine
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.replicas import REPLICAS
from dataprep.errors import UsageError
from dataprep.storage import open_storage
from dataprep.storage.gcs_location import BucketLocation

HERE, THERE = "us-central1-a", "europe-west4-a"
MIB = 2**20


@pytest.fixture(scope="module", autouse=True)
def buckets(gcs) -> None:
    gcs.create_bucket("report-eu", location="EUROPE-WEST4")
    gcs.create_bucket("report-us", location="US-CENTRAL1")
    gcs.create_bucket("report-cold", location="EUROPE-WEST4", storage_class="NEARLINE")
    gcs.create_bucket("report-auto", location="EUROPE-WEST4", storage_class="NEARLINE", autoclass=True)


@pytest.fixture(scope="module")
def dataset(buckets, uploaded) -> str:
    """A dataset in Europe."""
    return uploaded("imagenet-webdataset", "gs://report-eu/imagenet")


def examined(url: str, where: str | None = HERE, **training: object) -> RegionReport:
    return examine(url, where, CheckRegion(urls=url, **training), published_prices())


def test_one_pass_reads_the_split_that_training_reads(dataset):
    splits = {split.name: split for split in read_manifest(open_storage(dataset)).splits}
    for chosen, name in ((None, "train"), ("val", "val")):
        report = examined(dataset, split=chosen)
        assert report.reading.is_dataset
        assert report.reading.num_bytes == splits[name].num_bytes
        assert sum(amount.objects for amount in report.reading.amounts) == len(splits[name].shards)
        assert report.one_pass.transfer == pytest.approx(splits[name].num_bytes / 2**30 * 0.05)


def test_hosts_read_all_multiplies_the_cost_by_the_hosts(dataset):
    shared = examined(dataset, epochs=2, hosts=8)
    alone = examined(dataset, epochs=2, hosts=8, hosts_read_all=True)
    assert shared.training.transfer == pytest.approx(2 * shared.one_pass.transfer)
    assert alone.training.total == pytest.approx(8 * shared.training.total)


def test_retrieval_is_charged_by_each_objects_own_class(gcs):
    storage = open_storage("gs://report-cold/mixed")
    for name in ("a.tar", "b.tar", "c.tar"):
        storage.create(name, bytes(MIB))
    gcs.set_storage_class("report-cold/mixed/c.tar", "ARCHIVE")
    found = examined("gs://report-cold/mixed", THERE)
    assert found.placement.verdict.kind == CO_LOCATED
    assert found.one_pass.retrieval == pytest.approx((2 * 0.01 + 0.05) / 2**10)
    assert found.one_pass.operations == pytest.approx((2 * 0.001 + 0.05) / 1000)
    assert examined("gs://report-cold/mixed").commands[1] == (
        "gcloud storage cp -r gs://report-cold/mixed gs://NEW-BUCKET/"
    )


@pytest.mark.parametrize(
    ("url", "note"),
    [
        ("gs://report-us", "no cost: name a dataset or a prefix of the bucket"),
        ("report-us", "no cost: name a dataset or a prefix of the bucket"),
        ("gs://report-us/nothing", "no cost: there are no objects"),
    ],
)
def test_without_data_there_is_a_verdict_and_no_cost(url, note):
    report = examined(url, THERE)
    assert (report.placement.verdict.kind, report.one_pass, report.training) == (PAID, None, None)
    assert report.notes == [note]


def test_data_on_a_disk_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"is on a disk, and reading it costs nothing; give gs://bucket/prefix"):
        examined(str(tmp_path))


def test_a_copy_in_the_readers_region_is_named_and_examined_where_told(uploaded, buckets):
    url, copy = (uploaded("imagenet-tfrecord", f"gs://{bucket}/copied") for bucket in ("report-eu", "report-us"))
    replicas = [
        {"url": "gs://far/copied", "location": "ASIA-EAST1", "location_type": "region"},
        {"url": copy, "location": "US-CENTRAL1", "location_type": "region"},
    ]
    storage = open_storage(url)
    storage.delete(REPLICAS)  # other tests of this bucket leave one
    storage.create(REPLICAS, json.dumps({"version": 1, "replicas": replicas}).encode())
    found = examined(url)
    assert (found.replica[0].url, found.copy_of) == (copy, None)
    assert (found.commands, found.copy) == ([], None)
    chosen = examined(url, replicas=True)
    assert (chosen.copy_of, chosen.placement.url, chosen.placement.verdict.kind) == (url, copy, CO_LOCATED)
    storage.delete(REPLICAS)
    storage.create(REPLICAS, b"{}")
    assert "not a list of replicas" in examined(url).notes[0]


def test_bytes_are_shown_as_cloud_storage_bills_them():
    sizes = (3 * 2**29, 2**27, 3 * 2**19, 500, 1, 0)
    assert [gib(size) for size in sizes] == ["1.50 GiB", "0.12 GiB", "1.50 MiB", "0.49 KiB", "1 byte", "0 bytes"]


def test_a_dataset_is_copied_by_replicate_also_if_its_size_is_given(uploaded):
    url = uploaded("imagenet-webdataset", "gs://report-us/sized")
    report = examined(url, THERE, dataset_bytes=MIB)
    assert report.commands[1] == f"dataprep replicate {url} --to gs://NEW-BUCKET/sized"
    given = BucketLocation(location="US", location_type="multi-region")
    asked = CheckRegion(urls=url, dataset_bytes=MIB)
    report = examine(url, THERE, asked, published_prices(), located=given)
    assert report.commands[1:] == [
        f"dataprep replicate {url} --to gs://NEW-BUCKET/sized --max-usd 1     "
        "# if dataprep wrote the data; refused above $1",
        f"gcloud storage cp -r {url} gs://NEW-BUCKET/     # if not; `objects` makes its price exact",
    ]
