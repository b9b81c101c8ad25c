"""`dataprep tpu manifest` as it is called: YAML that can be read back, and commands that their own parsers take."""

from __future__ import annotations

import json

import click
import pytest
import yaml
from click.testing import CliRunner

from dataprep.commands.build import command as build_command
from dataprep.commands.tpu import command
from dataprep.errors import UsageError
from tests.support.kubernetes import fits_kubernetes

TRAINING = ("--", "dataprep-pretrain-mae", "--resume", "automatic")
BUILD = "coco-dup5 --source gs://b/originals --output gs://b/coco-dup5 --format tfrecord"


def run(*words: str):
    result = CliRunner().invoke(command, ["manifest", "mae", "--image", "image", *words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_manifest_is_yaml_with_commands_that_run():
    text = run("--type", "v6e-16", "--build", BUILD, *TRAINING).stdout
    assert "*id" not in text, "people read it, too"
    document = yaml.safe_load(text)
    assert fits_kubernetes(document)
    build, train = (
        job["template"]["spec"]["template"]["spec"]["containers"][0] for job in document["spec"]["replicatedJobs"]
    )
    name, found, arguments = build_command.resolve_command(click.Context(build_command), build["command"][2:])
    assert found.make_context(name, arguments).params["part"] == "auto/8"
    assert train["command"] == ["dataprep-pretrain-mae", "--resume", "automatic"]
    assert {"name": "PJRT_DEVICE", "value": "TPU"} in train["env"]


def test_a_file_is_written_and_the_next_step_is_named(tmp_path):
    path = tmp_path / "mae.yaml"
    result = run("--type", "v6e-16", "--output", str(path), "--json", *TRAINING)
    assert json.loads(result.stdout)["documents"] == [yaml.safe_load(path.read_text())]
    assert f"kubectl apply -f {path}" in result.stderr


@pytest.mark.parametrize("output", ["", "missing/mae.yaml"])
def test_a_file_that_cannot_be_written_is_named(output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"--output .*: cannot be written \(.*\); choose another file"):
        run("--type", "v6e-16", "--output", output, *TRAINING)


def test_notes_name_a_translated_type_and_a_missing_resume():
    said = run("--type", "tpu7x-8", "--", "dataprep-pretrain-mae").stderr
    assert "tpu7x-8 is xpk's name for 8 TensorCores: tpu7x-2x2x1, 4 chips" in said
    assert "add --resume automatic" in said


@pytest.mark.parametrize("words", ["", "--x", "coco --part 1/2", "coco 'x"])
def test_a_build_of_another_form_is_refused(words):
    with pytest.raises(UsageError, match="--build"):
        run("--type", "v6e-8", "--build", words, *TRAINING)


def test_a_new_queue_comes_before_what_it_admits():
    text = run("--type", "v6e-16", "--queue", "team-a", "--new-queue", "--build", BUILD, *TRAINING).stdout
    documents = list(yaml.safe_load_all(text))
    assert [document["kind"] for document in documents][-2:] == ["LocalQueue", "JobSet"]
    assert all(map(fits_kubernetes, documents))
