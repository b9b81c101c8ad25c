"""`dataprep replicate` as a user runs it; and who reads the copy beside the machine."""

import itertools
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from dataprep.builder.finished import shape_faults
from dataprep.cloud.placement import url_to_read
from dataprep.cloud.prices import Prices, published_prices
from dataprep.cloud.region import CO_LOCATED, PAID, UNKNOWN
from dataprep.cloud.replicate import Copying, dataset_phases, plan_copy
from dataprep.commands.check_region import command as check_region
from dataprep.commands.replicate import PlannedCopy, planned_copy
from dataprep.commands.replicate import command as replicate_command
from dataprep.dataset.replicas import REPLICAS
from dataprep.errors import AccessError, CredentialsError, DataprepError, UndecidedError, UsageError
from dataprep.messages import human_bytes, usd
from dataprep.storage import open_storage
from loaders import open_loader
from loaders.dataset import open_dataset
from tests.support.builds import command, invoked, succeeds
from tests.support.replication import checksums, remove_all
from train.batches.data import open_data

PRICES = published_prices()
MIB = 2**20
_numbers = itertools.count()


@pytest.fixture(scope="module")
def source(gcs, uploaded) -> str:
    gcs.create_bucket("from-eu", location="EUROPE-WEST4")
    gcs.create_bucket("to-us", location="US-CENTRAL1")
    gcs.create_bucket("to-us-east", location="US-EAST1")
    return uploaded("imagenet-webdataset", "gs://from-eu/imagenet")


@pytest.fixture
def target(source, gcs) -> Iterator[str]:
    url = f"gs://to-us/{next(_numbers)}"
    yield url
    gcs.set_rewrite_bytes(None)
    gcs.set_latency(0)
    remove_all(url)
    open_storage(source).delete(REPLICAS)


def invoke(*arguments: object) -> Result:
    return invoked(replicate_command, *arguments)


def replicate(*arguments: object) -> dict:
    return json.loads(invoke(*arguments, "--json").stdout)


def test_the_price_comes_first_and_a_dry_run_writes_nothing(source, target):
    run = invoke(source, "--to", target, "--dry-run")
    assert run.stdout.startswith(f"{source} -> {target}\n  copy      11 objects, {_megabytes(source)}\n")
    assert list(open_storage(target).list()) == []
    planned = replicate(source, "--to", target, "--dry-run")["copies"][0]
    sizes = [num_bytes for num_bytes, _ in checksums(source).values()]
    assert (planned["objects"], planned["num_bytes"]) == (len(sizes), sum(sizes))
    assert planned["usd"]["transfer"] == pytest.approx(sum(sizes) / 2**30 * 0.05)
    assert planned["usd"]["operations"] == pytest.approx(len(sizes) / 1000 * 0.005)


def test_without_credentials_a_dry_run_names_the_command_that_prices_a_copy(tmp_path, monkeypatch):
    for variable in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    words = ("gs://from-eu/imagenet", "--to", "gs://to-us/imagenet")
    known = 'run "gcloud auth application-default login"'
    command = (
        "`dataprep check-region URL --bucket-location PLACE --dataset-bytes SIZE --zone ZONE` needs no credentials"
    )
    with pytest.raises(CredentialsError) as dry:
        invoke(*words, "--dry-run")
    assert known in str(dry.value)
    assert str(dry.value).endswith(f"; for a price alone, {command}")
    with pytest.raises(CredentialsError) as refused:
        invoke(*words)
    assert known in str(refused.value)
    assert "check-region" not in str(refused.value)


def test_a_copy_reports_what_it_copied_and_a_second_run_nothing(source, target):
    run = succeeds("replicate", source, "--to", target, "--max-usd", "1")
    assert run.stdout == f"{target} is a complete copy: 11 objects, 11 of them copied ({_megabytes(source)})\n"
    assert f"  copy      11 objects, {_megabytes(source)}\n" in run.stderr
    assert re.search(r"price     \$0\.00\d+ once", run.stderr)
    assert checksums(target) == checksums(source)
    again = invoke(source, "--to", target)
    assert again.stdout == f"{target} is a complete copy: 11 objects, nothing was missing\n"
    name = open_storage(source).stat("dataset.json").name
    size = human_bytes(open_storage(target).stat(name).num_bytes)
    open_storage(target).delete(name)
    one = invoke(source, "--to", target)
    assert one.stdout == f"{target} is a complete copy: 11 objects, 1 of them copied ({size})\n"


