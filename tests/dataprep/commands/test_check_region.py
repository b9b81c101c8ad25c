"""Buckets of every kind in the emulator: what the command says of them, and what the guards let through."""

import json
import shutil

import pytest
from click.testing import CliRunner, Result

from dataprep.cloud.cost import gib
from dataprep.cloud.placement import guard
from dataprep.cloud.prices import published_prices
from dataprep.cloud.region import CACHED, CO_LOCATED, FREE, PAID, UNKNOWN
from dataprep.commands import build as build_module
from dataprep.commands.check_region import CheckRegion, RegionReport, command, examine
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.replicas import REPLICAS
from dataprep.errors import DataprepError, UsageError
from dataprep.storage import open_storage
from dataprep.storage.gcs_location import BucketLocation
from loaders import open_loader
from tests.support.builds import dataprep, refuses
from tests.support.gcs_emulator import GCSEmulator

BUCKETS = {
    "region-eu": {"location": "EUROPE-WEST4"},
    "region-us": {"location": "US-CENTRAL1"},
    "multi-eu": {"location": "EU"},
    "zonal-us": {"location": "us-central1", "data_locations": ("us-central1-a",), "storage_class": "RAPID"},
    "report-eu": {"location": "EUROPE-WEST4"},
    "report-us": {"location": "US-CENTRAL1"},
    "report-cold": {"location": "EUROPE-WEST4", "storage_class": "NEARLINE"},
}
CODES = {CO_LOCATED: 0, FREE: 0, CACHED: 0, PAID: 1, UNKNOWN: 3}


@pytest.fixture(scope="module", autouse=True)
def buckets(gcs: GCSEmulator) -> None:
    for name, place in BUCKETS.items():
        gcs.create_bucket(name, **place)
    gcs.create_bucket("cached-us", location="US", caches=("us-central1-a",))
    gcs.create_bucket("layout-only", location="US-CENTRAL1", deny=["storage.buckets.get"])
    gcs.create_bucket("hidden", location="US-CENTRAL1", deny=["storage.buckets.get", "storage.objects.list"])


@pytest.fixture(scope="module")
def dataset(buckets, uploaded) -> str:
    """A dataset in Europe."""
    return uploaded("imagenet-webdataset", "gs://region-eu/imagenet")


