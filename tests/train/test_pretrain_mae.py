"""The entry: exact, resumable after any end, and what it writes. On XLA and under SPMD in processes of their own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch

import train.telemetry.diagnosis
from dataprep.errors import DataprepError, UsageError
from dataprep.host.cpu import available_cores
from dataprep.storage import open_storage
from loaders.decode.decoders import Decoder
from loaders.diagnosis import diagnose as diagnosing
from loaders.diagnosis.findings import Option
from tests.support.adapters import run_module
from tests.support.training import ENVIRONMENT, SMALL, flags_of, losses, start
from train.flags.options import run
from train.loops.runtime import open_runtime
from train.loops.tasks import MAETask
from train.pretrain_mae import PretrainMAE, command, main, open_training

STEPS = 22


@pytest.fixture(scope="module")
def expected(dataset, tmp_path_factory):
    """Losses of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    flags = PretrainMAE(data_path=dataset, device="cpu", output_dir=str(folder), **SMALL)
    assert open_training(flags).run() == 0
    found = losses(folder)
    assert list(found) == list(range(1, STEPS + 1))
    return found


def test_a_run_stopped_within_an_epoch_resumes_with_the_same_losses(pretrain, expected, tmp_path):
    for stop in (3, 11, 0):  # steps 7 and 15 end epochs
        assert pretrain(output_dir=str(tmp_path), max_steps=stop, resume="automatic") == 0
    assert losses(tmp_path) == expected


def test_a_run_whose_batch_grows_resumes_with_the_same_losses(pretrain, tmp_path, capsys):
    ramp = {"effective_batch_size": -1, "batch_ramp": "4:16@1epoch", "epochs": 2}
    assert pretrain(output_dir=str(tmp_path / "whole"), **ramp) == 0
    told = capsys.readouterr().err
    for stop in (3, 9, 10, 0):
        assert pretrain(output_dir=str(tmp_path / "parts"), max_steps=stop, resume="automatic", **ramp) == 0
    whole = losses(tmp_path / "whole")
    assert losses(tmp_path / "parts") == whole
    assert list(whole) == list(range(1, 8 + 4 + 3 + 1))  # of 4, 8 and 16 images
    assert re.findall(r"update (\d+): batches of (\d+) images", told) == [("9", "8"), ("13", "16")]


def test_other_pixels_of_the_same_images_are_refused_unless_allowed(pretrain, tmp_path, monkeypatch, capsys):
    pretrain(output_dir=str(tmp_path), max_steps=1)
    monkeypatch.setattr(Decoder, "pixels", "00000000")
    with pytest.raises(UsageError, match=r"\.pth: its images were decoded by '.*', whose pixels differ from"):
        pretrain(output_dir=str(tmp_path), max_steps=2, resume="automatic")
    assert pretrain(output_dir=str(tmp_path), max_steps=2, resume="automatic", allow_other_decoder=True) == 0
    assert "goes on with other images: decoder is" not in capsys.readouterr().err  # its name is the same


def test_sigterm_saves_a_checkpoint_from_which_the_run_resumes(dataset, pretrain, expected, tmp_path):
    flags = flags_of(data_path=dataset, device="cpu", output_dir=tmp_path, **SMALL)
    with start("tests.train.test_pretrain_mae", *flags) as process:
        _, errors = process.communicate(timeout=800)
    done = 4
    assert (process.returncode, len(losses(tmp_path))) == (143, done), errors
    assert "stopping after this step, with a checkpoint; a second signal ends the run at once, without one" in errors
    assert f"stopped by a signal after step {done}" in errors
    assert len(list(tmp_path.glob(f"checkpoint-{done:09d}-*.pth"))) == 1
    assert pretrain(output_dir=str(tmp_path), resume="automatic") == 0
    assert losses(tmp_path) == expected


def test_a_bucket_holds_checkpoints_and_logs(pretrain, expected, tmp_path, bucket_url):
    for stop in (2, 4):
        pretrain(output_dir=bucket_url, max_steps=stop, resume="automatic", keep_checkpoints=1)
    (tmp_path / "log.txt").write_bytes(open_storage(bucket_url).read("log.txt"))
    assert losses(tmp_path) == {step: expected[step] for step in range(1, 5)}


