"""The PyTorch backend of the training loop: updates of a model with an optimiser, on XLA, CUDA or a CPU.

`runtime.py` drives the devices; a `Task` turns a batch into losses.

Shapes: N images of this host, H x W pixels, C = 3 channels.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dataprep.arrays import NDArray, np
from dataprep.errors import UsageError
from loaders.loader import STATE_VERSION, Loader
from loaders.torch import TorchBatch
from train.checkpoints.encoder_weights import check_model, restore_optimizer
from train.checkpoints.files import ARRAYS, State, taking_position
from train.loops.backend import Backend, Update, UpdateOverflowError
from train.loops.runtime import Runtime
from train.optim.optimizer import moments_of
from train.telemetry.logs import Logs

_OVERFLOW = "without overflow"
"""Part of PyTorch's error for a factor that float32 cannot hold."""


@dataclass(kw_only=True)
class Task(ABC):
    """Task that an entry trains: it computes the losses of a batch and the numbers of an evaluation."""

    model: nn.Module
    runtime: Runtime
    precision: str = "auto"
    """One of `train.loops.backend.PRECISIONS`."""
    accum_iter: int = 1
    """Number of parts of a batch over which its gradient is accumulated."""

    @abstractmethod
    def parts(self, batch: TorchBatch, positions: range) -> Iterator[torch.Tensor]:
        """Yield the losses, scalars, of the `accum_iter` parts of this host's batch on the device, one after the other.

        `positions` are the global ones of the batch's samples, counted over all epochs.
        """

    def evaluate(self, is_stopped: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Return numbers about validation data by their names, none without such data; None if `is_stopped`, which is
        called after each batch, and in all processes after the same one, said to give up."""
        return {}

    def picture(self, weights: Mapping[str, Any], step: int, logs: Logs) -> None:  # noqa: B027 (most show nothing)
        """Log a picture of the predictions of weights on the host; by default nothing."""


def rows_of_part(rows: torch.Tensor, part: int, num_parts: int) -> torch.Tensor:
    """Return every num_parts-th row of a batch from row `part` on, so that rows need not move to another device."""
    return rows.view(-1, num_parts, *rows.shape[1:])[:, part]


@dataclass(kw_only=True)
class TorchBackend(Backend):
    """A model and its optimiser on the devices of a runtime."""

    runtime: Runtime
    model: nn.Module
    optimizer: torch.optim.Optimizer
    task: Task
    clip_grad_norm: float = 0.0
    """Largest norm of the gradient of all parameters; 0: no limit."""
    agreement_steps: int = 20
    """Interval in steps at which several hosts agree to stop or to save; each time they wait for the device."""

    catches_signals = True
    saved_entries = ("model", "optimizer", "random")

    @property
    def name(self) -> str:
        return self.runtime.name

    @property
    def is_first(self) -> bool:
        return self.runtime.rank == 0

    @property
    def transfer_ahead(self) -> int:
        return self.runtime.transfer_ahead

    @property
    def compiles(self) -> bool:
        """Whether the device compiles by itself, as XLA does, or `compile_network` was called."""
        return self.name not in ("cpu", "cuda") or is_compiled(self.model)

    def batches(self, loader: Loader) -> Generator[TorchBatch]:
        return self.runtime.batches(loader)

    def update(self, batch: TorchBatch, update: Update) -> dict[str, torch.Tensor]:
        """Do one update at the schedule's learning rate, multiplied by the `lr_scale` of each group of parameters."""
        for group in self.optimizer.param_groups:
            group["lr"] = update.lr * group.get("lr_scale", 1.0)
        self.runtime.begin_step(update.step)
        return {"loss": self._apply(batch, update.positions)}

    def evaluate(self, is_stopped: Callable[[], bool]) -> dict[str, float] | None:
        """Evaluate the model on all hosts together; several agree every `agreement_steps` batches to give up."""
        batches = count(1)
        return self.task.evaluate(lambda: self.agree_to_stop(is_stopped(), next(batches)))

    def agree_to_stop(self, asked: bool, step: int) -> bool:
        """Return whether any host was asked to stop; several hosts agree on it every `agreement_steps`."""
        if self.runtime.world_size == 1:
            return asked
        return step % self.agreement_steps == 0 and self.runtime.agree(asked)

    def agree_on_time(self, elapsed: bool, step: int) -> bool:
        """Return whether `elapsed` is true on any host; several hosts agree on it every `agreement_steps`."""
        return self.agree_to_stop(elapsed, step)

    def not_finite(self) -> list[str]:
        """Return the names of weights, statistics and moments with values that are not finite."""
        named = {f"model/{name}": each for name, each in self.model.state_dict().items()}
        for index, moments in self.optimizer.state_dict()["state"].items():
            named |= {f"optimizer/{index}/{name}": each for name, each in moments.items()}
        found = [name for name, each in named.items() if isinstance(each, torch.Tensor) and not _is_finite(each)]
        return (found or ["weights of another host"]) if self.runtime.agree(bool(found)) else []

    def state(self) -> State:
        """Return weights, moments and generators; of sharded weights this host's pieces."""
        on_host = self.runtime.on_host
        return {
            "model": on_host(self.model.state_dict()),
            "optimizer": on_host(self.optimizer.state_dict()),
            "random": self.runtime.random_state(),
        }

    def converted(self, where: str, state: State) -> State:
        """Return the same state. Raises UsageError if JAX saved it."""
        if ARRAYS in state:
            raise UsageError(
                f"{where}: a checkpoint of JAX; continue it with `framework` jax, or start from its weights with "
                "`dataprep-finetune-mae --finetune`"
            )
        return state

    def restore(self, where: str, state: Mapping[str, Any], changes: list[str]) -> None:
        self.take_weights(where, state, changes)
        restore_optimizer(where, self.optimizer, state["optimizer"])
        self.runtime.shard_like_weights(moments_of(self.optimizer))
        with taking_position(where):
            self.runtime.set_random_state(state["random"])

    def take_weights(self, where: str, state: Mapping[str, Any], changes: list[str]) -> None:
        check_model(where, state["model"], self.model.state_dict(), changes)
        self.model.load_state_dict(state["model"])

    def show(self, state: Mapping[str, Any], step: int, logs: Logs) -> None:
        self.task.picture(state["model"], step, logs)

    def memory_bytes(self) -> int | None:
        return self.runtime.memory_bytes()

    def profile(self, folder: Path) -> AbstractContextManager[None]:
        return self.runtime.profile(folder)

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> TorchBatch:
        images = len(images_NHWC)
        return TorchBatch(
            images=self.runtime.put_whole(torch.from_numpy(images_NHWC)),
            labels=self.runtime.put(torch.from_numpy(labels_N)),
            mask=self.runtime.put(torch.ones(images, dtype=torch.bool)),
            keys=[""] * images,
            fields={},
            state={"state_version": STATE_VERSION, "position": 0, "epoch": 0, "sequence": {}},
        )

    def step(self, resident: TorchBatch) -> None:
        self._apply(resident, range(len(resident.keys)))
        self.runtime.wait()

    @property
    def compute_threads(self) -> int:
        return self.runtime.compute_threads

    def use_threads(self, count: int) -> None:
        self.runtime.use_threads(count)

    def _apply(self, batch: TorchBatch, positions: range) -> torch.Tensor:
        """Update the weights by a batch's gradient; return its loss without waiting for it."""
        loss = torch.zeros((), device=self.runtime.device)
        for part in self.task.parts(batch, positions):
            share = part / self.task.accum_iter
            share.backward()  # type: ignore[no-untyped-call]
            loss = loss + share.detach()
        if self.clip_grad_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_grad_norm)
        self._step()
        self.optimizer.zero_grad()
        self.runtime.end_step()
        return loss

    def _step(self) -> None:
        """Do the optimiser's step. PyTorch refuses to add a multiple whose factor is beyond the range of float32."""
        try:
            self.optimizer.step()
        except RuntimeError as error:
            if _OVERFLOW not in str(error):
                raise
            rate = max(group["lr"] for group in self.optimizer.param_groups)
            decay = max(group.get("weight_decay", 0.0) for group in self.optimizer.param_groups)
            raise UpdateOverflowError(
                f"the update is beyond the range of float32, with a learning rate of {rate:g} and a weight decay of "
                f"{decay:g}"
            ) from error