def check(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def checked(*arguments: object) -> dict:
    """What --json says of the first URL."""
    result = check(*arguments, "--json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    found = json.loads(result.stdout)["urls"][0]
    assert result.exit_code == CODES[found["verdict"]]
    return found


# The command


def test_the_zone_of_this_machine_is_the_default(american_vm):
    assert checked("gs://region-us")["verdict"] == CO_LOCATED
    assert checked("region-eu")["verdict"] == PAID  # a bucket's name alone


def test_without_a_known_reader_the_verdict_is_undecided():
    result = check("gs://region-us")
    assert result.exit_code == 3
    assert "not known: no metadata server; give --zone or --tpu" in result.stdout


def test_the_worst_of_several_verdicts_decides_the_exit_code():
    assert check("gs://region-us", "gs://region-eu", "--zone", "us-central1-a").exit_code == 1
    assert check("gs://region-us", "gs://hidden", "--zone", "us-central1-a").exit_code == 3


def test_what_s3_charges_is_said_without_a_request(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    found = check("s3://bucket/x", "--zone", "us-central1-a")
    assert found.exit_code == 1
    assert "paid at $0.09 per GiB: AWS charges for reading from eu-west-1 outside AWS" in found.stdout


def test_the_storage_layout_serves_where_the_bucket_may_not_be_seen():
    found = checked("gs://layout-only", "--zone", "us-central1-a")
    assert found["verdict"] == CO_LOCATED
    assert "permission storage.buckets.get is missing" in found["notes"][0]


def test_a_mistyped_region_is_priced_with_a_note_that_names_the_nearest():
    words = ("gs://bucket", "--bucket-location", "us-cental1", "--zone", "europe-west44-b", "--dataset-bytes", "1GB")
    result = check(*words)
    assert (result.exit_code, result.stderr.splitlines()) == (
        1,
        [
            "note: us-cental1 is not a region that dataprep knows; did you mean us-central1?",
            "note: europe-west44 is not a region that dataprep knows; did you mean europe-west4?",
        ],
    )
    assert [f"note: {note}" for note in checked(*words)["notes"][-2:]] == result.stderr.splitlines()
    right = "gs://bucket --bucket-location us-central1 --zone europe-west4-b --dataset-bytes 1GB"
    assert check(*right.split()).stderr == ""


def test_a_bucket_that_does_not_exist_is_bad_input(gcs):
    run = refuses("check-region", "gs://no-such-bucket", "--zone", "us-central1-a")
    assert run.stderr == (
        "dataprep: gs://no-such-bucket: the bucket gs://no-such-bucket does not exist; create it, or check its name\n"
    )


@pytest.fixture
def no_credentials(tmp_path, monkeypatch) -> None:
    for variable in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))


def test_without_credentials_the_verdict_is_undecided(no_credentials):
    found = checked("gs://never-seen", "--zone", "us-central1-a")
    assert (found["verdict"], found["bucket"], found["usd_per_gib"]) == (UNKNOWN, None, None)
    assert 'no valid credentials; run "gcloud auth application-default login"' in found["reason"]
    assert found["reason"].endswith("; --bucket-location needs no credentials")


@pytest.mark.parametrize(
    ("location", "verdict"),
    [
        ("US", PAID),
        ("us-central1", CO_LOCATED),
        ("NAM4", FREE),
        ("us-central1+us-west1", FREE),
        ("mars-east1", UNKNOWN),
    ],
)
def test_a_given_location_is_judged_without_a_request(no_credentials, location, verdict):
    found = checked("gs://never-seen/x", "--zone", "us-central1-a", "--bucket-location", location)
    assert (found["verdict"], found["reading"]) == (verdict, None)
    assert "give --dataset-bytes" in found["notes"][0]


def test_a_given_zone_is_priced_as_a_rapid_bucket(no_credentials):
    words = "gs://never-seen --zone us-central1-a --bucket-location us-central1-a --dataset-bytes 1GiB"
    found = checked(*words.split())["one_pass_usd"]
    assert (found["transfer"], found["retrieval"]) == (0, pytest.approx(0.0006))
    assert found["operations"] == pytest.approx(512 * 0.0002 / 1000)


def test_a_given_location_and_size_cost_what_a_bucket_that_is_looked_up_costs(no_credentials, monkeypatch, gcs):
    words = ("gs://multi-eu", "--zone", "us-central1-a", "--dataset-bytes", "147897477120", "--epochs", "90")
    given = checked(*words, "--bucket-location", "EU")
    assert given["commands"][0] == "dataprep create-bucket gs://NEW-BUCKET --near us-central1-a"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    seen = checked(*words)
    assert (given["reading"].pop("is_dataset"), seen["reading"].pop("is_dataset")) == (None, False)
    for name in ("verdict", "usd_per_gib", "reason", "reading", "training_usd", "copy", "ways"):
        assert given[name] == seen[name], name
    assert given["commands"] == [
        seen["commands"][0],
        "dataprep replicate gs://multi-eu --to gs://NEW-BUCKET --max-usd 8     "
        "# if dataprep wrote the data; refused above $8",
        seen["commands"][1] + "     # if not; --objects makes its price exact",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gs://region-eu", "--bucket-location", "mars"], "US, EU, ASIA"),
        (["gs://region-eu", "--bucket-location", "US", "--replicas"], "leave --bucket-location out"),
        (["s3://bucket", "--bucket-location", "US"], "is for gs:// buckets; leave it out"),
        (["/tmp/data"], "is on a disk, and reading it costs nothing"),
        (["gs://region-eu", "--zone", "us-central1a"], "did you mean us-central1-a?"),
        (["gs://region-eu", "--tpu", "--x"], "not a name of a TPU"),
        (["gs://region-eu", "--objects", "5"], "give both"),
    ],
)
def test_wrong_arguments_are_refused_with_the_right_form(arguments, message):
    error = check(*arguments).exception
    assert isinstance(error, DataprepError)
    assert error.exit_code == 2
    assert message in str(error)


