"""PyTorch's devices: `cuda`, `cpu`, `tpu` (by torch-tpu), and `xla` (TPUs, and XLA's own CPU).

A process drives all XLA devices of its host. With more than one, batches are sharded along the axis of a mesh (SPMD),
and weights are replicated, or sharded along the same axis (FSDP). `rank` and `world_size` count hosts, as in loaders.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import socket
import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from torch.utils._pytree import tree_map

from dataprep.arrays import np
from dataprep.errors import UsageError, install_hint
from loaders.loader import Loader
from loaders.torch import TorchBatch, TorchPackBatch, rest_of_epoch
from train.checkpoints.parts import Pieces
from train.loops.backend import DEVICES, sharded_dimension

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh, ShardingSpec, XLAShard

PACKAGE = "torch_tpu"
NO_TPU = "no TPU here; use `device` tpu on a TPU VM, or `device` cpu"
AXIS = "fsdp"
"""Name of the mesh's only axis; torch_xla's FSDP requires this name."""
_TEXT_BYTES = 1024
"""Longest text that hosts exchange."""
_WRAPPER = "_orig_module."
"""Text that torch_xla's FSDP inserts into the names of weights."""


RandomState: TypeAlias = Mapping[str, Any]
"""State of the random generators that a step may use, by the kind of the device; of `xla` the seed of the steps."""


