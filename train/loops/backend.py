"""Backend: what the training loop asks of a framework and its devices. `torch.py` and `jax.py` answer.

Shapes: N images of this host, H x W pixels, C = 3 channels.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from loaders.loader import Loader
from train.checkpoints.state import State
from train.telemetry.logs import Logs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class DeviceBatch(Protocol):
    """A batch on the devices, as the loop sees it."""

    @property
    def keys(self) -> list[str]:
        """Keys of this host's samples."""

    @property
    def state(self) -> State:
        """State of the loader after this batch, for its `load_state_dict`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """One update of the weights."""

    step: int
    """Updates that were done before."""
    lr: float
    positions: range
    """Global positions of this host's samples, counted over all epochs."""


class Backend(Protocol):
    """One process's share of the devices, with the model and the optimiser on them."""

    @property
    def name(self) -> str:
        """Kind of the devices, as a report names them: `xla`, `cuda`, `cpu`, `tpu`, …"""

    @property
    def is_first(self) -> bool:
        """Whether this process writes what one process writes for all."""

    @property
    def transfer_ahead(self) -> int:
        """Number of batches on their way to the devices beside the one that is trained on."""

    @property
    def catches_signals(self) -> bool:
        """Whether the loop takes SIGTERM and SIGINT; False where the framework does, for several processes."""

    @property
    def saves_evaluated_step(self) -> bool:
        """Whether checkpoints say which evaluation was the last one, so that one that a signal broke off is made up
        for by the run that goes on."""

    @property
    def saved_entries(self) -> tuple[str, ...]:
        """Names of the entries that `state` gives."""

    def batches(self, loader: Loader) -> Generator[Any]:
        """Yield the rest of the loader's epoch as `DeviceBatch`es."""

    def update(self, batch: Any, update: Update) -> Mapping[str, Any]:
        """Do one update with a batch; return scalars on the device, `loss` among them, which nobody waits for."""

    def evaluate(self, is_stopped: Callable[[], bool]) -> Mapping[str, float] | None:
        """Judge the model on data that are not trained on.

        Args:
            is_stopped: Tells whether a signal came.

        Returns:
            Numbers by their names, none where there are no such data; None where a signal broke it off.
        """

    def agree_to_stop(self, asked: bool, step: int) -> bool:
        """Tell whether all processes stop after this step, because a signal reached one of them."""

    def agree_on_time(self, elapsed: bool, step: int) -> bool:
        """Tell whether it is time for something by the clock of some process; processes that must act at the same
        step get the same answer."""

    def check_same_checkpoint(self, step: int, url: str) -> None:
        """See that all processes found a checkpoint of the same step; 0 stands for none.

        Raises:
            UsageError: They see different folders.
        """

    def state(self) -> State:
        """Return this backend's entries of a checkpoint, copied to the host."""

    def restore(self, where: str, state: Mapping[str, Any], changes: list[str]) -> None:
        """Go on with the entries of a checkpoint.

        Args:
            where: Path or URL of the checkpoint, for messages.
            state: All of its entries.
            changes: Flags that differed in the run that saved it, as a user reads them.

        Raises:
            UsageError: The entries are of another model or optimiser.
            FormatError: They are damaged.
        """

    def show(self, state: Mapping[str, Any], step: int, logs: Logs) -> None:
        """Log a picture of what the weights of a saved state do, where there is something to look at."""

    def memory_bytes(self) -> int | None:
        """Return the bytes in use on the first device of this process; None where the device does not tell."""

    def profile(self, folder: Path) -> AbstractContextManager[None]:
        """Trace what runs meanwhile, into a folder where TensorBoard finds it."""

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> Any:
        """Copy a batch to the devices; return when it is there."""

    def try_step(self, resident: Any) -> None:
        """Do one update with a batch that `put` gave; return when the devices are done. For `--diagnose`."""

    def close(self) -> None:
        """Let go of what was opened for evaluations."""