def test_a_loss_that_is_not_finite_ends_the_run_with_the_keys(pretrain, tmp_path, monkeypatch):
    parts = MAETask.parts

    def poisoned(self, batch, positions):
        for loss in parts(self, batch, positions):
            yield loss * float("inf") if positions.start >= 24 else loss

    monkeypatch.setattr(MAETask, "parts", poisoned)
    with pytest.raises(DataprepError, match=r"step 4: the loss is inf.* of 8 samples the first are \w+"):
        pretrain(output_dir=str(tmp_path), log_interval_steps=100, ckpt_interval_steps=1)
    report = json.loads((tmp_path / "not-finite-000000004.json").read_text())
    assert len(set(report["keys"])) == 8
    assert not list(tmp_path.glob("checkpoint-000000004-*"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"effective_batch_size": 9, "accum_iter": 2}, "by 1 devices x 2 parts; choose a multiple of 2"),
        ({"batch_size": 5}, "gives 5, but `effective_batch_size` is 8; give one"),
        ({"batch_size": -1, "effective_batch_size": -1}, "no batch size"),
        ({"use_xla": True}, "`use_xla` and `device` cpu"),
        ({"pin_mem": True}, "for CUDA"),
        ({"start_epoch": 1, "resume": "x.pth"}, "give either `start_epoch` or `resume`"),
        ({"init": "x.pth", "resume": "y.pth"}, "`init` and `resume` CHECKPOINT; `init` begins a new run"),
        ({"profile_steps": "5:5"}, "`profile_steps` 5:5: expected A:B"),
        ({"log_dir": "s3://bucket/logs"}, "expected a folder on a disk or gs://"),
        ({"keep_checkpoints": 0}, "`keep_checkpoints` must be 1 to 2,147,483,647, got 0"),
        ({"warmup_epochs": 40}, "`warmup_epochs` 40 of 3 epochs"),
        ({"device": "cuda"}, "no CUDA device here"),
    ],
)
def test_contradicting_flags_are_refused(pretrain, tmp_path, flags, message):
    with pytest.raises(UsageError, match=message):
        pretrain(**{"output_dir": str(tmp_path), **flags})


@pytest.mark.parametrize(
    ("words", "warmup"),
    [
        ("--epochs 40", 4.0),
        ("", 40.0),
        ("--epochs 800", 40.0),
        ("--epochs 40 --warmup_epochs 40", 40.0),
    ],
)
def test_the_default_of_warmup_epochs_takes_no_more_than_a_tenth_of_the_run(words, warmup, monkeypatch):
    seen = []
    monkeypatch.setattr("train.pretrain_mae.open_training", seen.append)
    monkeypatch.setattr("train.pretrain_mae.run", lambda *_args, **_flags: 0)
    assert command.main(["--data-path", "x", *words.split()], standalone_mode=False) == 0
    assert seen[0].fitted_to(1_281_167, open_runtime("cpu")).warmup_epochs == warmup


def test_on_xla_a_run_and_a_resumed_one_are_the_same_and_profiled(dataset, tmp_path):
    with start("tests.train.test_pretrain_mae", dataset, str(tmp_path)) as process:
        _, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors[-3000:]
    first = losses(tmp_path / "0")
    assert len(first) == 10
    assert losses(tmp_path / "1") == first
    assert len(list((tmp_path / "0" / "plugins" / "profile").glob("*/*.xplane.pb"))) == 1


def on_xla(dataset: str, folder: Path) -> None:
    """Ten steps, and four, then six more."""
    common = {"data_path": dataset, "device": "xla", **SMALL}
    for name, runs in (("0", [(10, "3:5")]), ("1", [(4, ""), (10, "")])):
        for max_steps, profile in runs:
            flags = PretrainMAE(**common, output_dir=str(folder / name), max_steps=max_steps, profile_steps=profile)
            training = open_training(flags)
            training.resume("automatic")
            training.run()


