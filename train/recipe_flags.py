"""The flags that MAE's recipes share: the batch of all devices, and a learning rate that follows its size."""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.errors import UsageError
from train.flags import flag
from train.run_flags import RunFlags, check_shares
from train.runtime import Runtime
from train.schedule import HalfCosine, scaled_lr

UNSET = -1
DEVICE_BATCH = 64
"""Images of one device where neither batch size is given."""


@dataclass(frozen=True, kw_only=True)
class RecipeFlags(RunFlags):
    """How much, how fast."""

    batch_size: int | None = flag(None, "Images of one device and one part; -1: from effective_batch_size. Default 64.")
    effective_batch_size: int = flag(UNSET, "Images of one update: all devices, all parts.")
    start_epoch: int = flag(0, "First epoch, where nothing is resumed.")

    lr: float | None = flag(None, "Peak of the learning rate; default: blr x effective batch / 256.")
    blr: float = flag(1e-3, "Base learning rate, of a batch of 256.")
    min_lr: float = flag(0.0, "Learning rate at the end.")
    warmup_epochs: float = flag(40.0, "Linear rise of the learning rate, which then falls along half a cosine.")
    weight_decay: float = flag(0.05, "Of weights; biases, norms and tokens have none.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_epoch and self.resume:
            raise UsageError("--start_epoch and --resume; a checkpoint knows its epoch, give one of them")

    def schedule(self, effective_batch: int) -> HalfCosine:
        """The learning rate of a run with so many images an update."""
        return HalfCosine(
            lr=scaled_lr(self.blr, effective_batch) if self.lr is None else self.lr,
            min_lr=self.min_lr,
            warmup_epochs=self.warmup_epochs,
            epochs=self.epochs,
        )

    def effective_batch(self, runtime: Runtime) -> int:
        """Images of one update.

        Raises:
            UsageError: The two batch sizes disagree, or the batch cannot be shared among devices and parts.
        """
        shares = runtime.num_devices * self.accum_iter
        if self.effective_batch_size <= 0:
            given = DEVICE_BATCH if self.batch_size is None else self.batch_size
            if given <= 0:
                raise UsageError("no batch size: give --batch_size of one device or --effective_batch_size of all")
            return given * shares
        check_shares(self.effective_batch_size, runtime, self.accum_iter, name="effective_batch_size")
        if self.batch_size not in (None, UNSET, self.effective_batch_size // shares):
            raise UsageError(
                f"--batch_size {self.batch_size} on {runtime.num_devices} devices in {self.accum_iter} parts makes "
                f"{self.batch_size * shares}, --effective_batch_size is {self.effective_batch_size}; give one of them"
            )
        return self.effective_batch_size
