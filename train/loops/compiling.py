"""Compiled networks of PyTorch: `torch.compile`, and what a machine needs for it."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import torch
from torch import nn

from dataprep.errors import UsageError

DEFAULT_COMPILER = "g++"
"""C++ compiler that PyTorch calls if the variable CXX does not name another one."""


def compile_network(model: nn.Module, device: torch.device) -> None:
    """Compile the forward and backward pass of a network at its first batch; its weights keep their names.

    Args:
        model: Network on the device.
        device: Device that it is trained on.

    Raises:
        UsageError: The device compiles by itself, or this machine lacks what compiling for a CPU needs.
    """
    if device.type == "xla":
        raise UsageError("--compile is for cpu, cuda and tpu; XLA compiles every step anyway, leave it out")
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
            f"--compile on a CPU needs a C++ compiler: {compiler} was not found; install g++, name another one in the "
            "variable CXX, or leave --compile out"
        )
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise UsageError(
            f"--compile on a CPU needs Python's headers: {headers} has no Python.h; install python3-dev, or leave "
            "--compile out"
        )
