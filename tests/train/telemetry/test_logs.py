"""Log lines: on stdout, in log.txt and for TensorBoard; a resumed run takes back later ones."""

import json

from train.telemetry.logs import EpochLogs, Logs


def test_evaluation_lines_are_logged_with_prefixed_names(tmp_path, capsys):
    logs = Logs(str(tmp_path))
    logs.open(step=0, total_steps=3)
    logs.evaluation(2, 1.0, {"accuracy": 0.25})
    logs.close()
    assert json.loads(capsys.readouterr().out) == {"step": 2, "epoch": 1.0, "val_accuracy": 0.25}
    assert json.loads((tmp_path / "log.txt").read_text()) == {"step": 2, "epoch": 1.0, "val_accuracy": 0.25}


def line(step: int) -> dict:
    return {"step": step, "epoch": step / 10, "loss": 0.5}


def test_a_resumed_run_removes_log_lines_of_later_steps(tmp_path):
    logs = Logs(str(tmp_path))
    logs.open(step=0, total_steps=9)
    for step in (1, 2, 3):
        logs.scalars(line(step))
    logs.close()
    with (tmp_path / "log.txt").open("a") as file:
        file.write('{"step": 4, "lo')  # a kill cut it
    again = Logs(str(tmp_path))
    again.open(step=2, total_steps=9)
    again.scalars(line(3))
    again.close()
    assert [json.loads(each)["step"] for each in (tmp_path / "log.txt").read_text().splitlines()] == [1, 2, 3]


def test_the_last_line_says_that_the_run_has_ended_until_it_goes_on(tmp_path, capsys):
    logs = Logs(str(tmp_path))
    logs.open(step=0, total_steps=1)
    logs.scalars(line(1))
    logs.ended(1, 0.1)
    logs.close()
    last = {"step": 1, "epoch": 0.1, "ended": True}
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == last
    assert json.loads((tmp_path / "log.txt").read_text().splitlines()[-1]) == last
    again = Logs(str(tmp_path))
    again.open(step=1, total_steps=2)
    again.close()
    assert [json.loads(each) for each in (tmp_path / "log.txt").read_text().splitlines()] == [line(1)]


def test_ranks_other_than_the_first_log_nothing(tmp_path, capsys):
    logs = Logs(str(tmp_path / "logs"), enabled=False)
    logs.open(step=0, total_steps=9)
    logs.scalars(line(1))
    logs.tell("hello")
    logs.close()
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "logs").exists()


def test_the_newest_picture_is_kept_as_a_file(tmp_path):
    logs = Logs(str(tmp_path))
    logs.open(step=0, total_steps=9)
    for content in (b"first", b"second"):
        logs.picture(1, "painted", content, height=1, width=1)
    logs.close()
    assert (tmp_path / "painted.png").read_bytes() == b"second"


def test_numbers_are_logged_over_steps_and_over_epochs(tmp_path):
    logs = EpochLogs(str(tmp_path))
    logs.open(step=0, total_steps=9)
    logs.scalars(line(1))
    logs.evaluation(1, 0.1, {"accuracy": 0.25})
    logs.close()
    (events,) = tmp_path.glob("events.out.tfevents.*")
    content = events.read_bytes()
    assert all(tag in content for tag in (b"train/loss", b"ep_train/loss", b"val/accuracy", b"ep_val/accuracy"))


def test_every_rank_has_a_folder_of_its_own_for_traces(tmp_path):
    first, second = (Logs(str(tmp_path), enabled=rank == 0).trace_folder(rank) for rank in (0, 1))
    assert (first, second) == (tmp_path, tmp_path / "rank-01")
    assert Logs(None).trace_folder(1) is None
