"""The example of Lightning: stopped in the middle of an epoch, and resumed there by another trainer."""

import importlib.util
import json
import os
import sys
from pathlib import Path

from loaders import open_loader
from tests.support import warm
from tests.support.finished import finished_dataset

REPOSITORY = Path(__file__).parents[2]
STEPS = ("3", "7")
"""Steps after which each run ends; the loader's epochs have 4 or 5."""
EPOCHS = 4


def test_a_run_goes_on_after_its_last_batch(originals, tmp_path_factory, tmp_path):
    """In a process of its own: Lightning imports torch_xla, which must not find TensorFlow there."""
    url = str(finished_dataset("imagenet-webdataset", originals, tmp_path_factory))
    with open_loader(url, batch_size=24, image_size=32) as loader:
        expected = [batch.keys for _ in range(2) for batch in loader]
    variables = {**os.environ, "TPU_ACCELERATOR_TYPE": "none"}  # torch_xla takes no TPU without a name for an error
    words = ("tests.examples.test_train_with_lightning", url, str(tmp_path / "run.ckpt"))
    with warm.start(*words, environment=variables, folder=REPOSITORY) as process:
        out, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    found = json.loads(out.splitlines()[-1])
    assert found["trained_on"] == [list(keys) for keys in expected[:7]]
    assert found["epochs"] == [5 * (epoch + 1) for epoch in range(EPOCHS)]


def main(url: str, checkpoint: str) -> None:
    """Train twice, the second time from the checkpoint; then for some epochs. Print keys of batches, ends of epochs."""
    spec = importlib.util.spec_from_file_location(
        "train_with_lightning", REPOSITORY / "examples/train_with_lightning.py"
    )
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    trained_on = []
    for steps in STEPS:
        arguments = [url, checkpoint, "--steps", steps, "--image-size", "32", "--accelerator", "cpu"]
        trained_on += example.main(arguments).trained_on
    ends: list[int] = []

    class Counted(example.Classifier):
        def on_train_epoch_end(self) -> None:
            ends.append(len(self.trained_on))

    with open_loader(url, batch_size=24, image_size=32) as loader:
        trainer = example.Trainer(
            accelerator="cpu", max_epochs=EPOCHS, logger=False, enable_checkpointing=False, enable_progress_bar=False
        )
        trainer.fit(Counted(1000), example.TorchBatches(loader))
    print(json.dumps({"trained_on": trained_on, "epochs": ends}))


if __name__ == "__main__":
    main(*sys.argv[1:])
