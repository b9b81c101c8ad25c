"""`dataprep watch`: lines, JSON and a terminal, and what it refuses."""

import json
import os

import pytest

from dataprep.commands.watch import command
from dataprep.errors import UsageError
from tests.support.builds import build_arguments, printed
from tests.support.stopping import STOPPED, run

LINE = {"step": 3, "epoch": 0.5, "loss": 0.25}


def watched(*words):
    return printed(command, *words)


@pytest.fixture
def stopped(originals, tmp_path):
    arguments = build_arguments("imagenet", originals["imagenet"], tmp_path / "out", "webdataset", "--num-shards", 4)
    assert run(arguments, boundary=30).code == STOPPED
    return tmp_path / "out"


def test_a_stopped_build_is_shown_once(stopped):
    assert watched(stopped, "--once").startswith("imagenet as webdataset: ")
    found = json.loads(watched(stopped, "--once", "--json"))
    assert (found["state"], found["name"]) == ("building", "imagenet")
    assert 0 < found["finished_shards"] < found["shards"]


def test_on_a_terminal_there_is_a_bar(stopped, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "━" in watched(stopped, "--once")


def test_watching_a_whole_dataset_ends(finished):
    assert watched(finished("imagenet-webdataset")).endswith(": the dataset is complete\n")


def test_a_training_is_shown(tmp_path):
    (tmp_path / "log.txt").write_text(json.dumps(LINE) + "\n")
    assert watched(tmp_path, "--once") == f"{tmp_path}: step 3, epoch 0.50, loss 0.2500, no checkpoint yet\n"


def test_watching_a_training_ends_after_its_last_line(tmp_path):
    lines = [LINE, {"step": 4, "epoch": 0.6, "val_accuracy": 0.5}, {"step": 4, "epoch": 0.6, "ended": True}]
    (tmp_path / "log.txt").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "checkpoint-000000004-aa.pth").touch()
    os.utime(tmp_path / "log.txt", (0, 0))
    shown = "step 4, epoch 0.60, loss 0.2500, accuracy 0.5 (validation), saved checkpoint-000000004-aa.pth"
    assert watched(tmp_path) == f"{tmp_path}: ended, {shown}\n"
    found = json.loads(watched(tmp_path, "--json"))
    assert (found["state"], found["step"], "ended" in found["numbers"]) == ("ended", 4, False)


def test_with_once_there_must_be_something_to_see(tmp_path):
    with pytest.raises(UsageError, match="no build, training run or dataset there"):
        command.main([str(tmp_path / "nothing"), "--once"], standalone_mode=False)
