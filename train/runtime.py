"""Devices: `xla` (TPUs, and XLA's own CPU), `cuda`, `cpu`. The only place in `train` that knows torch_xla.

A process drives all XLA devices of its host: with more than one, batches are cut along the axis of a mesh (SPMD), and
the weights are copies, or cut along the same axis (FSDP). `rank` and `world_size` count hosts, as loaders do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_map

from dataprep.errors import UsageError
from loaders.loader import Loader
from loaders.torch import TorchBatch
from train.fsdp import cut_dimension
from train.pieces import Pieces
from train.torch_runtime import TorchRuntime

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh, ShardingSpec, XLAShard

DEVICES = ("xla", "cuda", "cpu")
PRECISIONS = ("auto", "float32", "bfloat16")
AXIS = "fsdp"
"""Of the mesh, the only one; torch_xla's FSDP asks for this name."""
_WRAPPER = "_orig_module."
"""What torch_xla's FSDP puts into the names of weights."""


class Runtime(Protocol):
    """One process's share of the devices."""

    name: str
    device: torch.device
    rank: int
    world_size: int
    """Processes; one a host."""
    num_devices: int
    """Of all processes."""
    transfer_ahead: int
    """Batches that `batches` has on their way beside the one that is yielded."""
    is_cut: bool
    """Whether weights are cut among the devices: then every host has its own part of the state to save."""

    def batches(self, loader: Loader) -> Generator[TorchBatch]:
        """The rest of the loader's epoch, on the device; each with its own state."""

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        """A tensor of one entry a row of this host's batch, on the device, cut as the batch is."""

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """As `put`; returns when the tensor is there."""

    def begin_step(self, step: int) -> None:
        """What this step draws is a function of the seed and its number, or of `random_state`."""

    def end_step(self) -> None:
        """All of a step was said: launch it."""

    def wait(self) -> None:
        """Until the device is done with everything."""

    def memory_bytes(self) -> int | None:
        """In use on the first device of this process; None where it is not told."""

    def metrics(self) -> str:
        """What XLA counted: compilations, transfers, operations that it left to the host; '' without XLA."""

    def cut_weights(self, model: nn.Module, block: type[nn.Module]) -> nn.Module:
        """The model on the devices, its weights cut among them block by block (FSDP). One device holds all of them.

        Args:
            model: On the host. Names of its weights stay, in what `state_dict` gives and `load_state_dict` takes.
            block: Of these one at a time has its weights gathered.
        """

    def cut_as_weights(self, tensors: Iterable[torch.Tensor]) -> None:
        """Cut what belongs to weights, such as an optimiser's state, as they are cut."""

    def recompute(self, block: nn.Module) -> None:
        """Keep only what enters a block, and compute the rest again for its gradient."""

    def on_host(self, tree: Any) -> Any:
        """Copies of all tensors in nested dictionaries and lists; of tensors that are cut, this host's `Pieces`."""

    def agree(self, said: bool) -> bool:
        """Whether any host said so; all hosts ask at the same step."""

    def seed(self, seed: int) -> None:
        """Of the generators that weights and steps are drawn from."""

    def random_state(self) -> dict[str, Any]:
        """Of the generators that a step may draw from."""

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Go on as `random_state` said."""

    def profile(self, folder: Path) -> AbstractContextManager[None]:
        """Trace what runs meanwhile, into a folder where TensorBoard finds it at once."""


def open_runtime(device: str, *, pin_memory: bool | None = None) -> Runtime:
    """Take the devices of a kind.

    Args:
        device: One of `DEVICES`.
        pin_memory: Of CUDA: batches are copied from pinned memory, beside the steps; None: they are.

    Raises:
        UsageError: There is no such kind, or none of it here, or it knows no pinned memory.
    """
    if pin_memory is not None and device != "cuda":
        raise UsageError(f"--pin_mem and --no_pin_mem are for CUDA, where pinned memory is copied faster; not {device}")
    if device == "xla":
        return XLARuntime()
    if device not in DEVICES:
        raise UsageError(f"device must be one of {', '.join(DEVICES)}, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device here; use --device cpu, or xla on a TPU")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}: {device} runs in one process on one device; "
            "use --device xla for many, or start it without a launcher"
        )
    return TorchRuntime(device, pin_memory=device == "cuda" and pin_memory is not False)


def open_autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Where a model computes: `auto` is bfloat16 on CUDA. XLA's float32 is what TPUs multiply in bfloat16 anyway."""
    if precision == "bfloat16" or (precision == "auto" and device.type == "cuda"):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