class Runtime:
    """One process's share of the devices; this class drives one device, `cuda`, `cpu`, or `tpu` by torch-tpu."""

    rank = 0
    world_size = 1
    """Number of processes, one on each host."""
    num_devices = 1
    """Number of devices, of all processes together."""
    is_sharded = False
    """Whether weights are sharded among the devices, so that every host saves its own part of the state."""

    def __init__(self, name: str, *, pin_memory: bool) -> None:
        self.name = name
        self.device = torch.device(name)
        self._module = torch.get_device_module(name)
        self._pin_memory = pin_memory
        self.transfer_ahead = 0 if name == "cpu" else 1
        """Number of batches that `batches` sends to the device ahead of the yielded one."""

    def batches(self, loader: Loader) -> Generator[TorchBatch]:
        """Yield the rest of the loader's epoch, on the device; each batch has the loader's state after it."""
        batches = rest_of_epoch(loader)
        if self.name == "cpu":
            yield from batches
            return
        ahead: TorchBatch | None = None
        for batch in batches:
            sent = self._sent(batch)
            if ahead is not None:
                yield ahead
            ahead = sent
        if ahead is not None:
            yield ahead

    def _sent(self, batch: TorchBatch) -> TorchBatch:
        put = self.put
        sent = replace(batch, images=put(batch.images), labels=put(batch.labels), mask=put(batch.mask))
        if not isinstance(sent, TorchPackBatch):
            return sent
        segments, positions, token_mask, grids = map(put, (sent.segments, sent.positions, sent.token_mask, sent.grids))
        return replace(sent, segments=segments, positions=positions, token_mask=token_mask, grids=grids)

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy a tensor with an entry for each row of this host's batch to the device, sharded as the batch is.

        From pinned memory, if that is on, the copy runs while steps do.
        """
        if not self._pin_memory:
            return rows.to(self.device)
        with torch.cuda.stream(self._copies):
            moved = rows.pin_memory().to(self.device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self._copies)
        moved.record_stream(torch.cuda.current_stream())
        return moved

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy as `put` does; return when the tensor has arrived. Another thread may run a step meanwhile."""
        moved = self.put(rows)
        if self.name == "cuda":
            torch.cuda.current_stream().synchronize()
        else:
            self.wait()
        return moved

    def begin_step(self, step: int) -> None:
        """Make the random numbers of a step a function of the seed and the step's number, or of `random_state`."""

    def end_step(self) -> None:
        """Launch a step after all of its operations were recorded; PyTorch itself launches each at once."""

    def wait(self) -> None:
        """Wait until the device has finished all operations."""
        self._module.synchronize()

    @property
    def compute_threads(self) -> int:
        """Number of threads of a step, if it can be changed, as on a CPU; otherwise 0."""
        return torch.get_num_threads() if self.name == "cpu" else 0

    def use_threads(self, count: int) -> None:
        """Compute with another number of threads from now on, if `compute_threads` is not 0."""
        torch.set_num_threads(count)

    def memory_bytes(self) -> int | None:
        """Return the bytes in use on the first device of this process, on CUDA their peak; None if unknown."""
        return torch.cuda.max_memory_allocated() if self.name == "cuda" else None

    def metrics(self) -> str:
        """Return XLA's counters of compilations, transfers and operations on the host; '' without XLA."""
        return ""

    def shard_weights(self, model: nn.Module, block: type[nn.Module]) -> nn.Module:
        """Put a model on the devices, its weights sharded among them block by block (FSDP); one device holds all.

        Args:
            model: Model on the host. `state_dict` and `load_state_dict` keep the names of its weights.
            block: Class of the blocks; the weights of one block at a time are gathered.
        """
        return model.to(self.device)

    def shard_like_weights(self, tensors: Iterable[torch.Tensor]) -> None:
        """Shard tensors that belong to weights, such as an optimiser's state, in the same way as the weights."""

    def recompute(self, block: nn.Module) -> None:
        """Keep only the inputs of a block, and compute the rest again for its gradient."""
        from torch.utils.checkpoint import checkpoint

        block.forward = partial(checkpoint, block.forward, use_reentrant=False)

    def on_host(self, tree: Any) -> Any:
        """Copy all tensors in nested dictionaries and lists to the host; sharded ones become this host's `Pieces`."""
        return tree_map(lambda leaf: leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)

    def agree(self, said: bool) -> bool:
        """Return whether any host gave True; all hosts call this at the same step."""
        return said

    def gather(self, text: str) -> list[str]:
        """Return the texts of all hosts by rank; all hosts call this at the same step, with 1,024 bytes at most."""
        return [text]

    def seed(self, seed: int) -> None:
        """Seed the random generators of weights and steps."""
        torch.manual_seed(seed)

    def random_state(self) -> RandomState:
        """Return the state of the random generators that a step may use."""
        more = {} if self.name == "cpu" else {self.name: self._module.get_rng_state()}
        return {"cpu": torch.get_rng_state(), **more}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `random_state` returned; another device's restores the CPU's alone."""
        torch.set_rng_state(state["cpu"])
        if self.name != "cpu" and self.name in state:
            self._module.set_rng_state(state[self.name])

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        """Trace what runs inside the context, into a folder where TensorBoard finds it."""
        run = folder / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
        with torch.profiler.profile() as profiler:
            yield
            self.wait()
        run.mkdir(parents=True)
        profiler.export_chrome_trace(str(run / f"{socket.gethostname()}.pt.trace.json.gz"))

    @cached_property
    def _copies(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]


class XLARuntime(Runtime):
    """All XLA devices of this host, together with the other hosts' devices."""

    def __init__(self) -> None:
        self.name, self.transfer_ahead = "xla", 2
        try:
            from loaders.xla import host_rank

            with _without_notes_on_devices():
                self.rank, self.world_size = host_rank()
            import torch_xla
            import torch_xla.core.xla_model as xm
            import torch_xla.runtime as xr

            self.num_devices = xr.global_runtime_device_count()
        except ImportError:
            raise UsageError(f"`device` xla needs torch_xla: {install_hint('xla')}, or use `device` cpu") from None
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"no XLA device (PJRT_DEVICE={os.environ.get('PJRT_DEVICE', '')}): {str(error).partition('. ')[0]}; "
                f"on a TPU {install_hint('tpu-torch')}; elsewhere set PJRT_DEVICE=CPU, or use `device` cpu"
            ) from None
        self._xla, self._xm = torch_xla, xm
        self._seed = 0
        self._mesh: Mesh | None = None
        if self.num_devices > 1:
            import torch_xla.distributed.spmd as xs

            xr.use_spmd()
            self._xs = xs
            self._mesh = xs.Mesh(np.arange(self.num_devices), (self.num_devices,), (AXIS,))
        self.device: torch.device = torch_xla.device()

    def batches(self, loader: Loader) -> Generator[TorchBatch]:
        from loaders.xla import device_batches

        return device_batches(loader, self.device, mesh=self._mesh, axis=AXIS)

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        sharding = self._sharding(AXIS, *[None] * (rows.dim() - 1), minibatch=self.world_size > 1)
        (moved,) = self._xm.send_cpu_data_to_device([rows], self.device, input_sharding=sharding)
        tensor: torch.Tensor = moved
        return tensor

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy rows and then a few bytes, and read those back, which also waits for the step that is running.

        Safe in any thread. Reading a number out of `rows` would be an operation recorded here, which the thread that
        trains may launch, half recorded, with its own.
        """
        moved = self.put(rows)
        sharding = self._sharding(None)  # each device has a copy, so a host has one
        (last,) = self._xm.send_cpu_data_to_device([rows.flatten()[:1]], self.device, input_sharding=sharding)
        last.cpu()
        return moved

    def begin_step(self, step: int) -> None:
        """Set XLA's seed, which would otherwise advance with every launch: runs that save more often launch more."""
        drawn = hashlib.sha256(f"{self._seed} {step}".encode()).digest()
        self._xm.set_rng_state(int.from_bytes(drawn[:4]))

    def end_step(self) -> None:
        self._xla.sync()

    def wait(self) -> None:
        self._xla.sync(wait=True)

    @property
    def compute_threads(self) -> int:
        return 0

    def memory_bytes(self) -> int | None:
        """Return the bytes in use on the first device; None on XLA's CPU, which does not report them."""
        try:
            used: int = self._xm.get_memory_info(self.device)["bytes_used"]
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
        for tensor in tensors:
            cut = sharded_dimension(tensor.shape, self.num_devices)
            spec = tuple(AXIS if dimension == cut else None for dimension in range(tensor.dim()))
            self._xs.mark_sharding(tensor, self._mesh, spec)

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
            xs = self._xs
            sharded = xs.wrap_if_sharded(tensor.detach())
            if isinstance(sharded, xs.XLAShardedTensor) and sharded.sharding_type == xs.ShardingType.TILED:
                return Pieces(tuple(tensor.shape), [_piece(shard) for shard in sharded.local_shards])
        return tensor.detach().cpu().clone()

    def _sharding(self, *axes: str | None, minibatch: bool = False) -> ShardingSpec | None:
        """Return the sharding of dimensions along axes of the mesh; along None each device has a copy."""
        return self._xs.ShardingSpec(self._mesh, axes, minibatch=minibatch) if self._mesh is not None else None


