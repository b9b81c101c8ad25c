"""The JAX backend of the training loop: a network's functions on a mesh of all processes' devices.

No random generator has a state: a checkpoint holds weights, statistics and moments, and the step of the last
evaluation.

Shapes: N images of this process, H x W pixels, C = 3 channels, A arrays of a state.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dataprep.errors import UsageError
from loaders.engine.batch import LoaderState
from loaders.jax import JaxBatch, device_batches
from loaders.loader import STATE_VERSION, Loader
from train.checkpoints.files import ARRAYS
from train.checkpoints.state import State as SavedState
from train.checkpoints.state import flags_of_its_run
from train.loops.backend import Update, skipped_images
from train.loops.jax_arrays import DATA_AXIS, arrays_of, named_leaves
from train.telemetry.logs import Logs

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UPDATES_AHEAD = 2
"""Number of updates handed to the device before an earlier one is waited for: more would only hold more batches in
its memory."""
_MOMENTS = ("momentum/", "optimizer/")
"""Prefixes of the names of arrays that belong to an optimiser."""


class Steps(Protocol):
    """The functions of one network and its optimiser."""

    @property
    def update(self) -> Callable[[Any, Any, float], tuple[Any, dict[str, jax.Array]]]:
        """Function of values, of what `inputs` returns and of the learning rate; it returns new values, and scalars
        with `loss` among them."""

    @property
    def evaluate(self) -> Callable[..., Mapping[str, jax.Array]]:
        """Function of values and of what `evaluated` returns: sums `loss`, `correct` and `images`."""

    def inputs(self, batch: JaxBatch, update: Update) -> Any:
        """Return what `update` takes, on the devices."""

    def evaluated(self, batch: JaxBatch) -> tuple[Any, ...]:
        """Return what `evaluate` takes after the values."""

    def on_devices(self, values: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
        """Copy the arrays of a checkpoint to the devices, as values like those that are given.

        Raises:
            UsageError: They are those of another model.
        """

    def from_torch(self, where: str, state: Mapping[str, Any], values: Any) -> dict[str, NDArray[Any]]:
        """Return the arrays of a checkpoint of PyTorch.

        Raises:
            UsageError: It cannot be continued here.
        """


@dataclass(kw_only=True)
class JaxBackend:
    """State of a network, its updates and its evaluations: a `train.loops.backend.Backend`."""

    mesh: Mesh
    steps: Steps
    values: Any
    """Arrays that an update changes: weights, statistics, moments."""
    validation: Loader | None
    """Loader of evaluations; None: nothing is evaluated."""
    eval_batches: int | None = None
    """Number of batches in an evaluation; None: all, so that every image counts once."""
    prefetch: int = 2
    saves_parts: bool = False
    """Whether a checkpoint takes arrays on the devices, of which every process writes its own part."""
    agreement_steps: int = 20
    """Interval in steps at which several processes agree that it is time to save."""
    judge: Callable[[dict[str, float]], dict[str, float]] = dict
    """Function that adds numbers to those of an evaluation."""
    same_model: str = "use the flags that it was trained with"
    """What to do if a checkpoint is from another model, for the message."""
    _in_flight: deque[jax.Array] = field(default_factory=deque)
    """Losses of the updates that were handed to the devices last."""

    saves_evaluated_step = True
    saved_entries = (ARRAYS,)
    compiles = True

    @property
    def name(self) -> str:
        """Kind of the devices, e.g. `tpu` or `cpu`."""
        return str(jax.default_backend())

    @property
    def is_first(self) -> bool:
        """Whether this is the first process."""
        return bool(jax.process_index() == 0)

    @property
    def transfer_ahead(self) -> int:
        """Number of batches that are sent to the devices ahead of the one that is trained on."""
        return self.prefetch

    @property
    def catches_signals(self) -> bool:
        """Whether there is one process; with several, JAX handles SIGTERM and stops all after the same step."""
        return bool(jax.process_count() == 1)

    def batches(self, loader: Loader) -> Generator[JaxBatch]:
        """Yield the rest of the loader's epoch, on the devices of all processes."""
        return device_batches(loader, self.mesh, axis=DATA_AXIS, prefetch=self.prefetch)

    def update(self, batch: JaxBatch, update: Update) -> dict[str, jax.Array]:
        """Do one update; return its loss, and other means over the batch if the network has them."""
        means = self._apply(batch, update)
        self._in_flight.append(means["loss"])
        if len(self._in_flight) > _UPDATES_AHEAD:
            self._in_flight.popleft().block_until_ready()
        return means

    def evaluate(self, is_stopped: Callable[[], bool]) -> dict[str, float] | None:
        """Evaluate the network with its running statistics; return None if a signal interrupted the evaluation."""
        if self.validation is None:
            return {}
        sums = dict.fromkeys(("loss", "correct", "images"), 0.0)
        with contextlib.closing(self.batches(self.validation)) as batches:
            for batch in islice(batches, self.eval_batches):
                found = self.steps.evaluate(self.values, *self.steps.evaluated(batch))
                sums = {name: sums[name] + float(found[name]) for name in sums}
                if is_stopped():
                    return None
        images = sums["images"]
        skipped = skipped_images(self.validation, int(images)) if self.eval_batches is None or not images else {}
        means = {"loss": sums["loss"] / images, "accuracy": sums["correct"] / images, "images": images}
        return self.judge({**means, **skipped})

    def agree_to_stop(self, asked: bool, step: int) -> bool:
        """Return whether a signal came; with several processes, whether JAX saw that one reached any of them."""
        if jax.process_count() == 1:
            return asked
        return bool(multihost_utils.reached_preemption_sync_point(step))

    def agree_on_time(self, elapsed: bool, step: int) -> bool:
        """Return whether any process's clock says that it is time; several agree on it every `agreement_steps`."""
        if jax.process_count() == 1:
            return elapsed
        return step % self.agreement_steps == 0 and bool(multihost_utils.process_allgather(elapsed).any())

    def check_same_checkpoint(self, step: int, url: str) -> None:
        """Refuse a folder in which processes see different checkpoints: they would train different weights."""
        steps = {int(each) for each in multihost_utils.process_allgather(step).flatten()}
        if len(steps) > 1:
            raise UsageError(
                f"--workdir {url}: some processes find a checkpoint of step {max(steps)}, others of step {min(steps)}; "
                "give a folder that all hosts share, or gs://"
            )

    def not_finite(self) -> list[str]:
        """Return the names of arrays with values that are not finite, in any process."""
        named = {name: each for name, each in named_leaves(self.values) if jnp.issubdtype(each.dtype, jnp.floating)}
        whole = NamedSharding(self.mesh, PartitionSpec())
        finite_A = np.asarray(jax.jit(_are_finite, out_shardings=whole)(list(named.values())))
        # Each process asks its own copies of arrays that are not sharded.
        finite_A = multihost_utils.process_allgather(finite_A).reshape(-1, len(named)).all(axis=0)
        return [name for name, is_finite in zip(named, finite_A, strict=True) if not is_finite]

    def state(self) -> SavedState:
        """Return all arrays by their names, e.g. `params/conv_init/kernel`."""
        return {ARRAYS: dict(named_leaves(self.values)) if self.saves_parts else arrays_of(self.values)}

    def converted(self, where: str, state: SavedState) -> SavedState:
        """Return a state of this backend, if need be made of one of PyTorch."""
        if "model" not in state or ARRAYS in state or "version" not in state:
            return state
        arrays = self.steps.from_torch(where, state, self.values)
        return {**state, "evaluated_step": state.get("step"), ARRAYS: arrays}

    def restore(self, where: str, state: Mapping[str, Any], changes: list[str]) -> None:
        """Restore the arrays of a checkpoint."""
        try:
            self.values = self.steps.on_devices(self.values, state[ARRAYS])
        except UsageError as error:
            raise UsageError(f"{where}: {error}{flags_of_its_run(changes)}; {self.same_model}") from None

    def take_weights(self, where: str, state: Mapping[str, Any], changes: list[str]) -> None:
        """Take the weights of a checkpoint, their average, and the statistics of its normalisations."""
        moments = {name: leaf for name, leaf in named_leaves(self.values) if name.startswith(_MOMENTS)}
        weights = {name: each for name, each in state[ARRAYS].items() if not name.startswith(_MOMENTS)}
        self.restore(where, {**state, ARRAYS: weights | moments}, changes)

    def show(self, state: Mapping[str, Any], step: int, logs: Logs) -> None:
        """Do nothing: a classifier has no picture."""

    def memory_bytes(self) -> int | None:
        """Return the bytes in use on the first device of this process; None if the device does not report them."""
        return (jax.local_devices()[0].memory_stats() or {}).get("bytes_in_use")

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        """Trace into `plugins/profile/<run>/<host>.xplane.pb`; no update is in progress when it begins or ends."""
        jax.block_until_ready(self.values)
        with jax.profiler.trace(str(folder)):
            yield
            jax.block_until_ready(self.values)

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> JaxBatch:
        """Copy a batch to the devices, sharded as in training; return when it has arrived."""
        rows = NamedSharding(self.mesh, PartitionSpec(DATA_AXIS))
        arrays = images_NHWC, labels_N.astype(np.int32), np.ones(len(labels_N), np.bool_)
        state: LoaderState = {"state_version": STATE_VERSION, "position": 0, "epoch": 0, "sequence": {}}
        images, labels, mask = jax.block_until_ready(jax.device_put(arrays, rows))
        return JaxBatch(images, labels, mask, [""] * len(labels_N), {}, state)

    def try_step(self, resident: JaxBatch) -> None:
        """Do one update at the rate 0; return when the devices are done with it."""
        self._apply(resident, Update(step=0, lr=0.0, positions=range(len(resident.keys))))
        jax.block_until_ready(self.values)

    @property
    def compute_threads(self) -> int:
        """0: XLA decides at its start with how many threads it computes on a CPU."""
        return 0

    def use_threads(self, count: int) -> None:
        """Do nothing: the number of XLA's threads cannot be changed."""

    def close(self) -> None:
        """Close the loader of evaluations."""
        if self.validation is not None:
            self.validation.close()

    def _apply(self, batch: JaxBatch, update: Update) -> dict[str, jax.Array]:
        """Update the values with a batch; return its loss and other means without waiting for them."""
        self.values, means = self.steps.update(self.values, self.steps.inputs(batch, update), update.lr)
        return means


def _are_finite(arrays: list[jax.Array]) -> jax.Array:
    """Return for each array whether all of its values are finite."""
    return jnp.stack([jnp.isfinite(each).all() for each in arrays])