def test_a_card_that_stays_at_the_target_is_named(source, target):
    storage = open_storage(source)
    storage.create("README.md", b"of the source")
    open_storage(target).create("README.md", b"of the target")
    run = invoke(source, "--to", target, "--dry-run")
    planned = replicate(source, "--to", target, "--dry-run")["copies"][0]
    storage.delete("README.md")
    assert "  keep      README.md: the target has its own already, which stays\n" in run.stdout
    assert (planned["objects"], planned["standing"], planned["kept"]) == (11, 0, ["README.md"])


def test_a_copy_above_the_price_limit_is_refused_before_anything_is_written(source, target, tmp_path):
    with pytest.raises(UsageError, match=r"more than --max-usd 0\.0001; nothing was copied"):
        invoke(source, "--to", target, "--max-usd", "0.0001")
    with pytest.raises(UndecidedError, match="is not known"):
        invoke(source, "--to", tmp_path / "disk", "--max-usd", "1")
    assert list(open_storage(target).list()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["gs://from-eu/none", "--to", "gs://to-us/none"], 2, "no dataset there"),
        (["gs://from-eu/imagenet", "--to", "gs://to-us/a", "--to", "gs://to-us/a/"], 2, "given twice"),
        (["gs://from-eu/imagenet", "--to", "gs://no-such-bucket-here/a"], 2, "does not exist"),
        (["gs://from-eu/imagenet", "--to", "s3://x/y"], 2, "--to s3://x/y: dataprep only reads from there"),
    ],
)
def test_wrong_arguments_of_replicate_are_refused_in_one_line(source, arguments, code, said):
    with pytest.raises(DataprepError, match=said) as caught:
        invoke(*arguments)
    assert caught.value.exit_code == code


def _interrupted(source, target):
    """Copy, and press Ctrl-C when an object stands; the exit code, and what was said on stderr."""
    with subprocess.Popen(command("replicate", source, "--to", target), stderr=subprocess.PIPE, text=True) as process:
        while not checksums(target) and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=800)
    return process.returncode, said


def test_ctrl_c_ends_a_copy_and_the_same_command_continues_it(source, target, gcs):
    gcs.set_rewrite_bytes(100_000)
    gcs.set_latency(30)
    for _ in range(5):  # on a busy machine a copy may end before this process sees its first object
        code, said = _interrupted(source, target)
        if code != 0:
            break
        remove_all(target)
    assert code == 130, said
    assert said.endswith("dataprep: interrupted; run the same command again to continue\n")
    assert "dataset.json" not in checksums(target)
    gcs.set_latency(0)
    assert replicate(source, "--to", target)["copies"][0]["standing"] > 0
    assert checksums(target) == checksums(source)


def test_a_terminal_shows_a_bar_with_bytes_and_rate(source, target, gcs):
    gcs.set_rewrite_bytes(400_000)
    gcs.set_latency(20)
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    process = subprocess.Popen(command("replicate", source, "--to", target), stderr=slave, env=environment)
    os.close(slave)
    shown = ""
    while process.poll() is None or select.select([master], [], [], 0.2)[0]:
        try:
            shown += os.read(master, 65536).decode(errors="replace")
        except OSError:
            break
    os.close(master)
    assert process.wait() == 0
    assert f"copying to {target} (MB)" in shown
    assert "of 11 objects, " in shown
    assert "B/s" in shown


def test_a_copy_through_this_machine_from_a_paid_region_is_refused(american_vm, source, tmp_path):
    with pytest.raises(UsageError, match=r"\$0.05 per GiB.*--region-policy warn"):
        invoke(source, "--to", tmp_path / "disk")
    assert not (tmp_path / "disk").exists()
    invoke(source, "--to", tmp_path / "disk", "--region-policy", "warn")
    assert checksums(str(tmp_path / "disk")) == checksums(source)


# Who reads the copy


def test_a_loader_reads_the_copy_in_its_region_and_says_so_once(american_vm, source, target, gcs, caplog):
    replicate(source, "--to", target, "--to", "gs://to-us-east/far")
    for _ in range(2):
        with open_loader(source, batch_size=8, image_size=32, threads=1) as loader:
            assert loader.dataset.url == target
            keys = next(iter(loader)).keys
    assert [record.message for record in caplog.records] == [
        f"dataprep: reading the copy at {target} instead of {source}: co-located, in us-central1"
    ]
    with open_loader(target, batch_size=8, image_size=32, threads=1) as loader:
        assert next(iter(loader)).keys == keys
    remove_all("gs://to-us-east/far")


def test_a_training_command_reads_the_copy_in_its_region(american_vm, source, target):
    with pytest.raises(UsageError, match=r"from us-central1-a: \$0.05 per GiB"):
        open_data(source)
    replicate(source, "--to", target)
    assert open_data(source).url == target
    assert open_data(source, region_policy="off").url == source


