"""A dataset to train on, and runs of the entry in this process."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dataprep.demo_data import write_demo
from tests.support.finished import build_here
from tests.support.training import SMALL
from train.mae_flags import Flags
from train.pretrain_mae import open_training


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


@pytest.fixture
def pretrain(dataset) -> Callable[..., int]:
    """Train in this process; the exit code."""

    def run(**flags: Any) -> int:
        values = {"data_path": dataset, "device": "cpu", **SMALL, **flags}
        training = open_training(Flags(**values))
        training.resume(flags.get("resume", ""))
        return training.run()

    return run
