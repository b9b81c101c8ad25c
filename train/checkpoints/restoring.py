"""Weights and moments of a checkpoint for a model of PyTorch: tensors that do not fit are named with their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dataprep.errors import UsageError
from train.checkpoints.state import flags_of_its_run


def check_model(where: str, found: Any, own: Mapping[str, torch.Tensor], changes: list[str]) -> None:
    """Check that tensors are those of a model.

    Args:
        where: Path or URL that they were read from.
        found: Tensors by their names.
        own: The model's own tensors by their names.
        changes: Flags with other values in the run that saved the checkpoint, e.g. `--model vit_base_patch16`.

    Raises:
        UsageError: The tensors are of another model.
    """
    if difference := difference_of(found, own):
        raise UsageError(
            f"{where}: from another model: {difference}{flags_of_its_run(changes)}; use the flags that it was trained "
            "with"
        )


def difference_of(found: Any, own: Mapping[str, torch.Tensor]) -> str:
    """Describe the first name or shape in which tensors and a model differ; '' if there is none."""
    if not isinstance(found, dict):
        return f"{_shape(found)}, expected tensors by their names"
    for name in sorted(map(str, found.keys() ^ own.keys())):
        return f"{name} is only in {'the file' if name in found else 'this model'}"
    for name, tensor in own.items():
        theirs = found[name]
        if not isinstance(theirs, torch.Tensor) or theirs.shape != tensor.shape:
            return f"{name} is {_shape(theirs)}, in this model {_shape(tensor)}"
    return ""


def restore_optimizer(where: str, optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Restore moments from a checkpoint; learning rates, decays and the like stay those of this command line.

    Raises:
        UsageError: The moments are of another optimiser.
    """
    own = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(state)
        for parameter, moments in optimizer.state.items():
            for each in moments.values():
                if isinstance(each, torch.Tensor) and each.dim() and each.shape != parameter.shape:
                    raise ValueError(f"moments of {_shape(each)} for weights of {_shape(parameter)}")
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: from another optimiser ({error}); use the flags that it was trained with") from None
    for group, values in zip(optimizer.param_groups, own, strict=True):
        group.update(values)


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        kind = type(value).__name__
        return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    return " x ".join(map(str, value.shape)) or "a number"
