"""Places are told by --zone, --tpu or a Beam runner's own options."""

import json

import pytest
from click.testing import CliRunner, Result

import dataprep
from dataprep.commands.build import command
from dataprep.commands.region_options import named_place, place_of_workers, runs_here
from dataprep.errors import UsageError
from dataprep.messages import usd
from dataprep.storage import open_storage
from tests.support.adoption import image_of, tar_of
from tests.support.builds import succeeds


def test_a_zone_or_region_is_checked_and_lower_case():
    assert named_place("US-Central1-A", None, pytest.fail) == "us-central1-a"
    assert named_place(None, None, pytest.fail) is None
    with pytest.raises(UsageError, match="'nowhere' is not a zone or region"):
        named_place("nowhere", None, pytest.fail)


def test_a_region_that_is_not_known_is_used_with_a_note():
    notes = []
    assert named_place("us-cental2-b", None, notes.append) == "us-cental2-b"
    assert place_of_workers(("--region=us-eastt1",), notes.append) == "us-eastt1"
    assert named_place("us-central2-b", None, notes.append) == "us-central2-b"
    assert [note.partition("; ")[2] for note in notes] == ["did you mean us-central2?", "did you mean us-east1?"]


def test_commands_name_the_project_that_pays_also_in_their_workers(gcs, tmp_path, monkeypatch):
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "my-project")
    gcs.create_bucket("tars-to-pay", reader_pays=True)
    tar_of(tmp_path / "train.tar", [(f"{n}.jpg", image_of(n)) for n in range(3)])
    open_storage("gs://tars-to-pay").create("train.tar", (tmp_path / "train.tar").read_bytes())
    index = "gs://tars-to-pay/index"
    for call, url, options in (
        (dataprep.adopt, "gs://tars-to-pay", {"index": index}),
        (dataprep.verify, index, {}),
        (dataprep.inspect, index, {}),
    ):
        monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "")
        call(url, **options, billing_project="my-project")


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ((), None),
        (("--project=p",), None),
        (("--region=europe-west4", "--worker_zone=europe-west4-b"), "europe-west4-b"),
        (("--region=us-east1",), "us-east1"),
        (("--region", "us-east1", "--project", "p"), "us-east1"),
        (("--region", "--project=p"), None),
    ],
)
def test_the_most_exact_option_of_a_beam_runner_gives_its_workers_place(options, place):
    assert place_of_workers(options, pytest.fail) == place


def test_local_runners_work_on_this_machine():
    assert [runs_here(runner) for runner in ("local", "FnApiRunner", "DataflowRunner")] == [True, True, False]


@pytest.fixture(scope="module", autouse=True)
def buckets(gcs) -> None:
    gcs.create_bucket("planned-eu", location="EUROPE-WEST4")
    gcs.create_bucket("planned-us", location="US-CENTRAL1")


def planned(*arguments: object) -> Result:
    """Call `dataprep build` for a dry run."""
    result = CliRunner().invoke(command, [*(str(each) for each in arguments), "--dry-run"])
    assert result.exit_code == 0, result.exception
    return result


def test_a_dry_run_says_what_buckets_cost_and_refuses_nothing(american_vm, originals):
    arguments = ["imagenet", "--source", originals["imagenet"], "--format", "webdataset", "--allow-partial"]
    arguments += ["--output", "gs://planned-eu/dry"]
    result = planned(*arguments)
    assert "output gs://planned-eu/dry: paid; us-central1-a reads from europe-west4" in result.stdout
    (bucket,) = json.loads(planned(*arguments, "--json").stdout)["buckets"]
    assert (bucket["role"], bucket["where"], bucket["verdict"]) == ("output", "us-central1-a", "paid")
    assert bucket["usd_per_gib"] == 0.05
    assert f"requests and costs {usd(sum(bucket['cost'].values()))}\n" in result.stdout
    assert bucket["cost"]["operations"] == pytest.approx(
        bucket["traffic"]["inserts"] * 0.005 / 1000 + bucket["traffic"]["gets"] * 0.0004 / 1000
    )


@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        pytest.param("imagenet", "webdataset", marks=pytest.mark.long),
        ("imagenet", "imagefolder"),
        pytest.param("coco-dup5", "tfrecord", marks=pytest.mark.long),
    ],
)
def test_the_emulator_counts_what_a_dry_run_predicts(originals, gcs, name, fmt):
    folder, source = originals[name.removesuffix("-dup5")], f"gs://planned-us/originals/{name}"
    for path in folder.rglob("*"):
        if path.is_file():
            open_storage(source).create(str(path.relative_to(folder)), path.read_bytes())
    arguments = [name, "--source", source, "--output", f"gs://planned-us/predicted-{name}-{fmt}"]
    arguments += ["--format", fmt, "--allow-partial", "--num-shards", 4, "--workers", 1, "--max-reject-ratio", 1]
    predicted = {each["role"]: each["traffic"] for each in json.loads(planned(*arguments, "--json").stdout)["buckets"]}
    before = gcs.stats()
    succeeds("build", *arguments)
    after = gcs.stats()
    found = {kind: after["operations"][kind] - before["operations"][kind] for kind in ("A", "B")}
    assert found["A"] == pytest.approx(sum(each["inserts"] for each in predicted.values()), rel=0.05)
    assert found["B"] == pytest.approx(sum(each["gets"] for each in predicted.values()), rel=0.05)
    assert after["bytes_served"] - before["bytes_served"] == pytest.approx(predicted["source"]["num_bytes"], rel=0.05)
