"""The loop over a backend without a framework: what is done after which step, and how a signal ends a run."""

import contextlib
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from dataprep.errors import DataprepError, FormatError, UsageError
from loaders.config import LoaderConfig
from loaders.engine.batch import Batch
from loaders.torch import TorchBatches
from tests.support.virtual_time import VirtualClock, batches_every
from tests.support.waiting import LONGEST_S, wait_for
from train.batches.data import FakeLoader
from train.checkpoints.checkpoint import CheckpointFolder
from train.checkpoints.files import find_checkpoint
from train.loops import loop
from train.loops.backend import Backend, LoopConfig
from train.loops.loop import (
    SAME_S,
    STOPPED_EXIT_CODE,
    StepMonitor,
    Training,
    Unread,
    interrupt_as_sigterm,
    stop_signals,
)
from train.optim.schedule import Steps
from train.telemetry.goodput import Goodput
from train.telemetry.logs import Logs

IMAGES, BATCH = 20, 4
"""Five steps an epoch."""


@dataclass
class Counter(Backend):
    """A backend whose model is a sum of positions."""

    is_first: bool = True
    compiles: bool = False
    stop_in_update: int = -1
    """Step in which this process gets SIGTERM."""
    stop_in_evaluation: int = -1
    overflow_in_update: int = -1
    """Step from which on the sum is not finite, which no loss shows."""
    total: int = 0
    salt: int = 0
    """Makes the sums of two branches differ."""
    updates: list[int] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    checked: list[int] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    closed: bool = False

    name = "counter"
    transfer_ahead = 0
    catches_signals = True
    saved_entries = ("total",)

    def batches(self, loader: Any) -> Any:
        yield from TorchBatches(loader)

    def update(self, batch: Any, update: Any) -> dict[str, float]:
        self.total += sum(update.positions) + self.salt
        self.updates.append(update.step)
        if update.step + 1 == self.stop_in_update:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"loss": float(self.total)}

    def evaluate(self, is_stopped: Any) -> dict[str, float] | None:
        step = len(self.evaluations) + 1
        if step == self.stop_in_evaluation:
            self.stop_in_evaluation = -1
            os.kill(os.getpid(), signal.SIGTERM)
        if is_stopped():
            return None
        self.evaluations.append(self.total)
        return {"total": self.total}

    def converted(self, where: str, state: Any) -> Any:
        return state

    def agree_to_stop(self, asked: bool, step: int) -> bool:
        return asked

    def agree_on_time(self, elapsed: bool, step: int) -> bool:
        return elapsed

    def check_same_checkpoint(self, step: int, url: str) -> None:
        self.checked.append(step)

    def not_finite(self) -> list[str]:
        return ["total"] if 0 <= self.overflow_in_update <= len(self.updates) else []

    def state(self) -> dict[str, Any]:
        return {"total": self.total}

    def restore(self, where: str, state: Any, changes: list[str]) -> None:
        self.total = state["total"]

    def take_weights(self, where: str, state: Any, changes: list[str]) -> None:
        self.total = state["total"]

    def show(self, state: Any, step: int, logs: Any) -> None:
        self.shown.append(step)

    def profile(self, folder: Any) -> Any:
        return contextlib.nullcontext()

    def close(self) -> None:
        self.closed = True


def opened(folder: Any, backend: Counter, **config: Any) -> Training:
    return Training(
        config=LoopConfig(**{"epochs": 3, "log_interval_steps": 2, "ckpt_interval": 1, **config}),
        backend=backend,
        schedule=Steps(lr=1.0, divisor=1, every_epochs=1),
        loader=FakeLoader(LoaderConfig(batch_size=BATCH, image_size=8), IMAGES),
        logs=Logs(str(folder)),
        checkpoints=CheckpointFolder(str(folder), keep=99),
        description={"flag": 1},
    )


