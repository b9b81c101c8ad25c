"""`dataprep build laion` from the command to a verified dataset, against a real server."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from dataprep.builder.finished import shape_faults
from dataprep.cli import group
from dataprep.commands.build_laion import WebRequest, count_lines, limits_of, network_lines
from dataprep.commands.inspect import command as inspect_command
from dataprep.commands.progress import VerifyProgress
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import UsageError
from dataprep.inspection.inspect import inspect_dataset
from dataprep.sources.base import UNSTATED
from dataprep.sources.laion import LAION
from dataprep.storage import open_storage
from dataprep.verification.run import verify
from loaders import open_loader
from tests.support.builds import dataprep, digests, refuses, succeeds
from tests.support.picture_web import WEB, laion_arguments, picture_web

ROWS = 34


@pytest.fixture(scope="module")
def web():
    with picture_web() as server:
        server.faults = {3: 404, 12: 503, 13: 404}
        yield server


@pytest.fixture(scope="module")
def table(web, tmp_path_factory):
    return web.write_table(tmp_path_factory.mktemp("table") / "laion.parquet", ROWS)


def verify_here(output):
    return verify(str(output), deep=True, workers=0, progress=VerifyProgress(quiet=True))


@pytest.fixture(scope="module", params=[pytest.param("webdataset", marks=pytest.mark.long), "tfrecord"])
def built(request, table, tmp_path_factory):
    """Format, output, and what the command printed."""
    output = tmp_path_factory.mktemp("built") / "out"
    run = succeeds(*laion_arguments(table, output, request.param))
    assert "fetching from 127.0.0.0/8, too" in run.stderr
    return request.param, output, json.loads(run.stdout)


def test_inspect_counts_rows_by_status(built):
    _, output, _ = built
    text = CliRunner().invoke(inspect_command, [str(output)]).stdout
    assert "34: failed to download 3, success 31" in text
    assert "http 503" in text
    assert list(inspect_dataset(str(output)).splits[0].reasons) == ["success", "http 404", "http 503"]


def test_a_rerun_is_a_no_op_and_another_plan_is_refused(built, table, web):
    fmt, output, _ = built
    before, asked = digests(output), sum(web.asked.values())
    other_limits = ("--host-per-second", 7, "--in-flight", 5, "--workers", 1)  # no part of a plan
    again = dataprep(*laion_arguments(table, output, fmt, *other_limits))
    assert json.loads(again.stdout)["shards_built"] == 0
    assert (digests(output), sum(web.asked.values())) == (before, asked)
    other = refuses(*laion_arguments(table, output, fmt, "--image-size", 32))
    assert "another dataset exists there already" in other.stderr


FEW = "4 shards: an interrupted build restarts unfinished shards; --rows-per-shard N makes smaller shards"
ONE = FEW.replace("4 shards", "1 shard").replace("unfinished shards", "it")


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        (("--rows-per-shard", 1_000, "--workers", 8), (ONE, "at most 10 requests/s to one host")),
        (("--workers", 8), (FEW, "at most 10 requests/s to one host, 2.5 from each of 4 workers")),
        (("--rows-per-shard", 5, "--workers", 1), ("at most 10 requests/s to one host",)),
        (
            ("--workers", 4, "--part", "1/2"),
            (
                FEW,
                "at most 5 requests/s to one host, 1.25 from each of 4 workers: --host-per-second 10 is divided among "
                "8 workers, but only 4 can get a shard",
            ),
        ),
        (
            ("--rows-per-shard", 5, "--runner", "ray"),
            ("at most 10 requests/s to one host, divided among the engine's workers",),
        ),
    ],
)
def test_a_dry_run_says_the_rate_of_a_host_and_what_an_interruption_costs(table, tmp_path, more, lines):
    arguments = laion_arguments(table, tmp_path / "out", "webdataset", "--host-per-second", 10, *more, "--dry-run")
    run = succeeds(*(word for word in arguments if word != "--json"))
    printed = run.stdout.splitlines()
    assert printed[3 : 3 + len(lines)] == [f"  {line}" for line in lines]
    assert printed[-1] == "Nothing was built or left behind (--dry-run)."


def test_a_build_says_how_the_shards_that_are_left_are_fetched(tmp_path):
    with picture_web() as web:
        table = web.write_table(tmp_path / "laion.parquet", 3)
        words = laion_arguments(table, tmp_path / "out", "webdataset", "--workers", 2)
        run = dataprep(*words)
        again = dataprep(*words)
    assert json.loads(run.stdout)["notes"] == [ONE, "at most 10,000 requests/s to one host"]
    assert json.loads(again.stdout)["notes"] == []


def test_a_build_names_the_first_rows_of_each_reason(tmp_path):
    output = tmp_path / "out"
    with picture_web() as web:
        web.faults = dict.fromkeys((3, 12, 13, 14), 404) | {5: 503}
        arguments = laion_arguments(web.write_table(tmp_path / "laion.parquet", 20), output, "webdataset")
        run = dataprep(*(word for word in arguments if word != "--json"))
        at = f"http://127.0.0.1:{web.port}"
    assert run.returncode == 0, run.stderr
    failed = ["    http 404: 4", *(f"      failed to download: {at}/{row}.jpg" for row in (3, 12, 13))]
    failed += ["    http 503: 1", f"      failed to download: {at}/5.jpg"]
    failed += [f"  list all rows without an image: dataprep inspect {output} --rejected"]
    assert "\n".join(failed) in run.stdout


def test_a_dry_run_asks_no_cluster(table, tmp_path):
    arguments = laion_arguments(table, tmp_path / "out", "tfrecord", "--dry-run", "--runner", "ray")
    run = succeeds(*arguments, "--", "--address=127.0.0.1:1")
    assert sum(json.loads(run.stdout)["splits"][0]["shard_samples"]) == ROWS


def test_a_build_into_a_bucket_takes_the_requests_of_the_dry_run(built, table, bucket_url, gcs):
    fmt, output, _ = built
    open_storage(f"{bucket_url}/table").create(table.name, table.read_bytes())
    arguments = laion_arguments(f"{bucket_url}/table", f"{bucket_url}/out", fmt, "--workers", 2)
    planned = json.loads(dataprep(*arguments, "--dry-run").stdout)["buckets"]
    before = gcs.stats()["operations"]
    succeeds(*arguments)
    after = gcs.stats()["operations"]
    assert digests(f"{bucket_url}/out") == digests(output)
    found = {kind: after[kind] - before.get(kind, 0) for kind in ("A", "B")}
    assert [each["role"] for each in planned] == ["output", "source"]
    said = {kind: sum(each["traffic"][name] for each in planned) for kind, name in (("A", "inserts"), ("B", "gets"))}
    assert found["A"] == said["A"]
    assert found["B"] == pytest.approx(said["B"], abs=2)  # a worker that gets no shard does not look


def test_several_tables_or_a_folder_of_tables_are_one_source(web, tmp_path):
    for name, rows in (("a", web.rows(12)), ("b", web.rows(3))):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["LINK", "TEXT"])
            writer.writeheader()
            writer.writerows({"LINK": row["URL"], "TEXT": row["TEXT"]} for row in rows)
    column = ("--column", "url=LINK", "--dry-run")
    tables = ["--source", tmp_path / "a.csv", tmp_path / "b.csv"]
    named = dataprep("build", "laion", *tables, "--output", tmp_path / "o", "--format", "tfrecord", *WEB, *column)
    assert "15 rows in 2 tables, 1 shard" not in named.stdout
    assert "15 rows in 2 tables, 2 shards" in named.stdout, named.stderr
    folder = dataprep(*laion_arguments(tmp_path, tmp_path / "o", "tfrecord", *column))
    assert json.loads(folder.stdout)["splits"][0]["shard_samples"] == [10, 2, 3]
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--allow-network", "169.254.0.0/16"], "which is never fetched from"),
        (["--column", "url"], "--column url: expected ROLE=NAME"),
        (["--encode-format", "webp"], "TFDS decodes no WebP"),
        (["--contact", "me"], "contact 'me' is not an address"),
        (["--", "--region=x"], "got options --region=x for another engine than --runner local"),
    ],
)
def test_wrong_usage_is_refused(table, tmp_path, more, text):
    words = [str(word) for word in laion_arguments(table, tmp_path / "out", "tfrecord", *more)]
    with pytest.raises(UsageError, match=re.escape(text)):
        group(words, standalone_mode=False)
    assert not (tmp_path / "out").exists()


def test_help_of_build_lists_the_datasets():
    text = dataprep("build", "--help").stdout
    assert all(name in text for name in ("coco-dup5", "imagenet", "imagenet-21k", "imagenet-fake", "laion"))
    assert "COMMAND" not in text


@pytest.mark.long
@pytest.mark.parametrize("built", ["tfrecord"], indirect=True)
def test_fn_api_runner_builds_a_table_to_the_same_bytes(built, table, tmp_path):
    fmt, output, _ = built
    succeeds(*laion_arguments(table, Path(tmp_path / "out"), fmt, "--runner", "FnApiRunner", "--workers", 2))
    assert digests(tmp_path / "out") == digests(output)


def test_a_named_table_has_its_name_everywhere(table, tmp_path):
    """A dataset of another table than LAION's is not called laion."""
    output = tmp_path / "out"
    stated = ("--name", "cc12m-mini", "--licence", "free for any purpose", "--origin", "https://example.org/cc12m")
    succeeds(*laion_arguments(table, output, "tfrecord"), *stated)
    manifest = read_manifest(open_storage(str(output)))
    assert (manifest.name, manifest.licence, manifest.origin) == ("cc12m-mini", *stated[3::2])
    assert manifest.splits[0].shards[0]["file"] == "cc12m_mini-train.tfrecord-00000"
    info = json.loads((output / "dataset_info.json").read_text())
    assert (info["name"], info["redistributionInfo"]["license"]) == ("cc12m_mini", "free for any purpose")
    assert not [path.name for path in output.rglob("*") if "laion" in path.name]
    assert verify_here(output).verdict == "complete"
    succeeds("retry-failed", output, "--contact", "mailto:me@example.org", "--allow-network", "127.0.0.0/8")
    assert verify_here(output).verdict == "complete"
    with open_loader(str(output), batch_size=4, image_size=32) as loader:
        assert next(iter(loader)).images.shape == (4, 32, 32, 3)


