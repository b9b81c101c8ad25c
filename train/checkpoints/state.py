"""Entries of a checkpoint's state, for every framework: the check that a run of this program saved it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from dataprep.errors import FormatError, UsageError

State: TypeAlias = dict[str, Any]
"""Entries of a checkpoint by their names: tensors or arrays on the host, and JSON values."""
STATE_VERSION = 1
CLASSES = "classes"
"""Name of the entry with the names of the data's classes; checkpoints before 0.2.0 have none."""
_SHOWN_FLAGS = 3
"""Maximum number of flags in a message."""


def check_state(where: str, state: Mapping[str, Any], entries: Sequence[str]) -> None:
    """Check that a state was saved by a run.

    Args:
        where: Path or URL that the state was read from.
        state: Entries that were read.
        entries: Names of the entries that the framework adds to those of every run.

    Raises:
        UsageError: The state is something else, e.g. published weights, or has another version.
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
    """Turn any error while a position or generators are restored into a FormatError that names the checkpoint."""
    try:
        yield
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise FormatError(f"{where}: position or generators are invalid ({error}); choose another") from None


def _contents(state: Mapping[str, Any]) -> str:
    named = state.get("model", state)
    tensors = sum(hasattr(each, "shape") for each in named.values()) if isinstance(named, Mapping) else 0
    return f"weights ({tensors:,} tensors)" if tensors else f"no weights among its {len(state):,} entries"


def _advice(state: Mapping[str, Any]) -> str:
    named = state.get("model", state)
    if isinstance(named, Mapping) and "patch_embed.proj.weight" in named:
        return (
            "--resume and --init take checkpoints of a run; `dataprep-finetune-mae --finetune` starts from such weights"
        )
    return "--resume and --init need a checkpoint that a run saved"


def flags_of_its_run(changes: Sequence[str]) -> str:
    """Return the part of a message that names flags with other values in the run that saved a checkpoint."""
    return f"; its run had {', '.join(changes[:_SHOWN_FLAGS])}" if changes else ""
