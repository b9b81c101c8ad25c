"""The best accuracy of a run, with and without a log of what was before."""

import json

from dataprep.watching import LOG_FILE
from train.finetune_mae import BestAccuracy
from train.telemetry.logs import Logs


def test_the_best_of_this_process_and_of_the_log_is_added(tmp_path):
    best = BestAccuracy(Logs(str(tmp_path)))
    assert best.judge({"accuracy": 0.4, "loss": 1.0}) == {"accuracy": 0.4, "loss": 1.0, "best_accuracy": 0.4}
    assert best.judge({"accuracy": 0.3})["best_accuracy"] == 0.4
    lines = [{"step": 1, "loss": 2.0}, {"step": 1, "val_accuracy": 0.6}]
    (tmp_path / LOG_FILE).write_text("no JSON\n" + "".join(f"{json.dumps(line)}\n" for line in lines))
    assert BestAccuracy(Logs(str(tmp_path))).judge({"accuracy": 0.5})["best_accuracy"] == 0.6
    assert BestAccuracy(Logs(None)).judge({"accuracy": 0.5})["best_accuracy"] == 0.5
