"""`--diagnose` of the training entries: what the run that its flags describe would wait for. Nothing is saved.

Shapes: N images of this host, H x W pixels, C = 3 channels.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dataprep.errors import UsageError
from loaders.diagnose import diagnose
from loaders.findings import Diagnosis, to_document
from loaders.torch import TorchBatch
from loaders.trial import Setup
from train.loop import Training

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TrainingDevice:
    """The steps of a run, for `loaders.diagnose`: the very updates that training would make."""

    training: Training
    name: str

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> TorchBatch:
        """A batch on the device; returns when it is there."""
        runtime, images = self.training.runtime, len(images_NHWC)
        return TorchBatch(
            images=runtime.put_whole(torch.from_numpy(images_NHWC)),
            labels=runtime.put(torch.from_numpy(labels_N)),
            mask=runtime.put(torch.ones(images, dtype=torch.bool)),
            keys=[""] * images,
            fields={},
            state={},
        )

    def step(self, resident: TorchBatch) -> None:
        """One update; returns when the device is done with it."""
        self.training.apply(resident, range(len(resident.keys)))
        self.training.runtime.wait()


def diagnose_training(training: Training, *, name: str, seconds: float = 3.0) -> Diagnosis:
    """Measure a run, print what it waits for, and keep it as JSON, and as a page, beside its logs.

    Raises:
        UsageError: The run is one of several hosts: each would stop after another number of steps.
    """
    runtime, loader = training.runtime, training.loader
    if runtime.world_size > 1:
        raise UsageError(
            f"--diagnose on {runtime.world_size} hosts: expected one; start it on one host with that host's share of "
            "the batch, or ask `dataprep diagnose` with a simulated device"
        )
    setup = Setup(
        url=loader.dataset.url,
        split=loader.dataset.split.name,
        config=loader.config,
        transfer_ahead=runtime.transfer_ahead,
    )
    found = diagnose(setup, TrainingDevice(training, name), seconds=seconds, progress=_say)
    _show(found)
    if training.logs.folder is not None:
        _keep(found, training.logs.folder)
    return found


def _say(what: str) -> None:
    print(f"measuring {what}", file=sys.stderr)


def _show(found: Diagnosis) -> None:
    from rich.console import Console

    from loaders.report import diagnosis_text

    Console(highlight=False).print(diagnosis_text(found))


def _keep(found: Diagnosis, folder: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "diagnosis.json").write_text(json.dumps(to_document(found)) + "\n")
    try:
        import jinja2
        import matplotlib

        del jinja2, matplotlib
    except ImportError:
        return  # the page needs what not every training machine has; the JSON says the same
    from dataprep.page import write_page
    from loaders.report import diagnosis_page

    write_page(diagnosis_page(found), folder / "diagnosis.html")