def resumed(folder: Any, backend: Counter | None = None, **config: Any) -> Training:
    training = opened(folder, backend or Counter(), **config)
    training.resume("automatic")
    return training


def lines(folder: Any, name: str) -> dict[int, float]:
    found = [json.loads(line) for line in (folder / "log.txt").read_text().splitlines()]
    return {line["step"]: line[name] for line in found if name in line}


def saved(folder: Any) -> list[int]:
    return sorted(each.step for each in CheckpointFolder(str(folder)).list())


def test_log_lines_evaluations_and_checkpoints_come_after_their_steps(tmp_path):
    backend = Counter()
    assert opened(tmp_path, backend).run() == 0
    assert backend.updates == list(range(15))
    assert list(lines(tmp_path, "loss")) == [2, 4, 6, 8, 10, 12, 14, 15]
    assert list(lines(tmp_path, "val_total")) == saved(tmp_path) == backend.shown == [5, 10, 15]
    assert backend.total == sum(range(60))
    assert backend.closed


def test_log_lines_have_six_digits_but_for_losses(tmp_path):
    backend = Counter(total=1 / 3)
    training = opened(tmp_path, backend)
    training.schedule = Steps(lr=1 / 3, divisor=1, every_epochs=1)
    training.run()
    assert lines(tmp_path, "lr")[2] == 0.333333
    for name in ("epoch", "images_per_s", "step_s", "wait_share", "utilisation"):
        assert all(value == float(f"{value:.6g}") for value in lines(tmp_path, name).values()), name
    assert lines(tmp_path, "loss")[15] == backend.total != round(backend.total, 3)


def test_a_signal_ends_the_run_after_the_step_with_a_checkpoint(tmp_path, capsys):
    backend = Counter(stop_in_update=7)
    assert opened(tmp_path, backend).run() == STOPPED_EXIT_CODE
    assert saved(tmp_path) == [5, 7]
    assert "stopped by a signal after step 7; `resume` automatic continues it" in capsys.readouterr().err
    again = resumed(tmp_path)
    assert again.backend.checked == [7]
    assert again.run() == 0
    assert again.backend.total == sum(range(60))
    assert list(lines(tmp_path, "val_total")) == [5, 10, 15]


@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_goes_back_stays_in_its_branch(tmp_path, seed):
    rng, url, keep = random.Random(seed), str(tmp_path), 3
    before: dict[str, list[str]] = {}
    """For each checkpoint those of its branch before it."""
    tip, salt = "", 0
    for life in range(8):
        names = [each.name for each in CheckpointFolder(url).list()]
        goes_back = life > 1 and rng.random() < 0.6
        salt += goes_back
        run = opened(tmp_path, Counter(salt=1000 * salt), ckpt_interval_steps=rng.randint(1, 3), epochs=30)
        run.checkpoints = CheckpointFolder(url, keep=keep)
        if goes_back:
            tip = rng.choice(names)
            run.resume(f"{url}/{tip}")
        else:
            run.resume("automatic")
            assert run.step == (int(tip.split("-")[1]) if tip else 0)
            assert run.backend.total == (CheckpointFolder(url).load(find_checkpoint(tip))["total"] if tip else 0)
        left = set(names) - {tip, *before.get(tip, [])}
        if goes_back and rng.random() < 0.3:
            run.checkpoints.begin_branch(*run._branch)  # killed before it saves
            continue
        run.config = replace(run.config, max_steps=run.step + rng.randint(1, 9))
        run.run()
        now = [each.name for each in CheckpointFolder(url).list()]
        for name in sorted(set(now) - set(names)):
            before[name] = [tip, *before.get(tip, [])] if tip else []
            tip = name
        kept = [name for name in (tip, *before[tip]) if name in {*names, *now}][:keep]
        assert [each.name for each in CheckpointFolder(url).current()] == kept
        assert set(now) == {*kept, *left}, "a checkpoint of another branch was deleted, or one of this branch was not"


