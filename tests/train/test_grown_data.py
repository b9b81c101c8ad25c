"""A dataset that grew between two runs: its old checkpoint is not resumed, but a new run takes its weights."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.demo.make import write_demo
from dataprep.storage import open_storage
from tests.support.finetuning import SMALL as FINETUNE
from tests.support.finished import build_here
from tests.support.training import SMALL, flags_of, start
from tests.support.training_fsdp import SMALL as VIT
from tests.support.training_jax import SMALL as JAX_RESNET
from tests.support.training_jax import arguments, environment
from train.checkpoints.checkpoint import load_any
from train.checkpoints.files import ARRAYS

ENTRIES: dict[str, tuple[str, dict[str, Any]]] = {
    "pretrain": ("train.pretrain_mae", SMALL),
    "finetune": ("train.finetune_mae", FINETUNE),
    "vit": ("train.train_vit", VIT),
    "resnet": (
        "train.train_resnet",
        {"model": "shufflenet_v2_x0_5", "image_size": 32, "batch_size": 8, "epochs": 2, "num_workers": 2},
    ),
    "vit in JAX": ("train.train_vit", {**VIT, "framework": "jax", "ema_decay": 0.9}),
    "resnet in JAX": ("train.train_resnet_jax", {**JAX_RESNET, "eval_per_epoch": -1}),
}
"""Module and flags of each entry's run."""
SHORT = ("pretrain", "vit in JAX", "resnet in JAX")
"""Entries whose runs show all code paths; the others take long."""


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """The folder of a dataset as it was, and as it is after its originals grew."""
    folder = tmp_path_factory.mktemp("grown")
    found = []
    for images in (60, 72):
        originals = folder / f"originals-{images}"
        write_demo("imagenet", originals, images=images, odd=False)
        found.append(build_here("imagenet", originals, folder / str(images), "webdataset"))
    return found


@pytest.fixture
def run(tmp_path):
    """Run an entry on `data`; its exit code and what it said."""

    def ran(name: str, folder: str, **more: Any) -> tuple[int, str]:
        module, flags = ENTRIES[name]
        data, out = tmp_path / "data", tmp_path / folder
        if module == "train.train_resnet_jax":
            words = arguments(out, dataset_root=data, **{**flags, **more})
        else:
            device = [] if "JAX" in name else ["--device", "cpu"]
            words = flags_of(data_path=data, output_dir=out, **{**flags, **more}) + device
        with start(module, *words, **(environment() if "JAX" in name else {})) as process:
            _, errors = process.communicate(timeout=800)
        return process.returncode, errors

    return ran


def weights(path: Path) -> dict[str, np.ndarray]:
    """The weights of a checkpoint, without averages of them and statistics of normalisations, which move at once."""
    state = load_any(str(path))
    if ARRAYS in state:
        return {name: each for name, each in state[ARRAYS].items() if name.startswith("params/")}
    named = {name: each.numpy() for name, each in state["model"].items()}
    return {name: each for name, each in named.items() if "running_" not in name and "num_batches" not in name}


@pytest.mark.parametrize(
    "name", [each if each in SHORT else pytest.param(each, marks=pytest.mark.long) for each in ENTRIES]
)
def test_weights_are_kept_and_the_order_begins_anew(builds, run, tmp_path, name):
    data = tmp_path / "data"
    data.symlink_to(builds[0])
    resnet_in_jax = name == "resnet in JAX"
    assert run(name, "old", max_steps=3)[0] == 0
    (old,) = (tmp_path / "old").glob("checkpoint-000000003-*")
    assert load_any(str(old))["classes"] == list(read_manifest(open_storage(builds[0])).classes)
    data.unlink()
    data.symlink_to(builds[1])

    resumed = {} if resnet_in_jax else {"resume": "automatic"}
    code, said = run(name, "old", max_steps=5, **resumed)
    plans = [read_manifest(open_storage(url)).plan_hash[:12] for url in builds]
    advice = (
        f"--config.init {old} and another --workdir"
        if resnet_in_jax
        else f"--init {old} in place of --resume, and another --output-dir"
    )
    assert code == 2
    assert said.endswith(
        f"{data}: the dataset was built or adopted again since the state was made, or is another build: 60 images then "
        f"(plan {plans[0]}, revision 1), 72 images now (plan {plans[1]}, revision 1); its images have another order: "
        f"to begin a new run with the checkpoint's weights, give {advice}\n"
    )

    rate = {"learning_rate" if resnet_in_jax else "lr": 0}
    code, said = run(name, "new", max_steps=1, init=old, **rate)
    assert (code, re.findall("a new run with the weights of .*", said)) == (
        0, [f"a new run with the weights of {old}, which were saved after step 3"]
    )  # fmt: skip
    (new,) = (tmp_path / "new").glob("checkpoint-000000001-*")
    before, after = weights(old), weights(new)
    assert before.keys() == after.keys()
    for each in before:
        np.testing.assert_array_equal(after[each], before[each], err_msg=each)
    position = load_any(str(new))["loader"]
    assert (position["position"], position["sequence"]["samples"]) == (8, 72)