def test_a_number_of_objects_prices_their_reads_and_their_copies(no_credentials):
    words = ("gs://never-seen", "--zone", "europe-west4", "--bucket-location", "US", "--dataset-bytes", "2TB")
    shards, loose = checked(*words), checked(*words, "--objects", "18000000")
    assert shards["reading"]["objects_are_assumed"]
    assert shards["notes"][0].startswith(
        "requests and copies are priced for objects of 256 MiB, like dataprep's shards"
    )
    (amount,) = loose["reading"]["amounts"]
    assert (amount["objects"], loose["reading"]["gets"]) == (18000000, 18000000)
    assert not any("256 MiB" in note for note in loose["notes"])
    for part in ("transfer", "retrieval"):
        assert loose["copy"]["once"][part] == shards["copy"]["once"][part]
    assert loose["copy"]["once"]["operations"] == pytest.approx(18000 * 0.005)
    # objects larger than a read take several requests each
    assert checked(*words[:-1], "5MiB", "--objects", "2")["reading"]["gets"] == 4


def test_one_epoch_is_not_worth_a_copy(dataset):
    run = dataprep("check-region", dataset, "--zone", "us-central1-a")
    assert "do          read it where it is; a copy near the reader: $" in run.stdout
    assert run.stdout.index("it pays off after 2 epochs") < run.stdout.index("dataprep replicate")


