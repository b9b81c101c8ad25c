"""`dataprep tpu plan`, `create` and `delete`: what is made is deleted, and every error of gcloud is one line."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from dataprep.commands.tpu import command
from dataprep.errors import StorageError, UsageError
from tests.support.tpu import tpu


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (("--type", "v4-32"), {"tpu"}),
        (("--type", "v4-32", "--queued"), {"request"}),
        (("--type", "v6e-8", "--api", "compute-engine"), {"machines"}),
        (("--type", "tpu7x-2x2x4", "--project", "p"), {"policy", "template", "group", "machines"}),
    ],
)
def test_what_is_created_is_deleted_after_a_question(cloud, options, kinds):
    assert tpu("create", *options, "--nfs", "10.0.0.2:/vol1=/mnt/data").exit_code == 0
    everything = ("tpu", "request", "machines", "policy", "template", "group")
    there = {kind: cloud.names(kind) for kind in everything}
    assert {kind for kind, names in there.items() if names} == kinds
    script = Path("my-tpu-startup.sh").read_text()
    assert "try share 10.0.0.2:/vol1 /mnt/data\n" in script
    assert subprocess.run(["bash", "-n", "my-tpu-startup.sh"], check=False).returncode == 0
    if kinds == {"policy", "template", "group", "machines"}:
        for kind, rename in (("policy", "my-tpu-policy"), ("template", "my-tpu-template")):
            assert there[kind] == {rename}
    project = ("--project", "p")
    assert tpu("delete", *project, input="n\n").exit_code == 1
    assert {kind: cloud.names(kind) for kind in everything} == there
    assert tpu("delete", *project, input="y\n").exit_code == 0
    assert not any(cloud.names(kind) for kind in everything)
    with pytest.raises(UsageError, match="no such TPU"):
        tpu("delete", "--yes")


def test_create_is_refused_before_anything_is_made(cloud):
    for options, said in [
        (("--type", "v4-8", "--label", "x"), "--label x: expected KEY=VALUE, such as team=vision"),
        (("--type", "v4-8", "--label", "A B=d"), "each of at most 63 characters"),
        (("--type", "v4-8", "--label", f"a={'x' * 64}"), "each of at most 63 characters"),
        (("--type", "v4-8", "--boot-disk-gb", "50"), "--boot-disk-gb are for Compute Engine"),
    ]:
        with pytest.raises(UsageError, match=re.escape(said)):
            tpu("create", *options)
    assert cloud.calls() == []
    assert not Path("my-tpu-startup.sh").exists()


def test_an_error_of_gcloud_is_one_line_and_leaves_no_script(cloud):
    cloud.fail("tpu-vm create", "There is no more capacity in the zone us-central2-b")
    with pytest.raises(StorageError, match="try --queued, --spot, or another zone") as raised:
        tpu("create", "--type", "v4-32")
    assert "\n" not in str(raised.value)
    assert not Path("my-tpu-startup.sh").exists()


def test_a_start_up_script_of_an_earlier_tpu_stays_where_creating_another_fails(cloud):
    assert tpu("create", "--type", "v4-32").exit_code == 0
    cloud.fail("tpu-vm create", "something new")
    with pytest.raises(StorageError, match="something new"):
        tpu("create", "--type", "v4-32")
    assert Path("my-tpu-startup.sh").exists()


def test_labels_of_the_user_do_not_replace_the_label_by_which_machines_are_found(cloud):
    options = ("--type", "v6e-8", "--api", "compute-engine", "--label", "dataprep-tpu=other", "--label", "team=vision")
    assert "--labels=dataprep-tpu=my-tpu,team=vision" in tpu("create", *options, "--dry-run").stdout


def test_plan_shows_the_machines_and_commands_of_a_tpu_name(cloud):
    result = CliRunner().invoke(command, ["plan", "v3-256"])
    assert "128 chips" in result.stdout
    assert "32, each 4 chips" in result.stdout
    assert "--accelerator-type=v3-256" in result.stdout
    document = json.loads(CliRunner().invoke(command, ["plan", "tpu7x-2x2x4", "--json"]).stdout)
    assert document["api"] == "compute-engine"
    assert document["accelerator"]["hosts"] == 4
    assert len(document["commands"]) == 4
    assert cloud.calls() == []


def test_flex_start_in_a_zone_that_no_page_names_is_noted(cloud):
    result = tpu("create", "--type", "v6e-16", "--flex-start", "--max-run", "12h")
    assert cloud.names("request") == {"my-tpu"}
    assert (
        "flex-start of v6e in us-central2-b is not confirmed: Google's pages, when last read, named only us-east5-a, "
        "asia-northeast1-b" in result.stderr
    )
    said = tpu("create", "--type", "v4-32", "--flex-start", "--dry-run").stderr
    assert "flex-start of v4 in us-central2-b is not confirmed: Google's pages, when last read, named no zone" in said


def test_plan_names_the_zones_of_provisioning_modes_and_translated_names(cloud):
    result = CliRunner().invoke(command, ["plan", "v6e-16"])
    assert "flex-start in us-east5-a, asia-northeast1-b; calendar in us-east5-a, us-east5-b" in result.stdout
    assert "no zone with flex-start or calendar" in CliRunner().invoke(command, ["plan", "v4-8"]).stdout
    result = CliRunner().invoke(command, ["plan", "tpu7x-8", "--json"])
    assert json.loads(result.stdout)["modes"] == {"flex-start": [], "calendar": []}
    assert "tpu7x-8 is xpk's name for 8 TensorCores: tpu7x-2x2x1, 4 chips" in result.stderr
    assert "unknown vCPUs" in CliRunner().invoke(command, ["plan", "tpu7x-standard-1t"]).stdout


@pytest.mark.parametrize(
    "words",
    [
        ("create", "--type", "v4-32", "--nfs", "10.0.0.2:/vol1=/mnt/data", "--package", "htop"),
        ("create", "--type", "tpu7x-2x2x4", "--project", "p"),
        ("setup", "--nfs", "10.0.0.2:/vol1=/mnt/data"),
        ("run", "--", "python", "-m", "train.pretrain_mae", "--data_path", "gs://bucket/it's here"),
        ("exec", "--", "df -h | grep mnt"),
        ("copy", ".", "x"),
        ("kill", "--run", "r"),
        ("kill", "--others"),
        ("status",),
        ("profile", "logs", "traces"),
        ("delete",),
        ("delete", "--api", "compute-engine"),
    ],
    ids=" ".join,
)
def test_a_dry_run_prints_commands_that_a_shell_takes_and_runs_none(cloud, words, tmp_path, monkeypatch):
    code = tmp_path / "project"
    (code / "train").mkdir(parents=True)
    (code / "train/__init__.py").touch()
    monkeypatch.chdir(code)
    action, *rest = words
    result = tpu(action, "--dry-run", *rest)
    assert result.exit_code == 0, result.output
    assert cloud.calls() == []
    assert sorted(code.iterdir()) == [code / "train"]
    script = code / "commands.sh"
    script.write_text(result.stdout)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    text = re.sub(r"(?ms)^cat > .*?^EOF$", "", result.stdout)
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    assert all(line[0] == "gcloud" for line in lines if line)


def test_a_dry_run_in_json_lists_the_same_commands(cloud):
    lines = tpu("kill", "--run", "r", "--dry-run").stdout.splitlines()
    document = json.loads(tpu("kill", "--run", "r", "--dry-run", "--json").stdout)
    assert document == {"name": "my-tpu", "zone": "us-central2-b", "dry_run": True, "commands": lines}


def test_with_json_words_for_people_are_on_stderr(pod):
    result = tpu("exec", "--json", "--worker", "1", "--", "echo x")
    assert result.stderr == "[1] x\n"
    assert json.loads(result.stdout) == {
        "name": "my-tpu",
        "zone": "us-central2-b",
        "by_worker": {"1": {"code": 0, "out": "x\n", "error": ""}},
    }
