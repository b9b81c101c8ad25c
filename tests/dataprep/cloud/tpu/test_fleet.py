"""All workers are reached, each with its own answer; what did not arrive is not taken for an answer."""

from __future__ import annotations

import pytest

from dataprep.cloud.tpu.fleet import Answer, require_all, worker_program
from dataprep.errors import StorageError, UndecidedError
from tests.support.tpu import two_workers


def test_a_fresh_worker_gets_the_worker_program(cloud):
    cloud.add_tpu("my-tpu", workers=2)
    require_all(two_workers().call("status"), "list runs")
    assert len(cloud.calls("tpu-vm scp")) == 1
    require_all(two_workers().call("status"), "list runs")
    assert len(cloud.calls("tpu-vm scp")) == 1
    _, name = worker_program()
    (cloud.home(1) / name).unlink()
    assert [answer.reply["runs"] for answer in two_workers().call("status")] == [{}, {}]
    assert len(cloud.calls("tpu-vm scp")) == 2


def test_each_worker_answers_with_its_exit_code_and_its_last_words(fleet):
    answers = fleet.shell('case "$PWD" in */1/home) echo first >&2; echo broken >&2; exit 4;; esac; echo fine')
    assert answers == [
        Answer(worker=0, code=0, out="fine\n"),
        Answer(worker=1, code=4, trouble="broken"),
    ]


def test_a_worker_that_is_not_reached_has_no_exit_code(pod, fleet):
    pod.drop("true", how="before", worker=1, times=10)
    reached, lost = fleet.shell("true")
    assert (reached.code, lost.code) == (0, None)
    assert lost.trouble.startswith("gcloud compute tpus tpu-vm ssh my-tpu: the worker cannot be reached")
    with pytest.raises(UndecidedError, match=r"^look: worker 1: .*; fix that, and run the same command again$"):
        require_all([reached, lost], "look")
    with pytest.raises(StorageError, match=r"^look: worker 0: broken, and 1 more; fix that"):
        require_all([Answer(worker=0, code=4, trouble="broken"), lost], "look")


def test_success_without_a_reply_is_an_answer_that_was_lost(pod, fleet):
    (pod.home(1) / worker_program()[1]).write_text("")
    answered, lost = fleet.call("state", "r")
    assert (answered.code, answered.reply["state"]) == (0, "absent")
    assert (lost.code, lost.trouble) == (None, "its answer was lost")


def test_the_error_that_the_program_told_is_the_trouble(fleet):
    (answer,) = fleet.call("unpack", "nowhere.tar.gz", "project-0", "0" * 64, workers=[1])
    assert (answer.worker, answer.code, answer.trouble) == (1, 1, "nowhere.tar.gz does not exist; run setup again")


def test_a_malformed_answer_is_an_error_in_one_line(pod, fleet):
    (pod.home(1) / worker_program()[1]).write_text("""print('@dataprep {"files": [1]}')""")
    with pytest.raises(StorageError, match=r"worker 1: its answer: \$\.files: expected object, got \[1\]; run"):
        fleet.call("traces", "logs")