def test_the_price_of_given_bytes_in_s3_is_said(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    (note,) = checked("s3://b/x", "--zone", "us-central1-a", "--dataset-bytes", "100GiB", "--epochs", "3")["notes"]
    assert note == "one pass costs $9.00 without requests, 3 epochs $27.00"


def test_prices_of_a_given_file_are_used(dataset, tmp_path):
    prices = tmp_path / "prices.csv"
    prices.write_text("item,of,where,usd\ntransfer_per_gib,europe-west4,us-central1,0\n")
    assert checked(dataset, "--zone", "us-central1-a", "--prices", prices)["verdict"] == FREE


def test_the_text_has_the_price_and_the_next_step(dataset):
    run = dataprep("check-region", dataset, "--zone", "us-central1-a", "--epochs", "90")
    assert run.returncode == 1, run.stderr
    assert "verdict     paid at $0.05 per GiB: us-central1-a reads from europe-west4" in run.stdout
    assert "copy it near the reader" in run.stdout
    assert f"dataprep replicate {dataset} --to gs://NEW-BUCKET/imagenet" in run.stdout
    assert run.stderr == ""


def test_a_cache_is_priced_with_the_command_that_makes_it():
    words = ("gs://cached-us", "--zone", "us-central1-b", "--dataset-bytes", "147897477120", "--epochs", "90")
    found = checked(*words)
    out = check(*words).stdout
    assert "cache       a Rapid Cache in us-central1-b: at most $24.23" in out
    assert f"              {found['cache_command']}\n" in out
    assert found["cache_command"] == "gcloud storage buckets anywhere-caches create gs://cached-us us-central1-b"


def test_an_ai_zone_is_noted_unless_it_has_a_cache(gcs):
    gcs.create_bucket("ai-cached", location="US-CENTRAL1", caches=("us-central1-ai1a",))
    assert (
        "us-central1-ai1a is an AI zone, typically up to 5 ms"
        in checked("gs://region-us", "--zone", "us-central1-ai1a")["notes"][0]
    )
    assert not any("AI zone" in note for note in checked("gs://ai-cached", "--zone", "us-central1-ai1a")["notes"])


def test_a_zonal_bucket_is_read_once_to_see_whether_it_can_be(gcs):
    assert checked("gs://zonal-us", "--zone", "us-central1-a")["readable"] is None
    open_storage("gs://zonal-us").create("x", b"123")
    assert checked("gs://zonal-us", "--zone", "us-central1-a")["readable"] is True
    assert checked("gs://region-us", "--zone", "us-central1-a")["readable"] is None


def test_a_zonal_bucket_that_cannot_be_read_is_said(gcs):
    gcs.create_bucket(
        "zonal-unreadable", location="us-central1", data_locations=("us-central1-a",), storage_class="RAPID",
        deny=["storage.objects.get"],
    )  # fmt: skip
    open_storage("gs://zonal-unreadable").create("x", b"123")
    found = checked("gs://zonal-unreadable", "--zone", "us-central1-a")
    assert found["readable"] is False
    assert "a zonal bucket that dataprep cannot read: gs://zonal-unreadable/x: permission" in found["notes"][0]


# Who calls the guard


def test_a_loader_refuses_paid_reading_unless_allowed(american_vm, dataset, gcs, caplog):
    guard(dataset, "warn")  # where the bucket is, is asked once
    copies = open_storage(dataset).stat(REPLICAS)
    before = gcs.stats()
    with pytest.raises(UsageError, match=r"\$0.05 per GiB"):
        open_loader(dataset, batch_size=8)
    after = gcs.stats()
    assert after["bytes_served"] - before["bytes_served"] == (copies.num_bytes if copies is not None else 0)
    assert after["requests"] - before["requests"] <= 3  # its list of copies, and what the library asks beside it
    with open_loader(dataset, batch_size=8, image_size=32, threads=1, region_policy="warn") as loader:
        assert next(iter(loader)).images.shape == (8, 32, 32, 3)
    assert "$0.05 per GiB" in caplog.text


def test_adopted_data_are_judged_by_the_bucket_of_the_data(american_vm, dataset, tmp_path, monkeypatch):
    index = tmp_path / "index"
    shutil.rmtree(index, ignore_errors=True)
    with monkeypatch.context() as patch:
        patch.setenv("NO_GCE_CHECK", "true")
        run = dataprep("adopt", f"{dataset}/train", "--index", index)
    assert run.returncode == 0, run.stderr
    with pytest.raises(UsageError, match="gs://region-eu/imagenet/train is in europe-west4"):
        open_loader(str(index), batch_size=8)


def build(*arguments: object) -> Result:
    return CliRunner().invoke(build_module.command, ["imagenet", *(str(each) for each in arguments)])


def test_a_build_is_refused_before_anything_is_written(american_vm, originals, gcs):
    arguments = ["--source", originals["imagenet"], "--format", "webdataset", "--allow-partial"]
    near = ("--near", "europe-west4-a")
    for output, *more in (("gs://region-eu/x",), ("gs://region-us/x", *near), ("gs://multi-eu/x", *near)):
        result = build(*arguments, "--output", output, *more)
        assert isinstance(result.exception, UsageError)
        assert "per GiB" in str(result.exception)
        assert list(open_storage(output).list()) == []


def test_a_build_refuses_a_source_in_a_paid_region(american_vm, dataset, tmp_path):
    result = build("--source", dataset, "--output", tmp_path / "out", "--format", "webdataset")
    assert isinstance(result.exception, UsageError)
    assert "gs://region-eu/imagenet is in europe-west4 and is read from us-central1-a" in str(result.exception)


def test_a_dataflow_build_is_judged_from_its_workers_region(american_vm, dataset, tmp_path):
    arguments = ["--source", "gs://region-us/none", "--output", tmp_path / "out", "--format", "webdataset"]
    result = build(*arguments, "--runner", "DataflowRunner", "--", "--region=europe-west4")
    assert "gs://region-us/none is in us-central1 and is read from europe-west4" in str(result.exception)


# What is found out about one URL

HERE, THERE = "us-central1-a", "europe-west4-a"
MIB = 2**20


@pytest.fixture(scope="module")
def reported(buckets, uploaded) -> str:
    return uploaded("imagenet-webdataset", "gs://report-eu/imagenet")


def examined(url: str, where: str | None = HERE, **training: object) -> RegionReport:
    return examine(url, where, CheckRegion(urls=url, **training), published_prices())


def test_one_pass_reads_the_split_that_training_reads(reported):
    splits = {split.name: split for split in read_manifest(open_storage(reported)).splits}
    for chosen, name in ((None, "train"), ("val", "val")):
        report = examined(reported, split=chosen)
        assert report.reading.is_dataset
        assert report.reading.num_bytes == splits[name].num_bytes
        assert sum(amount.objects for amount in report.reading.amounts) == len(splits[name].shards)
        assert report.one_pass.transfer == pytest.approx(splits[name].num_bytes / 2**30 * 0.05)


def test_hosts_read_all_multiplies_the_cost_by_the_hosts(reported):
    shared = examined(reported, epochs=2, hosts=8)
    alone = examined(reported, epochs=2, hosts=8, hosts_read_all=True)
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
