"""Training on an NVIDIA GPU beside the same training on the processor: `make gpu-test`, on a machine that has one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

REPOSITORY = Path(__file__).parents[2]
DATAPREP = (sys.executable, "-m", "dataprep")
STEPS = 12
SHORT = {"epochs": 4, "log_interval_steps": 1, "max_steps": STEPS, "precision": "float32"}
MAE = {
    "model": "mae_vit_micro_patch8",
    "input_size": 32,
    "effective_batch_size": 16,
    "warmup_epochs": 1,
    "blr": 0.05,
    "norm_pix_loss": True,
}
FINETUNE = {
    "model": "vit_micro_patch8",
    "input_size": 32,
    "effective_batch_size": 16,
    "warmup_epochs": 1,
    "blr": 0.05,
    "aa": "",
    "drop_path": 0.0,
}
VIT = {
    "image_size": 32,
    "patch_size": 8,
    "embed_dim": 32,
    "num_heads": 2,
    "num_blocks": 2,
    "batch_size": 16,
    "warmup_steps": 3,
}
RESNET = {"model": "resnet18", "image_size": 64, "batch_size": 16, "lr": 0.0003}
PACKED = {**MAE, "pack_tokens": 64, "pack_images": 4}
ENTRIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mae": ("pretrain_mae", MAE),
    "mae-packed": ("pretrain_mae", PACKED),
    "fine-tuning": ("finetune_mae", FINETUNE),
    "vit": ("train_vit", VIT),
    "resnet": ("train_resnet", RESNET),
}
JAX = {name: ENTRIES[name] for name in ("mae", "fine-tuning", "vit")}
COMPILED = ("mae", "fine-tuning", "vit")
COMPARED = {"resnet": 3}
"""Losses that are compared, where not all are: batch norms make ten times more of a difference with every step."""


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> Path:
    """Shards of 64 images in smooth colours, some wide and some tall."""
    root = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for number in range(64):
        folder = root / ("train" if number % 8 else "val") / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        small.resize((80 + number % 48, 128 - number % 48), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")
    shards = tmp_path_factory.mktemp("shards") / "dataset"
    run([*DATAPREP, "build", "folder", "--source", str(root), "--output", str(shards), "--format", "webdataset"])
    return shards


def command(entry: str, data: Path, output: Path, device: str, **flags: Any) -> list[str]:
    """The words of a run."""
    module, own = ENTRIES[entry]
    values = {"data_path": data, "output_dir": output, "device": device, **SHORT, **own, **flags}
    words = [sys.executable, "-m", f"train.{module}"]
    for name, value in values.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def run(words: list[str]) -> str:
    """What a run printed; it must succeed."""
    variables = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "OMP_NUM_THREADS": "4"}
    done = subprocess.run(words, cwd=REPOSITORY, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


def losses(output: Path) -> dict[int, float]:
    """The loss of every step that a log has whole."""
    log = output / "log.txt"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return {line["step"]: line["loss"] for line in map(json.loads, lines) if "loss" in line}


def trained(entry: str, data: Path, output: Path, device: str, **flags: Any) -> dict[int, float]:
    """Losses of a whole run."""
    run(command(entry, data, output, device, **flags))
    found = losses(output)
    assert len(found) == STEPS
    return {step: loss for step, loss in found.items() if step <= COMPARED.get(entry, STEPS)}


def assert_close(found: dict[int, float], expected: dict[int, float], within: float) -> None:
    """Every loss differs by less than a share of it; the largest share is printed."""
    assert found.keys() == expected.keys()
    largest = max(abs(found[step] / expected[step] - 1) for step in expected)
    print(f"largest difference of {len(expected)} losses: {largest:.1e}", flush=True)
    assert largest < within


@pytest.mark.parametrize("entry", ENTRIES)
def test_losses_on_a_gpu_are_those_of_the_processor(entry, dataset, tmp_path):
    expected = trained(entry, dataset, tmp_path / "cpu", "cpu")
    assert_close(trained(entry, dataset, tmp_path / "cuda", "cuda"), expected, 1e-3)


@pytest.mark.parametrize("entry", COMPILED)
def test_compiled_networks_have_the_same_losses(entry, dataset, tmp_path):
    expected = trained(entry, dataset, tmp_path / "eager", "cuda")
    assert_close(trained(entry, dataset, tmp_path / "compiled", "cuda", compile=True), expected, 1e-3)


@pytest.mark.parametrize("entry", ENTRIES)
def test_bfloat16_stays_near_float32(entry, dataset, tmp_path):
    expected = trained(entry, dataset, tmp_path / "float32", "cuda")
    assert_close(trained(entry, dataset, tmp_path / "auto", "cuda", precision="auto"), expected, 0.05)


def test_pinned_memory_changes_no_loss(dataset, tmp_path):
    expected = trained("resnet", dataset, tmp_path / "pinned", "cuda")
    assert_close(trained("resnet", dataset, tmp_path / "not", "cuda", no_pin_mem=True), expected, 1e-3)


@pytest.mark.parametrize("entry", JAX)
def test_jax_on_a_gpu_has_its_losses_on_the_processor(entry, dataset, tmp_path):
    expected = trained(entry, dataset, tmp_path / "cpu", "cpu", framework="jax")
    assert_close(trained(entry, dataset, tmp_path / "cuda", "cuda", framework="jax"), expected, 1e-3)


@pytest.mark.parametrize("entry", ["mae", "fine-tuning"])
def test_a_killed_run_goes_on_where_it_stopped(entry, dataset, tmp_path):
    expected = trained(entry, dataset, tmp_path / "whole", "cuda", ckpt_interval_steps=2)
    output = tmp_path / "killed"
    words = command(entry, dataset, output, "cuda", ckpt_interval_steps=2, resume="automatic")
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and len(losses(output)) < STEPS // 2:
            time.sleep(0.005)
        process.kill()
    assert len(losses(output)) < STEPS, "the run ended before it was killed"
    run(words)
    assert_close(losses(output), expected, 1e-3)


def test_a_run_is_diagnosed_on_the_gpu(dataset):
    words = [*DATAPREP, "diagnose", str(dataset), "--device", "cuda", "--model", "resnet18", "--image-size", "64"]
    done = subprocess.run([*words, "--batch-size", "16", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 3), done.stderr[-3000:]
    assert json.loads(done.stdout)["fixes"] is not None