def open_runtime(device: str, *, pin_memory: bool | None = None) -> Runtime:
    """Open the devices of a kind, one of `DEVICES`.

    Args:
        pin_memory: Whether batches are copied to CUDA from pinned memory while steps run; None: True on CUDA.

    Raises:
        UsageError: The kind is unknown, this machine has no such device, or it does not use pinned memory.
    """
    if pin_memory is not None and device != "cuda":
        raise UsageError(f"`pin_mem` is for CUDA, where pinned memory is copied faster; not {device}")
    if device == "xla":
        return XLARuntime()
    if device not in DEVICES:
        raise UsageError(f"`device` must be one of {', '.join(DEVICES)}, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device here; use `device` cpu, or xla on a TPU")
    if os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
        raise UsageError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}: {device} runs in one process on one device; "
            "use `device` xla for several devices, or start it without a launcher"
        )
    if device == "tpu":
        _check_tpu()
    # Convolutions in float32 compute in TF32 otherwise, with 10 bits of mantissa; matrix products do not.
    torch.backends.cudnn.allow_tf32 = False
    return Runtime(device, pin_memory=device == "cuda" and pin_memory is not False)


def _check_tpu() -> None:
    if importlib.util.find_spec(PACKAGE) is None:
        raise UsageError(
            f"`device` tpu needs torch-tpu: {install_hint('tpu-torch-tpu')} on Python 3.12 or newer, in an "
            "environment without torch_xla; or use `device` xla"
        )
    try:
        module = torch.get_device_module("tpu")
    except RuntimeError as error:  # torch-tpu registers no device where it finds no TPU
        raise UsageError(NO_TPU) from error
    if not module.is_available():
        raise UsageError(NO_TPU)


def open_autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the context in which a model computes with a precision, one of `PRECISIONS`.

    `auto` is bfloat16 on CUDA, and float32 elsewhere; TPUs multiply XLA's float32 in bfloat16 anyway.
    """
    if precision == "bfloat16" or (precision == "auto" and device.type == "cuda"):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


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