def test_a_step_without_a_checkpoint_is_refused(tmp_path):
    assert opened(tmp_path, Counter(), max_steps=5).run() == 0
    with pytest.raises(
        UsageError, match=r"no checkpoint of step 4 among checkpoint-000000005-.*; give `resume` the path"
    ):
        opened(tmp_path, Counter()).resume("4")
    again = opened(tmp_path, Counter())
    again.resume("5")
    assert (again.step, again.backend.total) == (5, sum(range(20)))


def test_an_evaluation_interrupted_by_a_signal_is_done_by_the_resumed_run(tmp_path):
    backend = Counter(stop_in_evaluation=2)
    assert opened(tmp_path, backend).run() == STOPPED_EXIT_CODE
    assert saved(tmp_path)[-1] == 10
    assert list(lines(tmp_path, "val_total")) == [5]
    again = resumed(tmp_path)
    assert again.run() == 0
    assert list(lines(tmp_path, "val_total")) == [5, 10, 15]


def test_a_checkpoint_is_saved_before_an_evaluation_that_fails(tmp_path):
    backend = Counter()
    backend.evaluate = lambda is_stopped: (_ for _ in ()).throw(DataprepError("val/3: cannot be read"))
    with pytest.raises(DataprepError, match="val/3"):
        opened(tmp_path, backend).run()
    assert saved(tmp_path) == [5]


def test_a_signal_in_the_last_step_of_an_epoch_defers_its_evaluation_to_the_resumed_run(tmp_path):
    backend = Counter(stop_in_update=5)
    assert opened(tmp_path, backend).run() == STOPPED_EXIT_CODE
    assert backend.evaluations == []
    again = resumed(tmp_path)
    assert again.run() == 0
    assert list(lines(tmp_path, "val_total")) == [5, 10, 15]


