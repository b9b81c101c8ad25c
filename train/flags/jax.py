"""Options of programs that train in PyTorch or in JAX, and the devices and folders that a run in JAX opens."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dataprep.arguments import request
from dataprep.arrays import NDArray
from dataprep.errors import UsageError, needing
from train.checkpoints.checkpoint import CheckpointFolder, OrbaxFolder, named_leaves
from train.checkpoints.files import NUMPY
from train.flags.options import COUNT, DEVICES, SAVE, SHARE_BELOW_1, TRAIN, flag, given_of
from train.flags.shared import RunOptions, RunParts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jax.sharding import Mesh

    from train.loops.jax import JaxBackend
    from train.loops.jax_transformer_steps import Settings, Task
    from train.loops.loop import Training
    from train.models.jax_transformers import Computation

_PLATFORMS = {"cpu": "cpu", "cuda": "cuda", "tpu": "tpu,cpu"}
"""Names of JAX's platforms by the values of `device`; without it JAX takes the fastest one that it finds."""
_OF_JAX = ("tensor_parallel", "ema_decay", "no_scan", "orbax", "fsdp", "grad_ckpt")
_OF_TORCH = ("compile", "use_xla", "pin_mem", "pack_tokens", "plan", "fake_data")
"""Options that only one framework has; `fsdp` and `grad_ckpt` are not of programs that do so by default."""


@request
class JaxOptions(RunOptions):
    """Framework that trains, and its options; the options of one framework are refused with the other."""

    framework: Literal["torch", "jax"] = flag("torch", "Framework that trains.", DEVICES)
    compile: bool = flag(
        False,
        "With PyTorch on cpu, cuda or tpu: compile the network with torch.compile; cpu needs a C++ compiler.",
        DEVICES,
    )
    tensor_parallel: int = flag(
        1, "With JAX: number of devices that share each block's heads and hidden layer.", DEVICES, COUNT
    )
    ema_decay: float = flag(
        0.0,
        "With JAX: decay of the weights' moving average, e.g. 0.9999, which is evaluated and exported; 0: none.",
        TRAIN,
        SHARE_BELOW_1,
    )
    no_scan: bool = flag(
        False, "With JAX: compile each block separately, instead of all blocks as one loop.", DEVICES, rare=True
    )
    orbax: bool = flag(
        False,
        "With JAX: save checkpoints with Orbax, where each process writes its own part; always on if processes share "
        "one copy of the weights.",
        SAVE,
        rare=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refused, needed = (_OF_TORCH, "PyTorch") if self.is_jax else (_OF_JAX, "`framework` jax")
        given = [f"`{name}`" for name in given_of(self, refused)]
        if self.is_jax and self.device == "xla":
            given.append("`device` xla")
        if given:
            raise UsageError(f"{given[0]} is for {needed}; leave it out with `framework` {self.framework}")

    @property
    def is_jax(self) -> bool:
        """Whether JAX trains."""
        return self.framework == "jax"

    def computation(self, devices: JaxDevices, precision: str, *, remat: bool) -> Computation:
        """Return the settings of a network's computation; precision `auto` is bfloat16 on GPUs, as with PyTorch."""
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        from train.loops.jax import DATA_AXIS
        from train.models.jax_transformers import Computation

        is_half = precision == "bfloat16" or (precision == "auto" and jax.default_backend() == "gpu")
        tokens = NamedSharding(devices.mesh, PartitionSpec(DATA_AXIS))
        return Computation(
            dtype="bfloat16" if is_half else "float32", remat=remat, scan=not self.no_scan, tokens=tokens
        )

    def jax_training(
        self,
        devices: JaxDevices,
        task: Task,
        settings: Settings,
        parts: RunParts,
        *,
        is_probe: bool = False,
        tensors: Mapping[str, NDArray[Any]] | None = None,
    ) -> Training[JaxBackend]:
        """Make a run in JAX, with its weights on the devices.

        Args:
            settings: Settings of the updates, without those that these options have.
            is_probe: Whether only the head is trained.
            tensors: Initial weights under PyTorch's names, in its layouts; None: they are drawn from the seed.
        """
        from train.loops.jax import JaxBackend
        from train.loops.jax_transformer_steps import ProbeSteps, TransformerSteps
        from train.loops.loop import Training

        own = replace(settings, accum_iter=self.accum_iter, ema_decay=self.ema_decay, seed=self.seed)
        steps = (ProbeSteps if is_probe else TransformerSteps)(task, devices.mesh, own)
        values = steps.initial()
        if tensors is not None:
            values = steps.with_weights("first weights", values, tensors)
        saves_parts = self.orbax or (settings.fsdp and devices.world_size > 1)
        checkpoints: CheckpointFolder | None = None
        if self.output_dir and saves_parts:
            like = dict(named_leaves(values))
            checkpoints = OrbaxFolder(self.output_dir, keep=self.keep_checkpoints, like=like)
        elif self.output_dir:
            checkpoints = CheckpointFolder(self.output_dir, keep=self.keep_checkpoints, codec=NUMPY)
        return Training(
            config=self.loop_config(),
            backend=JaxBackend(
                mesh=devices.mesh,
                steps=steps,
                values=values,
                validation=parts.validation,
                saves_parts=saves_parts,
                agreement_steps=self.log_interval_steps,
            ),
            schedule=parts.schedule,
            lr_shares=parts.lr_shares,
            loader=parts.loader,
            logs=self.open_logs(devices),
            checkpoints=checkpoints,
            description=asdict(self),
        )


@request
class ShardingOptions(JaxOptions):
    """Options that save memory in JAX, for programs that do not do it by default."""

    fsdp: bool = flag(False, "With JAX: shard weights and optimizer moments across devices.", DEVICES)
    grad_ckpt: bool = flag(
        False, "With JAX: recompute each block's results for its gradient instead of keeping them.", DEVICES
    )


@dataclass(frozen=True, slots=True)
class JaxDevices:
    """Devices of all processes, as JAX sees them."""

    mesh: Mesh
    rank: int
    world_size: int

    @property
    def num_devices(self) -> int:
        """Number of devices, or groups of them that share heads, among which a batch is shared."""
        from train.loops.jax import DATA_AXIS

        return int(self.mesh.shape[DATA_AXIS])


def join_jax(device: str | None) -> None:
    """Connect to JAX's other processes; a program does so once, before it uses devices. Raises UsageError if JAX is not
    installed, or there is no such device."""
    if device is not None:
        os.environ["JAX_PLATFORMS"] = _PLATFORMS[device]
    with needing("jax", "`framework` jax"):
        from train.loops.jax import join_processes

    join_processes()


def open_jax_devices(tensor_parallel: int) -> JaxDevices:
    """Lay out the devices of all processes as `open_mesh` does."""
    from loaders.jax import host_rank
    from train.loops.jax import open_mesh

    return JaxDevices(open_mesh(tensor_parallel), *host_rank())