def test_a_loader_state_resumes_on_another_copy(american_vm, source, target, monkeypatch):
    settings = {"batch_size": 8, "image_size": 32, "threads": 1}
    replicate(source, "--to", target)
    with open_loader(source, region_policy="off", **settings) as loader:
        batches = iter(loader)
        state = next(batches).state
        expected = next(batches).keys
    with open_loader(source, **settings) as loader:
        assert loader.dataset.url == target
        loader.load_state_dict(state)
        assert next(iter(loader)).keys == expected


def test_where_no_copy_is_cheaper_the_guard_refuses(american_vm, source, target):
    before = len(american_vm.asked)
    with pytest.raises(UsageError, match=r"from us-central1-a: \$0.05 per GiB"):
        open_dataset(source, "train")
    assert len(american_vm.asked) - before <= 1


def test_the_next_best_copy_is_read_when_the_nearest_is_another_dataset(american_vm, source, target, caplog):
    replicate(source, "--to", target, "--to", "gs://to-us-east/near")
    storage = open_storage(target)
    manifest = storage.read("dataset.json")
    storage.delete("dataset.json")
    storage.create("dataset.json", manifest.replace(b'"revision": 1', b'"revision": 2'))
    assert url_to_read(source, "warn") == "gs://to-us-east/near"
    assert f"{target}, a copy of {source}, is not read: a different dataset.json exists there" in caplog.text
    remove_all("gs://to-us-east/near")
    assert url_to_read(source, "warn") == source


@pytest.mark.parametrize("text", [b"{}", b'{"version": 1, "replicas": [{"url": "/etc", "location": "US-CENTRAL1", '
                                  b'"location_type": "region"}]}'])  # fmt: skip
def test_a_list_that_cannot_be_believed_changes_nothing(american_vm, source, target, caplog, text):
    open_storage(source).create(REPLICAS, text)
    assert url_to_read(source, "warn") == source
    assert "dataprep: warning: " in caplog.text


def test_check_region_judges_the_copy_with_replicas(source, target):
    replicate(source, "--to", target)
    arguments = [source, "--zone", "us-central1-a"]
    assert CliRunner().invoke(check_region, arguments).exit_code == 1
    judged = CliRunner().invoke(check_region, [*arguments, "--replicas"])
    assert judged.exit_code == 0
    assert f"{target}\n  bucket      us-central1" in judged.stdout
    assert f"  copy of     {source}\n" in judged.stdout


def _megabytes(url: str) -> str:
    return f"{_num_bytes(url) / 1e6:.1f} MB"


def _num_bytes(url: str) -> int:
    return sum(num_bytes for num_bytes, _ in checksums(url).values())


# What a copy costs before it is made


@pytest.fixture(scope="module", autouse=True)
def buckets(gcs) -> None:
    gcs.create_bucket("priced-eu", location="EUROPE-WEST4")
    gcs.create_bucket("priced-us", location="US-CENTRAL1")
    gcs.create_bucket("priced-both", location="NAM4")
    gcs.create_bucket("priced-hidden", location="US-CENTRAL1", deny=["storage.buckets.get", "storage.objects.list"])


def copying_of(source: str, target: str, sizes: tuple[int, ...] = (3 * MIB, MIB), existing: int = 0) -> Copying:
    """A copy of new objects of these sizes."""
    storage = open_storage(f"{source}/{next(_numbers)}")
    for number, num_bytes in enumerate(sizes):
        storage.create(f"{number}.tar", bytes(num_bytes))
    return Copying(source=storage, target=open_storage(target), phases=(tuple(storage.list()),), existing=existing)


def priced(copying: Copying, prices: Prices = PRICES) -> PlannedCopy:
    return planned_copy(copying, prices)


def test_the_copy_of_a_dataset_has_its_price_in_lines(source):
    copying = plan_copy(source, "gs://priced-us/x", dataset_phases(open_storage(source), shape_faults))
    found = planned_copy(copying, PRICES)
    assert (found.verdict.kind, found.verdict.usd_per_gib) == (PAID, 0.05)
    assert found.cost.transfer == pytest.approx(copying.num_bytes / 2**30 * 0.05)
    assert found.cost.operations == pytest.approx(copying.objects / 1000 * 0.005)
    assert found.lines == [
        f"{source} -> gs://priced-us/x",
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


def test_a_price_in_a_bucket_that_does_not_exist_is_an_error():
    with pytest.raises(AccessError, match="does not exist"):
        priced(copying_of("gs://priced-us/lost", "gs://no-such-bucket-here/x"))
