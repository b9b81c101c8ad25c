"""Numbers with which no update is finite: the run ends with one line that says where, what is kept, and what to try."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dataprep.cli import exit_code_of
from dataprep.errors import UsageError
from tests.support.forked_transforms import forked_transforms  # noqa: F401
from tests.support.training import TINY_VIT, flags_of
from train import finetune_mae, pretrain_mae, train_resnet, train_vit

pytestmark = pytest.mark.usefixtures("forked_transforms")
TRANSFORMER = {"input_size": 32, "effective_batch_size": 8, "warmup_epochs": 0, "num_workers": 0}
ENTRIES = {
    "pretrain-mae": (pretrain_mae.command, {"model": "mae_vit_micro_patch8", **TRANSFORMER, "num_workers": 1}),
    "finetune-mae": (finetune_mae.command, {"model": "vit_micro_patch8", **TRANSFORMER}),
    "vit": (train_vit.command, {**TINY_VIT, "warmup_steps": 0, "num_workers": 1}),
    "resnet": (train_resnet.command, {"model": "resnet18", "image_size": 32, "batch_size": 8, "num_workers": 1}),
}
TO_TRY = "try a lower learning rate, a longer warm-up or a lower weight decay"
LOOK_OR_TRY = f"look at the samples, or {TO_TRY}"
OVERFLOW = {
    "pretrain-mae": {"lr": 1e30, "weight_decay": 1e12},
    "finetune-mae": {"lr": 1e30, "weight_decay": 1e12},
    "vit": {"lr": 1e30, "weight_decay": 1e12},
    "resnet": {"lr": 1e38, "weight_decay": 100},
}
"""Flags with which the first update makes infinite weights of finite ones, with a finite loss."""


def ended(entry: str, folder: Path, capsys: pytest.CaptureFixture[str], **flags: object) -> tuple[int, str]:
    """Exit code of a run in this process, and what it wrote to stderr at its end."""
    command, small = ENTRIES[entry]
    values = {**small, "device": "cpu", "epochs": 2, "output_dir": folder, **flags}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [entry, *flags_of(**values)])
        code = exit_code_of(command, command.name or "")
    return code, capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("entry", "lr"), [*zip(ENTRIES, (1e38, 1e300, 1e38, 1e300), strict=True)])
def test_a_learning_rate_beyond_all_numbers_ends_in_one_line(dataset, entry, lr, tmp_path, capsys):
    code, line = ended(entry, tmp_path, capsys, data_path=dataset, lr=lr)
    assert code == 1
    found = re.search(r"step (\d): the (update is beyond the range of float32|loss is nan, expected a finite)", line)
    assert found, line
    assert line.endswith(f"; nothing is kept, because no checkpoint was saved; {LOOK_OR_TRY}")
    assert line.startswith(f"{ENTRIES[entry][0].name}: step ")
    (path,) = tmp_path.glob("not-finite-*.json")
    report = json.loads(path.read_text())
    assert (report["step"], len(set(report["keys"]))) == (int(found[1]), 8)
    assert not list(tmp_path.glob("checkpoint-*"))


@pytest.mark.parametrize("entry", ENTRIES)
def test_weights_that_overflow_in_the_last_update_are_not_saved(dataset, entry, tmp_path, capsys):
    code, line = ended(entry, tmp_path, capsys, data_path=dataset, max_steps=1, **OVERFLOW[entry])
    assert code == 1
    assert line.startswith(f"{ENTRIES[entry][0].name}: step 1: values that are not finite in model/"), line
    assert line.endswith(f"; nothing is kept, because no checkpoint was saved; {TO_TRY}")
    assert not list(tmp_path.glob("checkpoint-*"))


def test_statistics_that_overflow_where_the_loss_stays_finite_are_not_saved(dataset, tmp_path, capsys):
    """A training never reads the statistics that its evaluations use."""
    code, line = ended("resnet", tmp_path, capsys, data_path=dataset, lr=1e10, max_steps=2)
    assert (code, ".running_var" in line) == (1, True), line
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_weight_decay_beyond_all_numbers_ends_in_one_line(dataset, tmp_path, capsys):
    code, line = ended("resnet", tmp_path, capsys, data_path=dataset, lr=0.1, weight_decay=1e300)
    assert (code, line.count(" and a weight decay of 1e+300, expected finite weights; ")) == (1, 1)


def test_a_base_rate_that_is_infinite_for_the_batch_is_refused(dataset, tmp_path, capsys):
    code, line = ended("pretrain-mae", tmp_path, capsys, data_path=dataset, blr=1e308)
    assert (code, line.endswith("is beyond all numbers for 8; choose a lower one")) == (UsageError.exit_code, True)
