"""A dataset to train on, and runs of the entry in this process."""

from collections.abc import Callable
from typing import Any

import pytest

from dataprep.demo_data import write_demo
from tests.support.finished import build_here
from tests.support.training import SMALL
from train.mae_flags import Flags
from train.pretrain_mae import open_training


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
