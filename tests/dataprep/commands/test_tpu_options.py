"""What all commands of a TPU share: --dry-run, --json, and a gcloud that is not there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess

import pytest

from dataprep.errors import UsageError
from tests.support.tpu import tpu


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


def test_a_missing_gcloud_is_named_in_one_line(cloud, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match="gcloud is not on the PATH; install the Google Cloud CLI"):
        tpu("status")
