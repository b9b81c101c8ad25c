"""XLA's devices, TPUs and XLA's own CPU: a `train.loops.runtime.Runtime`. Nothing else in `train` knows torch_xla.

A process drives all XLA devices of its host. With more than one, batches are sharded along the axis of a mesh (SPMD),
and weights are replicated, or sharded along the same axis (FSDP). `rank` and `world_size` count hosts, as in loaders.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from dataprep.arrays import np
from dataprep.errors import UsageError, install_hint
from loaders.loader import Loader
from loaders.torch import TorchBatch
from train.checkpoints.parts import Pieces
from train.loops.backend import sharded_dimension
from train.loops.runtime import RandomState, Runtime

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh, ShardingSpec, XLAShard

AXIS = "fsdp"
"""Name of the mesh's only axis; torch_xla's FSDP requires this name."""
_TEXT_BYTES = 1024
"""Longest text that hosts exchange."""
_WRAPPER = "_orig_module."
"""Text that torch_xla's FSDP inserts into the names of weights."""


class XLARuntime(Runtime):
    """All XLA devices of this host, together with the other hosts' devices."""

    def __init__(self) -> None:
        self.name, self.transfer_ahead = "xla", 2
        try:
            from loaders.xla import host_rank

            with _without_notes_on_devices():
                self.rank, self.world_size = host_rank()
            import torch_xla
            import torch_xla.runtime as xr

            self.num_devices = xr.global_runtime_device_count()
        except ImportError:
            raise UsageError(f"`device` xla needs torch_xla: {install_hint('xla')}, or use `device` cpu") from None
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"no XLA device (PJRT_DEVICE={os.environ.get('PJRT_DEVICE', '')}): {str(error).partition('. ')[0]}; "
                f"on a TPU {install_hint('tpu-torch')}; elsewhere set PJRT_DEVICE=CPU, or use `device` cpu"
            ) from None
        self._xla = torch_xla
        self._seed = 0
        self._mesh: Mesh | None = None
        if self.num_devices > 1:
            import torch_xla.distributed.spmd as xs

            xr.use_spmd()
            self._mesh = xs.Mesh(np.arange(self.num_devices), (self.num_devices,), (AXIS,))
        self.device: torch.device = torch_xla.device()

    def batches(self, loader: Loader) -> Generator[TorchBatch]:
        from loaders.xla import device_batches

        return device_batches(loader, self.device, mesh=self._mesh, axis=AXIS)

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        import torch_xla.core.xla_model as xm

        (moved,) = xm.send_cpu_data_to_device([rows], self.device, input_sharding=self._row_sharding(rows.dim()))
        tensor: torch.Tensor = moved
        return tensor

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy rows and then a few bytes, and read those back, which also waits for the step that is running.

        Safe in any thread. Reading a number out of `rows` would be an operation recorded here, which the thread that
        trains may launch, half recorded, with its own.
        """
        import torch_xla.core.xla_model as xm

        moved = self.put(rows)
        (last,) = xm.send_cpu_data_to_device([rows.flatten()[:1]], self.device, input_sharding=self._on_every_device())
        last.cpu()
        return moved

    def begin_step(self, step: int) -> None:
        """Set XLA's seed, which would otherwise advance with every launch: runs that save more often launch more."""
        import torch_xla.core.xla_model as xm

        drawn = hashlib.sha256(f"{self._seed} {step}".encode()).digest()
        xm.set_rng_state(int.from_bytes(drawn[:4]))

    def end_step(self) -> None:
        self._xla.sync()

    def wait(self) -> None:
        self._xla.sync(wait=True)

    @property
    def compute_threads(self) -> int:
        return 0

    def memory_bytes(self) -> int | None:
        """Return the bytes in use on the first device; None on XLA's CPU, which does not report them."""
        import torch_xla.core.xla_model as xm

        try:
            used: int = xm.get_memory_info(self.device)["bytes_used"]
        except RuntimeError:
            return None
        return used

    def metrics(self) -> str:
        import torch_xla.debug.metrics as met

        return str(met.metrics_report())

    def shard_weights(self, model: nn.Module, block: type[nn.Module]) -> nn.Module:
        """Shard weights by SPMD: the compiler gathers and frees a block's, and reduces gradients in shards."""
        model = model.to(self.device)  # under SPMD a weight leaves the host only when its sharding is known
        if self._mesh is None:
            return model
        from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
        from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

        # torch_xla hooks the gradients of inputs, and images have none
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        self.is_sharded = True
        self.shard_like_weights(model.parameters())  # torch_xla would shard the longest dimension, with a remainder
        wrapped: nn.Module = SpmdFullyShardedDataParallel(
            model,
            mesh=self._mesh,
            auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={block}),
        )
        _keep_names(wrapped)
        return wrapped

    def shard_like_weights(self, tensors: Iterable[torch.Tensor]) -> None:
        if not self.is_sharded:
            return
        import torch_xla.distributed.spmd as xs

        for tensor in tensors:
            cut = sharded_dimension(tensor.shape, self.num_devices)
            spec = tuple(AXIS if dimension == cut else None for dimension in range(tensor.dim()))
            xs.mark_sharding(tensor, self._mesh, spec)

    def recompute(self, block: nn.Module) -> None:
        """Compute a block again, behind a barrier, without which XLA would merge the two equal computations."""
        from torch_xla.distributed.fsdp import checkpoint_module

        checkpoint_module(block)

    def on_host(self, tree: Any) -> Any:
        """Copy tensors after the device has finished, because pieces cannot be read while a step runs."""
        self.wait()
        return tree_map(lambda leaf: self._copied(leaf) if isinstance(leaf, torch.Tensor) else leaf, tree)

    def agree(self, said: bool) -> bool:
        if self.world_size == 1:
            return said
        words = torch.full((self.num_devices // self.world_size,), int(said), dtype=torch.int32)
        return bool(self.put(words).sum().item())

    def gather(self, text: str) -> list[str]:
        """Sum the hosts' texts, each in a row of its own."""
        if self._mesh is None:
            return [text]
        said = torch.frombuffer(bytearray(text.encode().ljust(_TEXT_BYTES, b"\0")[:_TEXT_BYTES]), dtype=torch.uint8)
        rows = torch.zeros((self.num_devices // self.world_size, self.world_size, _TEXT_BYTES), dtype=torch.int32)
        rows[0, self.rank] = said
        found: list[list[int]] = self.put(rows).sum(0).cpu().tolist()
        return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in found]

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)
        self._seed = seed

    def random_state(self) -> RandomState:
        return {"cpu": torch.get_rng_state(), "xla": self._seed}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        torch.set_rng_state(state["cpu"])
        self._seed = state.get("xla", self._seed)

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        import torch_xla.debug.profiler as xp

        self.wait()
        xp.start_trace(str(folder))
        try:
            yield
            self.wait()
        finally:
            xp.stop_trace()

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor | Pieces:
        if self.is_sharded and tensor.device.type == "xla":
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

    def _on_every_device(self) -> ShardingSpec | None:
        """Return the sharding of one dimension that is nowhere divided: each device has a copy, so a host has one."""
        if self._mesh is None:
            return None
        from torch_xla.distributed.spmd import ShardingSpec

        return ShardingSpec(self._mesh, (None,))


@contextlib.contextmanager
def _without_notes_on_devices() -> Iterator[None]:
    """Leave out torch_xla's warning that it takes the only kind of device that this host has."""

    def is_other(record: logging.LogRecord) -> bool:
        return "PJRT_DEVICE" not in record.getMessage()

    logging.getLogger().addFilter(is_other)
    try:
        yield
    finally:
        logging.getLogger().removeFilter(is_other)


def _piece(shard: XLAShard) -> tuple[tuple[int, ...], torch.Tensor]:
    """Return the index at which a shard begins, and its values without padding."""
    within = tuple(slice(each.stop - each.start) for each in shard.indices)
    return tuple(each.start for each in shard.indices), shard.data[within].clone()


def _keep_names(wrapped: nn.Module) -> None:
    """Make a wrapped model save and load its weights by their names in the model without the wrapper."""
    inner = {name.replace(_WRAPPER, ""): name for name in wrapped.state_dict()}

    def rename(given: dict[str, torch.Tensor], names: dict[str, str]) -> None:
        for old, new in names.items():
            if old in given:
                given[new] = given.pop(old)

    outer = {name: plain for plain, name in inner.items()}
    register: Any = wrapped
    register.register_state_dict_post_hook(lambda _module, state, _prefix, _metadata: rename(state, outer))
    register.register_load_state_dict_pre_hook(lambda _module, state, *_rest: rename(state, inner))
