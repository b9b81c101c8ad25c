"""Runs of Weights & Biases: numbers of a training and its loader, added to one run when the training resumes."""

import sys

import pytest

from dataprep.errors import UsageError
from tests.support.training import flags_of, start
from train.telemetry.logs import RUN_FILE, Logs, WandbRun

SMALL = {"model": "mae_vit_micro_patch8", "input_size": 32, "batch_size": 8, "device": "cpu", "wandb": "mae"}


@pytest.mark.long
def test_a_training_and_its_loader_are_logged_to_one_run(dataset, tmp_path):
    """Offline, in two processes, the second of which goes on where the first has ended."""
    variables = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    flags = {**SMALL, "data_path": dataset, "output_dir": tmp_path / "run", "log_interval_steps": 1}
    for more in ({"max_steps": 2}, {"max_steps": 4, "resume": "automatic"}):
        with start("train.pretrain_mae", *flags_of(**flags, **more), **variables) as process:
            _, errors = process.communicate(timeout=800)
        assert process.returncode == 0, errors[-3000:]
    first, second = sorted((tmp_path / "run").rglob("run-*.wandb"), key=lambda path: path.stat().st_mtime)
    for run in (first, second):
        content = run.read_bytes()
        assert all(name in content for name in (b"train/loss", b"loader/wait_p99_s"))
        assert run.name == f"run-{(tmp_path / 'run' / RUN_FILE).read_text().strip()}.wandb"


def test_without_the_package_the_command_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"^`wandb` needs its package \(.*wandb.*\): pip install wandb$"):
        WandbRun("mae", tmp_path, resumed=False)
    assert not (tmp_path / RUN_FILE).exists()


def test_hosts_other_than_the_first_need_no_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    logs = Logs(str(tmp_path), enabled=False, wandb="mae")
    logs.open(step=0, total_steps=9)
    assert not logs.takes_loader
    logs.close()
