"""The flags that all training entries share: data, device, checkpoints, logs. An entry adds its own to them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dataprep.errors import UsageError
from dataprep.placement import POLICIES
from train.flags import flag
from train.loop import LoopConfig
from train.profiling import parse_steps
from train.runtime import DEVICES, PRECISIONS, Runtime

_TPU_FILES = ("/dev/accel0", "/dev/vfio/0")
"""Where Cloud TPU VMs show their first chip, older and newer ones."""
_LAUNCHER = (
    "there is no launcher: start this program once on every host; torch_xla finds devices and other hosts itself"
)
REFUSED = dict.fromkeys(("world_size", "local_rank", "dist_on_itp", "dist_url"), _LAUNCHER)
"""Flags of launchers that have no meaning, and why."""


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """What every run is told."""

    data_path: str = flag("", "Dataset, or image folder, tars or TFDS directory, on a disk or gs://; required.")
    index_dir: str | None = flag(None, "Where the index of data without a manifest is kept; default: the user's cache.")
    region_policy: str = flag(
        "refuse",
        "Of a bucket whose reading from here is known to cost money; off: nothing is asked.",
        choices=POLICIES,
        also=("region-policy",),
    )
    output_dir: str = flag("./output_dir", "Checkpoints, on a disk or gs://; '' saves nothing.")
    log_dir: str | None = flag(None, "log.txt, events for TensorBoard, profiles; default: output_dir.")

    epochs: int = flag(400, "Epochs to train.")
    max_steps: int = flag(0, "Stop after so many updates in all, schedule unchanged; 0: train all epochs.")
    accum_iter: int = flag(1, "Parts of a batch over which the gradient is accumulated.")
    min_crop: float = flag(0.08, "Smallest share of an image's area that a crop has.")
    num_workers: int | None = flag(None, "Threads that decode; default: one a core, at most 16.")
    pin_mem: bool | None = flag(None, "CUDA: copy from pinned memory, beside the steps; on by default.", either=True)

    device: str | None = flag(
        None, "Default: xla where there is a TPU or PJRT_DEVICE is set, then cuda, then cpu.", choices=DEVICES
    )
    use_xla: bool = flag(False, "The same as --device xla.")
    precision: str = flag("auto", "Of matrix products; auto: bfloat16 on CUDA.", choices=PRECISIONS)
    seed: int = flag(0, "Of weights, order, crops and whatever else is drawn.")

    resume: str = flag("", "A checkpoint, or `automatic`: the newest valid one in output_dir.")
    ckpt_interval: int = flag(20, "Epochs between checkpoints; the last one is saved in any case.")
    ckpt_interval_steps: int = flag(0, "Updates between checkpoints; 0: none for this reason.")
    ckpt_interval_minutes: float = flag(0.0, "Minutes between checkpoints; 0: none for this reason.")
    keep_checkpoints: int = flag(3, "Newest checkpoints that stay.")
    log_interval_steps: int = flag(20, "Updates between log lines.")
    diagnose: bool = flag(False, "Measure for half a minute what the run waits for, say it, and end; nothing is saved.")
    profile_steps: str = flag("", "A:B traces from update A until before B, for TensorBoard.")

    def __post_init__(self) -> None:
        if not self.data_path:
            raise UsageError("--data_path is missing; give a dataset or an image folder")
        if self.use_xla and self.device not in (None, "xla"):
            raise UsageError(f"--use_xla and --device {self.device}; give one of them")

    @property
    def log_folder(self) -> str | None:
        """Where log lines and events go; None where checkpoints go to a bucket and nothing else was said."""
        if self.log_dir is not None:
            return self.log_dir or None
        return None if "://" in self.output_dir else self.output_dir or None

    @property
    def device_name(self) -> str:
        """`xla`, `cuda` or `cpu`."""
        import torch

        if self.use_xla or self.device:
            return self.device or "xla"
        if "PJRT_DEVICE" in os.environ or any(Path(file).exists() for file in _TPU_FILES):
            return "xla"
        return "cuda" if torch.cuda.is_available() else "cpu"

    def loop_config(self, *, clip_grad_norm: float = 0.0, eval_interval: int = 1) -> LoopConfig:
        """What the loop is told of all this.

        Args:
            clip_grad_norm: Longest gradient, of all parameters together; 0: as it is.
            eval_interval: Epochs between evaluations; the last one is evaluated in any case.
        """
        return LoopConfig(
            epochs=self.epochs,
            accum_iter=self.accum_iter,
            log_interval_steps=self.log_interval_steps,
            ckpt_interval=self.ckpt_interval,
            ckpt_interval_steps=self.ckpt_interval_steps,
            ckpt_interval_minutes=self.ckpt_interval_minutes,
            profile_steps=parse_steps(self.profile_steps),
            max_steps=self.max_steps,
            clip_grad_norm=clip_grad_norm,
            eval_interval=eval_interval,
        )


def check_shares(batch_size: int, runtime: Runtime, accum_iter: int, *, name: str = "batch_size") -> int:
    """A batch of all devices, if they and the parts can share it.

    Raises:
        UsageError: They cannot.
    """
    shares = runtime.num_devices * accum_iter
    if batch_size < 1 or batch_size % shares:
        raise UsageError(
            f"--{name} {batch_size} cannot be shared by {runtime.num_devices} devices x {accum_iter} parts; choose a "
            f"multiple of {shares}"
        )
    return batch_size
