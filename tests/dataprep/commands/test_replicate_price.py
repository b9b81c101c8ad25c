"""What a copy costs before it is made: between buckets, to a bucket, from one, and where a price is not known."""

import itertools
from dataclasses import replace

import pytest

from dataprep.builder.finished import shape_faults
from dataprep.cloud.prices import Prices, published_prices
from dataprep.cloud.region import CO_LOCATED, PAID, UNKNOWN
from dataprep.cloud.replicate import Copying, dataset_phases, plan_copy
from dataprep.commands.replicate import PlannedCopy, planned_copy
from dataprep.errors import AccessError
from dataprep.messages import human_bytes, usd
from dataprep.storage import open_storage

PRICES = published_prices()
MIB = 2**20
_numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def buckets(gcs) -> None:
    gcs.create_bucket("priced-eu", location="EUROPE-WEST4")
    gcs.create_bucket("priced-us", location="US-CENTRAL1")
    gcs.create_bucket("priced-both", location="NAM4")
    gcs.create_bucket("priced-hidden", location="US-CENTRAL1", deny=["storage.buckets.get", "storage.objects.list"])


@pytest.fixture(scope="module")
def dataset(buckets, uploaded) -> str:
    return uploaded("imagenet-webdataset", "gs://priced-eu/imagenet")


def copying_of(source: str, target: str, sizes: tuple[int, ...] = (3 * MIB, MIB), existing: int = 0) -> Copying:
    """A copy of new objects of these sizes."""
    storage = open_storage(f"{source}/{next(_numbers)}")
    for number, num_bytes in enumerate(sizes):
        storage.create(f"{number}.tar", bytes(num_bytes))
    return Copying(source=storage, target=open_storage(target), phases=(tuple(storage.list()),), existing=existing)


def priced(copying: Copying, prices: Prices = PRICES) -> PlannedCopy:
    return planned_copy(copying, prices)


def test_the_copy_of_a_dataset_has_its_price_in_lines(dataset):
    copying = plan_copy(dataset, "gs://priced-us/x", dataset_phases(open_storage(dataset), shape_faults))
    found = planned_copy(copying, PRICES)
    assert (found.verdict.kind, found.verdict.usd_per_gib) == (PAID, 0.05)
    assert found.cost.transfer == pytest.approx(copying.num_bytes / 2**30 * 0.05)
    assert found.cost.operations == pytest.approx(copying.objects / 1000 * 0.005)
    assert found.lines == [
        f"{dataset} -> gs://priced-us/x",
        f"  copy      {copying.objects} objects, {human_bytes(copying.num_bytes)}",
        "  transfer  from europe-west4 to us-central1 at $0.05 per GiB",
        f"  price     {usd(found.cost.total)} once ({usd(found.cost.transfer)} transfer, $0.00 retrieval, "
        f"{usd(found.cost.operations)} operations)",
    ]


def test_each_object_is_retrieved_from_its_own_class(gcs):
    copying = copying_of("gs://priced-eu/mixed", "gs://priced-us/mixed")
    url = copying.source.url.removeprefix("gs://")
    assert priced(copying).cost.retrieval == 0
    gcs.set_storage_class(f"{url}/1.tar", "ARCHIVE")
    assert priced(copying).cost.retrieval == pytest.approx(0.05 / 2**10)


def test_a_bucket_of_two_regions_is_written_twice():
    one, two = (priced(copying_of("gs://priced-us/a", f"gs://priced-{name}/a")) for name in ("us", "both"))
    assert one.cost.transfer == 0
    assert two.cost.transfer > 0
    assert two.cost.operations == pytest.approx(2 * one.cost.operations)


def test_an_upload_costs_its_operations_alone(tmp_path):
    found = priced(copying_of(str(tmp_path), "gs://priced-us/up"))
    assert found.verdict.kind == CO_LOCATED
    assert "  transfer  from this machine to us-central1: Cloud Storage charges no uploads" in found.lines
    assert (found.cost.transfer, found.cost.retrieval) == (0, 0)
    assert found.cost.operations == pytest.approx(2 / 1000 * 0.005)


def test_from_disk_to_disk_nothing_is_paid(tmp_path):
    found = priced(copying_of(str(tmp_path / "from"), str(tmp_path / "to")))
    assert (found.verdict.kind, found.cost.total) == (CO_LOCATED, 0)
    assert found.lines[2:] == [
        "  transfer  from disk to disk",
        "  price     $0.00 once ($0.00 transfer, $0.00 retrieval, $0.00 operations)",
    ]


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("gs://priced-us/out", "{disk}", "this machine reads the bucket; `dataprep check-region` says what that costs"),
        ("gs://priced-us/out", "gs://priced-hidden/x", "neither permission storage.buckets.get"),
    ],
)
def test_a_price_that_is_not_known_says_why(source, target, reason, tmp_path):
    found = priced(copying_of(source, target.format(disk=tmp_path)))
    assert (found.verdict.kind, found.cost) == (UNKNOWN, None)
    assert reason in found.verdict.reason
    assert found.lines[-1] == "  price     not known"


@pytest.mark.parametrize("target", ["{disk}/copy", "gs://priced-us/of-s3"])
def test_a_copy_from_another_provider_is_not_said_to_be_free(target, tmp_path):
    copying = copying_of(str(tmp_path / "original"), target.format(disk=tmp_path))
    found = priced(replace(copying, source=open_storage("s3://bucket/out")))
    assert (found.verdict.kind, found.cost) == (UNKNOWN, None)
    assert "this machine reads the bucket" in found.verdict.reason


def test_where_nothing_is_missing_nothing_is_priced():
    found = priced(copying_of("gs://priced-us/whole", "gs://priced-us/copy", sizes=(), existing=11))
    assert found.lines[1:] == ["  copy      0 objects, 0 B, 11 more exist there already"]


def test_one_object_is_counted_as_one():
    found = priced(copying_of("gs://priced-us/one", "gs://priced-us/copy", sizes=(2000,), existing=1))
    assert found.lines[1] == "  copy      1 object, 2.0 kB, 1 more exists there already"


def test_a_bucket_that_does_not_exist_is_an_error():
    with pytest.raises(AccessError, match="does not exist"):
        priced(copying_of("gs://priced-us/lost", "gs://no-such-bucket-here/x"))