@pytest.mark.parametrize(
    ("first_not_saved", "stop_in_update", "config"),
    [
        pytest.param(10, -1, {}, id="after an epoch"),
        pytest.param(6, -1, {"ckpt_interval_steps": 3}, id="after some steps"),
        pytest.param(8, -1, {"max_steps": 8}, id="at the end"),
        pytest.param(6, -1, {"ckpt_interval_minutes": 1e-9}, id="after some time"),
        pytest.param(7, 7, {}, id="after a signal"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_state_that_is_not_finite_is_never_saved_and_ends_the_run(
    tmp_path, first_not_saved, stop_in_update, config, is_first
):
    backend = Counter(is_first=is_first, overflow_in_update=6, stop_in_update=stop_in_update)
    training = opened(tmp_path, backend, **config)
    before = first_not_saved - 1 if "ckpt_interval_minutes" in config else 5
    message = rf"^step {first_not_saved}: .* in total, .*; nothing after the checkpoint of step {before} is kept"
    with pytest.raises(DataprepError, match=message):
        training.run()
    assert not any(step > before for step in saved(tmp_path)), "all of them are of finite states"
    assert (before in saved(tmp_path)) == is_first
    assert (len(backend.updates), backend.closed) == (first_not_saved, True)


def test_without_a_folder_for_checkpoints_weights_are_not_looked_at(tmp_path):
    training = opened(tmp_path, Counter(overflow_in_update=1))
    training.checkpoints = None
    assert training.run() == 0


def test_processes_other_than_the_first_save_nothing_but_measure_the_time_between_checkpoints(tmp_path):
    training = opened(tmp_path, Counter(is_first=False), ckpt_interval_minutes=1e9)
    asked = []
    training.backend.agree_on_time = lambda elapsed, step: asked.append(step) or step == 3
    before_s = training._saved_s
    assert training.run() == 0
    assert saved(tmp_path) == []
    assert 3 in asked
    assert training._saved_s > before_s


def test_a_new_run_in_the_folder_of_an_older_one_is_refused_unless_it_resumes(tmp_path):
    assert opened(tmp_path, Counter(), max_steps=1).run() == 0
    with pytest.raises(UsageError, match="has checkpoints of a run; continue it with `resume` automatic"):
        opened(tmp_path, Counter()).resume("")
    opened(tmp_path / "new", Counter()).resume("")


def test_a_folder_of_damaged_checkpoints_is_refused_and_its_log_is_kept(tmp_path, capsys):
    assert opened(tmp_path, Counter(), max_steps=1).run() == 0
    (path,) = tmp_path.glob("checkpoint-*")
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="all of its checkpoints are damaged; remove them to start a new run, or"):
        resumed(tmp_path)
    assert "damaged; skipped" in capsys.readouterr().err
    resumed(tmp_path / "new")
    assert "no checkpoint yet, starting a new run" in capsys.readouterr().err


def test_changed_options_are_reported_by_their_fields(tmp_path, capsys):
    assert opened(tmp_path, Counter(), max_steps=1).run() == 0
    training = opened(tmp_path, Counter())
    training.description = {"flag": 2, "other": 3}
    training.resume("automatic")
    assert "note: `flag` was 1, is now 2" in capsys.readouterr().err


def test_a_changed_number_is_shown_without_the_error_of_its_last_digit(tmp_path, capsys):
    first = opened(tmp_path, Counter(), max_steps=1)
    first.description = {"warmup_epochs": 0.1 + 0.2}
    assert first.run() == 0
    training = opened(tmp_path, Counter())
    training.description = {"warmup_epochs": 0.9}
    training.resume("automatic")
    assert "note: `warmup_epochs` was 0.3, is now 0.9\n" in capsys.readouterr().err


def test_a_flag_that_was_not_given_is_reported_so_and_resume_itself_is_not(tmp_path, capsys):
    first = opened(tmp_path, Counter(), max_steps=1)
    first.description = {"aa": "", "wandb": None, "resume": ""}
    assert first.run() == 0
    training = opened(tmp_path, Counter())
    training.description = {"aa": "rand-m9", "wandb": "mae", "resume": "automatic"}
    training.resume("automatic")
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert notes == ["note: `aa` was not given, is now rand-m9", "note: `wandb` was not given, is now mae"]


def test_the_steps_to_do_are_said_before_the_first_and_compiling_only_where_it_is_done(tmp_path, capsys):
    opened(tmp_path, Counter(), max_steps=2).run()
    assert "training on counter: updates 1 to 2\n" in capsys.readouterr().err
    resumed(tmp_path, Counter(compiles=True), max_steps=4).run()
    said = "training on counter: updates 3 to 4; the network is compiled first, which may take minutes\n"
    assert said in capsys.readouterr().err
    resumed(tmp_path, Counter(compiles=True), max_steps=4).run()
    assert "training on" not in capsys.readouterr().err


def test_a_checkpoint_without_an_entry_of_the_backend_is_refused(tmp_path):
    assert opened(tmp_path, Counter(), max_steps=1).run() == 0
    backend = Counter()
    backend.saved_entries = ("total", "more")
    with pytest.raises(FormatError, match="no entry 'more'"):
        opened(tmp_path, backend).resume("automatic")


def test_images_that_make_no_batch_are_refused(tmp_path):
    training = opened(tmp_path, Counter(), epochs=1, batch_hint="a smaller `batch_size`")
    training.loader = FakeLoader(LoaderConfig(batch_size=64, image_size=8), IMAGES)
    with pytest.raises(UsageError, match="20 images are too few for a batch of 64 in 1 epochs; choose a smaller"):
        training.run()


def test_a_run_that_begins_with_a_later_epoch_counts_its_own_images_also_when_it_is_resumed(tmp_path, capsys):
    first = opened(tmp_path, Counter(stop_in_update=7))
    first.description = {"flag": 1, "start_epoch": 1}
    first.loader.set_epoch(1)
    assert first.run() == STOPPED_EXIT_CODE
    assert "training on counter: updates 6 to 15\n" in capsys.readouterr().err
    for stop in (9, -1):
        again = opened(tmp_path, Counter(stop_in_update=stop))
        again.description = {"flag": 1, "start_epoch": 0}
        again.resume("automatic")
        again.run()
    errors = capsys.readouterr().err
    assert "trained 40 of the 60 images of 3 epochs; the run began after the first 20\n" in errors
    assert "note: " not in errors


@pytest.mark.parametrize("stop", range(1, 10))
def test_a_ramp_has_every_position_once_at_its_rates_and_resumes_anywhere(tmp_path, stop, capsys):
    """Batches of 2, 4 and 8 for 8 and 12 images and the rest of 60."""

    def open_ramp(**config):
        found = opened(tmp_path, InEpochs(), log_interval_steps=1, ckpt_interval=9, eval_interval=0, **config)
        found.loader.ramp_batches(((0, 2), (8, 4), (20, 8)))
        found.lr_shares = {2: 0.25, 4: 0.5}
        return found

    assert open_ramp(max_steps=stop).run() == 0
    again = open_ramp()
    again.resume("automatic")
    assert again.run() == 0
    assert again.backend.total == sum(range(8)) + sum(range(4 * 4, 7 * 4)) + sum(range(7 * 8, 12 * 8))
    assert list(lines(tmp_path, "lr").values()) == [0.25] * 4 + [0.5] * 3 + [1.0] * 5
    assert lines(tmp_path, "epoch") == pytest.approx(
        dict(enumerate([0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.4, 1.8, 2.2, 2.6, 3.0], 1))
    )
    told = capsys.readouterr().err
    assert stop == 4 or "update 5: batches of 4 images from here on, 2 before; the learning rate is 0.5\n" in told
    assert stop == 7 or "update 8: batches of 8 images from here on, 4 before; the learning rate is 1\n" in told


class InEpochs(Counter):
    """A counter that takes the loader's own iterations, as all trainings do."""

    def batches(self, loader: Any) -> Any:
        yield from loader


TEN_IMAGES = Batch(np.zeros((10, 1, 1, 3), np.uint8), np.zeros(10, np.int64), [""] * 10, np.ones(10, bool), {}, {})


def test_the_monitor_counts_waits_and_steps(monkeypatch):
    clock = VirtualClock()
    monkeypatch.setattr(loop, "time", clock)
    steps = StepMonitor(compute_images_per_s=1000)
    for _ in itertools.islice(steps.waiting(batches_every(clock, 0.03, TEN_IMAGES), Goodput(0.0)), 10):
        clock.sleep(0.01)
        steps.stepped(10)
    found = steps.take()

    assert found == pytest.approx({"images_per_s": 250, "wait_share": 0.75, "step_s": 0.04, "utilisation": 0.25})
    assert steps.take()["images_per_s"] == 0


def unread(losses: list[float], folder=None) -> Unread:
    found = Unread(folder)
    for step, loss in enumerate(losses, start=1):
        found.add(step, {"loss": loss, "accuracy": step}, [f"key-{step}-{number}" for number in range(6)])
    return found


def test_means_are_over_every_update_since_the_last_line():
    found = unread([1.0, 2.0, 6.0])
    assert found.take() == {"loss": 3.0, "accuracy": 2.0}
    assert found.take() == {}


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_the_first_loss_that_is_not_finite_is_reported_with_its_keys(tmp_path, loss):
    for look in ("check", "take"):
        with pytest.raises(
            DataprepError, match=rf"step 2: the loss is {loss}.*key-2-0, key-2-1, key-2-2, key-2-3, all"
        ):
            getattr(unread([1.0, loss, math.nan, 1.0], tmp_path), look)()
    report = json.loads((tmp_path / "not-finite-000000002.json").read_text())
    assert report == {"step": 2, "loss": str(loss), "keys": [f"key-2-{number}" for number in range(6)]}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_evaluation_that_is_not_finite_ends_the_run(value):
    with pytest.raises(DataprepError) as error:
        unread([1.0]).judge(7, {"accuracy": 0.5, "loss": value})
    assert (str(error.value), error.value.exit_code) == (
        f"step 7: the loss of the evaluation is {value}, expected a finite one; nothing is kept, because no checkpoint "
        "was saved; try a lower learning rate, a longer warm-up or a lower weight decay",
        1,
    )
    with pytest.raises(DataprepError, match="step 1: the loss is nan"):  # which says more: the samples
        unread([math.nan]).judge(7, {"loss": value})


def test_checking_losses_keeps_them():
    found = unread([1.0, 3.0])
    found.check()
    assert found.take()["loss"] == 2.0


@pytest.mark.parametrize(
    ("names", "what"),
    [(["head.bias"], "head.bias"), (["cls_token", "head.weight", "head.bias"], "cls_token and 2 more arrays")],
)
@pytest.mark.parametrize(
    ("saved_step", "kept"),
    [
        (-1, "nothing is kept, because no checkpoint was saved"),
        (1200, "nothing after the checkpoint of step 1,200 is kept"),
    ],
)
def test_weights_that_are_not_finite_are_reported_with_the_newest_checkpoint(names, what, saved_step, kept):
    found = Unread(None, saved_step)
    found.refuse(1400, [])
    with pytest.raises(DataprepError) as error:
        found.refuse(1400, names)
    assert str(error.value) == (
        f"step 1400: values that are not finite in {what}, expected finite ones in a checkpoint, so none is written; "
        f"{kept}; try a lower learning rate, a longer warm-up or a lower weight decay"
    )


BUSY_IN_C = """
import hashlib, os, sys
from train.loops.loop import stop_signals
with stop_signals(announce=lambda: os.write(1, b"stopping\\n")) as stop:
    os.write(1, b"started\\n")
    {wait}hashlib.pbkdf2_hmac("sha256", b"", b"", {iterations})
    os.write(1, b"ended\\n")
"""
"""Program whose main thread runs no Python while it works, as in a compilation. Two threads write, each a line in one
call: `print` writes a line and its end in two."""


def busy(iterations, wait=""):
    command = [sys.executable, "-c", BUSY_IN_C.format(iterations=iterations, wait=wait)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "started\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_requests_a_stop_and_afterwards_signals_act_as_before(number, monkeypatch):
    monkeypatch.setattr("train.loops.loop.SAME_S", 36_000.0)
    seen = []
    before = signal.signal(number, lambda *_: seen.append("outside"))
    try:
        with stop_signals(announce=lambda: seen.append("announced")) as stop:
            assert not stop.asked
            os.kill(os.getpid(), number)
            assert stop.asked
            os.kill(os.getpid(), number)  # so soon it is the same one, passed on by another process
        assert seen == ["announced"]
        os.kill(os.getpid(), number)
        assert seen == ["announced", "outside"]
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_announced_while_the_main_thread_compiles_and_a_second_one_ends_it(number):
    with busy(2**31 - 1) as process:
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        time.sleep(SAME_S + 0.2)
        process.send_signal(number)
        assert process.wait(LONGEST_S) == 128 + number


def test_after_one_signal_the_main_thread_ends_what_it_does():
    with busy(500_000, wait="while not stop.asked: ") as process:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=LONGEST_S)
    assert sorted(said.split()) == ["ended", "stopping"], "in either order, if the signal comes before the work"
    assert process.returncode == 0


def test_ctrl_c_becomes_sigterm_where_a_framework_stops_all_processes():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with interrupt_as_sigterm(lambda: seen.append("announced")) as stop:
            os.kill(os.getpid(), signal.SIGINT)
            wait_for(lambda: len(seen) == 2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ["announced", signal.SIGTERM]
    assert not stop.asked