def test_diagnose_says_what_the_run_waits_for_and_trains_nothing(dataset, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(train.telemetry.diagnosis, "RUN_S", 0.3)
    arguments = flags_of(data_path=dataset, device="cpu", output_dir=tmp_path, **SMALL)

    code = command.main([*arguments, "--diagnose"], standalone_mode=False)

    found = json.loads((tmp_path / "diagnosis.json").read_text())
    assert code == (3 if found["undecided"] else 0), "beside other tests the machine may be slower for a moment"
    page = re.sub(r"<[^>]+>", " ", unescape((tmp_path / "diagnosis.html").read_text()))
    assert found["verdict"] in " ".join(page.split())
    assert " ".join(capsys.readouterr().out.split()).startswith(found["verdict"])
    assert found["device"] == "mae_vit_micro_patch8 on cpu"
    assert not list(tmp_path.glob("checkpoint-*"))
    own = [fix["advice"] for fix in found["fixes"] if fix["needs"] == "restart"]
    known = {spelling for each in command.params for spelling in each.opts}
    assert {word for advice in own for word in advice.split() if word.startswith("--")} <= known


def test_diagnose_tries_fewer_threads_of_a_model_that_computes_on_the_cores(dataset, tmp_path, capsys, monkeypatch):
    """An update of four times as many threads as cores, which other tests neither explain nor contradict."""
    monkeypatch.setattr(train.telemetry.diagnosis, "RUN_S", 0.3)
    for doubt in ("contradiction", "disturbance"):
        monkeypatch.setattr(diagnosing, doubt, lambda *_rates, **_cores: "")
    many, before = 4 * available_cores(), torch.get_num_threads()
    options = {"batch_size": Option("--batch_size")}
    training = open_training(PretrainMAE(data_path=dataset, device="cpu", output_dir=str(tmp_path), **SMALL))
    torch.set_num_threads(many)
    try:
        assert training.diagnose("mae", options) == 0
        assert torch.get_num_threads() == many, "as it was before the change was tried"
    finally:
        torch.set_num_threads(before)
    assert "measuring the device, with fewer threads\n" in capsys.readouterr().err


def stopped_in_its_fourth_step() -> None:
    """The entry, which is sent SIGTERM."""
    parts = MAETask.parts

    def ended(self, batch, positions):
        if positions.start == 24:
            os.kill(os.getpid(), signal.SIGTERM)
        yield from parts(self, batch, positions)

    MAETask.parts = ended
    main()


if __name__ == "__main__":
    on_xla(sys.argv[1], Path(sys.argv[2])) if len(sys.argv) == 3 else stopped_in_its_fourth_step()


PACKED = {"pack_tokens": 40, "pack_images": 4, "norm_pix_loss": True}


def test_packs_train_resume_with_the_same_losses_and_compile_nothing_new_on_xla(dataset, pretrain, tmp_path):
    """Images of any shape and resolution, with static shapes: 7 steps an epoch."""
    assert pretrain(output_dir=str(tmp_path / "whole"), **PACKED) == 0
    expected = losses(tmp_path / "whole")
    assert list(expected) == list(range(1, STEPS + 1))
    assert all(np.isfinite(loss) for loss in expected.values())
    for stop in (3, 11, 0):
        assert pretrain(output_dir=str(tmp_path / "parts"), max_steps=stop, resume="automatic", **PACKED) == 0
    assert losses(tmp_path / "parts") == expected
    flags = json.dumps({**SMALL, **PACKED, "max_steps": 6})
    arguments = ("train.pretrain_mae", dataset, tmp_path / "xla", flags)
    report = run_module("tests.support.packs_devices", *arguments, **ENVIRONMENT)
    assert report["compilations"][2] == report["compilations"][5]
    first = {step: expected[step] for step in range(1, 7)}
    assert losses(tmp_path / "xla") == pytest.approx(first, rel=1e-3)


def test_a_run_begun_with_init_is_continued_by_the_same_command(dataset, tmp_path, capsys):
    def run_flags(**more):
        flags = PretrainMAE(**{"data_path": dataset, "device": "cpu", **SMALL, **more})
        assert run(open_training(flags), flags, model=flags.model) == 0
        return capsys.readouterr().err

    run_flags(output_dir=str(tmp_path / "first"), max_steps=1)
    same = {
        "init": str(next((tmp_path / "first").glob("*.pth"))),
        "resume": "automatic",
        "output_dir": str(tmp_path / "second"),
    }
    assert "a new run with the weights of" in run_flags(**same, max_steps=1)
    said = run_flags(**same, max_steps=2)
    assert "resumed after step 1" in said
    assert "a new run" not in said


@pytest.mark.parametrize("accum_iter", [1, 2])
def test_images_that_cannot_be_read_are_skipped_and_counted(photographs, tmp_path, capsys, accum_iter):
    shutil.copytree(photographs, tmp_path / "bad")
    (tmp_path / "bad/train/class0/2.jpg").write_bytes(b"no image")
    flags = {"data_path": str(tmp_path / "bad"), "index_dir": str(tmp_path / "index"), "accum_iter": accum_iter}
    given = PretrainMAE(**{"device": "cpu", **SMALL, **flags, "epochs": 2, "output_dir": str(tmp_path / "raise")})
    with pytest.raises(DataprepError, match=r"2\.jpg.*cannot be decoded.*set `on_error` to skip"):
        run(open_training(given), given, model=given.model)
    given = replace(given, on_error="skip", output_dir=str(tmp_path / "skip"))
    assert run(open_training(given), given, model=given.model) == 0
    assert f'took no part in the training; run "dataprep verify {tmp_path}/index" to see' in capsys.readouterr().err
    last = [json.loads(line) for line in (tmp_path / "skip/log.txt").read_text().splitlines()][-2]
    assert last["skipped"] == 2


SCRIPT = Path(__file__).parents[2] / "scripts/demo.sh"


def test_the_demo_reads_the_log_of_a_training(pretrain, tmp_path):
    assert pretrain(output_dir=str(tmp_path)) == 0
    (program,) = re.findall(r"<<'END'\n(import json.*?)\nEND\n", SCRIPT.read_text(), re.DOTALL)
    words = [sys.executable, "-", str(tmp_path / "log.txt")]
    done = subprocess.run(words, input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = r"loss from \d\.\d\d to \d\.\d\d in \d+ steps; \d+ images/s; \d+\.\d % of the time waited for input\n"
    assert re.fullmatch(shown, done.stdout)