def test_a_table_without_laions_columns_and_without_a_name_has_an_unknown_origin(tmp_path):
    table, output = tmp_path / "my_urls.csv", tmp_path / "out"
    with picture_web() as web:
        web.faults = {2: 503}
        lines = "".join(f"http://127.0.0.1:{web.port}/{number}.jpg,{number}\n" for number in range(4))
        table.write_text(f"url,caption\n{lines}")
        run = succeeds(*laion_arguments(table, output, "tfrecord"))
        manifest = read_manifest(open_storage(str(output)))
        assert (manifest.name, manifest.licence, manifest.origin) == ("laion", UNSTATED, UNSTATED)
        assert "columns are not LAION's" in json.loads(run.stdout)["notes"][0]
        assert "--name NAME" in json.loads(run.stdout)["notes"][0]
        info = json.loads((output / "dataset_info.json").read_text())
        assert (info["redistributionInfo"]["license"], info.get("citation", "")) == (UNSTATED, "")
        assert not any("laion.ai" in (output / name).read_text() for name in ("README.md", "croissant.json"))
        assert verify_here(output).verdict == "complete"
        web.faults = {}
        again = dataprep("retry-failed", output, *WEB)
    assert again.returncode == 0, again.stderr
    assert read_manifest(open_storage(str(output))).revision == 2
    assert verify_here(output).verdict == "complete"


