"""A TPU as a device of PyTorch itself, by torch-tpu: a `train.loops.runtime.Runtime` of one process and one device.

torch-tpu registers the device `tpu` when torch is imported, so nothing of it is imported here. It excludes torch_xla,
needs Python 3.12, and has no device without a TPU: what is here follows the interface of 0.2.0, and has not run on
hardware.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import torch

from dataprep.errors import UsageError, install_hint
from train.loops.torch_runtime import RandomState, TorchRuntime

PACKAGE = "torch_tpu"
NO_TPU = "no TPU here; use --device tpu on a TPU VM, or --device cpu"


class TPURuntime(TorchRuntime):
    """One device that torch-tpu drives; PyTorch's operations are launched as on CUDA."""

    def __init__(self) -> None:
        if importlib.util.find_spec(PACKAGE) is None:
            raise UsageError(
                f"--device tpu needs torch-tpu: {install_hint('tpu-torch-tpu')} on Python 3.12 or newer, in an "
                "environment without torch_xla; or use --device xla"
            )
        try:
            self._module = torch.get_device_module("tpu")
        except RuntimeError as error:  # torch-tpu registers no device where it finds no TPU
            raise UsageError(NO_TPU) from error
        if not self._module.is_available():
            raise UsageError(NO_TPU)
        super().__init__("tpu", pin_memory=False)

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy rows to the device, and wait for everything that was launched."""
        moved = self.put(rows)
        self.wait()
        return moved

    def wait(self) -> None:
        """Wait for all streams of the device."""
        self._module.synchronize()

    def random_state(self) -> RandomState:
        """Return the states of the CPU's random generator, and of the device's."""
        return {"cpu": torch.get_rng_state(), "tpu": self._module.get_rng_state()}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state; one from another kind of device restores only the CPU's generator."""
        torch.set_rng_state(state["cpu"])
        if "tpu" in state:
            self._module.set_rng_state(state["tpu"])
