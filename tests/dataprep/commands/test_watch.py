"""`dataprep watch`: lines, JSON and a terminal, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from dataprep.commands import watch
from dataprep.commands.watch import command
from dataprep.errors import UsageError
from tests.support.builds import build_arguments
from tests.support.stopping import STOPPED, shared_stopper

LINE = {"step": 3, "epoch": 0.5, "loss": 0.25}


def watched(*words):
    result = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture
def stopped(originals, tmp_path):
    arguments = build_arguments("imagenet", originals["imagenet"], tmp_path / "out", "webdataset", "--num-shards", 4)
    assert shared_stopper().run(arguments, boundary=30).code == STOPPED
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
    assert watched(finished("imagenet-webdataset")).endswith(": the dataset is whole\n")


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
    with pytest.raises(UsageError, match="no build, no training and no dataset there"):
        command.main([str(tmp_path / "nothing"), "--once"], standalone_mode=False)


def test_a_page_is_served_until_ctrl_c_also_of_what_is_whole(finished):
    words = [sys.executable, "-m", "dataprep", "watch", str(finished("imagenet-webdataset")), "--page"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        name, _, url = run.stdout.readline().strip().partition(": ")
        assert name == "page"
        with urlopen(url, timeout=60) as answer:
            assert "The dataset is whole." in answer.read().decode()
        assert run.stdout.readline().endswith(": the dataset is whole\n")
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130
        assert run.stderr.read() == "\n"


def test_the_page_of_a_training_has_the_losses_of_its_log(tmp_path, monkeypatch):
    (tmp_path / "log.txt").write_text("".join(json.dumps({**LINE, "step": step}) + "\n" for step in (4, 3, 3, 5)))
    pages = []

    def stop(_seconds):
        raise KeyboardInterrupt

    class Server(watch.PageServer):
        def __init__(self, page, port):
            pages.append(page)
            super().__init__(page, port)

    monkeypatch.setattr(watch, "PageServer", Server)
    monkeypatch.setattr(watch.time, "sleep", stop)
    assert command.main([str(tmp_path), "--page"], standalone_mode=False) == 130
    assert "Loss over the last logged steps" in pages[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--page", "--once"], "--page shows every look until Ctrl-C"),
        (["--page", "--json"], "--page shows every look until Ctrl-C"),
        (["--port", "8080"], "--port is the port of --page; add --page"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        command.main([str(tmp_path), *options], standalone_mode=False)