def test_a_table_with_laions_columns_has_its_origin(built):
    fmt, output, summary = built
    assert (summary["licence"], summary["origin"]) == (LAION.licence, LAION.origin)
    if fmt == "tfrecord":
        assert json.loads((output / "dataset_info.json").read_text())["citation"] == LAION.citation
    assert not any("--name" in note for note in summary["notes"])


@pytest.mark.parametrize("option", ["--licence", "--origin"])
def test_a_table_that_states_its_origin_needs_a_name(table, tmp_path, option):
    run = refuses(*laion_arguments(table, tmp_path / "out", "webdataset"), option, "x")
    assert run.stderr == f"dataprep: {option}: a dataset that states this needs its own name; add --name\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [({"name": "other"}, "name 'other', expected 'pets'"), ({"licence": 3}, "options.own cannot be read")],
)
def test_a_hostile_name_in_a_manifest_is_a_fault(built, change, words):
    manifest = read_manifest(open_storage(str(built[1])))
    own = {"name": "pets", "licence": "x", "origin": "y", "label_from": None} | {
        key: value for key, value in change.items() if key != "name"
    }
    named = replace(manifest, name=change.get("name", "pets"), options={**manifest.options, "own": own})
    assert any(words in fault for fault in shape_faults(named))


def limits_with(**options):
    return limits_of(WebRequest(contact="mailto:me@example.org", **options))


def test_every_option_becomes_a_limit():
    limits = limits_with(in_flight=5, max_body="1MiB", verify_tls=False, allow_network="10.1.0.0/16")
    assert (limits.in_flight, limits.body_bytes, limits.verify_tls) == (5, 1 << 20, False)
    assert [str(network) for network in limits.allow_networks] == ["10.1.0.0/16"]
    assert limits_with().verify_tls


@pytest.mark.parametrize("option", [{"in_flight": 0}, {"row_seconds": 0}, {"answer_seconds": float("nan")}])
def test_limits_that_allow_nothing_are_refused(option):
    with pytest.raises(UsageError, match=f"`{next(iter(option))}` must be "):
        limits_with(**option)


def test_allowed_networks_that_are_not_public_are_reported():
    assert list(network_lines(limits_with())) == []
    (line,) = network_lines(limits_with(allow_network=["10.1.0.0/16"]))
    assert line == "fetching from 10.1.0.0/16, too (`allow_network`); the manifest records it"


def test_rows_are_counted_by_status_and_the_commonest_failures_by_reason():
    reasons = {"success": 6, "timeout": 1} | {f"http {code}": code - 400 for code in range(401, 412)}
    lines = count_lines({"success": 6, "failed_to_download": 2, "failed_to_resize": 0}, reasons)
    assert lines[:2] == ["  success: 6 (75.0 %)", "  failed to download: 2 (25.0 %)"]
    assert lines[2] == "    http 411: 11"
    assert len(lines) == 2 + 8