class XLARuntime:
    """All XLA devices of this host, together with those of the other hosts."""

    name = "xla"
    transfer_ahead = 2
    is_cut = False

    def __init__(self) -> None:
        from loaders.xla import host_rank

        self.rank, self.world_size = host_rank()
        import torch_xla
        import torch_xla.runtime as xr

        self._xla = torch_xla
        self.num_devices = xr.global_runtime_device_count()
        self._seed = 0
        self._mesh: Mesh | None = None
        if self.num_devices > 1:
            import numpy as np
            import torch_xla.distributed.spmd as xs

            xr.use_spmd()
            self._mesh = xs.Mesh(np.arange(self.num_devices), (self.num_devices,), (AXIS,))
        self.device: torch.device = torch_xla.device()

    def batches(self, loader: Loader) -> Generator[TorchBatch]:
        """Two of them travel ahead."""
        from loaders.xla import device_batches

        return device_batches(loader, self.device, mesh=self._mesh, axis=AXIS)

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns at once; the copy is under way."""
        import torch_xla.core.xla_model as xm

        (moved,) = xm.send_cpu_data_to_device([rows], self.device, input_sharding=self._row_sharding(rows.dim()))
        tensor: torch.Tensor = moved
        return tensor

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Known to be there when a number of it is read, which waits for the step that runs, too."""
        moved = self.put(rows)
        float(moved.flatten()[0])
        return moved

    def begin_step(self, step: int) -> None:
        """XLA's own seed goes on with each launch, of which a run that is saved more often has more."""
        import torch_xla.core.xla_model as xm

        drawn = hashlib.sha256(f"{self._seed} {step}".encode()).digest()
        xm.set_rng_state(int.from_bytes(drawn[:4]))

    def end_step(self) -> None:
        """Cut the graph here, compile it if it is new, and run it."""
        self._xla.sync()

    def wait(self) -> None:
        """Launch what was said, and wait for it."""
        self._xla.sync(wait=True)

    def memory_bytes(self) -> int | None:
        """XLA's CPU does not tell."""
        import torch_xla.core.xla_model as xm

        try:
            used: int = xm.get_memory_info(self.device)["bytes_used"]
        except RuntimeError:
            return None
        return used

    def metrics(self) -> str:
        """All of them."""
        import torch_xla.debug.metrics as met

        return str(met.metrics_report())

    def cut_weights(self, model: nn.Module, block: type[nn.Module]) -> nn.Module:
        """Through SPMD: the compiler gathers and frees the weights of a block, and sums up gradients in parts."""
        model = model.to(self.device)  # under SPMD a weight leaves the host when it is known how it is cut
        if self._mesh is None:
            return model
        from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
        from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

        # torch_xla's hook for gradients of inputs, which images have not
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        self.is_cut = True
        self.cut_as_weights(model.parameters())  # torch_xla would cut the longest dimension, with a remainder
        wrapped: nn.Module = SpmdFullyShardedDataParallel(
            model,
            mesh=self._mesh,
            auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={block}),
        )
        _keep_names(wrapped)
        return wrapped

    def cut_as_weights(self, tensors: Iterable[torch.Tensor]) -> None:
        """Nothing where weights are copies."""
        if not self.is_cut:
            return
        import torch_xla.distributed.spmd as xs

        for tensor in tensors:
            cut = cut_dimension(tensor.shape, self.num_devices)
            spec = tuple(AXIS if dimension == cut else None for dimension in range(tensor.dim()))
            xs.mark_sharding(tensor, self._mesh, spec)

    def recompute(self, block: nn.Module) -> None:
        """Behind a barrier: XLA would find that both computations are the same, and keep the first."""
        from torch_xla.distributed.fsdp import checkpoint_module

        checkpoint_module(block)

    def on_host(self, tree: Any) -> Any:
        """Waits for the device: pieces cannot be read while a step runs."""
        self.wait()
        return tree_map(lambda leaf: self._copied(leaf) if isinstance(leaf, torch.Tensor) else leaf, tree)

    def agree(self, said: bool) -> bool:
        """Every device of a host brings the host's word."""
        if self.world_size == 1:
            return said
        words = torch.full((self.num_devices // self.world_size,), int(said), dtype=torch.int32)
        return bool(self.put(words).sum().item())

    def seed(self, seed: int) -> None:
        """The host's generator, from which weights are drawn, and the steps'."""
        torch.manual_seed(seed)
        self._seed = seed

    def random_state(self) -> dict[str, Any]:
        """Of the host's generator, and the steps' seed."""
        return {"cpu": torch.get_rng_state(), "xla": self._seed}

    def set_random_state(self, state: dict[str, Any]) -> None:
        """A state of another kind of device sets the host's alone."""
        torch.set_rng_state(state["cpu"])
        self._seed = state.get("xla", self._seed)

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        """`plugins/profile/<run>/<host>.xplane.pb`."""
        import torch_xla.debug.profiler as xp

        self.wait()
        xp.start_trace(str(folder))
        try:
            yield
            self.wait()
        finally:
            xp.stop_trace()

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor | Pieces:
        if self.is_cut and tensor.device.type == "xla":
            import torch_xla.distributed.spmd as xs

            sharded = xs.wrap_if_sharded(tensor.detach())
            if isinstance(sharded, xs.XLAShardedTensor) and sharded.sharding_type == xs.ShardingType.TILED:
                return Pieces(tuple(tensor.shape), [_piece(shard) for shard in sharded.local_shards])
        return tensor.detach().cpu().clone()

    def _row_sharding(self, dimensions: int) -> ShardingSpec | None:
        if self._mesh is None:
            return None
        from torch_xla.distributed.spmd import ShardingSpec

        return ShardingSpec(self._mesh, (AXIS, *[None] * (dimensions - 1)), minibatch=self.world_size > 1)


def _piece(shard: XLAShard) -> tuple[tuple[int, ...], torch.Tensor]:
    """Where a shard begins, and its values without what pads it."""
    within = tuple(slice(each.stop - each.start) for each in shard.indices)
    return tuple(each.start for each in shard.indices), shard.data[within].clone()


def _keep_names(wrapped: nn.Module) -> None:
    """Weights of a wrapped model go out and in by the names that they have in the model itself."""
    inner = {name.replace(_WRAPPER, ""): name for name in wrapped.state_dict()}

    def rename(given: dict[str, Any], names: dict[str, str]) -> None:
        for old, new in names.items():
            if old in given:
                given[new] = given.pop(old)

    outer = {name: plain for plain, name in inner.items()}
    register: Any = wrapped
    register.register_state_dict_post_hook(lambda _module, state, _prefix, _metadata: rename(state, outer))
    register.register_load_state_dict_pre_hook(lambda _module, state, *_rest: rename(state, inner))
