"""The classifier's entry: its flags, its schedule, and a state that holds BatchNorm's statistics."""

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dataprep.errors import DataprepError, UsageError
from loaders.config import LoaderConfig
from tests.support.on_use import on_use
from tests.support.training import flags_of, losses, start

# `make test` runs one of these tests, so both of its workers collect this file.
torch, command = on_use("torch"), on_use("train.train_resnet:command")
open_training, TrainResNet = on_use("train.train_resnet:open_training"), on_use("train.train_resnet:TrainResNet")
open_data, open_runtime = on_use("train.batches.data:open_data"), on_use("train.loops.runtime:open_runtime")
load_file = on_use("train.checkpoints.files:load_file")
SMALL = {
    "model": "shufflenet_v2_x0_5",
    "image_size": 32,
    "batch_size": 8,
    "epochs": 2,
    "lr": 0.02,
    "num_workers": 2,
    "log_interval_steps": 1,
}
TINY = {"model": "tiny_cnn", "image_size": 32, "batch_size": 8}


@pytest.fixture
def train(dataset):
    """Train in this process; the exit code."""

    def run(**flags) -> int:
        training = open_training(TrainResNet(**{"data_path": dataset, "device": "cpu", **SMALL, **flags}))
        training.resume(flags.get("resume", ""))
        return training.run()

    return run


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory):
    """The folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    flags = TrainResNet(data_path=dataset, device="cpu", output_dir=str(folder), **SMALL)
    assert open_training(flags).run() == 0
    assert list(losses(folder)) == list(range(1, 16))
    return folder


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.txt").read_text().splitlines()]


def last_state(folder: Path) -> dict:
    return load_file(max(folder.glob("checkpoint-*.pth")), None)


def assert_same_weights(folder: Path, expected: Path) -> None:
    """Statistics, which are buffers, among them."""
    found, wanted = last_state(folder)["model"], last_state(expected)["model"]
    assert {"conv1.1.running_mean", "conv1.1.running_var", "conv1.1.num_batches_tracked"} <= wanted.keys()
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_threads_and_region_policy_reach_both_loaders(dataset):
    flags = TrainResNet(
        data_path=dataset, device="cpu", num_workers=3, region_policy="warn", test_set_batch_size=2, **TINY, epochs=1
    )
    training = open_training(flags)
    for loader in (training.loader, training.backend.task.validation):
        assert (loader.config.num_threads, loader.config.region_policy) == (3, "warn")
    assert training.loader.config.batch_size == 8
    assert training.backend.task.validation.config.batch_size == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"model": "mae_vit_micro_patch8"}, "is not a classifier"),
        ({"model": "resnet19"}, "did you mean resnet1"),
        ({"model": "resnet18", "lr_scheduler_divisor": 2}, "the learning rate is constant; add `lr_scheduler_type`"),
        ({"num_classes": 1}, "the data have 3"),
        ({"batch_size": 0}, "`batch_size` must be 1 to 2,147,483,647, got 0"),
        ({"target_accuracy": 101}, "`target_accuracy` must be 0 to 100, got 101"),
        ({"metrics_debug": True}, "needs XLA, but the device is cpu"),
        ({"fake_data": True, "diagnose": True}, "leave it out"),
    ],
)
def test_contradicting_flags_are_refused(train, flags, message):
    with pytest.raises(UsageError, match=message):
        train(**flags)


@pytest.mark.parametrize(
    ("flags", "images", "expected"),
    [
        ({}, 95, (16, 0.5 * 16 / 1024)),
        ({"model": "resnet18"}, 95, (16, 0.1 * 16 / 256)),
        ({}, 1_281_167, (128, 0.5 * 128 / 1024)),
        ({"accum_iter": 8}, 1_281_167, (128, 0.5)),
        ({"accum_iter": 32}, 1_281_167, (128, 0.5)),
        ({"batch_size": 4, "lr": 0.3}, 95, (4, 0.3)),
    ],
)
def test_batch_and_rate_fit_the_data_and_are_printed_unless_given(flags, images, expected, capsys):
    fitted = TrainResNet(**flags).fitted_to(images, open_runtime("cpu"))
    assert (fitted.batch_size, fitted.lr) == expected
    said = f"--batch-size {expected[0]}, --lr {expected[1]:g}: the defaults for {images:,} images\n"
    assert capsys.readouterr().err == ("" if "lr" in flags else said)


@pytest.mark.long
def test_a_first_run_on_few_pictures_of_two_kinds_learns(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(95):
        pixels = rng.normal(110, 40, (40, 40, 3))
        pixels[..., number % 2] += 70
        path = tmp_path / f"pictures/{'val' if number < 8 else 'train'}/{('red', 'green')[number % 2]}/{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)
    places = {"data_path": tmp_path / "pictures", "index_dir": tmp_path / "index", "output_dir": tmp_path / "run"}
    asked = flags_of(**places, device="cpu", image_size=32, num_workers=1, epochs=5, ckpt_interval=5)
    assert command.main(asked, standalone_mode=False) == 0
    *_, last = (line["val_accuracy"] for line in lines_of(tmp_path / "run") if "val_accuracy" in line)
    assert last == 1


def test_a_validation_loss_that_is_not_finite_ends_the_run(train, tmp_path):
    with pytest.raises(DataprepError, match=r"^step 1: the loss of the evaluation is (inf|nan), expected a finite one"):
        train(output_dir=str(tmp_path), **TINY | {"batch_size": 60, "lr": 1e25}, epochs=1)
    assert not (tmp_path / "log.txt").exists() or "val_loss" not in (tmp_path / "log.txt").read_text()


def test_evaluation_after_every_epoch_counts_every_image_once(whole, dataset):
    found = [line for line in lines_of(whole) if "val_accuracy" in line]
    validation = open_data(dataset).validation_loader(LoaderConfig(batch_size=1))
    assert [line["step"] for line in found] == [7, 15]
    assert {line["val_images"] for line in found} == {validation.order.num_samples}


def test_two_runs_and_a_resumed_one_have_the_same_losses_and_statistics(train, whole, tmp_path):
    """Statistics come back with the weights; steps 7 and 15 end epochs."""
    for stop in (3, 9, 0):
        assert train(output_dir=str(tmp_path), max_steps=stop, resume="automatic") == 0
    assert losses(tmp_path) == losses(whole)
    assert_same_weights(tmp_path, whole)


def test_an_accuracy_below_the_target_is_exit_code_1(dataset, tmp_path):
    arguments = flags_of(data_path=dataset, device="cpu", output_dir=tmp_path, epochs=1, **TINY)
    assert command.main([*arguments, "--target_accuracy", "0"], standalone_mode=False) == 0
    with pytest.raises(DataprepError, match=r"accuracy \d+\.\d\d %, --target-accuracy 100 %") as caught:
        command.main([*arguments, "--resume", "automatic", "--target_accuracy", "100"], standalone_mode=False)
    assert caught.value.exit_code == 1


@pytest.mark.long
def test_on_two_xla_devices_batchnorm_statistics_cover_the_whole_batch_and_are_resumed(dataset, tmp_path, monkeypatch):
    on_small_net(monkeypatch.setattr)
    common = {"data_path": dataset, **TINY, "epochs": 1, "log_interval_steps": 1}
    command.main(flags_of(output_dir=tmp_path / "cpu", device="cpu", **common), standalone_mode=False)
    arguments = flags_of(**common | {"batch_size": 4, "device": "xla"})
    with start("tests.train.test_train_resnet", str(tmp_path), *arguments, CPU_NUM_DEVICES="2") as process:
        _, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors[-3000:]
    assert losses(tmp_path / "whole") == pytest.approx(losses(tmp_path / "cpu"), abs=1e-5)
    assert losses(tmp_path / "resumed") == losses(tmp_path / "whole")
    found, wanted, cpu = (last_state(tmp_path / name)["model"] for name in ("resumed", "whole", "cpu"))
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []
    assert torch.allclose(wanted["layers.1.running_mean"], cpu["layers.1.running_mean"], atol=1e-5)
    # XLA's running variance is the biased one: with 1,800 values a channel, 0.06 % less in every step.
    assert torch.allclose(wanted["layers.1.running_var"], cpu["layers.1.running_var"], rtol=1e-3)
    assert "CompileTime" in errors, "--metrics_debug prints XLA's counters"


def on_small_net(set_attribute) -> None:
    """Train a convolution and BatchNorm, which XLA compiles in seconds."""
    from torch import nn

    from train import train_resnet

    class SmallNet(nn.Module):
        def __init__(self, num_classes: int) -> None:
            super().__init__()
            convolution, normalised = nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4)
            self.layers = nn.Sequential(convolution, normalised, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.head = nn.Linear(4, num_classes)

        def forward(self, images_NCHW):
            return self.head(self.layers(images_NCHW))

    set_attribute(train_resnet, "create_model", lambda _name, *, image_size, num_classes: SmallNet(num_classes))


def on_xla(folder: Path, arguments: list[str]) -> None:
    """Seven steps; and three, then four more."""
    on_small_net(setattr)
    for name, flags in (
        ("whole", ["--metrics_debug"]),
        ("resumed", ["--max_steps", "3"]),
        ("resumed", ["--resume", "automatic"]),
    ):
        with contextlib.redirect_stdout(sys.stderr):
            command.main([*arguments, "--output_dir", str(folder / name), *flags], standalone_mode=False)


if __name__ == "__main__":
    on_xla(Path(sys.argv[1]), sys.argv[2:])
