"""Entries of a checkpoint's state, whatever the framework: whether a run of this program saved it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from dataprep.errors import FormatError, UsageError

State: TypeAlias = dict[str, Any]
"""Entries of a checkpoint by their names: tensors or arrays on the host, and what JSON holds."""
STATE_VERSION = 1


def check_state(where: str, state: Mapping[str, Any], entries: Sequence[str]) -> None:
    """See that a run saved a state.

    Args:
        where: Path or URL that it was read from.
        state: What was read.
        entries: Names of the entries that the framework adds to those of every run.

    Raises:
        UsageError: It is something else, e.g. published weights, or of another version.
        FormatError: An entry is missing.
    """
    if "version" not in state:
        raise UsageError(f"{where}: {_contents(state)}, without the state of a run of this program; {_advice(state)}")
    if state["version"] != STATE_VERSION:
        raise UsageError(f"{where}: version {state['version']}, this program reads {STATE_VERSION}")
    if missing := [name for name in ("step", *entries, "loader", "description") if name not in state]:
        raise FormatError(f"{where}: no entry {missing[0]!r}; expected a checkpoint as a run saves it")


@contextlib.contextmanager
def taking_position(where: str) -> Iterator[None]:
    """Turn what goes wrong while a position or generators are set into a FormatError that names the checkpoint."""
    try:
        yield
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise FormatError(f"{where}: position or generators are none ({error}); choose another") from None


def _contents(state: Mapping[str, Any]) -> str:
    named = state.get("model", state)
    tensors = sum(hasattr(each, "shape") for each in named.values()) if isinstance(named, Mapping) else 0
    return f"weights ({tensors:,} tensors)" if tensors else f"no weights among its {len(state):,} entries"


def _advice(state: Mapping[str, Any]) -> str:
    named = state.get("model", state)
    if isinstance(named, Mapping) and "patch_embed.proj.weight" in named:
        return "--resume goes on with a run; `dataprep-finetune-mae --finetune` starts from such weights"
    return "--resume goes on with a checkpoint that a run saved"