def _is_finite(tensor: torch.Tensor) -> bool:
    """Return whether all values are finite; XLA compiles this once for each shape, not for all tensors together."""
    # 0 times a finite value is 0, and any other makes the sum NaN. XLA's maximum passes over NaN, and on a CPU
    # `isfinite` takes six times as long.
    return bool((tensor.detach() * 0).sum() == 0)


DEFAULT_COMPILER = "g++"
"""C++ compiler that PyTorch calls if the variable CXX does not name another one."""


def compile_network(model: nn.Module, device: torch.device) -> None:
    """Compile the forward and backward pass of a network at its first batch; its weights keep their names. Raises
    UsageError if the device compiles by itself, or this machine lacks what compiling for a CPU needs."""
    if device.type == "xla":
        raise UsageError("`compile` is for cpu, cuda and tpu; XLA compiles every step anyway, leave it out")
    if device.type == "cpu":
        _check_compiler()
    model.compile(dynamic=False)  # type: ignore[no-untyped-call]  # all batches have the same shapes


def is_compiled(model: nn.Module) -> bool:
    """Return whether `compile_network` was called with the model or a part of it."""
    return any(part._compiled_call_impl is not None for part in model.modules())


def _check_compiler() -> None:
    compiler = os.environ.get("CXX") or DEFAULT_COMPILER
    if shutil.which(compiler) is None:
        raise UsageError(
            f"`compile` on a CPU needs a C++ compiler: {compiler} was not found; install g++, name another one in the "
            "variable CXX, or leave `compile` out"
        )
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise UsageError(
            f"`compile` on a CPU needs Python's headers: {headers} has no Python.h; install python3-dev, or leave "
            "`compile` out"
        )
