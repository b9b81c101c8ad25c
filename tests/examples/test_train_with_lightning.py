"""The example of Lightning: stopped in the middle of an epoch, and resumed there by another trainer."""

import importlib.util
from pathlib import Path

import pytest

from loaders import open_loader
from tests.support.finished import finished_dataset

EXAMPLE = Path(__file__).parents[2] / "examples/train_with_lightning.py"


@pytest.mark.filterwarnings("ignore")  # Lightning's advice
def test_a_run_goes_on_after_its_last_batch(originals, tmp_path_factory, tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "none")  # torch_xla takes no TPU without a name for an error
    url = str(finished_dataset("imagenet-webdataset", originals, tmp_path_factory))
    with open_loader(url, batch_size=24, image_size=32) as loader:
        expected = [batch.keys for _ in range(2) for batch in loader]
    spec = importlib.util.spec_from_file_location("train_with_lightning", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    trained_on = []
    for steps in ("3", "7"):  # an epoch has 4 or 5 steps
        arguments = [url, str(tmp_path / "run.ckpt"), "--steps", steps, "--image-size", "32", "--accelerator", "cpu"]
        trained_on += example.main(arguments).trained_on
    assert trained_on == expected[:7]
