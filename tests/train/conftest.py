"""A dataset to train on, and runs of the entry in this process."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dataprep.demo.make import write_demo
from tests.support.finished import build_here
from tests.support.on_use import on_use
from tests.support.training import SMALL, facts

QUICKLY_COMPILED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
torch, pretrain_mae = on_use("torch"), on_use("train.pretrain_mae")


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled() -> Iterator[None]:
    """What XLA compiles here runs for milliseconds; to optimise it takes longer than all that it does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", QUICKLY_COMPILED)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """As the runs in processes of their own: sums over two threads end with other digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> str:
    """Sixty photographs of ImageNet's layout, in shards."""
    originals = tmp_path_factory.mktemp("originals")
    write_demo("imagenet", originals, images=60, odd=False)
    return build_here("imagenet", originals, tmp_path_factory.mktemp("dataset") / "shards", "webdataset")


@pytest.fixture(scope="session")
def jax_networks() -> dict[str, Any]:
    """Facts about the ResNets in JAX."""
    found: dict[str, Any] = facts("tests.support.jax_networks", JAX_PLATFORMS="cpu", XLA_FLAGS=QUICKLY_COMPILED)
    return found


@pytest.fixture(scope="session")
def photographs(tmp_path_factory) -> str:
    """A folder of class folders, as anyone has it."""
    root = tmp_path_factory.mktemp("photographs")
    for number in range(12):
        folder = root / "train" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return str(root)


@pytest.fixture
def pretrain(dataset) -> Callable[..., int]:
    """Train in this process; the exit code."""

    def run(**flags: Any) -> int:
        values = {"data_path": dataset, "device": "cpu", **SMALL, **flags}
        training = pretrain_mae.open_training(pretrain_mae.PretrainMAE(**values))
        training.resume(flags.get("resume", ""))
        return training.run()

    return run
